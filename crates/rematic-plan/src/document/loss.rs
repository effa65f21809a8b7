//! The loss of a planned step that is computed in chunks.

use std::path::Path;

use rematic_trace::Origin;
use serde::{Deserialize, Serialize};

use super::{DocumentError, LOSS_VERSION, PlanDocument};

/// The names of the facts that a step says of itself whose loss is computed so.
const LOSS: &str = "loss";
const CHUNKED: &str = "chunked";
const HEAD: &str = "loss-head";
const CHUNKS: &str = "loss-chunks";

/// A decision: the cross-entropy of a linear layer is computed over parts of its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedLoss {
    /// The layer, by its path inside the model.
    pub head: String,
    /// Over so many parts.
    pub chunks: u64,
}

impl PlannedLoss {
    /// What a step says of itself.
    #[must_use]
    pub fn of(origin: &Origin) -> Option<Self> {
        let find = |name: &str| origin.options.iter().find(|option| option.0 == name).map(|option| option.1.as_str());
        if find(LOSS) != Some(CHUNKED) {
            return None;
        }
        Some(PlannedLoss { head: find(HEAD)?.to_owned(), chunks: find(CHUNKS)?.parse().ok()? })
    }
}

impl PlanDocument {
    /// Checks what documents with a chunked loss have and others have not.
    pub(super) fn check_loss(&self, path: &Path) -> Result<(), DocumentError> {
        let Some(loss) = &self.loss else { return Ok(()) };
        let path = path.to_owned();
        if self.version < LOSS_VERSION {
            return Err(DocumentError::Loss { path, why: "versions of the format before 5 do not have that" });
        }
        if PlannedLoss::of(&Origin::from_facts("", &self.facts)).as_ref() != Some(loss) {
            return Err(DocumentError::Loss { path, why: "its facts say another thing" });
        }
        if loss.chunks == 0 || loss.head.is_empty() {
            return Err(DocumentError::Loss { path, why: "it needs a layer and at least 1 chunk" });
        }
        Ok(())
    }
}
