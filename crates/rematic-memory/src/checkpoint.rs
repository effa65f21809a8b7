//! The step under a checkpointing plan.
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

use rematic_trace::{Event, OpId, StepTrace, StorageId};

use crate::region::needs;
use crate::{Ledger, Region, Regions, Snapshot};

/// A region that is checkpointed, with its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The region, by position in [`Regions::all`].
    pub region: usize,
    /// The operators whose outputs are saved, in order. All others are recomputed.
    pub saved: Vec<OpId>,
}

/// A moment of the step under a plan: right after an operator has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The operator.
    pub op: OpId,
    /// Whether it has run for the second time.
    pub again: bool,
}

/// Replays the step under a plan, and calls `after` with the state right after each operator that runs.
///
/// The checkpointed regions must not contain each other. `ledger` must be fresh and have room for copies
/// ([`Ledger::with_copies`]); it is left as the step leaves it.
pub fn replay_checkpointed(
    trace: &StepTrace,
    regions: &Regions,
    checkpoints: &[Checkpoint],
    ledger: &mut Ledger,
    after: impl FnMut(Ran, &Snapshot),
) {
    Replay::new(trace, regions, checkpoints, ledger, after).run();
}

struct Replay<'a, F> {
    trace: &'a StepTrace,
    ledger: &'a mut Ledger,
    after: F,
    active: Vec<Active<'a>>,
    /// For every operator, the checkpoint that it belongs to.
    checkpoint_of: Vec<u32>,
    /// For every operator, whether its outputs are saved.
    saved: Vec<bool>,
    /// For every operator, whether its backward function has returned.
    returned: Vec<bool>,
    /// For every storage, whether a local variable of the recomputation refers to it.
    local: Vec<bool>,
    /// For every operator whose backward never comes, whether the graph that the recomputation builds holds what it saves.
    futile: Vec<bool>,
}

struct Active<'a> {
    region: &'a Region,
    recomputed: bool,
    /// Operators whose backward is still to come.
    savers: usize,
}

const NONE: u32 = u32::MAX;

