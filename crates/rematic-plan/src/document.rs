//! A plan as a document: what was decided for which operator, so that it can be applied to the real model and checked.

mod error;
mod identity;
mod loss;
mod offload;
mod run;
mod skip;
mod variant;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rematic_replay::{Checkpoint, RegionId, Regions};
use rematic_trace::{Bytes, CallId, Decision, FileAction, Millis, OpId, StepTrace};
use serde::{Deserialize, Serialize};

use crate::{Problem, Solution};
pub use error::DocumentError;
pub use loss::PlannedLoss;
pub use offload::{PlannedMoves, PlannedOffload};
pub use run::PlannedCall;
pub use variant::PlanVariant;

/// What the first field of a plan file says.
pub const PLAN_FORMAT: &str = "rematic-plan";
/// The newest version; all up to it are read.
pub const PLAN_VERSION: u32 = SKIP_VERSION;
/// What is written for a plan without variants and runs, for one with variants, for one with runs, for one that offloads, for one
/// whose loss is computed in chunks, and for one that skips operators.
const SINGLE_VERSION: u32 = 1;
const VARIANTS_VERSION: u32 = 2;
const RUNS_VERSION: u32 = 3;
const OFFLOAD_VERSION: u32 = 4;
const LOSS_VERSION: u32 = 5;
const SKIP_VERSION: u32 = 6;
/// How much of a file tells whether it is a plan.
const START: u64 = 4096;
/// The most of a file that is read. A plan for the two million operators that a step may have takes half of it.
const TEXT_LIMIT: u64 = 512 << 20;

/// One operator of a planned region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedOp {
    /// Its position in the region's forward.
    pub index: usize,
    /// Its name with overload.
    pub op: String,
    /// What is done with its output.
    pub decision: Decision,
}

/// One region that is checkpointed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRegion {
    /// The module's full name.
    pub module: String,
    /// Which of the module's calls in the step; the first is 0.
    pub call: usize,
    /// The calls that follow directly and are checkpointed together with it, as one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<PlannedCall>,
    /// The share of what autograd would hold that is freed.
    pub discard: f64,
    /// Bytes freed between its forward and its backward.
    pub freed_bytes: Bytes,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// When what it offloads leaves the device and comes back, if it offloads anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<PlannedMoves>,
    /// All of its forward operators, in order.
    pub policy: Vec<PlannedOp>,
}

/// A plan, with what it was made for and what it promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// [`PLAN_FORMAT`].
    pub format: String,
    /// 1, or 2 if there are variants, or 3 if there are runs of calls, or 4 if anything is offloaded, or 5 if the loss is
    /// computed in chunks, or 6 if any operator is skipped.
    pub version: u32,
    /// The model.
    pub source: String,
    /// What this variant is called; empty if there are no others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The first operators of its forward, up to where it differs from each other variant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<String>,
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
    /// How much the model's first forward has made that is in use after its last operator, as replayed. Plans that were
    /// written before it was known have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_bytes: Option<Bytes>,
    /// Time of the step without recomputation.
    pub step_ms: Millis,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// No plan within the budget takes less.
    pub lower_bound_ms: Millis,
    /// What goes to the host and comes back, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<PlannedOffload>,
    /// How the loss is computed, if not as the model computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<PlannedLoss>,
    /// The regions, in the order of forward.
    pub regions: Vec<PlannedRegion>,
    /// Further variants, for the same budget.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<PlanVariant>,
}

