use std::collections::HashMap;

use rematic_trace::{Event, OpId, StepTrace, StorageId};

use crate::Region;

/// The storages whose bytes go and come back in a step, and when.
///
/// Recomputation runs the operators of a region again, and nothing else: it gathers nothing anew and releases nothing. So a
/// region is left alone if that would not be enough ([`Releases::rule_out`]).
pub(crate) struct Releases {
    /// Positions of the events that release or restore anything.
    positions: Vec<usize>,
    /// For the storages that are ever released: from which event on they are there, or not.
    changes: HashMap<StorageId, Vec<(usize, bool)>>,
}

impl Releases {
    pub(crate) fn new(trace: &StepTrace) -> Self {
        let mut releases = Releases { positions: Vec::new(), changes: HashMap::new() };
        for (index, _) in trace.storages().iter().enumerate().filter(|(_, storage)| storage.released) {
            releases.changes.insert(StorageId::new(index), vec![(0, false)]);
        }
        for (position, &event) in trace.events().iter().enumerate() {
            let (storage, there) = match event {
                Event::Release(storage) => (storage, false),
                Event::Restore(storage) => (storage, true),
                // What shrinks in a region would have to shrink again.
                Event::Shrink(..) => {
                    releases.positions.push(position);
                    continue;
                }
                // Only of those that are released: all others are dealt with by their holds.
                Event::Drop(storage) => {
                    if let Some(changes) = releases.changes.get_mut(&storage) {
                        changes.push((position, false));
                    }
                    continue;
                }
                _ => continue,
            };
            releases.positions.push(position);
            releases.changes.entry(storage).or_default().push((position, there));
        }
        releases
    }

    /// Whether a region cannot be checkpointed: its forward releases or restores something; it makes something that is
    /// released later, or would keep something that is; or something that it reads is not there when it is recomputed.
    pub(crate) fn rule_out(&self, trace: &StepTrace, region: &Region) -> bool {
        let next = self.positions.partition_point(|position| *position < region.events.start);
        if self.positions.get(next).is_some_and(|position| *position < region.events.end) {
            return true;
        }
        if self.changes.is_empty() {
            return false;
        }
        let is_missing = |storage: &StorageId| {
            let Some(changes) = self.changes.get(storage) else { return false };
            let before = changes.partition_point(|(position, _)| *position <= region.trigger);
            before > 0 && !changes[before - 1].1
        };
        let is_made = |storage: &StorageId| {
            let birth = trace.storages()[*storage].birth;
            birth.is_some_and(|birth| region.contains(birth)) && self.changes.contains_key(storage)
        };
        let mut ops = region.ops.clone().map(|op| trace.op(OpId::new(op)));
        region.inputs.iter().any(|input| self.changes.contains_key(input))
            || ops.any(|op| {
                let read = trace.inputs(op).iter().chain(trace.saves(op)).map(|tensor| tensor.storage);
                let made = trace.outputs(op).iter().map(|tensor| tensor.storage);
                read.chain(made).any(|storage| is_missing(&storage) || is_made(&storage))
            })
    }
}
