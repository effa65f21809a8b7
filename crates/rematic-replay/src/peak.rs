use rematic_trace::{Bytes, ModuleId, OpId, Phase, StepTrace};

use crate::action::{Action, Observer, Ran};
use crate::{Ledger, Snapshot};

/// The moment right after an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The operator.
    pub op: OpId,
    /// The part of the step that it runs in.
    pub phase: Phase,
    /// The module that it belongs to.
    pub module: Option<ModuleId>,
}

impl Moment {
    pub(crate) fn after(trace: &StepTrace, id: OpId) -> Option<Self> {
        let op = trace.ops().get(id)?;
        let call = op.call.and_then(|call| trace.calls().get(call));
        Some(Moment { op: id, phase: op.phase, module: call.map(|call| call.module) })
    }
}

/// The highest point of a step: the first of the highest totals, among the start of the step and the moments right after
/// each operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// When it is; `None` if nothing rises above the start of the step.
    pub at: Option<Moment>,
    /// The bytes in use then.
    pub snapshot: Snapshot,
}

impl Peak {
    /// The bytes in use, in all categories together.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.snapshot.total()
    }
}

/// Watches for the highest point: the first of the highest totals, among the start of the step and the moments right after
/// each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Highest {
    /// The bytes in use then.
    pub bytes: Bytes,
    /// By category.
    pub snapshot: Snapshot,
    /// The operator after which they are; `None` if nothing rises above the start.
    pub at: Option<Ran>,
}

impl Highest {
    /// Nothing is higher than the start yet.
    #[must_use]
    pub fn from(start: &Ledger) -> Self {
        Highest { bytes: start.snapshot().total(), snapshot: *start.snapshot(), at: None }
    }

    /// There are so many bytes after an operator.
    pub fn raise(&mut self, bytes: Bytes, snapshot: &Snapshot, at: Ran) {
        if bytes > self.bytes {
            *self = Highest { bytes, snapshot: *snapshot, at: Some(at) };
        }
    }
}

impl Observer for Highest {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        if let Action::Run(ran) = action {
            self.raise(ledger.snapshot().total(), ledger.snapshot(), ran);
        }
    }
}
