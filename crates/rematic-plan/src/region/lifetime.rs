use rematic_trace::{Event, OpId, StepTrace, StorageId};

/// When each storage loses its holds in the plain step, looked up by storage.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// Position of the event that drops a storage's last ordinary reference; past the end if it never goes.
    dropped: Vec<usize>,
    /// Position of the event that ends an operator's backward; past the end if there is none.
    unsaved: Vec<usize>,
    /// Position of the first event that says that an operator's backward function has returned; past the end if none does.
    returned: Vec<usize>,
    /// The operators that save each storage, all in one list.
    savers: Vec<OpId>,
    /// Where a storage's savers begin in that list.
    first_saver: Vec<usize>,
}

impl Lifetimes {
    /// Reads them off the trace, in linear time.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let end = trace.events().len();
        let mut dropped = vec![end; trace.storages().len()];
        let mut unsaved = vec![end; trace.ops().len()];
        let mut returned = vec![end; trace.ops().len()];
        for (position, &event) in trace.events().iter().enumerate() {
            match event {
                Event::Drop(storage) => dropped[storage.index()] = position,
                Event::Unsave(op) => {
                    unsaved[op.index()] = position;
                    returned[op.index()] = returned[op.index()].min(position);
                }
                Event::Return(op) => returned[op.index()] = returned[op.index()].min(position),
                _ => {}
            }
        }
        let mut first_saver = vec![0; trace.storages().len() + 1];
        for op in trace.ops() {
            for tensor in trace.saves(op) {
                first_saver[tensor.storage.index() + 1] += 1;
            }
        }
        for index in 1..first_saver.len() {
            first_saver[index] += first_saver[index - 1];
        }
        let mut savers = vec![OpId::new(0); first_saver[trace.storages().len()]];
        let mut next = first_saver.clone();
        for (index, op) in trace.ops().iter().enumerate() {
            for tensor in trace.saves(op) {
                let slot = &mut next[tensor.storage.index()];
                savers[*slot] = OpId::new(index);
                *slot += 1;
            }
        }
        Lifetimes { dropped, unsaved, returned, savers, first_saver }
    }

    /// Position of the event that drops a storage's last ordinary reference.
    #[must_use]
    pub fn dropped(&self, storage: StorageId) -> usize {
        self.dropped[storage.index()]
    }

    /// Position of the event that ends an operator's backward.
    #[must_use]
    pub fn unsaved(&self, op: OpId) -> usize {
        self.unsaved[op.index()]
    }

    /// Position of the event after which an operator's backward reads nothing any more.
    #[must_use]
    pub fn returned(&self, op: OpId) -> usize {
        self.returned[op.index()]
    }

    /// The operators that save a storage, with repetition.
    #[must_use]
    pub fn savers(&self, storage: StorageId) -> &[OpId] {
        &self.savers[self.first_saver[storage.index()]..self.first_saver[storage.index() + 1]]
    }
}
