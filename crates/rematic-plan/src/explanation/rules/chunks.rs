use super::super::flow::operator;
use super::super::loss::Loss;
use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::{Change, Scale};
use super::Step;

/// Pieces that the loss is computed in.
const CHUNKS: u64 = 8;

/// The loss in chunks of rows, each of which runs the last projection again in backward.
///
/// Assumes that the model returns the loss and not the logits, that each chunk is checkpointed, so that one chunk's logits,
/// log-probabilities and gradients exist at a time, and that the projection's gradient adds up in place.
pub(super) fn chunked_loss(step: &Step<'_>) -> Option<Proposal> {
    let loss = step.loss?;
    let eighth = Scale { part: 1, of: CHUNKS };
    Some(Proposal {
        kind: RemedyKind::ChunkedLoss,
        title: format!("Compute the loss in {CHUNKS} chunks"),
        how: how(step, loss),
        assumption: "The logits are not returned, and are computed twice".to_owned(),
        extra: Some(loss.projections.union(&loss.ops).map(|op| step.costs.time(*op)).sum()),
        numerics: Numerics::Rounding,
        change: Change {
            scales: loss.storages.iter().map(|storage| (*storage, eighth)).collect(),
            ..Change::default()
        },
    })
}

/// Operators that change logits before the loss, which `rematic.chunked_loss` does not.
const CHANGING: [&str; 3] = ["tanh", "mul", "div"];

fn how(step: &Step<'_>, loss: &Loss) -> String {
    let changes = loss.ops.iter().any(|op| CHANGING.contains(&operator(step.trace, *op)));
    if changes {
        return "by hand: run the last projection, what the model does to its logits (rematic.chunked_loss does not), and the loss \
                on an eighth of the rows at a time, each checkpointed"
            .to_owned();
    }
    "rematic.chunked_loss, or --loss chunked here: the last projection and the loss on an eighth of the rows at a time"
        .to_owned()
}
