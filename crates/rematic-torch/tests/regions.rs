//! Facts about regions of steps written by hand.

use rematic_cost::{CostRule, Costs, Device};
use rematic_replay::Allocator;
use rematic_torch::{SacFacts, SacRegion, SacStats};
use rematic_trace::{
    Bytes, Category, Dtype, Flags, Layout, Module, ModuleId, OpRecord, Phase, StepTrace, StorageId, Tensor,
};

/// A step of which only names, storages and flags matter.
struct Step {
    trace: StepTrace,
    root: ModuleId,
    child: ModuleId,
}

const BYTES: u64 = 400;

impl Step {
    fn new() -> Self {
        let mut trace = StepTrace::new("by hand");
        let module = |name: &str, parent| Module {
            name: name.to_owned(),
            class: "Module".to_owned(),
            parent,
            parameters: Vec::new(),
            buffers: Vec::new(),
        };
        let root = trace.add_module(module("Root", None));
        let child = trace.add_module(module("child", Some(root)));
        trace.add_module(module("leaf", Some(child)));
        Step { trace, root, child }
    }

    fn tensor(&mut self, storage: StorageId) -> Tensor {
        Tensor { storage, layout: self.trace.layout(&Layout::contiguous(Dtype::F32, &[BYTES / 4])) }
    }

    fn input(&mut self) -> Tensor {
        let storage = self.trace.storage_before_step(BYTES, Category::Other);
        self.tensor(storage)
    }

    fn record(&mut self, name: &str, flags: Flags, inputs: &[Tensor], outputs: &[Tensor], saves: &[Tensor]) {
        let births: Vec<_> = outputs
            .iter()
            .filter(|output| output.storage.index() >= self.trace.storages().len())
            .map(|_| (BYTES, Category::Activation))
            .collect();
        self.trace.run(OpRecord {
            name,
            phase: Phase::Forward,
            call: None,
            differentiates: None,
            flags,
            mutates: &[],
            inputs,
            outputs,
            saves,
            births: &births,
        });
    }

    /// An operator with a new output, which it saves if asked to.
    fn run(&mut self, name: &str, input: Tensor, saves: bool) -> Tensor {
        let output = self.trace.next_storage();
        let output = self.tensor(output);
        let outputs = [output];
        self.record(name, Flags::default(), &[input], &outputs, if saves { &outputs } else { &[] });
        output
    }

    fn view(&mut self, input: Tensor) {
        self.record("view.default", Flags { view: true, ..Flags::default() }, &[input], &[input], &[]);
    }

    fn in_place(&mut self, name: &str, target: Tensor) {
        self.record(name, Flags::default(), &[target], &[target], &[]);
    }

    fn stats(&self, allocator: Allocator) -> Vec<SacStats> {
        let costs = Costs::new(&self.trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
        let facts = SacFacts::new(&self.trace, &costs, allocator);
        SacRegion::all(&self.trace).iter().map(|region| facts.stats(region)).collect()
    }
}

/// The child's operators within the root's: indices, in-place parents and the last operator's memory are its own.
#[test]
fn a_region_inside_another() {
    let mut step = Step::new();
    let input = step.input();
    let outer = step.trace.enter(step.root, vec![input.storage]);
    let first = step.run("mm.default", input, false);
    let inner = step.trace.enter(step.child, Vec::new());
    step.in_place("relu_.default", first);
    let second = step.run("mm.default", first, true);
    step.view(second);
    step.in_place("add_.Tensor", second);
    step.trace.exit(inner, vec![second.storage]);
    let third = step.run("gelu.default", second, false);
    step.record("detach.default", Flags { view: true, ..Flags::default() }, &[third], &[third], &[]);
    step.trace.exit(outer, vec![third.storage]);

    let [root, child] = step.stats(Allocator::Cpu).try_into().unwrap();
    assert_eq!(root.func_names, ["mm", "relu_", "mm", "view", "add_", "gelu"]);
    assert_eq!(root.memory, [400, 400, 400, 0, 400, 0].map(Bytes));
    assert_eq!(root.inplace_ops, [(1, 0), (4, 2)]);
    assert_eq!(root.saved_autograd_ops, [2, 3, 4]);
    assert!(!root.force_store_random);

    assert_eq!(child.func_names, ["relu_", "mm", "view", "add_"]);
    // What relu_ changes comes from outside, so it is its own parent.
    assert_eq!(child.inplace_ops, [(0, 0), (3, 1)]);
    assert_eq!(child.memory, [400, 0, 0, 400].map(Bytes));
    assert_eq!((child.view_like_ops.as_slice(), child.force_store_random), ([2].as_slice(), true));

    let [root, _] = step.stats(Allocator::Cuda).try_into().unwrap();
    assert_eq!(root.memory[0], Bytes(512));
}

/// Torch would take the view for the parent, and so change the input once more when it recomputes.
#[test]
fn a_view_of_something_from_outside_is_no_parent() {
    let mut step = Step::new();
    let input = step.input();
    let call = step.trace.enter(step.root, vec![input.storage]);
    step.view(input);
    step.in_place("add_.Tensor", input);
    step.trace.exit(call, vec![input.storage]);
    assert_eq!(step.stats(Allocator::Cpu)[0].inplace_ops, [(1, 1)]);
}

/// Whether an output is saved is judged when the region returns: what comes later does not count.
#[test]
fn saving_after_the_region_returned_does_not_count() {
    let mut step = Step::new();
    let input = step.input();
    let outer = step.trace.enter(step.root, vec![input.storage]);
    let inner = step.trace.enter(step.child, vec![input.storage]);
    let output = step.run("mm.default", input, false);
    step.trace.exit(inner, vec![output.storage]);
    step.record("pow.Tensor_Scalar", Flags::default(), &[output], &[], &[output]);
    step.trace.exit(outer, vec![output.storage]);
    let [root, child] = step.stats(Allocator::Cpu).try_into().unwrap();
    // An operator without outputs counts as saved, as in torch.
    assert_eq!((root.saved_autograd_ops, child.saved_autograd_ops), (vec![0, 1], vec![]));
}

#[test]
fn modules_without_children_are_no_regions_and_empty_regions_are_empty() {
    let mut step = Step::new();
    let call = step.trace.enter(step.root, Vec::new());
    let leaf = step.trace.enter(ModuleId::new(2), Vec::new());
    step.trace.exit(leaf, Vec::new());
    step.trace.exit(call, Vec::new());
    assert_eq!(step.stats(Allocator::Cpu), [SacStats { force_store_random: true, ..SacStats::default() }]);
}
