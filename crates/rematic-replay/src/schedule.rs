//! What really happens in a step, plain or under a checkpointing plan, action by action.
//!
//! The rule is that of PyTorch's non-reentrant `torch.utils.checkpoint` with a selective policy:
//!
//! - Forward: inside a checkpointed region autograd holds nothing. The outputs of the operators that the policy saves are
//!   kept in a cache; the region's inputs are kept until its backward is over; everything else dies with its last
//!   ordinary reference.
//! - Backward: the first event that needs a saved tensor of the region runs its forward again, in order. A cached output
//!   is handed back instead of running its operator, and leaves the cache. Recomputation stops as soon as every tensor
//!   that backward needs is there ([`Region::stop`]); its local variables go with it. Each recomputed tensor lives until
//!   the backward function of the operator that saves it has returned. What was thrown away unused in the first run (the
//!   graph of an output that nobody differentiates) is held in the second as long as there: by a graph of its own, which
//!   goes where the first went, or with the end of the recomputation.
//! - What the policy saves at or behind the stop is never handed back: it stays in the cache until the region's backward
//!   is over.
//! - What is offloaded lies on the host for a part of the time that it is in the cache ([`offloading`]).
//!
//! In one thing a plan may go further than PyTorch: an operator that it skips does not run again, and what it made is not made
//! again. Nothing may read that ([`unread`](crate::unread)).

mod offloading;

use std::ops::Range;

use rematic_trace::{Bytes, Event, OpId, Pool, StepTrace, StorageId, Table};

use crate::action::{Action, BufferId, Observer, Ran};
use crate::region::needs;
use crate::{Ledger, Region, RegionId, Regions};
use offloading::Offloading;
pub use offloading::{LEAST_OFFLOADED, Moves, moved};

/// A region that is checkpointed, with its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The region.
    pub region: RegionId,
    /// The operators whose outputs are saved, in order. All others are recomputed.
    pub saved: Vec<OpId>,
    /// Those of them whose outputs lie on the host between forward and backward, in order.
    pub offloaded: Vec<OpId>,
    /// Those of all others that do not run again, as nothing reads what they make, in order.
    pub skipped: Vec<OpId>,
}

impl Checkpoint {
    /// A region that offloads and skips nothing: what PyTorch's own checkpointing does.
    #[must_use]
    pub fn new(region: RegionId, saved: Vec<OpId>) -> Self {
        Checkpoint { region, saved, offloaded: Vec::new(), skipped: Vec::new() }
    }
}

/// A step with a plan, as a stream of [`Action`]s.
///
/// For a trace that [`StepTrace::validate`] refuses, what the plain schedule says means nothing, but it does not panic.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<'a> {
    trace: &'a StepTrace,
    start: &'a Ledger,
    plan: Option<(&'a Regions, &'a [Checkpoint])>,
    /// Whether backward functions let go of what they read when they return, in plain regions too.
    eager: bool,
}

impl<'a> Schedule<'a> {
    /// The step as it is; `start` is the state before it.
    #[must_use]
    pub fn plain(trace: &'a StepTrace, start: &'a Ledger) -> Self {
        Schedule { trace, start, plan: None, eager: false }
    }

    /// The step with checkpointed regions, which must not contain each other.
    #[must_use]
    pub fn planned(
        trace: &'a StepTrace,
        start: &'a Ledger,
        regions: &'a Regions,
        checkpoints: &'a [Checkpoint],
    ) -> Self {
        Schedule { trace, start, plan: Some((regions, checkpoints)), eager: false }
    }

    /// As if all backward functions let go of what they read when they return, as those of checkpointed regions do, and
    /// not only when their gradients have been brought to their shapes and types.
    #[must_use]
    pub fn eager(self) -> Self {
        Schedule { eager: true, ..self }
    }

    /// The state before the step.
    #[must_use]
    pub fn start(&self) -> &'a Ledger {
        self.start
    }

    /// The operators of checkpointed regions, where a dispatch mode looks on.
    pub(crate) fn watched(&self) -> Vec<Range<usize>> {
        let regions = self.plan.into_iter().flat_map(|(regions, checkpoints)| {
            checkpoints.iter().map(|checkpoint| regions.region(checkpoint.region).ops.clone())
        });
        regions.collect()
    }

    /// How many operators the step has; under a plan more run.
    #[must_use]
    pub fn operators(&self) -> usize {
        self.trace.ops().len()
    }

    /// Lets observers watch the step from its start to its end; returns the state that it leaves.
    ///
    /// The loop over the events takes time linear in what runs, and allocates nothing.
    pub fn replay(&self, observer: &mut impl Observer) -> Ledger {
        let mut replay = Replay::new(self, observer);
        replay.run(self.eager);
        replay.ledger
    }
}

