//! One HTML file that shows a step, its memory and its plans, and needs nothing else.
//!
//! The page is fixed; what it shows is a JSON document in it. Names from a trace are never part of the markup: the document
//! has no `<`, and the scripts only ever set text.

mod columns;
mod step;

use std::collections::HashSet;

use rematic_cost::{Costs, Device};
use rematic_plan::{Explanation, PlanDocument, PlannedCall, PlannedMoves, PlannedOffload, PlannedRegion};
use rematic_replay::{Allocator, Checkpoint, Recording, Regions};
use rematic_trace::{Bytes, CallId, Category, Decision, Millis, Module, StepTrace};
use serde::Serialize;

use crate::html::Template;
use crate::memory::{Memory, OnDevice};
use crate::pace::{Pace, PaceJson};
use crate::regions::{self, Kind};
use crate::setup::{Setup, SetupJson};
use crate::{plan, python, stats};
pub use step::Origins;
use step::{Numbering, Ops, Outline, Step};

const PAGE: Template =
    Template { html: include_str!("web/page.html"), style: include_str!("web/page.css"), script: SCRIPT };
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("web/format.js"),
    include_str!("web/element.js"),
    include_str!("web/copy.js"),
    include_str!("web/data.js"),
    include_str!("web/bar.js"),
    include_str!("web/peak.js"),
    include_str!("web/axis.js"),
    include_str!("web/memory.js"),
    include_str!("web/readout.js"),
    include_str!("web/alive.js"),
    include_str!("web/budgets.js"),
    include_str!("web/copies.js"),
    include_str!("web/curve.js"),
    include_str!("web/modules.js"),
    include_str!("web/main.js"),
    "})();\n",
);

/// Everything that the page shows.
pub struct Page<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// Its time.
    pub costs: &'a Costs,
    /// Its regions.
    pub regions: &'a Regions,
    /// The device that the time is for.
    pub device: &'a Device,
    /// The command that plans the step, but for the budget; `None` if there is none.
    pub command: Option<&'a str>,
    /// What the step under the chosen plan takes of it, and whether that decides; `None` on the CPU.
    pub on_device: Option<OnDevice<'a>>,
    /// How fast it goes as it is, and under the chosen plan.
    pub paces: (&'a Pace, &'a Pace),
    /// How memory is rounded.
    pub allocator: Allocator,
    /// Who has its storages.
    pub origins: &'a Origins,
    /// The step as it is.
    pub plain: &'a Recording,
    /// The plan for the budget; without regions if the step fits as it is. If no plan fits, the one with the lowest peak.
    pub chosen: (&'a PlanDocument, &'a [Checkpoint], &'a Recording),
    /// Why it peaks where it does, and what helps.
    pub explanation: &'a Explanation,
    /// Plans for other budgets, the largest budget first.
    pub curve: Vec<PlanView>,
}

/// A plan, as far as the page shows it.
pub struct PlanView {
    budget_bytes: Bytes,
    peak_bytes: Bytes,
    recompute_ms: Millis,
    lower_bound_ms: Millis,
    forward_bytes: Option<Bytes>,
    version: u32,
    offload: Option<PlannedOffload>,
    python: (String, String),
    quality: String,
    kinds: Vec<Kind>,
    regions: Vec<RegionView>,
    residents: Vec<(Bytes, usize, [String; 4])>,
    outline: Outline,
}

struct RegionView {
    module: usize,
    /// Its first operator.
    start: usize,
    freed_bytes: Bytes,
    /// For each of its operators `s` (saved), `o` (saved on the host) or `r` (recomputed).
    policy: String,
    call: usize,
    discard: f64,
    recompute_ms: Millis,
    moves: Option<PlannedMoves>,
    /// The further calls of a run: their modules, and which of the calls.
    then: Vec<(usize, usize)>,
}

/// Module, first operator, bytes freed, number of the policy, which call, share discarded, time of recomputation, and the further
/// calls of a run.
type RegionJson<'a> = (usize, usize, Bytes, u64, usize, f64, Millis, &'a [(usize, usize)]);

