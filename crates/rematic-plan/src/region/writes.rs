use rematic_trace::{ModuleId, OpId, StepTrace, StorageId};

/// Which operators of a step change memory in place, looked up by what they change.
#[derive(Clone, Debug)]
pub struct Writes {
    /// The operators that write to each storage, in order, all in one list.
    writers: Vec<OpId>,
    /// Where a storage's writers begin in that list.
    first_writer: Vec<usize>,
    /// For every module, the operators that write to parameters of it or of modules inside it, in order.
    to_parameters: Vec<Vec<OpId>>,
}

impl Writes {
    /// Reads them off the trace, in time linear in it; for parameters, times the depth of the module tree.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let mut first_writer = vec![0; trace.storages().len() + 1];
        for storage in trace.ops().iter().flat_map(|op| trace.mutates(op)) {
            first_writer[storage.index() + 1] += 1;
        }
        for index in 1..first_writer.len() {
            first_writer[index] += first_writer[index - 1];
        }
        let mut writers = vec![OpId::new(0); first_writer[trace.storages().len()]];
        let mut next = first_writer.clone();
        for (index, op) in trace.ops().iter().enumerate() {
            for storage in trace.mutates(op) {
                let slot = &mut next[storage.index()];
                writers[*slot] = OpId::new(index);
                *slot += 1;
            }
        }
        let mut writes = Writes { writers, first_writer, to_parameters: vec![Vec::new(); trace.modules().len()] };
        writes.find_parameters(trace);
        writes
    }

    fn find_parameters(&mut self, trace: &StepTrace) {
        for (index, module) in trace.modules().iter().enumerate() {
            for parameter in &module.parameters {
                let writers = self.of(parameter.storage).to_vec();
                let mut around = Some(index);
                while let Some(index) = around.filter(|_| !writers.is_empty()) {
                    self.to_parameters[index].extend(&writers);
                    around = trace.modules()[index].parent.map(|parent| parent.index());
                }
            }
        }
        for writers in &mut self.to_parameters {
            writers.sort_unstable();
            writers.dedup();
        }
    }

    fn of(&self, storage: StorageId) -> &[OpId] {
        &self.writers[self.first_writer[storage.index()]..self.first_writer[storage.index() + 1]]
    }

    /// Whether an operator from `start` to before `end` changes a storage.
    #[must_use]
    pub fn change(&self, storage: StorageId, start: usize, end: usize) -> bool {
        any_within(self.of(storage), start, end)
    }

    /// Whether an operator from `start` to before `end` changes a parameter of a module, or of one inside it.
    #[must_use]
    pub fn change_parameters(&self, module: ModuleId, start: usize, end: usize) -> bool {
        any_within(&self.to_parameters[module.index()], start, end)
    }
}

fn any_within(ops: &[OpId], start: usize, end: usize) -> bool {
    let next = ops.partition_point(|op| op.index() < start);
    ops.get(next).is_some_and(|op| op.index() < end)
}