impl<'a, F: FnMut(Ran, &Snapshot)> Replay<'a, F> {
    fn new(
        trace: &'a StepTrace,
        regions: &'a Regions,
        checkpoints: &[Checkpoint],
        ledger: &'a mut Ledger,
        after: F,
    ) -> Self {
        let mut checkpoint_of = vec![NONE; trace.ops().len()];
        let mut saved = vec![false; trace.ops().len()];
        let mut active = Vec::with_capacity(checkpoints.len());
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            let region = &regions.all()[checkpoint.region];
            checkpoint_of[region.ops.clone()].fill(u32::try_from(index).unwrap_or(NONE));
            for op in checkpoint.saved.iter().filter(|op| region.contains(**op)) {
                saved[op.index()] = true;
            }
            active.push(Active { region, recomputed: false, savers: region.savers });
        }
        let returned = vec![false; trace.ops().len()];
        let local = vec![false; trace.storages().len()];
        let futile = vec![false; trace.ops().len()];
        Replay { trace, ledger, after, active, checkpoint_of, saved, returned, local, futile }
    }

    fn run(mut self) {
        for &event in self.trace.events() {
            if let Some(at) = needs(self.trace, event).and_then(|forward| self.checkpoint(forward))
                && !self.active[at].recomputed
            {
                self.recompute(at);
            }
            match event {
                Event::Op(op) => {
                    match self.checkpoint(op) {
                        Some(at) => self.forward(at, op),
                        None => self.ledger.run(self.trace, op),
                    }
                    self.ran(Ran { op, again: false });
                }
                Event::Return(op) => {
                    if let Some(at) = self.checkpoint(op) {
                        self.let_go(at, op);
                    }
                }
                Event::Unsave(op) => match self.checkpoint(op) {
                    Some(at) => self.unsave(at, op),
                    None => self.ledger.apply(self.trace, event),
                },
                _ => self.ledger.apply(self.trace, event),
            }
        }
    }

    fn ran(&mut self, ran: Ran) {
        (self.after)(ran, self.ledger.snapshot());
        self.ledger.tick();
    }

    fn checkpoint(&self, op: OpId) -> Option<usize> {
        let at = self.checkpoint_of[op.index()];
        (at != NONE).then_some(at as usize)
    }

    /// A forward operator of a checkpointed region runs for the first time.
    fn forward(&mut self, at: usize, op: OpId) {
        let trace = self.trace;
        let region = self.active[at].region;
        if op.index() == region.ops.start {
            for &input in &region.inputs {
                self.ledger.save(input);
            }
        }
        for storage in births(trace, op) {
            self.ledger.hold(storage);
            if self.saved[op.index()] {
                self.ledger.save(storage);
            }
        }
    }

    fn recompute(&mut self, at: usize) {
        self.active[at].recomputed = true;
        let (trace, region) = (self.trace, self.active[at].region);
        for &event in &trace.events()[region.events.clone()] {
            match event {
                Event::Op(op) if region.reaches(op) => {
                    self.recompute_op(region, op);
                    if op == region.stop {
                        break;
                    }
                }
                Event::Op(op) => {
                    // The last missing tensors are its inputs: it does not run any more.
                    self.hand_over(region, op);
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
        let cached = self.saved[op.index()];
        for storage in births(trace, op) {
            let again = self.again(region, storage);
            self.local[storage.index()] = true;
            self.ledger.save(again);
            if cached {
                // It leaves the cache.
                self.ledger.unsave(again);
            }
        }
        self.hand_over(region, op);
        if self.returned[op.index()] {
            self.futile[op.index()] = true;
            for tensor in trace.saves(trace.op(op)) {
                let again = self.again(region, tensor.storage);
                self.ledger.save(again);
            }
        }
        if !cached {
            self.ran(Ran { op, again: true });
        }
    }

    /// What an operator saves is there again, for its backward to read; if its graph was thrown away, nobody waits.
    fn hand_over(&mut self, region: &Region, op: OpId) {
        if self.returned[op.index()] {
            return;
        }
        for tensor in self.trace.saves(self.trace.op(op)) {
            let again = self.again(region, tensor.storage);
            self.ledger.save(again);
        }
    }

    /// The second graph of an operator goes, as the first did, without its backward.
    fn throw_away(&mut self, region: &Region, op: OpId) {
        if std::mem::replace(&mut self.futile[op.index()], false) {
            for tensor in self.trace.saves(self.trace.op(op)) {
                let again = self.again(region, tensor.storage);
                self.ledger.unsave(again);
            }
        }
    }

    fn drop_local(&mut self, region: &Region, storage: StorageId) {
        if std::mem::replace(&mut self.local[storage.index()], false) {
            let again = self.again(region, storage);
            self.ledger.unsave(again);
        }
    }

    /// Where a storage lies when the region has run again: what was not saved is made anew.
    fn again(&self, region: &Region, storage: StorageId) -> StorageId {
        match self.trace.storages()[storage.index()].birth {
            Some(birth) if region.contains(birth) && !self.saved[birth.index()] => self.ledger.copy_of(storage),
            _ => storage,
        }
    }

    /// The backward function of an operator of a checkpointed region has returned. What it read was handed to it, not
    /// lent: unlike a plain saved tensor it goes now.
    fn let_go(&mut self, at: usize, op: OpId) {
        if std::mem::replace(&mut self.returned[op.index()], true) || !self.active[at].recomputed {
            return;
        }
        let (trace, region) = (self.trace, self.active[at].region);
        for tensor in trace.saves(trace.op(op)) {
            let again = self.again(region, tensor.storage);
            self.ledger.unsave(again);
        }
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
            self.ledger.unsave(input);
        }
        for op in region.ops.clone().map(OpId::new).filter(|op| !region.reaches(*op) && self.saved[op.index()]) {
            for storage in births(trace, op) {
                self.ledger.unsave(storage);
            }
        }
    }
}

/// The storages that an operator makes, each once.
pub fn births(trace: &StepTrace, op: OpId) -> impl Iterator<Item = StorageId> + '_ {
    let outputs = trace.outputs(trace.op(op));
    outputs.iter().enumerate().filter_map(move |(position, tensor)| {
        let born = trace.storages()[tensor.storage.index()].birth == Some(op);
        let first = outputs[..position].iter().all(|earlier| earlier.storage != tensor.storage);
        (born && first).then_some(tensor.storage)
    })
}
