use rematic_trace::{Event, Millis, OpId, Phase, StepTrace, StreamId, Table};

use crate::host::bytes_of;
use crate::{Action, BufferId, Ledger, Observer, Ran};

/// A clock for every stream: when what was queued on it is done, if it begins as soon as the stream is free and waits only for
/// what it is told to wait for.
///
/// What the processor does, and how long it takes to queue an operator, is left out.
pub struct Clock<'a, T> {
    trace: &'a StepTrace,
    time_of: T,
    done: Table<StreamId, Millis>,
    /// How long the compute stream has waited, or sent something itself.
    exposed: Millis,
    /// What each phase has taken on the compute stream until `since`; `phase` is the one that it is in.
    spans: [Millis; 3],
    since: Millis,
    phase: Phase,
    copies: Copies,
}

/// The copies to the host and back: one engine each way, each copies one buffer after the other.
struct Copies {
    /// What a byte takes; nothing unless it is said.
    per_byte: Millis,
    /// When all that was queued on each engine is done.
    out: Millis,
    back: Millis,
    /// For every buffer, when its last copy is done.
    done: Table<BufferId, Millis>,
    /// How long the compute stream has waited for copies.
    stalled: Millis,
}

impl Copies {
    fn none() -> Self {
        let zero = Millis(0.0);
        Copies { per_byte: zero, out: zero, back: zero, done: Table::default(), stalled: zero }
    }
}

impl<'a, T: Fn(OpId) -> Millis> Clock<'a, T> {
    /// All clocks at zero; `time_of` is what an operator takes.
    pub fn new(trace: &'a StepTrace, time_of: T) -> Self {
        let zero = Millis(0.0);
        let done = trace.streams().filled(zero);
        let copies = Copies::none();
        Clock { trace, time_of, done, exposed: zero, spans: [zero; 3], since: zero, phase: Phase::Forward, copies }
    }

    /// The same where a copy to the host or back takes so long for each byte.
    #[must_use]
    pub fn with_copies(mut self, per_byte: Millis) -> Self {
        self.copies.per_byte = per_byte;
        self
    }

    /// The clocks after the step as it is, for which no replay is needed.
    pub fn after(trace: &'a StepTrace, time_of: T) -> Self {
        let mut clock = Clock::new(trace, time_of);
        for &event in trace.events() {
            match event {
                Event::Op(op) => clock.run(Ran { op, again: false }),
                Event::Wait { stream, on } => clock.wait(stream, on),
                _ => {}
            }
        }
        clock
    }

    /// When all that was queued on a stream is done.
    #[must_use]
    pub fn done(&self, stream: StreamId) -> Millis {
        self.done[stream]
    }

    /// When the step is over.
    #[must_use]
    pub fn end(&self) -> Millis {
        self.done.iter().copied().fold(Millis(0.0), later)
    }

    /// Exposed communication: the time of the step in which the compute stream does not compute, because it waits for other streams,
    /// sends something itself, or is done before them.
    #[must_use]
    pub fn exposed(&self) -> Millis {
        Millis(self.exposed.0 + self.end().0 - self.done[StreamId::COMPUTE].0)
    }

    /// How long the compute stream waits for copies to the host and back.
    #[must_use]
    pub fn stalled(&self) -> Millis {
        self.copies.stalled
    }

    /// What forward, backward and optimizer take, waits included; together the step.
    #[must_use]
    pub fn phases(&self) -> [Millis; 3] {
        let mut spans = self.spans;
        spans[row(self.phase)] += Millis(self.end().0 - self.since.0);
        spans
    }

    fn run(&mut self, Ran { op: id, again }: Ran) {
        let Some(op) = self.trace.ops().get(id) else { return };
        let time = (self.time_of)(id);
        let Some(done) = self.done.get_mut(op.stream) else { return };
        let begins = *done;
        *done += time;
        if op.stream != StreamId::COMPUTE {
            return;
        }
        if op.collective.is_some() {
            self.exposed += time;
        }
        let phase = if again { Phase::Backward } else { op.phase };
        if phase != self.phase {
            self.spans[row(self.phase)] += Millis(begins.0 - self.since.0);
            (self.since, self.phase) = (begins, phase);
        }
    }

    fn wait(&mut self, stream: StreamId, on: StreamId) {
        let (Some(&waits), Some(&other)) = (self.done.get(stream), self.done.get(on)) else { return };
        if stream == StreamId::COMPUTE {
            self.exposed += Millis((other.0 - waits.0).max(0.0));
        }
        self.done[stream] = later(waits, other);
    }
}

impl<T> Clock<'_, T> {
    /// Queues a copy of a buffer.
    fn copy(&mut self, buffer: BufferId, ledger: &Ledger, to_host: bool) {
        let Some(&ready) = self.done.get(StreamId::COMPUTE) else { return };
        let Copies { per_byte, out, back, done, .. } = &mut self.copies;
        if done.len() < ledger.buffers() {
            *done = Table::new(ledger.buffers(), Millis(0.0));
        }
        let engine = if to_host { out } else { back };
        #[expect(clippy::cast_precision_loss, reason = "a size")]
        let time = bytes_of(self.trace, buffer, ledger).0 as f64 * per_byte.0;
        *engine = Millis(later(*engine, ready).0 + time);
        done[buffer] = *engine;
    }

    /// The compute stream waits for the copy of a buffer.
    fn wait_for_copy(&mut self, buffer: BufferId) {
        let (Some(&now), Some(&copied)) = (self.done.get(StreamId::COMPUTE), self.copies.done.get(buffer)) else {
            return;
        };
        self.copies.stalled += Millis((copied.0 - now.0).max(0.0));
        self.done[StreamId::COMPUTE] = later(now, copied);
    }
}

fn later(a: Millis, b: Millis) -> Millis {
    if b.0 > a.0 { b } else { a }
}

fn row(phase: Phase) -> usize {
    match phase {
        Phase::Forward => 0,
        Phase::Backward => 1,
        Phase::Optimizer => 2,
    }
}

impl<T: Fn(OpId) -> Millis> Observer for Clock<'_, T> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Offload(buffer) => self.copy(buffer, ledger, true),
            Action::Fetch(buffer) => self.copy(buffer, ledger, false),
            Action::Offloaded(buffer) | Action::Fetched(buffer) => self.wait_for_copy(buffer),
            Action::Run(ran) => self.run(ran),
            Action::Wait { stream, on } => self.wait(stream, on),
            _ => {}
        }
    }
}