struct Replay<'a, 'o, O> {
    trace: &'a StepTrace,
    ledger: Ledger,
    observer: &'o mut O,
    /// Whether anything lies outside of the device's memory.
    has_host_memory: bool,
    active: Vec<Active<'a>>,
    /// For every operator, the checkpoint that it belongs to; empty for a plain step, as are the tables that follow.
    checkpoint_of: Table<OpId, u32>,
    /// For every operator, whether its outputs are saved.
    saved: Table<OpId, bool>,
    /// For every operator, whether it does not run again although they are not.
    skipped: Table<OpId, bool>,
    /// For every operator, whether its backward function has returned.
    returned: Table<OpId, bool>,
    /// For every storage, whether a local variable of the recomputation refers to it.
    local: Table<StorageId, bool>,
    /// For every operator whose backward never comes, whether the graph that the recomputation builds holds what it saves.
    futile: Table<OpId, bool>,
    /// What goes to the host and comes back, if anything does.
    offloading: Option<Offloading>,
}

struct Active<'a> {
    region: &'a Region,
    recomputed: bool,
    /// Operators whose backward is still to come.
    savers: usize,
}

const NONE: u32 = u32::MAX;

impl<'a, 'o, O: Observer> Replay<'a, 'o, O> {
    fn new(schedule: &Schedule<'a>, observer: &'o mut O) -> Self {
        let trace = schedule.trace;
        let mut replay = Replay {
            trace,
            ledger: schedule.start.clone(),
            observer,
            has_host_memory: trace.storages().iter().any(|storage| storage.pool != Pool::Device),
            active: Vec::new(),
            checkpoint_of: Table::default(),
            saved: Table::default(),
            skipped: Table::default(),
            returned: if schedule.eager { trace.ops().filled(false) } else { Table::default() },
            local: Table::default(),
            futile: Table::default(),
            offloading: None,
        };
        if let Some((regions, checkpoints)) = schedule.plan.filter(|(_, checkpoints)| !checkpoints.is_empty()) {
            replay.checkpoint(regions, checkpoints);
        }
        replay
    }

