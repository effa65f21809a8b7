//! Operators that a plan does not run again, as its document says it.

use std::path::Path;

use rematic_replay::{Checkpoint, Regions, unread};
use rematic_trace::{Decision, OpId, StepTrace};

use super::{DocumentError, PlanDocument, PlannedRegion, SKIP_VERSION};

impl PlannedRegion {
    /// Whether it skips an operator.
    pub(super) fn skips(&self) -> bool {
        self.policy.iter().any(|op| op.decision == Decision::Skip)
    }
}

impl PlanDocument {
    /// Checks what documents that skip operators have and others have not.
    pub(super) fn check_skips(&self, path: &Path) -> Result<(), DocumentError> {
        let mut all = self.regions.iter().chain(self.variants.iter().flat_map(|variant| &variant.regions));
        match all.find(|region| region.skips()) {
            Some(region) if self.version < SKIP_VERSION => {
                Err(DocumentError::SkipVersion { path: path.to_owned(), module: region.name(), found: self.version })
            }
            _ => Ok(()),
        }
    }

    /// Checks that nothing reads what a region does not make again.
    pub(super) fn check_unread(
        &self,
        trace: &StepTrace,
        regions: &Regions,
        checkpoint: &Checkpoint,
        planned: &PlannedRegion,
    ) -> Result<(), DocumentError> {
        if checkpoint.skipped.is_empty() {
            return Ok(());
        }
        let region = regions.region(checkpoint.region);
        let unread = unread(trace, region, &checkpoint.saved);
        let index = |op: &OpId| op.index() - region.ops.start;
        match checkpoint.skipped.iter().find(|op| !unread[index(op)]) {
            Some(op) => Err(DocumentError::CannotSkip {
                planned: self.source.clone(),
                module: planned.name(),
                index: index(op),
                op: trace.op_name(trace.op(*op)).to_owned(),
            }),
            None => Ok(()),
        }
    }
}
