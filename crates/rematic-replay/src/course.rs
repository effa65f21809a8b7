use rematic_trace::{Bytes, Category, OpId, Phase, StepTrace, StorageId, Table};

use crate::{Action, BufferId, Ledger, Observer, Ran, Schedule};

/// What a step does with memory, in order, written down once: an allocator that serves it step after step, or several allocators that
/// are compared, need not have it worked out each time.
pub struct Course<'a> {
    pub(crate) trace: &'a StepTrace,
    /// The state before the step, and after it.
    pub(crate) start: &'a Ledger,
    pub(crate) end: Ledger,
    pub(crate) deeds: Vec<Deed>,
    /// The optimizer's state, which is made before its first operator runs.
    pub(crate) state: Vec<(StorageId, Bytes)>,
    /// For every operator, whether it is one of a checkpointed region.
    pub(crate) watched: Table<OpId, bool>,
}

/// One thing that a step does with memory.
#[derive(Clone, Copy)]
pub(crate) enum Deed {
    Launch(Ran),
    Run(Ran),
    Alloc(BufferId, Bytes),
    Free(BufferId),
    Shrink(BufferId, Bytes),
}

impl<'a> Course<'a> {
    /// Replays the step.
    #[must_use]
    pub fn new(trace: &'a StepTrace, schedule: &Schedule<'a>) -> Self {
        let mut watched = trace.ops().filled(false);
        for ops in schedule.watched() {
            watched.items_mut()[ops].fill(true);
        }
        let mut writer = Writer { trace, deeds: Vec::new(), state: None };
        let end = schedule.replay(&mut writer);
        let Writer { deeds, state, .. } = writer;
        Course { trace, start: schedule.start(), end, deeds, state: state.unwrap_or_default(), watched }
    }

    /// The step.
    #[must_use]
    pub fn trace(&self) -> &'a StepTrace {
        self.trace
    }
}

struct Writer<'a> {
    trace: &'a StepTrace,
    deeds: Vec<Deed>,
    state: Option<Vec<(StorageId, Bytes)>>,
}

impl Writer<'_> {
    fn state(&self, ledger: &Ledger) -> Vec<(StorageId, Bytes)> {
        let is_state = |category: Category, id: StorageId| category == Category::Optimizer && ledger.is_alive(id);
        let before = self.trace.storages().entries().filter(|(_, storage)| storage.birth.is_none());
        let state = before.filter(|(id, storage)| is_state(storage.category, *id));
        state.map(|(id, _)| (id, ledger.footprint(id))).collect()
    }
}

impl Observer for Writer<'_> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        let deed = match action {
            Action::Launch(ran) => {
                if self.state.is_none() && self.trace.op(ran.op).phase == Phase::Optimizer {
                    self.state = Some(self.state(ledger));
                }
                Deed::Launch(ran)
            }
            Action::Run(ran) => Deed::Run(ran),
            Action::Alloc(buffer) => Deed::Alloc(buffer, ledger.footprint(buffer)),
            Action::Free(buffer) => Deed::Free(buffer),
            Action::Shrink(buffer, _) => Deed::Shrink(buffer, ledger.footprint(buffer)),
            _ => return,
        };
        self.deeds.push(deed);
    }
}
