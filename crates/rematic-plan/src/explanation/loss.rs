use std::collections::BTreeSet;

use rematic_trace::{Category, Layout, OpId, Phase, StepTrace, StorageId};

use super::flow::{Flow, is_product, matching, operator};

/// The operators that end a classification loss, without their overloads.
const LOSSES: [&str; 3] = ["nll_loss_forward", "nll_loss_nd", "cross_entropy_loss"];

/// The loss over a vocabulary: everything between the last projection and the number that backward starts from.
pub(super) struct Loss {
    /// The products that make the logits.
    pub(super) projections: BTreeSet<OpId>,
    /// The forward operators behind them.
    pub(super) ops: BTreeSet<OpId>,
    /// Whatever has the size of the logits: they, their copies in other types, log-probabilities, the gradients of all of
    /// these, and what is left of them from the previous step.
    pub(super) storages: BTreeSet<StorageId>,
}

impl Loss {
    /// Follows the data back from the last loss operator: tensors whose last dimension is the vocabulary, up to the products
    /// that make them. `None` if there is no such loss.
    pub(super) fn find(trace: &StepTrace, flow: &Flow) -> Option<Loss> {
        let is_end = |&op: &OpId| trace.op(op).phase == Phase::Forward && LOSSES.contains(&operator(trace, op));
        let end = (0..trace.ops().len()).rev().map(OpId::new).find(is_end)?;
        let first = *trace.inputs(trace.op(end)).first()?;
        let [_, vocabulary] = trace.layout_of(first).shape[..] else { return None };
        // One row is a bias, or a vector that the loss does not read.
        let is_logits = |layout: &Layout| {
            layout.shape.last() == Some(&vocabulary) && layout.elements() > vocabulary && vocabulary > 1
        };
        let mut loss = Loss { projections: BTreeSet::new(), ops: BTreeSet::from([end]), storages: BTreeSet::new() };
        let mut open = vec![first.storage];
        while let Some(storage) = open.pop() {
            let Some(birth) = trace.storages()[storage].birth else { continue };
            if !loss.storages.insert(storage) {
                continue;
            }
            if is_product(trace, birth) {
                loss.projections.insert(birth);
            } else {
                open.extend(matching(trace, trace.inputs(trace.op(birth)), is_logits));
            }
        }
        if loss.projections.is_empty() {
            return None;
        }
        let read: Vec<OpId> = loss.storages.iter().flat_map(|storage| flow.readers(*storage)).copied().collect();
        loss.ops.extend(read.into_iter().filter(|&op| trace.op(op).phase == Phase::Forward));
        loss.add_gradients(trace, is_logits);
        loss.add_previous(trace);
        Some(loss)
    }

    /// Whether an operator is of the loss, or differentiates one that is.
    pub(super) fn contains(&self, trace: &StepTrace, op: OpId) -> bool {
        self.ops.contains(&op) || trace.op(op).differentiates.is_some_and(|forward| self.ops.contains(&forward))
    }

    fn add_gradients(&mut self, trace: &StepTrace, is_logits: impl Fn(&Layout) -> bool) {
        for (id, op) in trace.ops().entries().filter(|(_, op)| op.phase == Phase::Backward) {
            if op.differentiates.is_some_and(|forward| self.ops.contains(&forward)) {
                let born = |storage: &StorageId| trace.storages()[*storage].birth == Some(id);
                self.storages.extend(matching(trace, trace.outputs(op), &is_logits).filter(born));
            }
        }
    }

    /// What a variable holds from the previous step is what it will hold of this one.
    fn add_previous(&mut self, trace: &StepTrace) {
        let sizes: BTreeSet<u64> = self.storages.iter().map(|storage| trace.storages()[*storage].bytes).collect();
        for (id, storage) in trace.storages().entries() {
            let previous = storage.birth.is_none() && storage.category == Category::Activation;
            if previous && sizes.contains(&storage.bytes) {
                self.storages.insert(id);
            }
        }
    }
}
