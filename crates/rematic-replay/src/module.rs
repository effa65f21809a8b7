use rematic_trace::{Bytes, Module, ModuleId, Parameter, StepTrace, StorageId, Table};

use crate::{Ledger, Snapshot};

/// What one module holds, and the state of the whole step's memory around its last call.
///
/// The snapshots are of *all* memory in use at that moment, not only of the module's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleMemory {
    /// Parameters of the module and everything below it; tied parameters once.
    pub parameter_bytes: Bytes,
    /// Buffers of the module and everything below it; shared ones once.
    pub buffer_bytes: Bytes,
    /// The positional tensor inputs of its last call; a storage that is passed twice counts twice.
    pub input_bytes: Bytes,
    /// The tensor outputs of its last call; a storage that is returned twice counts twice.
    pub output_bytes: Bytes,
    /// Around its forward.
    pub forward: Pass,
    /// Around its backward.
    ///
    /// `post` is there for every module: where no end of its backward is seen, it is the state when backward is over,
    /// just before the first operator of the optimizer (or at the end of a step without one).
    pub backward: Pass,
    /// Around the recomputation of its forward under a checkpointing plan; empty in a plain step.
    pub recompute: Pass,
}

/// The state of memory around one pass through a module.
///
/// If the module is called several times, each is the last one that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// When it begins.
    pub pre: Option<Snapshot>,
    /// The first of its highest states, among its beginning and the moments right after each operator inside it.
    ///
    /// Where calls of one module overlap, it belongs to the call that began last, and reaches until none is under way.
    pub peak: Option<Snapshot>,
    /// When it ends.
    pub post: Option<Snapshot>,
}

impl ModuleMemory {
    pub(crate) fn new(own: Holdings) -> Self {
        ModuleMemory {
            parameter_bytes: own.parameters,
            buffer_bytes: own.buffers,
            input_bytes: Bytes(0),
            output_bytes: Bytes(0),
            forward: Pass::default(),
            backward: Pass::default(),
            recompute: Pass::default(),
        }
    }
}

/// The bytes of the parameters and buffers in a module's subtree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    pub(crate) parameters: Bytes,
    pub(crate) buffers: Bytes,
}

impl Holdings {
    /// For every module of the trace.
    pub(crate) fn of_modules(trace: &StepTrace, ledger: &Ledger) -> Table<ModuleId, Holdings> {
        let mut holdings = trace.modules().filled(Holdings::default());
        for_each_subtree_storage(
            trace,
            |module| &module.parameters,
            |module, storage| add(&mut holdings[module].parameters, ledger.footprint(storage)),
        );
        for_each_subtree_storage(
            trace,
            |module| &module.buffers,
            |module, storage| add(&mut holdings[module].buffers, ledger.footprint(storage)),
        );
        holdings
    }
}

/// Visits every pair of a module and a storage that some module of its subtree holds, each once.
///
/// The holders of one storage are handled together; each climbs towards the root and stops at the first module that an
/// earlier one has passed, because that one has passed all above it too.
fn for_each_subtree_storage(
    trace: &StepTrace,
    held_by: impl Fn(&Module) -> &[Parameter],
    mut visit: impl FnMut(ModuleId, StorageId),
) {
    let mut holders: Vec<(StorageId, ModuleId)> = trace
        .modules()
        .entries()
        .flat_map(|(module, held)| held_by(held).iter().map(move |parameter| (parameter.storage, module)))
        .collect();
    holders.sort_unstable();
    let mut passed = trace.modules().filled(None);
    for (storage, holder) in holders {
        let mut at = Some(holder);
        while let Some(module) = at.filter(|&module| passed[module] != Some(storage)) {
            passed[module] = Some(storage);
            visit(module, storage);
            // Parents stand before their children; without that, a broken tree could lead out of the table.
            at = trace.module(module).parent.filter(|&parent| parent < module);
        }
    }
}

/// Adds without overflow, whatever sizes an unchecked trace claims.
pub(crate) fn add(sum: &mut Bytes, bytes: Bytes) {
    sum.0 = sum.0.saturating_add(bytes.0);
}
