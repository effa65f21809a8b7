use rematic_trace::{CollectiveKind, Event, Lists, ModuleId, OpId, StepTrace, StorageId, Table};

/// Which operators of a step change memory in place, looked up by what they change.
///
/// Weights whose bytes went and came back are filled again with what the ranks have of them: as long as no shard changes, that
/// is no change.
#[derive(Clone, Debug)]
pub struct Writes {
    /// The operators that write to each storage, in order.
    writers: Lists<StorageId, OpId>,
    /// For every module, the operators that write to parameters of it or of modules inside it, in order.
    to_parameters: Table<ModuleId, Vec<OpId>>,
}

impl Writes {
    /// Reads them off the trace, in time linear in it; for parameters, times the depth of the module tree.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let refills = refills(trace);
        let writes = trace
            .ops()
            .entries()
            .filter(|(id, _)| !refills[*id])
            .flat_map(|(id, op)| trace.mutates(op).iter().map(move |storage| (*storage, id)));
        let writers = Lists::new(trace.storages().len(), writes);
        let mut writes = Writes { writers, to_parameters: trace.modules().filled(Vec::new()) };
        writes.find_parameters(trace);
        writes
    }

    fn find_parameters(&mut self, trace: &StepTrace) {
        for (id, module) in trace.modules().entries() {
            for parameter in &module.parameters {
                let writers = &self.writers[parameter.storage];
                let mut around = Some(id);
                while let Some(id) = around.filter(|_| !writers.is_empty()) {
                    self.to_parameters[id].extend(writers);
                    around = trace.module(id).parent;
                }
            }
        }
        for writers in &mut self.to_parameters {
            writers.sort_unstable();
            writers.dedup();
        }
    }

    /// Whether an operator from `start` to before `end` changes a storage.
    #[must_use]
    pub fn change(&self, storage: StorageId, start: usize, end: usize) -> bool {
        any_within(&self.writers[storage], start, end)
    }

    /// Whether an operator from `start` to before `end` changes a parameter of a module, or of one inside it.
    #[must_use]
    pub fn change_parameters(&self, module: ModuleId, start: usize, end: usize) -> bool {
        any_within(&self.to_parameters[module], start, end)
    }
}

/// The operators that copy what was gathered from all ranks into storages whose bytes have just come back, and do nothing else.
fn refills(trace: &StepTrace) -> Table<OpId, bool> {
    let mut restored = trace.storages().filled(false);
    let mut gathered = trace.storages().filled(false);
    let mut refills = trace.ops().filled(false);
    for &event in trace.events() {
        match event {
            Event::Restore(storage) => restored[storage] = true,
            Event::Op(id) => {
                let op = trace.op(id);
                let gathers = trace.collective_of(op).is_some_and(|how| how.kind == CollectiveKind::AllGather);
                let changed = trace.mutates(op);
                let read = trace.inputs(op);
                let reads_gathered = !read.is_empty() && read.iter().all(|tensor| gathered[tensor.storage]);
                let fills = !changed.is_empty() && changed.iter().all(|storage| restored[*storage]);
                refills[id] = fills && reads_gathered;
                for &storage in changed {
                    restored[storage] = false;
                    gathered[storage] = gathers;
                }
                for tensor in trace.outputs(op).iter().filter(|_| gathers) {
                    gathered[tensor.storage] = true;
                }
            }
            _ => {}
        }
    }
    refills
}

fn any_within(ops: &[OpId], start: usize, end: usize) -> bool {
    let next = ops.partition_point(|op| op.index() < start);
    ops.get(next).is_some_and(|op| op.index() < end)
}
