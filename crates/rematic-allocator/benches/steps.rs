//! How fast the requests of a training step are served: `cargo bench -p rematic-allocator`.
//!
//! The recording of Llama-3-8B (bf16, one sequence of 8192) has its construction and three steps.

#[path = "../tests/recorded/reader.rs"]
#[expect(dead_code, reason = "only the calls are read")]
mod reader;

use divan::counter::ItemsCount;
use reader::{Call, Recording};
use rematic_allocator::{Allocation, Allocator, Device, Settings};

fn main() {
    divan::main();
}

fn recording(name: &str) -> Recording {
    reader::read(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recordings/step-{name}.txt.zst")),
    )
}

/// A request, or a free of the block of an earlier one.
#[derive(Clone, Copy)]
enum Request {
    Alloc { size: u64, stream: u64 },
    Free(usize),
}

fn requests(recording: &Recording) -> Vec<Request> {
    let calls = recording.lines.iter().filter_map(|line| match line.call {
        Call::Alloc { size, stream } => Some(Request::Alloc { size, stream }),
        Call::Free(block) => Some(Request::Free(block)),
        _ => None,
    });
    calls.collect()
}

fn serve(allocator: &mut Allocator, requests: &[Request], blocks: &mut Vec<Allocation>) {
    for &request in requests {
        match request {
            Request::Alloc { size, stream } => blocks.push(allocator.alloc(size, stream).unwrap()),
            Request::Free(block) => allocator.free(blocks[block]).unwrap(),
        }
    }
}

const SETTINGS: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:200"];

/// Everything from the start of the process on.
#[divan::bench(args = SETTINGS)]
fn from_the_start(bencher: divan::Bencher<'_, '_>, settings: &str) {
    let requests = requests(&recording("llama"));
    let settings: Settings = settings.parse().unwrap();
    let mut blocks = Vec::with_capacity(requests.len());
    bencher.counter(ItemsCount::new(requests.len())).bench_local(|| {
        blocks.clear();
        let mut allocator = Allocator::new(settings.clone(), Device::with_memory(200_000_000_000));
        serve(&mut allocator, &requests, &mut blocks);
        allocator.counters().reserved.peak
    });
}

/// The third step, after the first two: what repeats in training.
#[divan::bench(args = SETTINGS)]
fn one_step(bencher: divan::Bencher<'_, '_>, settings: &str) {
    let requests = requests(&recording("llama"));
    let (before, step) = requests.split_at(third_step(&requests));
    let mut blocks = Vec::with_capacity(requests.len());
    let mut allocator = Allocator::new(settings.parse().unwrap(), Device::with_memory(200_000_000_000));
    serve(&mut allocator, before, &mut blocks);
    let prepared = blocks.len();
    bencher.counter(ItemsCount::new(step.len())).with_inputs(|| allocator.clone()).bench_local_values(
        |mut allocator| {
            blocks.truncate(prepared);
            serve(&mut allocator, step, &mut blocks);
            allocator.counters().reserved.peak
        },
    );
}

/// The second and the third step ask for the same sizes, so the third begins where those of the second begin again.
fn third_step(requests: &[Request]) -> usize {
    let asked: Vec<(usize, u64)> = requests
        .iter()
        .enumerate()
        .filter_map(|(at, request)| match request {
            Request::Alloc { size, .. } => Some((at, *size)),
            Request::Free(_) => None,
        })
        .collect();
    let sizes = |part: &[(usize, u64)]| part.iter().map(|&(_, size)| size).collect::<Vec<_>>();
    let count = asked.len();
    let same = |step: usize| sizes(&asked[count - step..]) == sizes(&asked[count - 2 * step..count - step]);
    let step = (count / 8..count / 2).find(|&step| same(step)).expect("two equal steps");
    asked[count - step].0
}
