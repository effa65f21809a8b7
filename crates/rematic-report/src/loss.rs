use rematic_trace::{Bytes, Millis, Opt, Verdict};
use serde::Serialize;

use crate::style::{Sentence, Style, Tone};

/// How a loss is computed, in words.
pub const PLAIN_LOSS: &str = "plain";
/// Likewise.
pub const CHUNKED_LOSS: &str = "chunked";

/// Which of two losses a plan was made for, and what the other one would have been.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossTaken {
    /// The one that was taken.
    pub taken: &'static str,
    /// Time of the planned step with it.
    pub step_ms: Millis,
    /// The other one.
    pub other: OtherLoss,
}

/// A loss that was not taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OtherLoss {
    /// It was planned too.
    Planned {
        /// Which it is.
        loss: &'static str,
        /// Whether its step fits.
        #[serde(serialize_with = "word")]
        outcome: Verdict,
        /// Time of the planned step with it.
        step_ms: Millis,
        /// Its peak under its plan, which is the least where none fits.
        peak_bytes: Bytes,
    },
    /// It is not for this model.
    Refused {
        /// Which it is.
        loss: &'static str,
        /// Why not.
        why: String,
    },
}

fn word<S: serde::Serializer>(verdict: &Verdict, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(verdict.word())
}

impl LossTaken {
    /// One sentence for people.
    pub(crate) fn text(&self, style: Style) -> String {
        let lead = format!("Loss: {}", self.taken);
        let tail = match &self.other {
            OtherLoss::Planned { loss, outcome: Verdict::Infeasible, peak_bytes, .. } => {
                format!("({}); the {loss} one does not fit: its least peak is {peak_bytes}", Opt("loss").to("auto"))
            }
            OtherLoss::Planned { loss, step_ms, peak_bytes, .. } => format!(
                "({}), a step of {}; with the {loss} one it would take {step_ms}, with a peak of {peak_bytes}",
                Opt("loss").to("auto"),
                self.step_ms
            ),
            OtherLoss::Refused { loss, why } => format!("; the {loss} one cannot be had: {}", why.trim_end()),
        };
        style.sentence(&Sentence { lead: (&lead, Tone::Strong), head: "", gap: " ", tail: (&tail, Tone::Plain) })
    }
}