impl PlanDocument {
    /// The document of a solution.
    #[must_use]
    pub fn new(problem: &Problem, solution: &Solution, budget: Bytes, device: &str) -> Self {
        let trace = &*problem.trace;
        let mut regions: Vec<PlannedRegion> =
            solution.checkpoints.iter().map(|checkpoint| planned_region(problem, checkpoint)).collect();
        PlannedMoves::write(trace, problem.regions(), &solution.checkpoints, &mut regions);
        let offload = PlannedOffload::of(problem, solution);
        let loss = PlannedLoss::of(&trace.origin);
        let version = match (&loss, offload) {
            (Some(_), _) => LOSS_VERSION,
            (None, Some(_)) => OFFLOAD_VERSION,
            (None, None) => run::version(&regions),
        };
        let version = if regions.iter().any(PlannedRegion::skips) { SKIP_VERSION } else { version };
        PlanDocument {
            format: PLAN_FORMAT.to_owned(),
            version,
            source: trace.origin.model.clone(),
            name: String::new(),
            opening: Vec::new(),
            facts: trace.origin.facts(),
            device: device.to_owned(),
            world_size: problem.trace().place.ranks().unwrap_or(u64::MAX),
            budget_bytes: budget,
            baseline_peak_bytes: problem.baseline().peak,
            peak_bytes: solution.replayed.peak,
            forward_bytes: Some(solution.replayed.forward),
            step_ms: problem.costs.step().time,
            recompute_ms: solution.replayed.recompute,
            lower_bound_ms: solution.lower_bound,
            offload,
            loss,
            regions,
            variants: Vec::new(),
        }
    }

