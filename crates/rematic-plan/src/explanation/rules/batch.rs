use std::collections::HashSet;

use rematic_cost::CostRule;
use rematic_trace::{Bytes, Category, Event, Layout, Millis, Op, Phase, StepTrace, StorageId, Table};

use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::{Change, Scale};
use super::Step;

/// To add a gradient to another, both are read and one is written.
const ADDING: u64 = 3;

/// Half the batch in forward and backward, twice for each step of the optimizer.
///
/// Assumes that what is computed from the batch in forward and backward, and has the batch (or its product with other
/// dimensions) as its first dimension, halves; that gradients of the first half stay until the second is done, which the
/// replay counts; and that a kernel on half the batch takes half as long, but for its launch. The extra time is a second
/// launch of each kernel, and adding up the gradients.
pub(super) fn accumulated(step: &Step<'_>) -> Option<Proposal> {
    let trace = step.trace;
    let batch = batch(trace)?;
    let half = Scale { part: batch.div_ceil(2), of: batch };
    let from_batch = FromBatch::new(trace);
    let scales: Vec<_> = (0..trace.storages().len())
        .map(StorageId::new)
        .filter(|&storage| from_batch.halves(step, storage, batch))
        .map(|storage| (storage, half))
        .collect();
    if scales.is_empty() {
        return None;
    }
    let kernels = trace.ops().iter().zip(step.costs.times());
    let kernels = kernels.filter(|(op, time)| op.phase != Phase::Optimizer && time.0 > 0.0).count();
    let launch = match step.costs.rule() {
        CostRule::Physical => step.device.launch,
        CostRule::Torch => Millis(0.0),
    };
    let adding = step.device.dram.time(Bytes(from_batch.gradient_bytes.saturating_mul(ADDING)));
    Some(Proposal {
        kind: RemedyKind::GradientAccumulation,
        title: "Halve the batch, and accumulate".to_owned(),
        how: format!("batches of {}, with two backwards before each optimizer.step()", batch.div_ceil(2)),
        assumption: "Tensors that begin with the batch halve; gradients of the first half stay".to_owned(),
        extra: Some(Millis(launch.0 * kernels as f64) + adding),
        numerics: Numerics::Rounding,
        change: Change { scales, accumulates: true, ..Change::default() },
    })
}

/// The first dimension of the first tensor of the batch that an operator reads; `None` if it cannot be halved.
fn batch(trace: &StepTrace) -> Option<u64> {
    let is_input = |storage: StorageId| {
        let storage = &trace.storages()[storage];
        storage.birth.is_none() && storage.category == Category::Other
    };
    let read = trace.ops().iter().flat_map(|op| trace.inputs(op));
    let first = read.copied().find(|tensor| is_input(tensor.storage))?;
    trace.layout_of(first).shape.first().copied().filter(|&batch| batch > 1)
}

/// What is computed from the batch.
struct FromBatch {
    storages: Table<StorageId, bool>,
    /// Storages that become gradients of parameters, and their bytes.
    gradients: HashSet<StorageId>,
    gradient_bytes: u64,
}

impl FromBatch {
    fn new(trace: &StepTrace) -> Self {
        let mut storages: Table<StorageId, bool> = trace
            .storages()
            .iter()
            .map(|storage| {
                storage.birth.is_none() && matches!(storage.category, Category::Other | Category::Activation)
            })
            .collect();
        for op in trace.ops() {
            if trace.inputs(op).iter().any(|tensor| storages[tensor.storage]) {
                for tensor in trace.outputs(op) {
                    storages[tensor.storage] = true;
                }
            }
        }
        let gradients: HashSet<StorageId> = trace
            .events()
            .iter()
            .filter_map(|event| match event {
                Event::Recategorize(storage, Category::Gradient) => Some(*storage),
                _ => None,
            })
            .collect();
        let gradient_bytes =
            gradients.iter().map(|storage| trace.storages()[*storage].bytes).fold(0, u64::saturating_add);
        FromBatch { storages, gradients, gradient_bytes }
    }

    fn halves(&self, step: &Step<'_>, id: StorageId, batch: u64) -> bool {
        let trace = step.trace;
        let storage = &trace.storages()[id];
        if !self.storages[id] || self.gradients.contains(&id) || storage.category == Category::Other {
            return false;
        }
        let Some(birth) = storage.birth else {
            // The previous step's output, of which nothing is known but its size.
            return storage.category == Category::Activation;
        };
        let op = trace.op(birth);
        let Some(layout) = step.flow.layout(trace, id) else { return false };
        let begins_with_batch = layout.shape.first().is_some_and(|&extent| extent > 0 && extent.is_multiple_of(batch));
        op.phase != Phase::Optimizer && begins_with_batch && !sums_over_batch(trace, op, layout)
    }
}

/// Whether an operator makes a contribution to a parameter's gradient: it has the parameter's shape, or its transposed one.
fn sums_over_batch(trace: &StepTrace, op: &Op, layout: &Layout) -> bool {
    let Some(forward) = op.differentiates else { return false };
    let transposed: Vec<u64> = layout.shape.iter().rev().copied().collect();
    let has_shape = |shape: &[u64]| shape == layout.shape || shape == transposed;
    trace.inputs(trace.op(forward)).iter().any(|tensor| {
        let is_parameter = trace.storages()[tensor.storage].category == Category::Parameter;
        is_parameter && has_shape(&trace.layout_of(*tensor).shape)
    })
}
