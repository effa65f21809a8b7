//! What changes in place decides what may be saved: steps written by hand.

use rematic_plan::{Fate, Writes, bundles, nearest_saved};
use rematic_replay::Regions;
use rematic_trace::{
    Category, Dtype, Flags, Layout, Module, ModuleId, OpId, OpRecord, Parameter, Phase, StepTrace, StorageId, Tensor,
};

/// A root that calls a child, which has a leaf and is the region that is looked at.
struct Step {
    trace: StepTrace,
    child: ModuleId,
    /// The part of the step that runs now.
    phase: Phase,
    call: Option<rematic_trace::CallId>,
    last_saving: Option<OpId>,
}

const VIEW: Flags = Flags { view: true, random: false, host: false, holds: false };
const RANDOM: Flags = Flags { view: false, random: true, host: false, holds: false };

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
        Step { trace, child, phase: Phase::Forward, call: None, last_saving: None }
    }

    fn tensor(&mut self, storage: StorageId) -> Tensor {
        Tensor { storage, layout: self.trace.layout(&Layout::contiguous(Dtype::F32, &[100])) }
    }

    fn before(&mut self, category: Category) -> Tensor {
        let storage = self.trace.storage_before_step(400, category);
        self.tensor(storage)
    }

    fn parameter(&mut self, module: ModuleId) -> Tensor {
        let tensor = self.before(Category::Parameter);
        let parameter = Parameter { name: "weight".to_owned(), storage: tensor.storage, layout: tensor.layout };
        self.trace.module_mut(module).parameters.push(parameter);
        tensor
    }

    fn record(&mut self, flags: Flags, inputs: &[Tensor], output: Tensor, changed: &[StorageId], saves: bool) {
        let is_new = output.storage.index() >= self.trace.storages().len();
        let births = if is_new { vec![(400, Category::Activation)] } else { Vec::new() };
        let saved = [output];
        let op = self.trace.run(OpRecord {
            name: "op.default",
            phase: self.phase,
            call: None,
            differentiates: self.last_saving.filter(|_| self.phase == Phase::Backward),
            flags,
            mutates: changed,
            inputs,
            outputs: &[output],
            saves: if saves { &saved } else { &[] },
            births: &births,
        });
        if saves {
            self.last_saving = Some(op);
        }
    }

    /// An operator with a new output, which autograd saves.
    fn make(&mut self, input: Tensor) -> Tensor {
        self.make_flagged(Flags::default(), input)
    }

    fn make_flagged(&mut self, flags: Flags, input: Tensor) -> Tensor {
        let output = self.trace.next_storage();
        let output = self.tensor(output);
        let saves = self.phase == Phase::Forward;
        self.record(flags, &[input], output, &[], saves);
        output
    }

    fn view(&mut self, input: Tensor) -> Tensor {
        self.record(VIEW, &[input], input, &[], false);
        input
    }

    fn change(&mut self, target: Tensor) {
        self.record(Flags::default(), &[target], target, &[target.storage], false);
    }

    fn enter(&mut self, given: &[Tensor]) {
        self.call = Some(self.trace.enter(self.child, given.iter().map(|tensor| tensor.storage).collect()));
    }

    fn exit(&mut self) {
        self.trace.exit(self.call.take().unwrap(), Vec::new());
    }

    /// Backward begins: the region runs again.
    fn backward(&mut self, of: Tensor) {
        self.phase = Phase::Backward;
        self.make(of);
    }

    fn bundles(&self) -> Option<Vec<(Vec<usize>, Fate)>> {
        let regions = Regions::new(&self.trace);
        let found = bundles(&self.trace, &Writes::new(&self.trace), &regions.all().items()[0])?;
        Some(found.into_iter().map(|bundle| (bundle.ops, bundle.fate)).collect())
    }

    fn nearest(&self, saved: &[usize]) -> Option<Vec<usize>> {
        let regions = Regions::new(&self.trace);
        let region = &regions.all().items()[0];
        let saved: Vec<OpId> = saved.iter().map(|op| OpId::new(region.ops.start + op)).collect();
        let found = nearest_saved(&self.trace, &Writes::new(&self.trace), region, &saved)?;
        Some(found.into_iter().map(|op| op.index() - region.ops.start).collect())
    }
}

