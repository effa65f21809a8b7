//! A step of three layers whose outputs go to the host, worked out on paper.

use rematic_replay::{
    Action, Allocator, BufferId, Checkpoint, Clock, Host, Ledger, Moves, Observer, Ran, Regions, Schedule,
};
use rematic_trace::{
    Bytes, CallId, Category, Dtype, Event, Flags, Layout, LayoutId, Millis, Module, ModuleId, OpId, OpRecord, Phase,
    StepTrace, StorageId, Tensor,
};

const KEPT: u64 = 4096;
const PASSED: u64 = 2048;

/// Three layers. In each, `f` makes what its backward reads, `KEPT` bytes, and `g` makes of it what the next layer is given,
/// `PASSED` bytes, as is there before the first.
struct Toy {
    trace: StepTrace,
    layout: LayoutId,
    /// By layer.
    f: Vec<OpId>,
}

impl Toy {
    fn new() -> Self {
        let mut trace = StepTrace::new("three layers");
        let layout = trace.layout(&Layout::contiguous(Dtype::U8, &[0]));
        let mut toy = Toy { trace, layout, f: Vec::new() };
        let root = toy.module("Model", None);
        let model = toy.trace.enter(root, Vec::new());
        let mut given = toy.trace.storage_before_step(PASSED, Category::Other);
        for layer in 0..3 {
            let module = toy.module(&format!("layer{layer}"), Some(root));
            toy.module("inner", Some(module));
            let call = toy.trace.enter(module, vec![given]);
            let kept = toy.trace.next_storage();
            let f = toy.run(Phase::Forward, Some(call), None, &[given], Some(KEPT), true);
            let passed = toy.trace.next_storage();
            toy.run(Phase::Forward, Some(call), None, &[kept], Some(PASSED), false);
            toy.trace.push(Event::Drop(kept));
            toy.trace.exit(call, vec![passed]);
            if layer > 0 {
                toy.trace.push(Event::Drop(given));
            }
            toy.f.push(f);
            given = passed;
        }
        toy.trace.exit(model, Vec::new());
        for &f in toy.f.clone().iter().rev() {
            toy.run(Phase::Backward, None, Some(f), &[], None, false);
            toy.trace.push(Event::Unsave(f));
        }
        toy
    }

    fn module(&mut self, name: &str, parent: Option<ModuleId>) -> ModuleId {
        let (parameters, buffers) = (Vec::new(), Vec::new());
        self.trace.add_module(Module { name: name.to_owned(), class: "Module".to_owned(), parent, parameters, buffers })
    }

    fn run(
        &mut self,
        phase: Phase,
        call: Option<CallId>,
        differentiates: Option<OpId>,
        inputs: &[StorageId],
        makes: Option<u64>,
        saves: bool,
    ) -> OpId {
        let layout = self.layout;
        let tensor = |storage: StorageId| Tensor { storage, layout };
        let made: Vec<Tensor> = makes.iter().map(|_| tensor(self.trace.next_storage())).collect();
        let births: Vec<(u64, Category)> = makes.iter().map(|bytes| (*bytes, Category::Activation)).collect();
        let inputs: Vec<Tensor> = inputs.iter().map(|storage| tensor(*storage)).collect();
        self.trace.run(OpRecord {
            name: "op",
            phase,
            call,
            differentiates,
            flags: Flags::default(),
            mutates: &[],
            inputs: &inputs,
            outputs: &made,
            saves: if saves { &made } else { &[] },
            births: &births,
        })
    }

    /// All layers with their outputs kept; those of some of them on the host.
    fn checkpoints(&self, regions: &Regions, offloaded: &[usize]) -> Vec<Checkpoint> {
        let layers = regions.all().entries().filter(|(_, region)| region.ops.len() == 2);
        layers
            .enumerate()
            .map(|(layer, (id, _))| Checkpoint {
                offloaded: if offloaded.contains(&layer) { vec![self.f[layer]] } else { Vec::new() },
                ..Checkpoint::new(id, vec![self.f[layer]])
            })
            .collect()
    }

    fn time_of(&self) -> impl Fn(OpId) -> Millis + '_ {
        |op| Millis(if self.trace.op(op).phase == Phase::Backward { 2.0 } else { 1.0 })
    }
}

/// The bytes after every operator and every copy, and what was copied.
#[derive(Default)]
struct Seen {
    totals: Vec<(String, u64)>,
    highest: u64,
}