impl PlanView {
    /// The plan's document, the same as checkpoints, and the step under it.
    #[must_use]
    pub fn new(
        trace: &StepTrace,
        regions: &Regions,
        document: &PlanDocument,
        checkpoints: &[Checkpoint],
        recording: &Recording,
        origins: &Origins,
    ) -> Self {
        let then = |(id, call): (&CallId, &PlannedCall)| (trace.call(*id).module.index(), call.call);
        let view = |(planned, checkpoint): (&PlannedRegion, &Checkpoint)| {
            let region = regions.region(checkpoint.region);
            let decision = |decision: Decision| match decision {
                Decision::Save => 's',
                Decision::Offload => 'o',
                Decision::Recompute => 'r',
                Decision::Skip => 'k',
            };
            RegionView {
                module: region.module.index(),
                start: region.ops.start,
                freed_bytes: planned.freed_bytes,
                policy: planned.policy.iter().map(|op| decision(op.decision)).collect(),
                call: planned.call,
                discard: planned.discard,
                recompute_ms: planned.recompute_ms,
                moves: planned.offload,
                then: region.then.iter().zip(&planned.then).map(then).collect(),
            }
        };
        PlanView {
            budget_bytes: document.budget_bytes,
            peak_bytes: document.peak_bytes,
            recompute_ms: document.recompute_ms,
            lower_bound_ms: document.lower_bound_ms,
            forward_bytes: document.forward_bytes,
            version: document.version,
            offload: document.offload,
            python: python::parts(document),
            quality: plan::quality(document),
            kinds: regions::kinds(regions::rows(document)),
            regions: document.regions.iter().zip(checkpoints).map(view).collect(),
            residents: step::residents(trace, regions, checkpoints, recording, origins),
            outline: Outline::new(recording),
        }
    }

    fn json(&self, policies: &mut Numbering<String>) -> PlanJson<'_> {
        let regions = self.regions.iter().map(|region| {
            let RegionView { module, start, freed_bytes, policy, call, discard, recompute_ms, then, .. } = region;
            let policy = policies.number(policy.clone());
            (*module, *start, *freed_bytes, policy, *call, *discard, *recompute_ms, then.as_slice())
        });
        let regions = regions.collect();
        PlanJson {
            budget_bytes: self.budget_bytes,
            peak_bytes: self.peak_bytes,
            recompute_ms: self.recompute_ms,
            lower_bound_ms: self.lower_bound_ms,
            forward_bytes: self.forward_bytes,
            version: self.version,
            extra_ms: Millis(self.recompute_ms.0 + self.offload.map_or(0.0, |offload| offload.stall_ms.0)),
            offload: self.offload,
            moves: self.offload.map(|_| self.regions.iter().map(|region| region.moves).collect()),
            python: &self.python,
            quality: &self.quality,
            kinds: &self.kinds,
            regions,
            residents: &self.residents,
            outline: &self.outline,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    version: &'a str,
    /// What it is trained with, and on.
    setup: String,
    options: SetupJson,
    facts: Vec<String>,
    assumptions: Vec<String>,
    device: &'a str,
    device_bytes: Bytes,
    /// What the device has for tensors.
    room_bytes: Option<Bytes>,
    /// What the files of all plans have alike.
    frame: PlanDocument,
    /// What their Python files have alike, around what each has of its own.
    python: [String; 3],
    command: Option<&'a str>,
    has_collectives: bool,
    /// What the step under the chosen plan takes of the device.
    memory: Option<&'a Memory>,
    /// Whether the device has that.
    fits: Option<bool>,
    /// Whether that is what was planned for, and not a budget.
    for_device: bool,
    parameters: String,
    baseline_peak_bytes: Bytes,
    step_ms: Millis,
    phase_ms: [Millis; 3],
    /// Time of the step under the chosen plan, and what is said of that.
    planned_step_ms: Millis,
    pace: PaceJson,
    pace_words: String,
    categories: [String; Category::ALL.len()],
    /// Names, classes and parents (from 1; 0 is none).
    modules: Vec<(&'a str, &'a str, usize)>,
    /// How many of them run.
    called: usize,
    ops: Ops,
    plain: Step,
    planned: Option<Step>,
    /// Policies that the regions of all plans refer to.
    policies: Vec<String>,
    explanation: &'a Explanation,
    chosen: PlanJson<'a>,
    curve: Vec<PlanJson<'a>>,
}

/// A [`PlanView`] whose policies are numbers.
#[derive(Serialize)]
struct PlanJson<'a> {
    budget_bytes: Bytes,
    peak_bytes: Bytes,
    recompute_ms: Millis,
    lower_bound_ms: Millis,
    forward_bytes: Option<Bytes>,
    /// Of its file.
    version: u32,
    /// Recomputation, and waiting for copies.
    extra_ms: Millis,
    /// What goes to the host and comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload: Option<PlannedOffload>,
    /// By region, when that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<Vec<Option<PlannedMoves>>>,
    /// What its Python file has of its own.
    python: &'a (String, String),
    quality: &'a str,
    kinds: &'a [Kind],
    regions: Vec<RegionJson<'a>>,
    /// What is in memory at its peak.
    residents: &'a [(Bytes, usize, [String; 4])],
    outline: &'a Outline,
}

