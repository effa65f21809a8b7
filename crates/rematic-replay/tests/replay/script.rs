//! Steps written by hand: who allocates what, and who lets go of it when.

use rematic_replay::{Allocator, BufferId, Ledger, Observer, Schedule, Timeline};
use rematic_trace::{
    CallId, Category, Dtype, Event, Flags, Layout, LayoutId, Module, ModuleId, OpId, OpRecord, Parameter, Phase,
    StepTrace, StorageId, Tensor,
};

/// A trace under construction. Tensors have no elements, so that every one fits its storage.
pub(crate) struct Script {
    pub(crate) trace: StepTrace,
    layout: LayoutId,
}

/// One operator: what it makes, which older storages it returns views of, and what autograd saves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Action<'a> {
    pub(crate) call: Option<CallId>,
    pub(crate) births: &'a [(u64, Category)],
    pub(crate) views: &'a [StorageId],
    pub(crate) saves: &'a [StorageId],
    /// Autograd saves what the operator makes, too.
    pub(crate) saves_births: bool,
}

impl Script {
    pub(crate) fn new() -> Self {
        let mut trace = StepTrace::new("by hand");
        let layout = trace.layout(&Layout::contiguous(Dtype::U8, &[0]));
        Script { trace, layout }
    }

    pub(crate) fn module(&mut self, name: &str, parent: Option<ModuleId>) -> ModuleId {
        let (parameters, buffers) = (Vec::new(), Vec::new());
        self.trace.add_module(Module { name: name.to_owned(), class: "Module".to_owned(), parent, parameters, buffers })
    }

    pub(crate) fn before(&mut self, bytes: u64, category: Category) -> StorageId {
        self.trace.storage_before_step(bytes, category)
    }

    pub(crate) fn parameter(&self, storage: StorageId) -> Parameter {
        Parameter { name: format!("p{storage}"), storage, layout: self.layout }
    }

    pub(crate) fn run(&mut self, phase: Phase, action: Action<'_>) -> OpId {
        let first = self.trace.next_storage().index();
        let births: Vec<StorageId> = (first..first + action.births.len()).map(StorageId::new).collect();
        let layout = self.layout;
        let tensors = |storages: &[StorageId]| -> Vec<Tensor> {
            storages.iter().map(|&storage| Tensor { storage, layout }).collect()
        };
        let saves = if action.saves_births { [action.saves, &births].concat() } else { action.saves.to_vec() };
        self.trace.run(OpRecord {
            name: "op",
            phase,
            call: action.call,
            differentiates: None,
            flags: Flags::default(),
            mutates: &[],
            inputs: &tensors(action.views),
            outputs: &tensors(&[action.views, &births].concat()),
            saves: &tensors(&saves),
            births: action.births,
        })
    }

    /// An operator that makes one storage, of the category that is usual in its phase.
    pub(crate) fn make(&mut self, phase: Phase, bytes: u64) -> StorageId {
        let storage = self.trace.next_storage();
        let category = match phase {
            Phase::Forward => Category::Activation,
            Phase::Backward => Category::Temp,
            Phase::Optimizer => Category::Optimizer,
        };
        self.run(phase, Action { births: &[(bytes, category)], ..Action::default() });
        storage
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.trace.push(event);
    }

    pub(crate) fn drop(&mut self, storage: StorageId) {
        self.push(Event::Drop(storage));
    }

    /// The total after an operator that makes nothing.
    pub(crate) fn look(&mut self, phase: Phase) -> OpId {
        self.run(phase, Action::default())
    }

    pub(crate) fn replay(&self, allocator: Allocator) -> Timeline {
        self.trace.validate().expect("the script breaks a rule");
        Timeline::replay(&self.trace, allocator)
    }

    /// What is copied from one pool to another, from which buffer into which.
    pub(crate) fn copies(&self) -> Vec<(BufferId, BufferId)> {
        self.trace.validate().expect("the script breaks a rule");
        let mut seen = Copies(Vec::new());
        Schedule::plain(&self.trace, &Ledger::new(&self.trace, Allocator::Cpu)).replay(&mut seen);
        seen.0
    }
}

struct Copies(Vec<(BufferId, BufferId)>);

impl Observer for Copies {
    fn observe(&mut self, action: rematic_replay::Action, _: &Ledger) {
        if let rematic_replay::Action::Copy { from, to } = action {
            self.0.push((from, to));
        }
    }
}
