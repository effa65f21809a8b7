//! Whether a step is the one that a plan was made for.
//!
//! Equal operators in the planned modules do not make equal steps: another batch runs the same ones, and takes other bytes. So what
//! the step says of itself is compared, and the peak that it has without a plan.

use rematic_trace::{Bytes, Origin, StepTrace};

use super::{DocumentError, PlanDocument};

impl PlanDocument {
    /// Checks that a step, with this peak without a plan, is the one that the plan was made for. What it is called, what was assumed,
    /// and the versions that traced it may differ.
    ///
    /// # Errors
    /// If it is another one; the first thing that differs is named.
    pub fn check_step(&self, trace: &StepTrace, baseline: Bytes) -> Result<(), DocumentError> {
        let (planned, found) = (said_by(&Origin::from_facts("", &self.facts)), said_by(&trace.origin));
        let names = planned.iter().chain(&found).map(|(name, _)| name);
        let value = |facts: &[(String, String)], name: &String| {
            facts.iter().find(|fact| fact.0 == *name).map(|(_, value)| value.clone())
        };
        for name in names {
            let (expected, found) = (value(&planned, name), value(&found, name));
            if expected != found {
                let (planned, fact) = (self.source.clone(), name.clone());
                return Err(DocumentError::OtherFact { planned, fact, expected, found });
            }
        }
        if baseline != self.baseline_peak_bytes {
            let (planned, expected) = (self.source.clone(), self.baseline_peak_bytes);
            return Err(DocumentError::OtherPeak { planned, expected, found: baseline });
        }
        Ok(())
    }
}

/// What a step says of itself that makes it this one.
fn said_by(origin: &Origin) -> Vec<(String, String)> {
    Origin { versions: Vec::new(), assumptions: Vec::new(), ..origin.clone() }.facts()
}