impl Observer for Seen {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        let total = ledger.snapshot().total().0;
        self.highest = self.highest.max(total);
        let name = |buffer: BufferId| ledger.storage_of(buffer).0.index();
        let what = match action {
            Action::Run(Ran { op, again: false }) => format!("run {}", op.index()),
            Action::Offload(buffer) => format!("offload {}", name(buffer)),
            Action::Offloaded(buffer) => format!("offloaded {}", name(buffer)),
            Action::Fetch(buffer) => format!("fetch {}", name(buffer)),
            Action::Fetched(buffer) => format!("fetched {}", name(buffer)),
            _ => return,
        };
        self.totals.push((what, total));
    }
}

#[test]
fn bytes_go_with_the_next_layer_and_come_back_with_it() {
    let toy = Toy::new();
    toy.trace.validate().unwrap();
    let (regions, start) = (Regions::new(&toy.trace), Ledger::new(&toy.trace, Allocator::Cpu));
    let checkpoints = toy.checkpoints(&regions, &[0, 1]);
    let moves = Moves::new(&regions, &checkpoints);
    assert_eq!((moves.leaves_with, moves.returns_with), (vec![1, 2, 2], vec![1, 2, 2]));
    let mut seen = Seen::default();
    let end = Schedule::planned(&toy.trace, &start, &regions, &checkpoints).replay(&mut seen);
    // Storages: 0 is given, then what is kept and what is passed on of each layer.
    let expected = [
        ("run 0", 6144),
        ("offload 1", 6144),
        ("run 1", 8192),
        ("run 2", 12288),
        ("offload 3", 12288),
        ("run 3", 14336),
        ("offloaded 1", 14336),
        ("run 4", 14336),
        ("run 5", 16384),
        ("offloaded 3", 16384),
        // Backward of the last layer begins: what the second kept comes back.
        ("fetch 3", 16384),
        ("run 6", 16384),
        ("fetch 1", 14336),
        ("fetched 3", 14336),
        ("run 7", 14336),
        ("fetched 1", 8192),
        ("run 8", 8192),
    ];
    let expected: Vec<(String, u64)> = expected.iter().map(|(what, total)| ((*what).to_owned(), *total)).collect();
    assert_eq!(seen.totals, expected);
    assert_eq!((seen.highest, end.snapshot().total()), (16384, Bytes(2 * PASSED)));
    let mut kept = Seen::default();
    let plain = toy.checkpoints(&regions, &[]);
    let end = Schedule::planned(&toy.trace, &start, &regions, &plain).replay(&mut kept);
    assert_eq!((kept.highest, end.snapshot().total()), (20480, Bytes(2 * PASSED)));
}

#[test]
fn copies_wait_for_each_other_and_the_device_for_them() {
    let toy = Toy::new();
    let (regions, start) = (Regions::new(&toy.trace), Ledger::new(&toy.trace, Allocator::Cpu));
    // A copy takes 3 ms, an operator of forward 1 ms, one of backward 2 ms.
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let per_byte = Millis(3.0 / KEPT as f64);
    let replay = |offloaded: &[usize], per_byte: Millis| {
        let checkpoints = toy.checkpoints(&regions, offloaded);
        let mut seen = (Clock::new(&toy.trace, toy.time_of()).with_copies(per_byte), Host::new(&toy.trace));
        Schedule::planned(&toy.trace, &start, &regions, &checkpoints).replay(&mut seen);
        seen
    };
    let (clock, host) = replay(&[0, 1], per_byte);
    // Out: 1 to 4 and 4 to 7, awaited at 4 and 6. Back: 7 to 10 and 10 to 13, awaited at 9 and 12.
    assert_eq!((clock.stalled(), clock.end()), (Millis(3.0), Millis(15.0)));
    assert_eq!((host.out(), host.back(), host.pinned()), (Bytes(2 * KEPT), Bytes(2 * KEPT), Bytes(2 * KEPT)));
    // Copies that are quick enough are hidden.
    let (clock, _) = replay(&[0, 1], Millis(1.0 / 4096.0));
    assert_eq!((clock.stalled(), clock.end()), (Millis(0.0), Millis(12.0)));
    // The last layer has nobody to wait with: it waits for both copies.
    let (clock, _) = replay(&[2], per_byte);
    assert_eq!((clock.stalled(), clock.end()), (Millis(2.0 + 3.0), Millis(17.0)));
    let (clock, host) = replay(&[], per_byte);
    assert_eq!((clock.end(), host.out(), host.pinned()), (Millis(12.0), Bytes(0), Bytes(0)));
}

#[test]
fn pinned_blocks_are_powers_of_two() {
    for (bytes, block) in [(1, 1), (1024, 1024), (1025, 2048), (3 << 30, 4 << 30), (u64::MAX, u64::MAX)] {
        assert_eq!(Host::block(Bytes(bytes)), Bytes(block));
    }
}
