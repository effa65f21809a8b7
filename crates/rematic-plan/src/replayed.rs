use rematic_memory::{Ran, Snapshot};
use rematic_trace::{Bytes, CallId, Event, Millis, OpId, Phase, StepTrace};

/// What a replay of the step under a plan says.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The highest bytes in use.
    pub peak: Bytes,
    /// By category.
    pub snapshot: Snapshot,
    /// The operator after which they are in use; `None` if nothing rises above the start of the step.
    pub at: Option<Ran>,
    /// How much more is in use after the last operator of the model's first forward than before its first one.
    pub forward: Bytes,
    /// Time of the operators that run again.
    pub recompute: Millis,
    /// The operators that run again, in order.
    pub recomputed: Vec<OpId>,
}

/// The first and the last operator of the model's first forward.
pub(crate) fn first_forward(trace: &StepTrace) -> Option<(OpId, OpId)> {
    let is_root = |call: CallId| trace.modules()[trace.call(call).module.index()].parent.is_none();
    let mut events = trace.events().iter();
    let root = events.find_map(|event| match event {
        Event::Enter(call) if is_root(*call) => Some(*call),
        _ => None,
    })?;
    let inside = events.take_while(|event| **event != Event::Exit(root));
    let mut ops = inside.filter_map(|event| if let Event::Op(op) = event { Some(*op) } else { None });
    let first = ops.next()?;
    Some((first, ops.last().unwrap_or(first)))
}

/// A moment of the step under a plan: right after an operator has run, the first or the second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedMoment {
    /// The part of the step.
    pub phase: Phase,
    /// The bytes in use then without the plan.
    pub before: Bytes,
    /// The bytes in use with it.
    pub after: Bytes,
}
