use serde::{Deserialize, Serialize};

/// What is done with an operator's output between forward and backward: what every planner decides, and every plan says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It is kept.
    Save,
    /// It is dropped, and made again.
    Recompute,
    /// It is moved to the host, and brought back.
    Offload,
    /// It is dropped, and not made again: nothing reads it.
    Skip,
}

impl Decision {
    /// Whether it is there when backward begins, here or on the host.
    #[must_use]
    pub fn keeps(self) -> bool {
        matches!(self, Decision::Save | Decision::Offload)
    }
}

impl Decision {
    /// The word in documents.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Decision::Save => "save",
            Decision::Recompute => "recompute",
            Decision::Offload => "offload",
            Decision::Skip => "skip",
        }
    }
}
