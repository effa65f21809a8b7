//! Even shards, and that nothing else divides by the number of ranks.

use std::fs;
use std::path::{Path, PathBuf};

use rematic_fake::models::{Model, Options};
use rematic_layout::{EvenShards, even_shards};
use rematic_replay::{Allocator, Ledger, Ran, Schedule, Timeline};
use rematic_trace::{Axis, Category, Event, StepTrace, StorageId};

fn step(name: &str) -> StepTrace {
    let options = Options { layers: Some(2), seq: Some(64), batch: Some(2), ..Options::default() };
    Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap()
}

fn is_spread(category: Category) -> bool {
    matches!(category, Category::Parameter | Category::Gradient | Category::Optimizer)
}

/// Bytes after every operator of the whole step, with a share of what is spread, counted storage by storage.
fn counted(trace: &StepTrace, ranks: u64) -> Vec<u64> {
    let start = Ledger::new(trace, Allocator::Cuda);
    let storages: Vec<StorageId> = (0..trace.storages().len()).map(StorageId::new).collect();
    let mut totals = Vec::new();
    Schedule::plain(trace, &start).replay(&mut |_: Ran, ledger: &Ledger| {
        let alive = storages.iter().filter(|storage| ledger.is_alive(**storage));
        let own = alive.map(|storage| {
            let bytes = trace.storages()[*storage].bytes;
            let spread = ledger.category(*storage).is_some_and(is_spread);
            (if spread { bytes.div_ceil(ranks) } else { bytes }).div_ceil(512) * 512
        });
        totals.push(own.sum());
    });
    totals
}

#[test]
fn each_rank_has_a_share_that_is_rounded_as_a_share() {
    for name in ["llama-3-8b", "gpt2"] {
        let trace = step(name);
        for ranks in [2, 3, 8, 64, 1000] {
            let rank = even_shards(&trace, ranks).unwrap();
            rank.validate().unwrap();
            let timeline = Timeline::replay(&rank, Allocator::Cuda);
            let found: Vec<u64> = timeline.totals().iter().map(|total| total.0).collect();
            assert_eq!(found, counted(&trace, ranks), "{name} over {ranks}");
            assert_eq!(rank.place.ranks(), Some(ranks));
            assert_eq!((rank.ops(), rank.calls()), (trace.ops(), trace.calls()));
            let mut text = Vec::new();
            rank.to_writer(&mut text).unwrap();
            assert!(StepTrace::from_json(&text, Path::new("rank.rmt")).unwrap() == *rank, "{name} over {ranks}");
        }
    }
}

#[test]
fn gradients_are_whole_until_they_are_gradients() {
    let trace = step("llama-3-8b");
    let rank = even_shards(&trace, 8).unwrap();
    let shrunk = rank.events().windows(2).filter_map(|pair| match pair {
        [Event::Recategorize(storage, Category::Gradient), Event::Shrink(shrinks, bytes)] => {
            assert_eq!((storage, *bytes), (shrinks, trace.storages()[*storage].bytes.div_ceil(8)));
            Some(storage)
        }
        _ => None,
    });
    let gradients = trace.events().iter().filter(|event| matches!(event, Event::Recategorize(_, Category::Gradient)));
    assert_eq!(shrunk.count(), gradients.count());
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let trace = step("gpt2");
    assert_eq!(even_shards(&trace, 0).err(), Some(EvenShards::NoRanks));
    assert_eq!(even_shards(&trace, 1 << 32).err(), Some(EvenShards::TooManyRanks));
    let rank = even_shards(&trace, 4).unwrap();
    assert!(*even_shards(&rank, 1).unwrap() == *rank && *even_shards(&rank, 4).unwrap() == *rank);
    assert_eq!(even_shards(&rank, 8).err(), Some(EvenShards::ShardedAlready));
    assert!(*even_shards(&trace, 1).unwrap() == trace);
}

/// A step that says that it is one of many, and has all of everything: whoever divided once more would count less.
#[test]
fn a_place_alone_changes_no_bytes() {
    let trace = step("llama-3-8b");
    let mut placed = trace.clone();
    placed.place.axes.push(Axis { name: "shard".to_owned(), size: 8, coordinate: 3 });
    for allocator in [Allocator::Cuda, Allocator::Cpu] {
        assert_eq!(Timeline::replay(&placed, allocator), Timeline::replay(&trace, allocator));
    }
}

/// Torch's model of memory, in a crate of its own, divides by itself: it is torch's. A model that ranks share is built from parts,
/// whose sizes one file knows.
#[test]
fn only_the_pass_divides() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        if !["rematic-layout", "rematic-torch"].iter().any(|name| folder.ends_with(name)) {
            search(&folder.join("src"), &mut found);
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

fn search(folder: &Path, found: &mut Vec<String>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>() {
        if path.is_dir() {
            search(&path, found);
        } else if !path.ends_with("rematic-fake/src/parallel.rs")
            && path.extension().is_some_and(|extension| extension == "rs")
        {
            let text = fs::read_to_string(&path).unwrap();
            let divides = |line: &&str| {
                let code = line.split("//").next().unwrap_or_default();
                let names = ["world_size", "ranks"].iter().any(|name| code.contains(name));
                names
                    && ["/ ", "div_ceil", "div_euclid", "checked_div", "next_multiple_of"]
                        .iter()
                        .any(|sign| code.contains(sign))
            };
            found.extend(text.lines().filter(divides).map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
}
