//! What goes to the host after forward and comes back before backward: where its bytes go and come, so that memory does not
//! depend on how fast anything is.
//!
//! - A copy to the host is queued as soon as the operator has run. The device's bytes go when the forward of the *next* planned
//!   region is over; there the compute stream waits for the copy, if it has to. Without a next region before backward, they go
//!   with the end of the region itself.
//! - They come back, as new bytes, when the region that runs again just *before* this one begins to do so: there they are
//!   allocated and the copy is queued. The compute stream waits for it where the tensor is handed back. For the first region of
//!   backward that is one moment.

use rematic_trace::{Bytes, OpId, Pool, StepTrace, StorageId, Table};

use super::{Checkpoint, Replay, births};
use crate::action::{Action, Observer};
use crate::{Ledger, Regions};

/// Smaller storages stay on the device: what they free is not worth the two copies (torchtune's `OffloadActivations` has the
/// same limit).
pub const LEAST_OFFLOADED: Bytes = Bytes(1024);

/// The storages that offloading an operator moves.
pub fn moved(trace: &StepTrace, op: OpId) -> impl Iterator<Item = StorageId> + '_ {
    births(trace, op).filter(|storage| {
        let storage = &trace.storages()[*storage];
        storage.pool == Pool::Device && Bytes(storage.own_bytes()) >= LEAST_OFFLOADED
    })
}

/// With which region's forward each one's outputs leave, and with which one's recomputation they come back.
///
/// Both are numbers of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The end of this one's forward.
    pub leaves_with: Vec<usize>,
    /// The beginning of this one's recomputation.
    pub returns_with: Vec<usize>,
}

impl Moves {
    /// For regions that do not contain each other.
    #[must_use]
    pub fn new(regions: &Regions, checkpoints: &[Checkpoint]) -> Self {
        let region = |at: usize| regions.region(checkpoints[at].region);
        let own: Vec<usize> = (0..checkpoints.len()).collect();
        let (mut leaves_with, mut returns_with) = (own.clone(), own.clone());
        let mut forward = own.clone();
        forward.sort_by_key(|&at| region(at).events.end);
        for pair in forward.windows(2) {
            if region(pair[1]).events.end < region(pair[0]).trigger {
                leaves_with[pair[0]] = pair[1];
            }
        }
        let mut backward = own;
        backward.sort_by_key(|&at| region(at).trigger);
        for pair in backward.windows(2) {
            if region(pair[0]).trigger > region(leaves_with[pair[1]]).events.end {
                returns_with[pair[1]] = pair[0];
            }
        }
        Moves { leaves_with, returns_with }
    }
}

/// What a replay knows of it.
pub(super) struct Offloading {
    /// For every storage, whether it is moved.
    moved: Table<StorageId, bool>,
    /// By checkpoint, what it moves.
    storages: Vec<Vec<StorageId>>,
    /// Where a forward ends, in order, and the checkpoints whose storages leave there.
    leaving: Vec<(usize, usize)>,
    /// The next of them.
    next: usize,
    /// By checkpoint, those whose storages come back when it begins to run again.
    returning: Vec<Vec<usize>>,
}

impl Offloading {
    /// Nothing if no checkpoint offloads anything.
    pub(super) fn new(trace: &StepTrace, regions: &Regions, checkpoints: &[Checkpoint]) -> Option<Self> {
        if checkpoints.iter().all(|checkpoint| checkpoint.offloaded.is_empty()) {
            return None;
        }
        let moves = Moves::new(regions, checkpoints);
        let mut known = trace.storages().filled(false);
        let storages: Vec<Vec<StorageId>> = checkpoints
            .iter()
            .map(|checkpoint| {
                let region = regions.region(checkpoint.region);
                // What is never handed back stays.
                let is_moved = |op: &&OpId| region.contains(**op) && region.reaches(**op);
                let saved = |op: &&OpId| checkpoint.saved.binary_search(op).is_ok();
                let ops = checkpoint.offloaded.iter().filter(is_moved).filter(saved);
                ops.flat_map(|op| moved(trace, *op)).collect()
            })
            .collect();
        for &storage in storages.iter().flatten() {
            known[storage] = true;
        }
        let mut returning = vec![Vec::new(); checkpoints.len()];
        for (at, &with) in moves.returns_with.iter().enumerate() {
            returning[with].push(at);
        }
        let end = |at: usize| regions.region(checkpoints[at].region).events.end;
        let mut leaving: Vec<(usize, usize)> =
            moves.leaves_with.iter().enumerate().map(|(at, &with)| (end(with), at)).collect();
        leaving.sort_unstable();
        Some(Offloading { moved: known, storages, leaving, next: 0, returning })
    }

    pub(super) fn moves(&self, storage: StorageId) -> bool {
        self.moved[storage]
    }
}

impl<O: Observer> Replay<'_, '_, O> {
    /// An operator has run for the first time: what is moved of it goes on its way.
    pub(super) fn send(&mut self, op: OpId) {
        let trace = self.trace;
        if self.offloading.is_none() || trace.ops().get(op).is_none() {
            return;
        }
        for storage in births(trace, op) {
            if self.is_moved(storage) {
                self.act(Action::Offload(storage.into()));
            }
        }
    }

    /// Lets go of what leaves at a position of the step.
    pub(super) fn leave(&mut self, position: usize) {
        let is_here = |offloading: &mut Offloading| {
            offloading.leaving.get(offloading.next).is_some_and(|(end, _)| *end == position)
        };
        let Some(mut offloading) = self.offloading.take_if(is_here) else { return };
        while let Some(&(_, at)) = offloading.leaving.get(offloading.next).filter(|(end, _)| *end == position) {
            offloading.next += 1;
            for &storage in &offloading.storages[at] {
                self.act(Action::Offloaded(storage.into()));
                self.on(storage.into(), Ledger::unsave);
            }
        }
        self.offloading = Some(offloading);
    }

    /// A checkpoint begins to run again: brings back what comes back now.
    pub(super) fn fetch(&mut self, at: usize) {
        let Some(offloading) = self.offloading.take() else { return };
        for &back in &offloading.returning[at] {
            for &storage in &offloading.storages[back] {
                let copy = self.ledger.copy_of(storage);
                self.on(copy, Ledger::save);
                self.act(Action::Fetch(copy));
            }
        }
        self.offloading = Some(offloading);
    }

    /// Something that was moved is handed back.
    pub(super) fn take_back(&mut self, storage: StorageId) {
        if self.is_moved(storage) {
            self.act(Action::Fetched(self.ledger.copy_of(storage)));
        }
    }

    pub(super) fn is_moved(&self, storage: StorageId) -> bool {
        self.offloading.as_ref().is_some_and(|offloading| offloading.moves(storage))
    }
}