    /// Writes the document.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), DocumentError> {
        let failed = |source| DocumentError::Io { action: FileAction::Write, path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other).map_err(failed)?;
        std::fs::write(path, text + "\n").map_err(failed)
    }

    /// Whether a file looks like a plan: a JSON object whose beginning names the format.
    #[must_use]
    pub fn recognizes(path: &Path) -> bool {
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(START).read_to_end(&mut start));
        let start = String::from_utf8_lossy(&start);
        read.is_ok() && start.trim_start().starts_with('{') && start.contains(&format!("\"{PLAN_FORMAT}\""))
    }

    /// Reads a document. Whether it fits a step is seen by [`PlanDocument::checkpoints`].
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(TEXT_LIMIT + 1).read_to_end(&mut text));
        read.map_err(|source| DocumentError::Io { action: FileAction::Read, path: path.to_owned(), source })?;
        if text.len() as u64 > TEXT_LIMIT {
            return Err(DocumentError::TooLarge { path: path.to_owned(), limit: TEXT_LIMIT });
        }
        Self::from_json(&text, path)
    }

    /// Reads a document from JSON text; `path` is only for error messages.
    ///
    /// # Errors
    /// As [`PlanDocument::read`].
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self, DocumentError> {
        #[derive(Default, Deserialize)]
        struct Header {
            format: Option<String>,
            version: Option<u64>,
        }
        if text.trim_ascii().is_empty() {
            return Err(DocumentError::Empty { path: path.to_owned() });
        }
        let parsed = serde_json::from_slice::<PlanDocument>(text);
        // A newer version may have any shape, so its header is looked at before the rest is judged.
        let header: Header = match &parsed {
            Ok(plan) => Header { format: Some(plan.format.clone()), version: Some(plan.version.into()) },
            Err(_) => serde_json::from_slice(text).unwrap_or_default(),
        };
        if let Some(found) = header.format.filter(|format| format != PLAN_FORMAT) {
            return Err(DocumentError::OtherFormat { path: path.to_owned(), found });
        }
        if let Some(found) = header.version.filter(|version| !(1..=u64::from(PLAN_VERSION)).contains(version)) {
            return Err(DocumentError::Version { path: path.to_owned(), found });
        }
        let plan = parsed.map_err(|source| match source.classify() {
            serde_json::error::Category::Eof => {
                DocumentError::Truncated { path: path.to_owned(), line: source.line(), column: source.column() }
            }
            _ => DocumentError::Syntax { path: path.to_owned(), place: place_of_fault(text), source },
        })?;
        plan.check(path)?;
        Ok(plan)
    }

    /// Checks what the types do not.
    fn check(&self, path: &Path) -> Result<(), DocumentError> {
        if self.world_size == 0 {
            let place = "world_size".to_owned();
            return Err(DocumentError::Number { path: path.to_owned(), place, found: 0.0, needed: "at least 1" });
        }
        self.check_variants(path)?;
        self.check_offload(path)?;
        self.check_loss(path)?;
        self.check_runs(path)?;
        self.check_skips(path)?;
        check_body(path, "", [self.step_ms, self.recompute_ms, self.lower_bound_ms], &self.regions)?;
        for (index, variant) in self.variants.iter().enumerate() {
            let times = [variant.step_ms, variant.recompute_ms, variant.lower_bound_ms];
            check_body(path, &format!("variants[{index}]."), times, &variant.regions)?;
        }
        Ok(())
    }

    /// The checkpoints that the plan means for a step; of its first variant only.
    ///
    /// # Errors
    /// If the step is another one than the plan was made for; the first operator that differs is named.
    pub fn checkpoints(&self, trace: &StepTrace, regions: &Regions) -> Result<Vec<Checkpoint>, DocumentError> {
        let runs = self.runs(trace, regions)?;
        let mut by_path: HashMap<String, Vec<(usize, RegionId)>> = HashMap::new();
        for (id, region) in regions.all().entries() {
            by_path.entry(trace.path(region.module)).or_default().push((call_number(trace, region.call), id));
        }
        let mut checkpoints = Vec::with_capacity(self.regions.len());
        for (at, planned) in self.regions.iter().enumerate() {
            let calls = by_path.get(&planned.module).map_or(&[][..], Vec::as_slice);
            let single = || calls.iter().find(|(call, _)| *call == planned.call).map(|(_, region)| *region);
            let found = if planned.then.is_empty() { single() } else { runs.get(&at).copied() };
            let Some(region) = found else {
                return Err(DocumentError::UnknownRegion {
                    planned: self.source.clone(),
                    module: planned.module.clone(),
                    call: planned.call,
                    calls: calls.len(),
                });
            };
            let checkpoint = self.checkpoint(trace, regions, region, planned)?;
            self.check_unread(trace, regions, &checkpoint, planned)?;
            checkpoints.push(checkpoint);
        }
        self.check_moves(trace, regions, &checkpoints)?;
        checkpoints.sort_by_key(|checkpoint| regions.region(checkpoint.region).ops.start);
        for pair in checkpoints.windows(2) {
            let (outer, inner) = (regions.region(pair[0].region), regions.region(pair[1].region));
            if inner.ops.start < outer.ops.end {
                return Err(DocumentError::Nested { outer: trace.path(outer.module), inner: trace.path(inner.module) });
            }
        }
        Ok(checkpoints)
    }

    /// What a planned region does with its operators, if it is this one.
    fn checkpoint(
        &self,
        trace: &StepTrace,
        regions: &Regions,
        id: RegionId,
        planned: &PlannedRegion,
    ) -> Result<Checkpoint, DocumentError> {
        let region = regions.region(id);
        let mut checkpoint = Checkpoint::new(id, Vec::new());
        for index in 0..region.ops.len().max(planned.policy.len()) {
            let expected = planned.policy.get(index);
            let id = OpId::new(region.ops.start + index);
            let found = region.contains(id).then(|| trace.op_name(trace.op(id)));
            match (expected, found) {
                (Some(expected), Some(found)) if expected.op == found => {
                    if expected.decision.keeps() {
                        checkpoint.saved.push(id);
                    }
                    match expected.decision {
                        Decision::Offload => checkpoint.offloaded.push(id),
                        Decision::Skip => checkpoint.skipped.push(id),
                        Decision::Save | Decision::Recompute => {}
                    }
                }
                (expected, found) => {
                    return Err(DocumentError::OtherOperator {
                        planned: self.source.clone(),
                        module: planned.name(),
                        index,
                        expected: expected.map(|expected| expected.op.clone()),
                        found: found.map(str::to_owned),
                    });
                }
            }
        }
        Ok(checkpoint)
    }
}

