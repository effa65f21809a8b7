use std::ops::Range;

use rematic_trace::{Event, Lists, OpId, StepTrace, StorageId, Table};

/// When each storage loses its holds in the plain step, looked up by storage.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// Position of the event that drops a storage's last ordinary reference; past the end if it never goes.
    dropped: Table<StorageId, usize>,
    /// Position of the event that ends an operator's backward; past the end if there is none.
    unsaved: Table<OpId, usize>,
    /// Position of the first event that says that an operator's backward function has returned; past the end if none does.
    returned: Table<OpId, usize>,
    /// The operators that save a storage, in their order.
    savers: Lists<StorageId, Saver>,
}

#[derive(Clone, Copy, Debug)]
struct Saver {
    op: OpId,
    /// Where the last backward ends of those that save the storage up to this one.
    until_here: usize,
    /// The same from this one on.
    from_here: usize,
}

impl Lifetimes {
    /// Reads them off the trace, in linear time.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let end = trace.events().len();
        let mut dropped = trace.storages().filled(end);
        let mut unsaved = trace.ops().filled(end);
        let mut returned = trace.ops().filled(end);
        for (position, &event) in trace.events().iter().enumerate() {
            match event {
                Event::Drop(storage) => dropped[storage] = position,
                Event::Unsave(op) => {
                    unsaved[op] = position;
                    returned[op] = returned[op].min(position);
                }
                Event::Return(op) => returned[op] = returned[op].min(position),
                _ => {}
            }
        }
        let saves =
            trace.ops().entries().flat_map(|(id, op)| trace.saves(op).iter().map(move |saved| (saved.storage, id)));
        let saver = |(storage, op)| (storage, Saver { op, until_here: unsaved[op], from_here: unsaved[op] });
        let mut savers = Lists::new(trace.storages().len(), saves.map(saver));
        for storage in trace.storages().ids() {
            let savers = &mut savers[storage];
            for at in 1..savers.len() {
                savers[at].until_here = savers[at].until_here.max(savers[at - 1].until_here);
            }
            for at in (1..savers.len()).rev() {
                savers[at - 1].from_here = savers[at - 1].from_here.max(savers[at].from_here);
            }
        }
        Lifetimes { dropped, unsaved, returned, savers }
    }

    /// Position of the event that drops a storage's last ordinary reference.
    #[must_use]
    pub fn dropped(&self, storage: StorageId) -> usize {
        self.dropped[storage]
    }

    /// Position of the event that ends an operator's backward.
    #[must_use]
    pub fn unsaved(&self, op: OpId) -> usize {
        self.unsaved[op]
    }

    /// Position of the event after which an operator's backward reads nothing any more.
    #[must_use]
    pub fn returned(&self, op: OpId) -> usize {
        self.returned[op]
    }

    /// Whether one of some operators saves a storage.
    #[must_use]
    pub fn is_saved_within(&self, storage: StorageId, ops: &Range<usize>) -> bool {
        let savers = &self.savers[storage];
        let first = savers.partition_point(|saver| saver.op.index() < ops.start);
        savers.get(first).is_some_and(|saver| saver.op.index() < ops.end)
    }

    /// Position of the event that ends the last backward of those that save a storage, but for some operators; 0 if no others do.
    #[must_use]
    pub fn unsaved_outside(&self, storage: StorageId, ops: &Range<usize>) -> usize {
        let savers = &self.savers[storage];
        let first = savers.partition_point(|saver| saver.op.index() < ops.start);
        let behind = first + savers[first..].partition_point(|saver| saver.op.index() < ops.end);
        let before = first.checked_sub(1).map_or(0, |at| savers[at].until_here);
        savers.get(behind).map_or(before, |saver| before.max(saver.from_here))
    }
}
