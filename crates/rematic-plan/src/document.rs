//! A plan as a document: what was decided for which operator, so that it can be applied to the real model and checked.

use std::path::{Path, PathBuf};

use rematic_memory::{Checkpoint, Region, Regions};
use rematic_trace::{Bytes, Millis, OpId, StepTrace};
use serde::{Deserialize, Serialize};

use crate::{Problem, Solution};

/// What the first field of a plan file says.
pub const PLAN_FORMAT: &str = "rematic-plan";
/// The version that is written; all up to it are read.
pub const PLAN_VERSION: u32 = 1;

/// What is done with an operator's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Kept between forward and backward.
    Save,
    /// Made again in backward.
    Recompute,
}

/// One operator of a planned region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedOp {
    /// Its position in the region's forward.
    pub index: usize,
    /// Its name with overload.
    pub op: String,
    /// What is done with its output.
    pub decision: Choice,
}

/// One region that is checkpointed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRegion {
    /// The module's full name.
    pub module: String,
    /// Which of the module's calls in the step; the first is 0.
    pub call: usize,
    /// The share of what autograd would hold that is freed.
    pub discard: f64,
    /// Bytes freed between its forward and its backward.
    pub freed_bytes: Bytes,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// All of its forward operators, in order.
    pub policy: Vec<PlannedOp>,
}

/// A plan, with what it was made for and what it promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// [`PLAN_FORMAT`].
    pub format: String,
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The model.
    pub source: String,
    /// How it was traced.
    pub facts: Vec<(String, String)>,
    /// The device that times are for.
    pub device: String,
    /// Devices among which parameters, gradients and optimizer state are spread.
    pub world_size: u64,
    /// The most bytes that may be in use.
    pub budget_bytes: Bytes,
    /// The peak without a plan.
    pub baseline_peak_bytes: Bytes,
    /// The peak under the plan, as replayed: the promise.
    pub peak_bytes: Bytes,
    /// Time of the step without recomputation.
    pub step_ms: Millis,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// The bound of the planner's model.
    pub lower_bound_ms: Millis,
    /// The regions, in the order of forward.
    pub regions: Vec<PlannedRegion>,
}

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The operating system refuses.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a plan.
    #[error("{} is not a plan: {source}; make one with `rematic plan … -o FILE`", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Another kind of file, or a newer version.
    #[error("{} says `{format}` version {version}; this rematic reads `{PLAN_FORMAT}` up to version {PLAN_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        format: String,
        /// What it says.
        version: u32,
    },
    /// A module that the model does not have, or that cannot be checkpointed.
    #[error("the plan is for another model: it checkpoints call {call} of `{module}`, which this step does not have")]
    UnknownRegion {
        /// The module.
        module: String,
        /// Which call.
        call: usize,
    },
    /// Another operator than the plan expects.
    #[error(
        "the plan is for another model: operator {index} of `{module}` is {found} here, but {expected} in the plan; \
         plan again for this model"
    )]
    OtherOperator {
        /// The module.
        module: String,
        /// Position in its forward.
        index: usize,
        /// What the plan says.
        expected: String,
        /// What the step has.
        found: String,
    },
    /// Two regions of the plan contain each other.
    #[error("the plan checkpoints both `{outer}` and `{inner}` inside it; keep one of them")]
    Nested {
        /// The outer module.
        outer: String,
        /// The inner module.
        inner: String,
    },
}

impl PlanDocument {
    /// The document of a solution.
    #[must_use]
    pub fn new(problem: &Problem<'_>, solution: &Solution, budget: Bytes, device: &str) -> Self {
        let trace = problem.trace;
        let regions = solution.checkpoints.iter().map(|checkpoint| planned_region(problem, checkpoint)).collect();
        PlanDocument {
            format: PLAN_FORMAT.to_owned(),
            version: PLAN_VERSION,
            source: trace.model.clone(),
            facts: trace.facts.clone(),
            device: device.to_owned(),
            world_size: problem.world_size(),
            budget_bytes: budget,
            baseline_peak_bytes: problem.baseline().peak,
            peak_bytes: solution.replayed.peak,
            step_ms: problem.costs.step().time,
            recompute_ms: solution.replayed.recompute,
            lower_bound_ms: solution.lower_bound,
            regions,
        }
    }

