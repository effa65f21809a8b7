//! What a plan moves to the host, as its document says it.

use std::path::Path;

use rematic_replay::{Checkpoint, Moves, Regions, moved};
use rematic_trace::{Bytes, Decision, Millis, StepTrace};
use serde::{Deserialize, Serialize};

use super::{DocumentError, OFFLOAD_VERSION, PlanDocument, PlannedRegion};
use crate::offload::Movable;
use crate::{Problem, Solution};

/// What goes to the host and comes back in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedOffload {
    /// The bytes that go to the host; as many come back.
    pub bytes: Bytes,
    /// The pinned memory of the host that they take, in blocks of powers of two.
    pub host_bytes: Bytes,
    /// How long the device waits for copies.
    pub stall_ms: Millis,
    /// What the link to the host is taken to carry, one direction, in GB/s.
    pub gb_per_s: f64,
}

impl PlannedOffload {
    pub(super) fn of(problem: &Problem, solution: &Solution) -> Option<Self> {
        let offload = solution.replayed.offload;
        (offload.bytes > Bytes(0)).then(|| PlannedOffload {
            bytes: offload.bytes,
            host_bytes: offload.pinned,
            stall_ms: offload.stall,
            gb_per_s: problem.costs.host_rate().0,
        })
    }
}

/// When the outputs that a region offloads leave the device and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMoves {
    /// The bytes that it moves.
    pub bytes: Bytes,
    /// The region of the plan, from 0, with the end of whose forward they leave.
    pub leaves_with: usize,
    /// The region of the plan, from 0, with the beginning of whose recomputation they come back.
    pub returns_with: usize,
}

impl PlannedMoves {
    /// Says it for the regions that move anything.
    pub(super) fn write(
        trace: &StepTrace,
        regions: &Regions,
        checkpoints: &[Checkpoint],
        planned: &mut [PlannedRegion],
    ) {
        let moves = Moves::new(regions, checkpoints);
        for (at, (checkpoint, planned)) in checkpoints.iter().zip(planned).enumerate() {
            let storages = checkpoint.offloaded.iter().flat_map(|op| moved(trace, *op));
            let bytes: u64 = storages.map(|storage| trace.storages()[storage].own_bytes()).sum();
            if bytes > 0 {
                let (leaves_with, returns_with) = (moves.leaves_with[at], moves.returns_with[at]);
                planned.offload = Some(PlannedMoves { bytes: Bytes(bytes), leaves_with, returns_with });
            }
        }
    }
}

impl PlanDocument {
    /// What the step takes longer under the plan: recomputation, and waiting for copies.
    #[must_use]
    pub fn extra_ms(&self) -> Millis {
        Millis(self.recompute_ms.0 + self.offload.map_or(0.0, |offload| offload.stall_ms.0))
    }

    /// Checks what documents that offload have and others have not.
    pub(super) fn check_offload(&self, path: &Path) -> Result<(), DocumentError> {
        let offloads = |region: &PlannedRegion| {
            let op = region.policy.iter().find(|op| op.decision == Decision::Offload);
            op.map(|op| (region.module.clone(), op.index, op.op.clone()))
        };
        let fault = |(module, index, op), why| DocumentError::Offload { path: path.to_owned(), module, index, op, why };
        if let Some(found) = self.variants.iter().flat_map(|variant| &variant.regions).find_map(offloads) {
            return Err(fault(found, "a plan with variants offloads nothing"));
        }
        let has_runs = self.regions.iter().any(|region| !region.then.is_empty());
        for region in &self.regions {
            let found = offloads(region);
            let has_moves = region.offload.is_some();
            match found {
                Some(found) if self.version < OFFLOAD_VERSION => {
                    return Err(fault(found, "versions of the format before 4 do not have that"));
                }
                Some(found) if has_runs => return Err(fault(found, "a plan with runs of calls offloads nothing")),
                Some(found) if !has_moves || self.offload.is_none() => {
                    return Err(fault(found, "`offload`, which says how much moves and when, is missing"));
                }
                None if has_moves => {
                    let fault =
                        (region.module.clone(), 0, region.policy.first().map_or_else(String::new, |op| op.op.clone()));
                    return Err(DocumentError::Offload {
                        path: path.to_owned(),
                        module: fault.0,
                        index: fault.1,
                        op: fault.2,
                        why: "no operator of it has that decision",
                    });
                }
                _ => {}
            }
        }
        let numbers = self.offload.iter().flat_map(|offload| {
            [("offload.stall_ms", offload.stall_ms.0, 0.0), ("offload.gb_per_s", offload.gb_per_s, f64::MIN_POSITIVE)]
        });
        for (place, found, least) in numbers {
            if !found.is_finite() || found < least {
                let (path, place) = (path.to_owned(), place.to_owned());
                return Err(DocumentError::Number {
                    path,
                    place,
                    found,
                    needed: "a number that is not negative, and a rate not 0",
                });
            }
        }
        Ok(())
    }

    /// Checks that what is offloaded can be, at the moments that the plan says; the checkpoints are in the plan's order.
    pub(super) fn check_moves(
        &self,
        trace: &StepTrace,
        regions: &Regions,
        checkpoints: &[Checkpoint],
    ) -> Result<(), DocumentError> {
        if checkpoints.iter().all(|checkpoint| checkpoint.offloaded.is_empty()) {
            return Ok(());
        }
        let movable = Movable::new(trace);
        let mut expected: Vec<PlannedRegion> = self
            .regions
            .iter()
            .map(|region| PlannedRegion { offload: None, policy: Vec::new(), ..region.clone() })
            .collect();
        PlannedMoves::write(trace, regions, checkpoints, &mut expected);
        for ((checkpoint, planned), expected) in checkpoints.iter().zip(&self.regions).zip(&expected) {
            let region = regions.region(checkpoint.region);
            for &op in &checkpoint.offloaded {
                if let Some(why) = movable.why_not(trace, region, op) {
                    return Err(DocumentError::CannotOffload {
                        planned: self.source.clone(),
                        module: planned.module.clone(),
                        index: op.index() - region.ops.start,
                        op: trace.op_name(trace.op(op)).to_owned(),
                        why,
                    });
                }
            }
            if planned.offload != expected.offload {
                return Err(DocumentError::OtherMoves {
                    planned: self.source.clone(),
                    module: planned.module.clone(),
                    bytes: planned.offload.map_or(Bytes(0), |moves| moves.bytes),
                    expected: expected.offload.map_or(Bytes(0), |moves| moves.bytes),
                });
            }
        }
        Ok(())
    }
}
