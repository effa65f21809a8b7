use std::collections::BTreeSet;

use rematic_trace::{Layout, Millis, OpId, Phase, StorageId};

use super::super::flow::{is_product, matching, operator};
use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::{Change, Scale};
use super::Step;

const SOFTMAXES: [&str; 3] = ["_softmax", "_safe_softmax", "softmax"];
/// What no fused kernel of PyTorch does to scores: soft-capping.
const CAPS: &str = "tanh";
/// Products of many matrices: what attention is made of.
const BATCHED: [&str; 3] = ["bmm", "baddbmm", "matmul"];
/// A fused kernel keeps one 32-bit float of each row of scores.
const LOG_SUM_EXP: u64 = 4;

/// Attention as plain products and a softmax, whose scores exist for all pairs of positions.
///
/// Assumes a fused kernel (flash or memory-efficient): scores, weights, dropped weights and their gradients are never
/// stored; the log-sum-exp of each row is. Its backward computes the scores again, and in exchange leaves out what the
/// operators on them take. Scores that are capped (Gemma 2) are not for such a kernel.
pub(super) fn fused(step: &Step<'_>) -> Option<Proposal> {
    let mut change = Change::default();
    let (mut again, mut saved) = (0.0, 0.0);
    for op in (0..step.trace.ops().len()).map(OpId::new) {
        let runs_softmax = step.trace.op(op).phase == Phase::Forward && SOFTMAXES.contains(&operator(step.trace, op));
        let Some(core) = runs_softmax.then(|| Core::around(step, op)).flatten() else { continue };
        for &storage in &core.storages {
            let scale = if storage == core.weights { core.row_sums } else { Scale::NOTHING };
            change.scales.push((storage, scale));
        }
        again += step.costs.time(core.scores).0;
        saved += core.ops.iter().map(|op| step.costs.time(*op).0).sum::<f64>();
    }
    if change.scales.is_empty() {
        return None;
    }
    Some(Proposal {
        kind: RemedyKind::FusedAttention,
        title: "Use a fused attention kernel".to_owned(),
        how: "F.scaled_dot_product_attention; of a built-in model, --attention flash or efficient".to_owned(),
        assumption: "Scores are not stored, and computed again in backward".to_owned(),
        extra: Some(Millis((again - saved).max(0.0))),
        numerics: Numerics::Rounding,
        change,
    })
}

/// What lies between the two products of one attention.
struct Core {
    /// The product that makes the scores.
    scores: OpId,
    /// What the softmax makes, and what is left of it.
    weights: StorageId,
    row_sums: Scale,
    /// Everything that has the scores' extent, forward and backward.
    storages: BTreeSet<StorageId>,
    /// The operators between the products, forward and backward.
    ops: BTreeSet<OpId>,
}

impl Core {
    /// `None` if the softmax is not between two products of many matrices.
    fn around(step: &Step<'_>, softmax: OpId) -> Option<Core> {
        let trace = step.trace;
        let weights = *trace.outputs(trace.op(softmax)).first()?;
        let layout = trace.layout_of(weights);
        let [.., rows, columns] = layout.shape[..] else { return None };
        let elements = layout.elements();
        if layout.shape.len() < 3 || rows < 2 || columns < 2 {
            return None;
        }
        let alike = |other: &Layout| other.elements() == elements && other.shape.ends_with(&[rows, columns]);
        let batched = |op: OpId| BATCHED.contains(&operator(trace, op));
        let mut storages = BTreeSet::new();
        let (mut scores, mut attends) = (None, false);
        let mut readers = BTreeSet::new();
        let mut open = vec![weights.storage];
        while let Some(storage) = open.pop() {
            let Some(birth) = trace.storages()[storage].birth else { continue };
            if !storages.insert(storage) {
                continue;
            }
            if is_product(trace, birth) {
                scores = batched(birth).then_some(birth).or(scores);
            } else if operator(trace, birth) == CAPS {
                return None;
            } else {
                open.extend(matching(trace, trace.inputs(trace.op(birth)), alike));
            }
            for &reader in step.flow.readers(storage).iter().filter(|op| trace.op(**op).phase == Phase::Forward) {
                readers.insert(reader);
                if is_product(trace, reader) {
                    attends |= batched(reader);
                } else {
                    open.extend(matching(trace, trace.outputs(trace.op(reader)), alike));
                }
            }
        }
        let scores = scores.filter(|_| attends)?;
        let mut ops: BTreeSet<OpId> = readers.iter().copied().filter(|op| !is_product(trace, *op)).collect();
        for (id, op) in trace.ops().entries().filter(|(_, op)| op.phase == Phase::Backward) {
            let Some(forward) = op.differentiates.filter(|forward| readers.contains(forward)) else { continue };
            let born = |storage: &StorageId| trace.storages()[*storage].birth == Some(id);
            storages.extend(matching(trace, trace.outputs(op), alike).filter(born));
            if ops.contains(&forward) {
                ops.insert(id);
            }
        }
        let row_sums = Scale { part: LOG_SUM_EXP, of: columns.saturating_mul(layout.dtype.size()) };
        Some(Core { scores, weights: weights.storage, row_sums, storages, ops })
    }
}