    /// Writes the document.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), DocumentError> {
        let failed = |source| DocumentError::Io { verb: "write", path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other).map_err(failed)?;
        std::fs::write(path, text + "\n").map_err(failed)
    }

    /// Reads a document. Whether it fits a step is seen by [`PlanDocument::checkpoints`].
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let text =
            std::fs::read(path).map_err(|source| DocumentError::Io { verb: "read", path: path.to_owned(), source })?;
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u32,
        }
        let syntax = |source| DocumentError::Syntax { path: path.to_owned(), source };
        let header: Header = serde_json::from_slice(&text).map_err(syntax)?;
        if header.format != PLAN_FORMAT || header.version == 0 || header.version > PLAN_VERSION {
            return Err(DocumentError::Version {
                path: path.to_owned(),
                format: header.format,
                version: header.version,
            });
        }
        serde_json::from_slice(&text).map_err(syntax)
    }

    /// The checkpoints that the plan means for a step.
    ///
    /// # Errors
    /// If the step is another one than the plan was made for; the first operator that differs is named.
    pub fn checkpoints(&self, trace: &StepTrace, regions: &Regions) -> Result<Vec<Checkpoint>, DocumentError> {
        let mut checkpoints = Vec::with_capacity(self.regions.len());
        for planned in &self.regions {
            let mut calls =
                regions.all().iter().enumerate().filter(|(_, region)| trace.path(region.module) == planned.module);
            let Some((index, region)) = calls.nth(planned.call) else {
                return Err(DocumentError::UnknownRegion { module: planned.module.clone(), call: planned.call });
            };
            checkpoints.push(Checkpoint { region: index, saved: saved(trace, region, planned)? });
        }
        checkpoints.sort_by_key(|checkpoint| regions.all()[checkpoint.region].ops.start);
        for pair in checkpoints.windows(2) {
            let (outer, inner) = (&regions.all()[pair[0].region], &regions.all()[pair[1].region]);
            if inner.ops.start < outer.ops.end {
                return Err(DocumentError::Nested { outer: trace.path(outer.module), inner: trace.path(inner.module) });
            }
        }
        Ok(checkpoints)
    }
}

/// The operators that a planned region saves, if it is this one.
fn saved(trace: &StepTrace, region: &Region, planned: &PlannedRegion) -> Result<Vec<OpId>, DocumentError> {
    let mut saved = Vec::new();
    for index in 0..region.ops.len().max(planned.policy.len()) {
        let expected = planned.policy.get(index).filter(|planned| planned.index == index);
        let id = OpId::new(region.ops.start + index);
        let found = region.contains(id).then(|| trace.op_name(trace.op(id)));
        match (expected, found) {
            (Some(expected), Some(found)) if expected.op == found => {
                if expected.decision == Choice::Save {
                    saved.push(id);
                }
            }
            (expected, found) => {
                return Err(DocumentError::OtherOperator {
                    module: planned.module.clone(),
                    index,
                    expected: expected.map_or_else(|| "none".to_owned(), |expected| expected.op.clone()),
                    found: found.unwrap_or("none").to_owned(),
                });
            }
        }
    }
    Ok(saved)
}

fn planned_region(problem: &Problem<'_>, checkpoint: &Checkpoint) -> PlannedRegion {
    let trace = problem.trace;
    let region = &problem.regions().all()[checkpoint.region];
    let before = problem.regions().all()[..checkpoint.region].iter();
    let is_saved = |op: &OpId| checkpoint.saved.binary_search(op).is_ok();
    let ops = || region.ops.clone().map(OpId::new);
    let (held, freed) = problem.freed(checkpoint);
    PlannedRegion {
        module: trace.path(region.module),
        call: before.filter(|other| other.module == region.module).count(),
        discard: freed.0 as f64 / held.0.max(1) as f64,
        freed_bytes: freed,
        recompute_ms: ops().filter(|op| region.reaches(*op) && !is_saved(op)).map(|op| problem.costs.time(op)).sum(),
        policy: ops()
            .enumerate()
            .map(|(index, op)| PlannedOp {
                index,
                op: trace.op_name(trace.op(op)).to_owned(),
                decision: if is_saved(&op) { Choice::Save } else { Choice::Recompute },
            })
            .collect(),
    }
}
