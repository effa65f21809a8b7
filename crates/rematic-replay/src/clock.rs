use rematic_trace::{Millis, OpId, StepTrace, StreamId, Table};

use crate::{Action, Ledger, Observer, Ran};

/// A clock for every stream: when what was queued on it is done, if it begins as soon as the stream is free and waits only for
/// what it is told to wait for.
///
/// What the processor does, and how long it takes to queue an operator, is left out.
pub struct Clock<'a, T> {
    trace: &'a StepTrace,
    time_of: T,
    done: Table<StreamId, Millis>,
}

impl<'a, T: Fn(OpId) -> Millis> Clock<'a, T> {
    /// All clocks at zero; `time_of` is what an operator takes.
    pub fn new(trace: &'a StepTrace, time_of: T) -> Self {
        Clock { trace, time_of, done: trace.streams().filled(Millis(0.0)) }
    }

    /// When all that was queued on a stream is done.
    #[must_use]
    pub fn done(&self, stream: StreamId) -> Millis {
        self.done[stream]
    }

    /// When the step is over.
    #[must_use]
    pub fn end(&self) -> Millis {
        self.done.iter().copied().fold(Millis(0.0), |end, done| if done.0 > end.0 { done } else { end })
    }
}

impl<T: Fn(OpId) -> Millis> Observer for Clock<'_, T> {
    fn observe(&mut self, action: Action, _: &Ledger) {
        match action {
            Action::Run(Ran { op, .. }) => {
                let stream = self.trace.op(op).stream;
                self.done[stream] = self.done[stream] + (self.time_of)(op);
            }
            Action::Wait { stream, on } => {
                let (waits, other) = (self.done[stream], self.done[on]);
                self.done[stream] = if other.0 > waits.0 { other } else { waits };
            }
            _ => {}
        }
    }
}
