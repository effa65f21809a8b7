use rematic_cost::Costs;
use rematic_replay::{Action, Clock, Highest, Host, Ledger, Observer, Ran, Snapshot};
use rematic_trace::{Bytes, CallId, Event, Millis, OpId, Phase, StepTrace, Table};

/// What a replay of the step under a plan says.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The highest bytes in use.
    pub peak: Bytes,
    /// By category.
    pub snapshot: Snapshot,
    /// The operator after which they are in use; `None` if nothing rises above the start of the step.
    pub at: Option<Ran>,
    /// What the model's first forward has made and is in use after its last operator.
    pub forward: Bytes,
    /// Time of the operators that run again.
    pub recompute: Millis,
    /// The operators that run again, in order.
    pub recomputed: Vec<OpId>,
    /// What goes to the host and comes back.
    pub offload: Offload,
}

impl Replayed {
    /// What the step takes longer: operators that run again, and waiting for copies.
    #[must_use]
    pub fn extra(&self) -> Millis {
        Millis(self.recompute.0 + self.offload.stall.0)
    }
}

/// What a plan moves to the host and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offload {
    /// The bytes that go, and as many come back.
    pub bytes: Bytes,
    /// What they take of the host's pinned memory.
    pub pinned: Bytes,
    /// How long the compute stream waits for copies.
    pub stall: Millis,
}

type TimeOf<'a> = Box<dyn Fn(OpId) -> Millis + 'a>;

/// Watches what goes to the host and comes back, with the time that it takes.
struct Copying<'a> {
    clock: Clock<'a, TimeOf<'a>>,
    host: Host<'a>,
}

impl Copying<'_> {
    fn finish(self) -> Offload {
        Offload { bytes: self.host.out(), pinned: self.host.pinned(), stall: self.clock.stalled() }
    }
}

/// Watches a step for what a plan is judged by.
pub(crate) struct Replaying<'a> {
    trace: &'a StepTrace,
    costs: &'a Costs,
    highest: Highest,
    /// The first and the last operator of the model's first forward.
    first: Option<OpId>,
    last: Option<OpId>,
    /// What is in use that was there before it, while it runs.
    from_before: Option<Bytes>,
    forward: Bytes,
    recompute: Millis,
    recomputed: Vec<OpId>,
    copying: Option<Copying<'a>>,
}

impl<'a> Replaying<'a> {
    pub(crate) fn new(trace: &'a StepTrace, costs: &'a Costs, start: &Ledger, forward: Option<(OpId, OpId)>) -> Self {
        let (first, last) = forward.unzip();
        Replaying {
            trace,
            costs,
            highest: Highest::from(start),
            first,
            last,
            from_before: None,
            forward: Bytes(0),
            recompute: Millis(0.0),
            recomputed: Vec::new(),
            copying: None,
        }
    }

    /// The same for a plan that offloads.
    pub(crate) fn copying(mut self) -> Self {
        let (trace, costs) = (self.trace, self.costs);
        let time_of: TimeOf<'a> = Box::new(move |op| costs.time(op));
        let clock = Clock::new(trace, time_of).with_copies(costs.host_rate().time(Bytes(1)));
        self.copying = Some(Copying { clock, host: Host::new(trace) });
        self
    }

    pub(crate) fn finish(self) -> Replayed {
        Replayed {
            peak: self.highest.bytes,
            snapshot: self.highest.snapshot,
            at: self.highest.at,
            forward: self.forward,
            recompute: self.recompute,
            recomputed: self.recomputed,
            offload: self.copying.map(Copying::finish).unwrap_or_default(),
        }
    }
}

impl Observer for Replaying<'_> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        self.highest.observe(action, ledger);
        if let Some(Copying { clock, host }) = &mut self.copying {
            clock.observe(action, ledger);
            host.observe(action, ledger);
        }
        match action {
            Action::Launch(ran) if self.first == Some(ran.op) && !ran.again => {
                self.from_before = Some(ledger.snapshot().total());
            }
            // What a module kept of the step before goes when it is replaced.
            Action::Free(buffer) if self.from_before.is_some() => {
                let birth = self.trace.storages()[ledger.storage_of(buffer).0].birth;
                if let Some(bytes) = self.from_before.as_mut().filter(|_| birth.is_none_or(|op| Some(op) < self.first))
                {
                    *bytes = bytes.saturating_sub(ledger.footprint(buffer));
                }
            }
            Action::Run(ran) if ran.again => {
                self.recompute += self.costs.time(ran.op);
                self.recomputed.push(ran.op);
            }
            Action::Run(ran) if self.last == Some(ran.op) => {
                let from_before = self.from_before.take().unwrap_or_default();
                self.forward = ledger.snapshot().total().saturating_sub(from_before);
            }
            _ => {}
        }
    }
}

/// Writes down the bytes in use around every operator of the plain step.
pub(crate) struct Totals {
    /// Before the step.
    pub(crate) start: Bytes,
    /// Just before each begins.
    pub(crate) before: Table<OpId, Bytes>,
    /// Right after each has run.
    pub(crate) after: Table<OpId, Bytes>,
}

impl Totals {
    pub(crate) fn new(trace: &StepTrace, start: &Ledger) -> Self {
        let unknown = || trace.ops().filled(Bytes(0));
        Totals { start: start.snapshot().total(), before: unknown(), after: unknown() }
    }
}

impl Observer for Totals {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Launch(ran) => self.before[ran.op] = ledger.snapshot().total(),
            Action::Run(ran) => self.after[ran.op] = ledger.snapshot().total(),
            _ => {}
        }
    }
}

/// The first and the last operator of the model's first forward.
pub(crate) fn first_forward(trace: &StepTrace) -> Option<(OpId, OpId)> {
    let is_root = |call: CallId| trace.module(trace.call(call).module).parent.is_none();
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
