//! Which operators of a region share one fate, because of what is changed in place.
//!
//! A region runs twice: in forward, and again when backward needs it. In between, memory may have changed. What is read
//! again must be as it was, and nothing may be changed twice:
//!
//! - An operator that changes a storage goes with the one that made it, and with all that read it before: what is kept is
//!   the storage as it was left, on which they cannot run again.
//! - One that changes a storage from outside the region cannot run twice. It is saved: it then leaves things as they are.
//! - A storage from outside that something changes after the region has returned cannot be read again: its readers are
//!   saved.
//! - A storage from inside that something changes after the region has returned cannot be kept: its maker runs again.
//! - Random operators share one generator, so they go together.
//!
//! Where two of these contradict each other, the region cannot be checkpointed. Nor can it where an argument of its call
//! is changed before it runs again, be it by the region itself, or a parameter: PyTorch's checkpointing refuses the
//! former, and applying a plan the latter.

use std::collections::HashMap;

use rematic_replay::{Region, births};
use rematic_trace::{Event, OpId, StepTrace, StorageId};

use super::Writes;

/// What may be done with the outputs of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They must be saved: running again would change memory twice, or read it as it is not any more.
    Store,
    /// They cannot be kept: something changes them after the region has returned.
    Recompute,
    /// Either.
    Free,
}

/// Operators of a region that are saved or recomputed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// As distances from the first operator of the region, ascending.
    pub ops: Vec<usize>,
    /// What may be done with them.
    pub fate: Fate,
}

/// The bundles of a region, in the order of their first operators; `None` if it cannot be checkpointed. Views, and what
/// recomputation never reaches, are in none. In time linear in the region.
#[must_use]
pub fn bundles(trace: &StepTrace, writes: &Writes, region: &Region) -> Option<Vec<Bundle>> {
    let again = runs_again(trace, region);
    let born_inside = |storage: StorageId| trace.storages()[storage].birth.filter(|birth| region.contains(*birth));
    // What one call of a run hands to the next is made again.
    let given_changes =
        |storage: &StorageId| born_inside(*storage).is_none() && writes.change(*storage, region.ops.start, again);
    for call in region.calls().map(|call| trace.call(call)) {
        if call.inputs.iter().chain(&call.keywords).any(given_changes)
            || writes.change_parameters(call.module, region.ops.end, again)
        {
            return None;
        }
    }
    let mut ties = Ties::new(region.ops.len());
    let mut must_save = vec![false; region.ops.len()];
    let mut must_run = vec![false; region.ops.len()];
    let changes_behind = |storage: StorageId| writes.change(storage, region.ops.end, again);
    let mut first_random = None;
    // Per storage that is changed here, what has read it and is not yet tied to a change of it.
    let changed = region.ops.clone().flat_map(|op| trace.mutates(trace.op(OpId::new(op))));
    let mut readers: HashMap<StorageId, Vec<usize>> = changed.map(|storage| (*storage, Vec::new())).collect();
    for id in region.ops.clone().map(OpId::new) {
        let (op, at) = (trace.op(id), id.index() - region.ops.start);
        if op.flags.view {
            continue;
        }
        if op.flags.random {
            ties.join(*first_random.get_or_insert(at), at);
        }
        for &storage in trace.mutates(op) {
            match born_inside(storage) {
                Some(birth) => ties.join(birth.index() - region.ops.start, at),
                None => must_save[at] = true,
            }
            let read = readers.entry(storage).or_default();
            for reader in read.drain(..) {
                ties.join(reader, at);
            }
            read.push(at);
        }
        for tensor in trace.inputs(op) {
            // Most regions change nothing.
            if !readers.is_empty()
                && let Some(read) = readers.get_mut(&tensor.storage)
            {
                read.push(at);
            }
            must_save[at] |=
                region.reaches(id) && born_inside(tensor.storage).is_none() && changes_behind(tensor.storage);
        }
        must_run[at] = births(trace, id).any(changes_behind);
    }
    collect(trace, region, &mut ties, &must_save, &must_run)
}

fn collect(
    trace: &StepTrace,
    region: &Region,
    ties: &mut Ties,
    must_save: &[bool],
    must_run: &[bool],
) -> Option<Vec<Bundle>> {
    let mut bundles: Vec<Bundle> = Vec::new();
    let mut place: Vec<Option<usize>> = vec![None; region.ops.len()];
    for at in 0..region.ops.len() {
        let id = OpId::new(region.ops.start + at);
        let flags = trace.op(id).flags;
        let head = ties.head(at);
        let alone = head == at && !must_save[at];
        if flags.view || flags.host || alone && !region.reaches(id) && !flags.random {
            continue;
        }
        let index = *place[head].get_or_insert_with(|| {
            bundles.push(Bundle { ops: Vec::new(), fate: Fate::Free });
            bundles.len() - 1
        });
        let bundle = &mut bundles[index];
        bundle.ops.push(at);
        for (must, fate) in [(must_save[at], Fate::Store), (must_run[at], Fate::Recompute)] {
            if must && bundle.fate != Fate::Free && bundle.fate != fate {
                return None;
            }
            if must {
                bundle.fate = fate;
            }
        }
    }
    Some(bundles)
}

/// The saved operators of a region that keep the rules and are nearest to `saved`: of a bundle that is free, all are saved
/// if all were to be. `None` if the region cannot be checkpointed.
#[must_use]
pub fn nearest_saved(trace: &StepTrace, writes: &Writes, region: &Region, saved: &[OpId]) -> Option<Vec<OpId>> {
    let mut is_saved = vec![false; region.ops.len()];
    for op in saved.iter().filter(|op| region.contains(**op) && !trace.op(**op).flags.view) {
        is_saved[op.index() - region.ops.start] = true;
    }
    for bundle in bundles(trace, writes, region)? {
        let save = match bundle.fate {
            Fate::Store => true,
            Fate::Recompute => false,
            Fate::Free => bundle.ops.iter().all(|&op| is_saved[op]),
        };
        for op in bundle.ops {
            is_saved[op] = save;
        }
    }
    let ops = region.ops.clone().map(OpId::new);
    Some(ops.zip(is_saved).filter_map(|(op, saved)| saved.then_some(op)).collect())
}

/// The operator of backward before which a region runs again.
fn runs_again(trace: &StepTrace, region: &Region) -> usize {
    match trace.events().get(region.trigger) {
        Some(Event::Op(op)) => op.index(),
        _ => trace.ops().len(),
    }
}

/// Sets of operators that are tied together, each named by its first.
struct Ties(Vec<usize>);

impl Ties {
    fn new(ops: usize) -> Self {
        Ties((0..ops).collect())
    }

    fn head(&mut self, at: usize) -> usize {
        let mut head = at;
        while self.0[head] != head {
            // Half the way for those who come after.
            self.0[head] = self.0[self.0[head]];
            head = self.0[head];
        }
        head
    }

    fn join(&mut self, first: usize, second: usize) {
        let (first, second) = (self.head(first), self.head(second));
        self.0[first.max(second)] = first.min(second);
    }
}
