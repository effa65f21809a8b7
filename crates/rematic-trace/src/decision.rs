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
}

impl Decision {
    /// The word in documents.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Decision::Save => "save",
            Decision::Recompute => "recompute",
            Decision::Offload => "offload",
        }
    }
}