/// Checks the times and regions of one variant; `place` stands before the names of its fields.
fn check_body(path: &Path, place: &str, times: [Millis; 3], regions: &[PlannedRegion]) -> Result<(), DocumentError> {
    const TIME: &str = "a time of 0 or more";
    const SHARE: &str = "a share from 0 to 1";
    let number = |field: String, found: f64, needed| {
        Err(DocumentError::Number { path: path.to_owned(), place: format!("{place}{field}"), found, needed })
    };
    let is_time = |time: Millis| time.0.is_finite() && time.0 >= 0.0;
    for (field, time) in ["step_ms", "recompute_ms", "lower_bound_ms"].into_iter().zip(times) {
        if !is_time(time) {
            return number(field.to_owned(), time.0, TIME);
        }
    }
    let mut known = HashSet::new();
    for (index, region) in regions.iter().enumerate() {
        if !is_time(region.recompute_ms) {
            return number(format!("regions[{index}].recompute_ms"), region.recompute_ms.0, TIME);
        }
        if !(0.0..=1.0).contains(&region.discard) {
            return number(format!("regions[{index}].discard"), region.discard, SHARE);
        }
        if let Some((module, call)) = region.calls().find(|call| !known.insert(*call)) {
            let module = module.to_owned();
            return Err(DocumentError::Duplicate { path: path.to_owned(), module, call });
        }
        if let Some((expected, op)) = region.policy.iter().enumerate().find(|(expected, op)| op.index != *expected) {
            let (module, found) = (region.module.clone(), op.index);
            return Err(DocumentError::OpNumber { path: path.to_owned(), module, expected, found });
        }
    }
    Ok(())
}

/// The field where the text stops to be a plan. To follow the path takes time, so only text that is known to be wrong is
/// read this way.
fn place_of_fault(text: &[u8]) -> String {
    let deserializer = &mut serde_json::Deserializer::from_slice(text);
    let place =
        serde_path_to_error::deserialize::<_, PlanDocument>(deserializer).map_err(|error| error.path().to_string());
    // A single dot is the path of the whole.
    place.err().filter(|place| place != ".").unwrap_or_default()
}

/// Which of its module's calls in the step a call is; those that cannot be checkpointed count too, for whoever applies
/// the plan cannot tell them apart.
fn call_number(trace: &StepTrace, id: CallId) -> usize {
    let module = trace.call(id).module;
    trace.calls().items()[..id.index()].iter().filter(|call| call.module == module).count()
}

fn planned_call(trace: &StepTrace, id: CallId) -> PlannedCall {
    PlannedCall { module: trace.path(trace.call(id).module), call: call_number(trace, id) }
}

fn planned_region(problem: &Problem, checkpoint: &Checkpoint) -> PlannedRegion {
    let trace = &*problem.trace;
    let region = problem.regions().region(checkpoint.region);
    let is_saved = |op: &OpId| checkpoint.saved.binary_search(op).is_ok();
    let is_skipped = |op: &OpId| checkpoint.skipped.binary_search(op).is_ok();
    let runs_again = |op: &OpId| region.reaches(*op) && !is_saved(op) && !is_skipped(op);
    let ops = || region.ops.clone().map(OpId::new);
    let (held, freed) = problem.freed(checkpoint);
    PlannedRegion {
        module: trace.path(region.module),
        call: call_number(trace, region.call),
        then: region.then.iter().map(|call| planned_call(trace, *call)).collect(),
        discard: freed.0 as f64 / held.0.max(1) as f64,
        freed_bytes: freed,
        recompute_ms: ops().filter(runs_again).map(|op| problem.costs.time(op)).sum(),
        offload: None,
        policy: ops()
            .enumerate()
            .map(|(index, op)| PlannedOp {
                index,
                op: trace.op_name(trace.op(op)).to_owned(),
                decision: match (checkpoint.offloaded.binary_search(&op).is_ok(), is_saved(&op)) {
                    (true, _) => Decision::Offload,
                    (false, true) => Decision::Save,
                    (false, false) if is_skipped(&op) => Decision::Skip,
                    (false, false) => Decision::Recompute,
                },
            })
            .collect(),
    }
}
