use rematic_trace::{Layout, LayoutId, OpId, StepTrace, StorageId, Table, Tensor};

/// Who reads what, and how storages look.
pub(super) struct Flow {
    /// Operators that read each storage, in order, each once.
    readers: Table<StorageId, Vec<OpId>>,
    /// The layout in which each storage is made; for those from before the step, in which it is first read.
    layouts: Table<StorageId, Option<LayoutId>>,
}

impl Flow {
    pub(super) fn new(trace: &StepTrace) -> Self {
        let mut readers: Table<StorageId, Vec<OpId>> = trace.storages().filled(Vec::new());
        let mut layouts = trace.storages().filled(None);
        for (id, op) in trace.ops().entries() {
            for tensor in trace.inputs(op) {
                let readers = &mut readers[tensor.storage];
                if readers.last() != Some(&id) {
                    readers.push(id);
                }
                layouts[tensor.storage].get_or_insert(tensor.layout);
            }
            for tensor in trace.outputs(op) {
                layouts[tensor.storage].get_or_insert(tensor.layout);
            }
        }
        Flow { readers, layouts }
    }

    pub(super) fn readers(&self, storage: StorageId) -> &[OpId] {
        &self.readers[storage]
    }

    pub(super) fn layout<'a>(&self, trace: &'a StepTrace, storage: StorageId) -> Option<&'a Layout> {
        self.layouts[storage].map(|layout| &trace.layouts()[layout])
    }
}

/// An operator's name without the overload.
pub(super) fn operator(trace: &StepTrace, op: OpId) -> &str {
    let name = trace.op_name(trace.op(op));
    name.split_once('.').map_or(name, |(operator, _)| operator)
}

/// Whether an operator multiplies matrices.
pub(super) fn is_product(trace: &StepTrace, op: OpId) -> bool {
    const PRODUCTS: [&str; 7] = ["mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm"];
    PRODUCTS.contains(&operator(trace, op))
}

/// The tensors of a list that look as asked for.
pub(super) fn matching<'a>(
    trace: &'a StepTrace,
    tensors: &'a [Tensor],
    looks: impl Fn(&Layout) -> bool + 'a,
) -> impl Iterator<Item = StorageId> + 'a {
    tensors.iter().filter(move |tensor| looks(trace.layout_of(**tensor))).map(|tensor| tensor.storage)
}
