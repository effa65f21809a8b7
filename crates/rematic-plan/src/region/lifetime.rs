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
    savers: Lists<StorageId, OpId>,
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
        let savers = Lists::new(trace.storages().len(), saves);
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

    /// The operators that save a storage, with repetition.
    #[must_use]
    pub fn savers(&self, storage: StorageId) -> &[OpId] {
        &self.savers[storage]
    }
}