    fn checkpoint(&mut self, regions: &'a Regions, checkpoints: &[Checkpoint]) {
        let ops = self.trace.ops();
        self.ledger.make_room_for_copies();
        self.checkpoint_of = ops.filled(NONE);
        self.saved = ops.filled(false);
        self.skipped = ops.filled(false);
        self.returned = ops.filled(false);
        self.futile = ops.filled(false);
        self.local = self.trace.storages().filled(false);
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            let region = regions.region(checkpoint.region);
            self.checkpoint_of.items_mut()[region.ops.clone()].fill(u32::try_from(index).unwrap_or(NONE));
            for &op in checkpoint.saved.iter().filter(|op| region.contains(**op)) {
                self.saved[op] = true;
            }
            for &op in checkpoint.skipped.iter().filter(|op| region.contains(**op)) {
                self.skipped[op] = !self.saved[op];
            }
            self.active.push(Active { region, recomputed: false, savers: region.savers });
        }
        self.offloading = Offloading::new(self.trace, regions, checkpoints);
    }

    fn run(&mut self, eager: bool) {
        let trace = self.trace;
        for (position, &event) in trace.events().iter().enumerate() {
            self.leave(position);
            if !self.active.is_empty()
                && let Some(at) = needs(trace, event).and_then(|forward| self.checkpoint_at(forward))
                && !self.active[at].recomputed
            {
                self.recompute(at);
            }
            match event {
                Event::Op(op) => {
                    let ran = Ran { op, again: false };
                    self.act(Action::Launch(ran));
                    match self.checkpoint_at(op) {
                        Some(at) => self.forward(at, op),
                        None => self.plain(op),
                    }
                    self.copy(op, |_, storage| storage.into());
                    self.act(Action::Run(ran));
                    self.send(op);
                }
                Event::Return(op) => match self.checkpoint_at(op) {
                    Some(at) => self.let_go(at, op),
                    None if eager => self.plain_unsave(op),
                    None => {}
                },
                Event::Unsave(op) => match self.checkpoint_at(op) {
                    Some(at) => self.unsave(at, op),
                    None => self.plain_unsave(op),
                },
                Event::Drop(storage) => self.on(storage.into(), Ledger::drop),
                Event::Recategorize(storage, category) => {
                    self.on(storage.into(), |ledger, buffer| ledger.recategorize(buffer, category))
                }
                Event::Release(storage) => self.on(storage.into(), Ledger::release),
                Event::Restore(storage) => self.on(storage.into(), Ledger::restore),
                Event::Shrink(storage, bytes) => {
                    self.on(storage.into(), |ledger, buffer| ledger.shrink(buffer, Bytes(bytes)))
                }
                Event::Wait { stream, on } => self.act(Action::Wait { stream, on }),
                Event::MicroBatch(index) => self.act(Action::MicroBatch(index)),
                Event::Enter(call) => self.act(Action::Enter(call)),
                Event::Exit(call) => self.act(Action::Exit(call)),
                Event::EnterBackward(call) => self.act(Action::EnterBackward(call)),
                Event::ExitBackward(call) => self.act(Action::ExitBackward(call)),
            }
        }
    }

    fn act(&mut self, action: Action) {
        self.observer.observe(action, &self.ledger);
    }

    /// Changes a hold, and says what comes of it.
    fn on(&mut self, buffer: BufferId, change: impl FnOnce(&mut Ledger, BufferId) -> Option<Action>) {
        if let Some(action) = change(&mut self.ledger, buffer) {
            self.act(action);
        }
    }

    fn checkpoint_at(&self, op: OpId) -> Option<usize> {
        self.checkpoint_of.get(op).filter(|&&at| at != NONE).map(|&at| at as usize)
    }

    /// An operator outside of all checkpointed regions: its new storages are held, and autograd keeps what it saves.
    fn plain(&mut self, id: OpId) {
        let trace = self.trace;
        let Some(op) = trace.ops().get(id) else { return };
        for tensor in trace.outputs(op) {
            if trace.storages().get(tensor.storage).is_some_and(|storage| storage.birth == Some(id)) {
                self.on(tensor.storage.into(), Ledger::hold);
            }
        }
        for tensor in trace.saves(op) {
            self.on(tensor.storage.into(), Ledger::save);
        }
    }

    /// Its backward is over, or, if that is enough, has returned.
    fn plain_unsave(&mut self, id: OpId) {
        let trace = self.trace;
        let Some(op) = trace.ops().get(id) else { return };
        if self.returned.get_mut(id).is_some_and(|returned| std::mem::replace(returned, true)) {
            return;
        }
        for tensor in trace.saves(op) {
            self.on(tensor.storage.into(), Ledger::unsave);
        }
    }

    /// A forward operator of a checkpointed region runs for the first time.
    fn forward(&mut self, at: usize, op: OpId) {
        let (trace, region) = (self.trace, self.active[at].region);
        if op.index() == region.ops.start {
            for &input in &region.inputs {
                self.on(input.into(), Ledger::save);
            }
        }
        for storage in births(trace, op) {
            self.on(storage.into(), Ledger::hold);
            if self.saved[op] {
                self.on(storage.into(), Ledger::save);
            }
        }
    }

    fn recompute(&mut self, at: usize) {
        self.active[at].recomputed = true;
        self.fetch(at);
        let (trace, region) = (self.trace, self.active[at].region);
        for &event in &trace.events()[region.events.clone()] {
            match event {
                Event::Op(op) if region.reaches(op) => {
                    if self.skipped[op] {
                        self.save_again(region, op);
                    } else {
                        self.recompute_op(region, op);
                    }
                    if op == region.stop {
                        break;
                    }
                }
                Event::Op(op) => {
                    // The last missing tensors are its inputs: it does not run any more.
                    if !self.returned[op] {
                        self.for_saves(region, op, Ledger::save);
                    }
                    break;
                }
                Event::Drop(storage) => self.drop_local(region, storage),
                Event::Unsave(op) => self.throw_away(region, op),
                _ => {}
            }
        }
        for op in region.ops.clone().map(OpId::new).filter(|op| region.reaches(*op)) {
            self.throw_away(region, op);
            for storage in births(trace, op) {
                self.drop_local(region, storage);
            }
        }
    }

    fn recompute_op(&mut self, region: &Region, op: OpId) {
        let trace = self.trace;
        let cached = self.saved[op];
        let ran = Ran { op, again: true };
        if !cached {
            self.act(Action::Launch(ran));
        }
        for storage in births(trace, op) {
            let again = self.again(region, storage);
            self.local[storage] = true;
            self.on(again, Ledger::save);
            if cached {
                self.take_back(storage);
                // It leaves the cache.
                self.on(again, Ledger::unsave);
            }
        }
        self.save_again(region, op);
        if !cached {
            self.copy(op, |replay, storage| replay.again(region, storage));
            self.act(Action::Run(ran));
        }
    }

    /// What an operator saves is there again, whether it runs or not: for its backward to read, or in a graph that goes without one.
    fn save_again(&mut self, region: &Region, op: OpId) {
        self.futile[op] = self.returned[op];
        self.for_saves(region, op, Ledger::save);
    }

    /// Says what an operator brings from one pool to another; `place` is where a storage lies now.
    fn copy(&mut self, id: OpId, place: impl Fn(&Self, StorageId) -> BufferId) {
        let trace = self.trace;
        let Some(op) = trace.ops().get(id).filter(|_| self.has_host_memory) else { return };
        let pool = |storage: StorageId| trace.storages().get(storage).map(|storage| storage.pool);
        for output in trace.outputs(op) {
            let other = trace.inputs(op).iter().find(|input| pool(input.storage) != pool(output.storage));
            if let Some(input) = other {
                let (from, to) = (place(self, input.storage), place(self, output.storage));
                self.act(Action::Copy { from, to });
            }
        }
    }

    /// The second graph of an operator goes, as the first did, without its backward.
    fn throw_away(&mut self, region: &Region, op: OpId) {
        if std::mem::replace(&mut self.futile[op], false) {
            self.for_saves(region, op, Ledger::unsave);
        }
    }

    fn drop_local(&mut self, region: &Region, storage: StorageId) {
        if std::mem::replace(&mut self.local[storage], false) {
            let again = self.again(region, storage);
            self.on(again, Ledger::unsave);
        }
    }

    /// For every tensor that an operator of a region that has run again saves.
    fn for_saves(&mut self, region: &Region, op: OpId, change: fn(&mut Ledger, BufferId) -> Option<Action>) {
        let trace = self.trace;
        for tensor in trace.saves(trace.op(op)) {
            let again = self.again(region, tensor.storage);
            self.on(again, change);
        }
    }

    /// Where a storage lies when the region has run again: what was not saved is made anew, and so is what comes from the host.
    fn again(&self, region: &Region, storage: StorageId) -> BufferId {
        match self.trace.storages()[storage].birth {
            Some(birth) if region.contains(birth) && (!self.saved[birth] || self.is_moved(storage)) => {
                self.ledger.copy_of(storage)
            }
            _ => storage.into(),
        }
    }

    /// The backward function of an operator of a checkpointed region has returned. What it read was handed to it, not
    /// lent: unlike a plain saved tensor it goes now.
    fn let_go(&mut self, at: usize, op: OpId) {
        if std::mem::replace(&mut self.returned[op], true) || !self.active[at].recomputed {
            return;
        }
        self.for_saves(self.active[at].region, op, Ledger::unsave);
    }

    /// The backward of one operator of a checkpointed region is over.
    fn unsave(&mut self, at: usize, op: OpId) {
        let (trace, region) = (self.trace, self.active[at].region);
        if trace.saves(trace.op(op)).is_empty() {
            return;
        }
        self.let_go(at, op);
        self.active[at].savers -= 1;
        if self.active[at].savers > 0 {
            return;
        }
        for &input in &region.inputs {
            self.on(input.into(), Ledger::unsave);
        }
        for op in region.ops.clone().map(OpId::new).filter(|op| !region.reaches(*op)) {
            if self.saved[op] {
                for storage in births(trace, op) {
                    self.on(storage.into(), Ledger::unsave);
                }
            }
        }
    }
}

/// The storages that an operator makes, each once.
pub fn births(trace: &StepTrace, op: OpId) -> impl Iterator<Item = StorageId> + '_ {
    let outputs = trace.outputs(trace.op(op));
    outputs.iter().enumerate().filter_map(move |(position, tensor)| {
        let born = trace.storages()[tensor.storage].birth == Some(op);
        let first = outputs[..position].iter().all(|earlier| earlier.storage != tensor.storage);
        (born && first).then_some(tensor.storage)
    })
}
