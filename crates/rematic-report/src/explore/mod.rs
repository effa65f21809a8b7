//! The page of `rematic explore`, whose controls a planner behind it answers, and what it answers.
//!
//! As in the other pages, markup is fixed and names are only ever set as text.

use rematic_cost::Device;
use rematic_plan::{CategoryBytes, PlanDocument};
use rematic_replay::{Ran, Snapshot};
use rematic_trace::{Bytes, Millis, StepTrace, Verdict};
use serde::Serialize;

use crate::curve::CurvePoint;
use crate::html::Template;
use crate::json::line;
use crate::memory::Memory;
use crate::pace::{Pace, PaceJson};
use crate::plan::quality;
use crate::regions::{self, Kind};
use crate::setup::{Setup, SetupJson};
use crate::stats;

const PAGE: Template = Template {
    html: include_str!("web/explore.html"),
    style: concat!(include_str!("../page/web/page.css"), include_str!("web/explore.css")),
    script: concat!(
        "\"use strict\";\n(() => {\n",
        include_str!("../page/web/format.js"),
        include_str!("../page/web/element.js"),
        include_str!("../page/web/copy.js"),
        include_str!("../page/web/bar.js"),
        include_str!("../page/web/budgets.js"),
        include_str!("web/controls.js"),
        include_str!("web/explore.js"),
        "})();\n",
    ),
};

/// One of the values that a control can have.
#[derive(Clone, Debug, Serialize)]
pub struct ExploreChoice {
    /// As the command line takes it.
    pub name: String,
    /// What it means.
    pub help: String,
    /// For a model: controls that do not apply to it, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<(&'static str, String)>,
}

/// What can be chosen on the page.
#[derive(Clone, Debug, Serialize)]
pub struct ExplorePage {
    /// The models, the one to begin with first.
    pub models: Vec<ExploreChoice>,
    /// The devices.
    pub devices: Vec<ExploreChoice>,
    /// The device to begin with.
    pub device: &'static str,
    /// Options with named values: the control, and its values.
    pub named: Vec<(&'static str, Vec<ExploreChoice>)>,
}

impl ExplorePage {
    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        PAGE.filled("Rematic: will it fit?", &line(self))
    }
}

/// What is known of a step so far. Answers come in stages: the step as it is, a first plan, the best plan.
#[derive(Clone, Copy, Debug)]
pub struct ExploreAnswer<'a> {
    /// The command that says the same.
    pub command: &'a str,
    /// The step of one rank.
    pub trace: &'a StepTrace,
    /// Whether it fits; `None` as long as that is not known.
    pub verdict: Option<Verdict>,
    /// Whether this is the last word.
    pub is_final: bool,
    /// The most memory that tensors may take; `None` for what fits the device.
    pub budget: Option<Bytes>,
    /// The plan, if there is one; where none fits, the one with the lowest peak.
    pub plan: Option<&'a PlanDocument>,
    /// The bytes in use at the peak, without a plan.
    pub baseline: Bytes,
    /// What is in use at the peak under the plan, and after which operator that is.
    pub peak: (&'a Snapshot, Option<Ran>),
    /// What the step takes of the device; `None` on the CPU.
    pub memory: Option<&'a Memory>,
    /// The device.
    pub device: &'a Device,
    /// How fast the step goes as it is, and under the plan.
    pub paces: (&'a Pace, &'a Pace),
}

#[derive(Serialize)]
struct AnswerJson<'a> {
    command: &'a str,
    model: &'a str,
    /// What it is trained with, and on.
    setup: String,
    options: SetupJson,
    facts: Vec<String>,
    parameters: String,
    outcome: &'static str,
    is_final: bool,
    budget_bytes: Option<Bytes>,
    baseline_peak_bytes: Bytes,
    peak_bytes: Bytes,
    at: String,
    categories: Vec<CategoryBytes>,
    device: &'a str,
    gpus: u64,
    memory: Option<&'a Memory>,
    room_bytes: Option<Bytes>,
    fits_device: Option<bool>,
    not_counted: Option<String>,
    step_ms: Millis,
    planned_step_ms: Millis,
    recompute_ms: Millis,
    quality: Option<String>,
    #[serde(flatten)]
    pace: PaceJson,
    pace_words: String,
    kinds: Vec<Kind>,
}

impl ExploreAnswer<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        let (snapshot, at) = self.peak;
        let setup = Setup::new(self.trace, &self.device.name);
        let plan = self.plan;
        line(&AnswerJson {
            command: self.command,
            model: &self.trace.origin.model,
            setup: setup.words(),
            options: setup.json().clone(),
            facts: setup.others().to_vec(),
            parameters: stats::thousands(stats::parameter_count(self.trace)),
            outcome: self.verdict.map_or("unknown", Verdict::word),
            is_final: self.is_final,
            budget_bytes: self.budget,
            baseline_peak_bytes: self.baseline,
            peak_bytes: snapshot.total(),
            at: regions::place(self.trace, at),
            categories: CategoryBytes::of(snapshot),
            device: &self.device.product,
            gpus: self.paces.0.devices.max(self.memory.map_or(1, |memory| memory.ranks)),
            memory: self.memory,
            room_bytes: self.memory.map(|memory| memory.room),
            fits_device: self.memory.map(Memory::fits),
            not_counted: self.memory.and_then(Memory::leaves_out),
            step_ms: self.paces.0.step,
            planned_step_ms: self.paces.1.step,
            recompute_ms: plan.map_or(Millis(0.0), |plan| plan.recompute_ms),
            quality: plan.filter(|plan| !plan.regions.is_empty()).map(quality),
            pace: self.paces.1.json(),
            pace_words: self.paces.1.words(),
            kinds: plan.map_or_else(Vec::new, |plan| regions::kinds(regions::rows(plan))),
        })
    }
}

/// Plans for other budgets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ExploreCurve<'a> {
    /// Time of the step without recomputation.
    pub step_ms: Millis,
    /// The largest budget first.
    pub points: &'a [CurvePoint],
    /// What the device has for tensors, and what it is called; `None` on the CPU.
    pub room: Option<(Bytes, &'a str)>,
}

impl ExploreCurve<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        line(self)
    }
}

/// Why there is no answer, as one JSON document; `None` if a later question took its place.
#[must_use]
pub fn explore_refusal(why: Option<&str>) -> String {
    #[derive(Serialize)]
    struct Refusal<'a> {
        error: Option<&'a str>,
    }
    line(&Refusal { error: why })
}
