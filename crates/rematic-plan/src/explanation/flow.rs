use rematic_trace::{Layout, LayoutId, OpId, StepTrace, StorageId, Tensor};

/// Who reads what, and how storages look.
pub(super) struct Flow {
    /// Operators that read each storage, in order, each once.
    readers: Vec<Vec<OpId>>,
    /// The layout in which each storage is made; for those from before the step, in which it is first read.
    layouts: Vec<Option<LayoutId>>,
}

impl Flow {
    pub(super) fn new(trace: &StepTrace) -> Self {
        let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); trace.storages().len()];
        let mut layouts = vec![None; trace.storages().len()];
        for (index, op) in trace.ops().iter().enumerate() {
            for tensor in trace.inputs(op) {
                let readers = &mut readers[tensor.storage.index()];
                if readers.last() != Some(&OpId::new(index)) {
                    readers.push(OpId::new(index));
                }
                layouts[tensor.storage.index()].get_or_insert(tensor.layout);
            }
            for tensor in trace.outputs(op) {
                layouts[tensor.storage.index()].get_or_insert(tensor.layout);
            }
        }
        Flow { readers, layouts }
    }

    pub(super) fn readers(&self, storage: StorageId) -> &[OpId] {
        &self.readers[storage.index()]
    }

    pub(super) fn layout<'a>(&self, trace: &'a StepTrace, storage: StorageId) -> Option<&'a Layout> {
        self.layouts[storage.index()].map(|layout| &trace.layouts()[layout.index()])
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
