use serde::Serialize;

/// Whether a step fits a budget: what every planner says, and every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it is: nothing to drop.
    Fits,
    /// With a plan.
    Planned,
    /// With no plan.
    Infeasible,
}

impl Verdict {
    /// The word in documents.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Fits => "fits",
            Verdict::Planned => "planned",
            Verdict::Infeasible => "infeasible",
        }
    }
}
