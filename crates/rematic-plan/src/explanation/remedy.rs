use rematic_trace::{Bytes, Millis};
use serde::Serialize;

use super::place::Place;
use super::scenario::Change;

/// A way to bring the peak down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RemedyKind {
    /// The previous step's output is let go before forward.
    PreviousOutput,
    /// The optimizer makes no temporaries for all parameters at once.
    OptimizerTemporaries,
    /// Optimizer state in 8 bits.
    OptimizerState,
    /// A fused attention kernel.
    FusedAttention,
    /// The loss in chunks.
    ChunkedLoss,
    /// Recomputation, as the planner finds it.
    Checkpointing,
    /// Half the batch, twice.
    GradientAccumulation,
    /// Parameters, gradients and optimizer state spread over devices.
    Sharding,
}

/// What a remedy does to the numbers that training computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numerics {
    /// They stay as they are, to the bit.
    Same,
    /// They are added up in another order, and differ by rounding.
    Rounding,
    /// They become approximate.
    Approximate,
}

/// A way down, and where it leads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// Which one.
    pub kind: RemedyKind,
    /// What to do.
    pub title: String,
    /// How to do it in PyTorch, or what to type.
    pub how: String,
    /// What has to hold for the figures.
    pub assumption: String,
    /// The peak of the whole step then.
    pub peak_bytes: Bytes,
    /// How much less that is.
    pub freed_bytes: Bytes,
    /// What the step takes longer; `None` if the device's data sheet does not say.
    pub extra_ms: Option<Millis>,
    /// What it does to the numbers.
    pub numerics: Numerics,
    /// Where the peak is then.
    pub at: Place,
}

impl RemedyKind {
    /// What it is, in the middle of a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            RemedyKind::PreviousOutput => "previous output deleted",
            RemedyKind::OptimizerTemporaries => "fused optimizer",
            RemedyKind::OptimizerState => "8-bit optimizer",
            RemedyKind::FusedAttention => "fused attention",
            RemedyKind::ChunkedLoss => "chunked loss",
            RemedyKind::Checkpointing => "plan",
            RemedyKind::GradientAccumulation => "half the batch, accumulated",
            RemedyKind::Sharding => "sharding",
        }
    }
}

impl Remedy {
    /// Whether training computes the same, up to rounding.
    #[must_use]
    pub fn keeps_numerics(&self) -> bool {
        self.numerics != Numerics::Approximate
    }

    /// Time per byte; what is not known is the dearest.
    pub(super) fn dearness(&self) -> f64 {
        self.extra_ms.map_or(f64::INFINITY, |extra| extra.0 / self.freed_bytes.0.max(1) as f64)
    }
}

/// Several remedies at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    /// Which ones.
    pub remedies: Vec<RemedyKind>,
    /// The peak of the whole step then.
    pub peak_bytes: Bytes,
    /// What the step takes longer: the sum of what each takes alone.
    pub extra_ms: Option<Millis>,
    /// Where the peak is then.
    pub at: Place,
}

/// What a rule says, before the replay has its say.
pub(super) struct Proposal {
    pub(super) kind: RemedyKind,
    pub(super) title: String,
    pub(super) how: String,
    pub(super) assumption: String,
    pub(super) extra: Option<Millis>,
    pub(super) numerics: Numerics,
    pub(super) change: Change,
}