#[test]
fn what_is_changed_inside_goes_with_its_maker_and_its_readers() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    step.enter(&[input]);
    let first = step.make(input);
    let second = step.make(first);
    step.view(first);
    step.change(first);
    let third = step.make(first);
    step.exit();
    step.backward(third);
    assert_eq!(step.bundles().unwrap(), [(vec![0, 1, 3], Fate::Free), (vec![4], Fate::Free)]);
    // Saving a part of a bundle is saving nothing of it.
    assert_eq!(step.nearest(&[0, 3, 4]).unwrap(), [4]);
    assert_eq!(step.nearest(&[0, 1, 3]).unwrap(), [0, 1, 3]);
    assert_ne!(second, third);
}

#[test]
fn a_reader_between_two_changes_goes_with_both() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    step.enter(&[input]);
    let first = step.make(input);
    step.change(first);
    step.make(first);
    step.change(first);
    let last = step.make(first);
    step.exit();
    step.backward(last);
    assert_eq!(step.bundles().unwrap(), [(vec![0, 1, 2, 3], Fate::Free), (vec![4], Fate::Free)]);
}

#[test]
fn what_is_changed_after_the_region_runs_again() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    step.enter(&[input]);
    let first = step.make(input);
    let second = step.make(first);
    step.exit();
    step.view(second);
    step.change(second);
    step.backward(second);
    assert_eq!(step.bundles().unwrap(), [(vec![0], Fate::Free), (vec![1], Fate::Recompute)]);
    assert_eq!(step.nearest(&[0, 1]).unwrap(), [0]);
}

#[test]
fn what_is_changed_in_backward_before_the_region_runs_again_counts_too_and_later_not() {
    for (early, fate) in [(true, Fate::Recompute), (false, Fate::Free)] {
        let mut step = Step::new();
        let input = step.before(Category::Activation);
        step.enter(&[input]);
        let only = step.make(input);
        step.exit();
        let saver = step.last_saving.take();
        step.phase = Phase::Backward;
        if early {
            step.change(only);
        }
        step.last_saving = saver;
        step.make(only);
        step.change(only);
        assert_eq!(step.bundles().unwrap(), [(vec![0], fate)]);
    }
}

#[test]
fn readers_of_what_is_changed_later_are_saved() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    let buffer = step.before(Category::Buffer);
    step.enter(&[input]);
    step.view(buffer);
    let first = step.make(buffer);
    let second = step.make(first);
    step.exit();
    step.change(buffer);
    step.backward(second);
    assert_eq!(step.bundles().unwrap(), [(vec![1], Fate::Store), (vec![2], Fate::Free)]);
    assert_eq!(step.nearest(&[]).unwrap(), [1]);
}

#[test]
fn what_changes_something_from_outside_is_saved_with_what_read_it_before() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    let buffer = step.before(Category::Buffer);
    step.enter(&[input]);
    step.make(buffer);
    step.change(buffer);
    let after = step.make(buffer);
    step.exit();
    step.backward(after);
    assert_eq!(step.bundles().unwrap(), [(vec![0, 1], Fate::Store), (vec![2], Fate::Free)]);
}

#[test]
fn random_operators_go_together() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    step.enter(&[input]);
    let first = step.make_flagged(RANDOM, input);
    let second = step.make(first);
    let third = step.make_flagged(RANDOM, second);
    step.exit();
    step.backward(third);
    assert_eq!(step.bundles().unwrap(), [(vec![0, 2], Fate::Free), (vec![1], Fate::Free)]);
}

/// Saved, it would be overwritten; run again, it would read what is not there any more.
#[test]
fn a_contradiction_leaves_the_region_alone() {
    let mut step = Step::new();
    let input = step.before(Category::Activation);
    let buffer = step.before(Category::Buffer);
    step.enter(&[input]);
    let first = step.make(buffer);
    step.exit();
    step.change(buffer);
    step.change(first);
    step.backward(first);
    assert_eq!(step.bundles(), None);
    assert_eq!(step.nearest(&[0]), None);
}

#[test]
fn a_region_whose_argument_changes_is_left_alone() {
    for inside in [true, false] {
        let mut step = Step::new();
        let input = step.before(Category::Activation);
        step.enter(&[input]);
        if inside {
            step.change(input);
        }
        let first = step.make(input);
        step.exit();
        if !inside {
            step.change(input);
        }
        step.backward(first);
        assert_eq!(step.bundles(), None, "{inside}");
    }
}

#[test]
fn a_region_whose_parameters_change_before_its_backward_is_left_alone() {
    for early in [true, false] {
        let mut step = Step::new();
        let input = step.before(Category::Activation);
        let weight = step.parameter(ModuleId::new(2));
        step.enter(&[input]);
        let first = step.make(input);
        step.exit();
        if early {
            step.change(weight);
        }
        step.backward(first);
        step.change(weight);
        assert_eq!(step.bundles().is_none(), early);
    }
}
