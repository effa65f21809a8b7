//! Bytes that an operator moves between device memory and the processors.
//!
//! Every input is read once and every output written once, and dimensions that are expanded (stride 0) count once:
//! [`Layout::touched_bytes`](rematic_trace::Layout::touched_bytes). What two rules make of that:
//!
//! - torch's: the plain sum, also where one tensor is given twice.
//! - physical: a tensor (storage and layout) that is given twice is read once. A tensor that is changed in place but not
//!   returned, as `_foreach_add_` does, is written once. Sources that are read only where an index points are bounded:
//!   `embedding`, `index_select`, `gather` and `index` read at most one element of their source per element of the
//!   output, `nll_loss_forward` one per target, and `nll_loss_backward` does not read its `self`. What FSDP2 copies into its
//!   part of a buffer, or out of one into weights, is written once, whatever else there is in what it is written to.

use rematic_trace::{LayoutId, Op, StepTrace, StorageId, Table, Tensor};

/// What of an input is read, if not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Every input, wholly.
    Whole,
    /// Of the first input, one element per element of the first output.
    PerOutputElement,
    /// Of the first input, one element per element of the second.
    PerTarget,
    /// All but the second input, which only lends its shape.
    SecondIsShape,
    /// Every input, wholly, and just that is written.
    Copied,
}

impl Reading {
    pub(crate) fn of(operator: &str) -> Reading {
        match operator {
            "embedding" | "index_select" | "gather" | "index" => Reading::PerOutputElement,
            "nll_loss_forward" | "nll_loss2d_forward" => Reading::PerTarget,
            "nll_loss_backward" | "nll_loss2d_backward" => Reading::SecondIsShape,
            "all_gather_copy_in" | "split_with_sizes_copy" => Reading::Copied,
            _ => Reading::Whole,
        }
    }
}

/// Counts the bytes of operators of one trace.
pub(crate) struct Traffic<'a> {
    trace: &'a StepTrace,
    /// By layout: many tensors share few layouts.
    touched: Table<LayoutId, u64>,
    tensors: Vec<Tensor>,
    storages: Vec<StorageId>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(trace: &'a StepTrace) -> Self {
        let touched = trace.layouts().iter().map(rematic_trace::Layout::touched_bytes).collect();
        Traffic { trace, touched, tensors: Vec::new(), storages: Vec::new() }
    }

    fn touched(&self, layout: LayoutId) -> u64 {
        self.touched[layout]
    }

    /// Inputs and outputs, each as often as it is given.
    pub(crate) fn plain(&self, op: &Op) -> u64 {
        let tensors = self.trace.inputs(op).iter().chain(self.trace.outputs(op));
        tensors.fold(0, |sum, tensor| sum.saturating_add(self.touched(tensor.layout)))
    }

    /// What really has to move.
    pub(crate) fn distinct(&mut self, op: &Op, reading: Reading) -> u64 {
        if reading == Reading::Copied {
            return self.distinct_sum(self.trace.inputs(op)).saturating_mul(2);
        }
        let written = self.distinct_sum(self.trace.outputs(op));
        let read = self.distinct_sum(self.trace.inputs(op)).saturating_sub(self.unread(op, reading));
        // The distinct inputs are still in `tensors`.
        read.saturating_add(written).saturating_add(self.changed_unseen(op))
    }

    fn distinct_sum(&mut self, tensors: &[Tensor]) -> u64 {
        self.tensors.clear();
        self.tensors.extend_from_slice(tensors);
        self.tensors.sort_unstable_by_key(|tensor| (tensor.storage, tensor.layout));
        self.tensors.dedup();
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(self.touched(tensor.layout)))
    }

    /// Bytes of the inputs that the operator leaves alone.
    fn unread(&self, op: &Op, reading: Reading) -> u64 {
        let (inputs, outputs) = (self.trace.inputs(op), self.trace.outputs(op));
        let elements = |tensor: Option<&Tensor>| tensor.map(|tensor| self.trace.layout_of(*tensor).elements());
        let (source, most) = match reading {
            Reading::Whole | Reading::Copied => return 0,
            Reading::PerOutputElement => (inputs.first(), elements(outputs.first())),
            Reading::PerTarget => (inputs.first(), elements(inputs.get(1))),
            Reading::SecondIsShape => (inputs.get(1), Some(0)),
        };
        let (Some(source), Some(most)) = (source, most) else { return 0 };
        let size = self.trace.layout_of(*source).dtype.size();
        self.touched(source.layout).saturating_sub(most.saturating_mul(size))
    }

    /// Bytes of the inputs that are changed in place without being returned.
    fn changed_unseen(&mut self, op: &Op) -> u64 {
        let mutated = self.trace.mutates(op);
        if mutated.is_empty() {
            return 0;
        }
        self.storages.clear();
        self.storages.extend(self.trace.outputs(op).iter().map(|tensor| tensor.storage));
        self.storages.sort_unstable();
        let returned = self.storages.len();
        for &storage in mutated {
            if self.storages[..returned].binary_search(&storage).is_err() {
                self.storages.push(storage);
            }
        }
        let unseen = &mut self.storages[returned..];
        unseen.sort_unstable();
        self.tensors
            .iter()
            .filter(|tensor| unseen.binary_search(&tensor.storage).is_ok())
            .fold(0, |sum, tensor| sum.saturating_add(self.touched[tensor.layout]))
    }
}