impl Page<'_> {
    /// The file.
    #[must_use]
    pub fn html(&self) -> String {
        let (document, checkpoints, recording) = self.chosen;
        let chosen = PlanView::new(self.trace, self.regions, document, checkpoints, recording, self.origins);
        let title = format!("{}: memory of a training step", self.trace.origin.model);
        PAGE.filled(&title, &crate::json::line(&self.document(&chosen)))
    }

    fn document<'b>(&'b self, chosen: &'b PlanView) -> Document<'b> {
        let (document, checkpoints, recording) = self.chosen;
        let trace = self.trace;
        let setup = Setup::new(trace, &self.device.name);
        let mut policies = Numbering::new();
        let chosen = chosen.json(&mut policies);
        let curve = self.curve.iter().map(|plan| plan.json(&mut policies)).collect();
        let module = |module: &'b Module| {
            let parent = module.parent.map_or(0, |parent| parent.index() + 1);
            (module.name.as_str(), module.class.as_str(), parent)
        };
        Document {
            model: &trace.origin.model,
            version: env!("CARGO_PKG_VERSION"),
            setup: setup.words(),
            options: setup.json().clone(),
            facts: setup.others().to_vec(),
            assumptions: self.assumptions(),
            device: &self.device.product,
            device_bytes: self.device.usable,
            room_bytes: self.on_device.map(|on| on.memory.room),
            frame: PlanDocument {
                offload: None,
                regions: Vec::new(),
                variants: Vec::new(),
                name: String::new(),
                opening: Vec::new(),
                ..document.clone()
            },
            python: python::frame(),
            command: self.command,
            has_collectives: !trace.collectives().is_empty(),
            memory: self.on_device.map(|on| on.memory),
            fits: self.on_device.map(|on| on.memory.fits()),
            for_device: self.on_device.is_some_and(|on| on.decides),
            parameters: stats::thousands(stats::parameter_count(trace)),
            baseline_peak_bytes: document.baseline_peak_bytes,
            step_ms: self.paces.0.step,
            phase_ms: self.paces.0.phases,
            planned_step_ms: self.paces.1.step,
            pace: self.paces.1.json(),
            pace_words: self.paces.1.words(),
            categories: Category::ALL.map(|category| category.to_string()),
            modules: trace.modules().iter().map(module).collect(),
            called: trace.calls().iter().map(|call| call.module).collect::<HashSet<_>>().len(),
            ops: Ops::new(trace, self.costs),
            plain: Step::new(trace, self.regions, &[], self.plain, self.origins),
            planned: (!checkpoints.is_empty())
                .then(|| Step::new(trace, self.regions, checkpoints, recording, self.origins)),
            policies: policies.into_values(),
            explanation: self.explanation,
            chosen,
            curve,
        }
    }

    /// What the numbers stand on.
    fn assumptions(&self) -> Vec<String> {
        let times = match self.costs.measurements() {
            Some(measured) => format!("Times: {measured}; the rest by the physical rule."),
            None => format!("Times by the {} rule, from the data sheet of {}.", self.costs.rule(), self.device.product),
        };
        let mut assumptions = vec![
            format!("Memory is what tensors take, in {}.", self.allocator.description()),
            "The step is one of many: what the optimizer keeps is there from the start.".to_owned(),
            match self.on_device {
                Some(_) => {
                    "What PyTorch's allocator reserves comes from a simulation of it, with the blocks that kernels take for \
                     themselves. Not counted: buffers of collectives."
                }
                None => "Not counted: what libraries take for themselves.",
            }
            .to_owned(),
            times,
            "A plan is replayed by the rule of PyTorch's selective checkpointing; its peak is what that replay says."
                .to_owned(),
        ];
        let (document, ..) = self.chosen;
        if document.world_size > 1 {
            assumptions.push(format!(
                "Parameters, gradients and optimizer state are spread evenly over {} devices.",
                document.world_size
            ));
        }
        assumptions
    }
}
