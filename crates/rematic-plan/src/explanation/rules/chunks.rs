use rematic_trace::Opt;

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
        how: how(step),
        assumption: "The logits are not returned, and are computed twice".to_owned(),
        extra: Some(loss.projections.union(&loss.ops).map(|op| step.costs.time(*op)).sum()),
        numerics: Numerics::Rounding,
        change: Change {
            scales: loss.storages.iter().map(|storage| (*storage, eighth)).collect(),
            ..Change::default()
        },
    })
}

/// Endings of the classes of causal language models, whose loss the command computes so too.
const CAUSAL: [&str; 2] = ["ForCausalLM", "LMHeadModel"];

fn how(step: &Step<'_>) -> String {
    let class = step.trace.modules().iter().next().map_or("", |root| root.class.as_str());
    let asked = Opt("loss").to("chunked");
    let asked = if CAUSAL.iter().any(|ending| class.ends_with(ending)) {
        format!("{asked} (rematic.auto applies it)")
    } else {
        "rematic.auto with loss_kind=\"chunked\"".to_owned()
    };
    format!("{asked}: the last projection and the loss on an eighth of the rows at a time")
}
