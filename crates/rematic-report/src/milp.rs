use std::fmt::Write;

use rematic_cost::Measured;
use rematic_plan::{PlanDocument, PlannedMoment, PlannedRegion, Replayed};
use rematic_torch::{MilpChoice, MilpOutcome};
use rematic_trace::{Bytes, Millis, Opt, StepTrace};

use crate::assumed::assumed_text;
use crate::comparison::comparison;
use crate::json::json;
use crate::loss::LossTaken;
use crate::measured::{measured_json, measured_text};
use crate::memory::OnDevice;
use crate::pace::Pace;
use crate::plan::{PlanJson, ReplayedJson, pace_text, sharding_advice};
use crate::regions::{self, RegionJson, Row, place, policy};
use crate::setup::Setup;
use crate::style::{Style, Tone};

/// What the planner `milp` says, by torch's model of the peak; and beside it what the replay says.
#[derive(Clone, Copy, Debug)]
pub struct MilpReport<'a> {
    /// What the step is trained with.
    pub setup: &'a Setup,
    /// The step.
    pub trace: &'a StepTrace,
    /// The most bytes that may be in use.
    pub budget: Bytes,
    /// The peak of torch's model if nothing is dropped.
    pub baseline: Bytes,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// The answer.
    pub outcome: &'a MilpOutcome,
    /// The step as it is, replayed.
    pub replayed_baseline: &'a Replayed,
    /// The plan with its decisions, and what the replay says about it.
    pub replayed: Option<(&'a PlanDocument, &'a Replayed)>,
    /// The bytes in use after every operator, without and with the plan; may be empty.
    pub moments: &'a [PlannedMoment],
    /// What the step under the plan takes of the device; `None` where that is not known.
    pub on_device: Option<OnDevice<'a>>,
    /// How fast the step under the plan goes.
    pub pace: Option<&'a Pace>,
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
    /// Which loss was taken, if that was to be chosen.
    pub loss: Option<&'a LossTaken>,
}

impl<'a> MilpReport<'a> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        let (outcome, peak_bytes, least_budget_bytes) = match self.outcome {
            MilpOutcome::Fits { peak } => ("fits", *peak, None),
            MilpOutcome::Planned(plan) => ("planned", plan.peak, None),
            MilpOutcome::Infeasible { least_budget, .. } => ("infeasible", *least_budget, Some(*least_budget)),
        };
        let plan = match self.outcome {
            MilpOutcome::Planned(plan) => Some(plan),
            _ => None,
        };
        let regions = plan.into_iter().flat_map(|plan| &plan.choices).map(|choice| RegionJson {
            module: &choice.fqn,
            then: &[],
            discard: choice.discard,
            freed_bytes: choice.saved,
            recompute_ms: choice.recompute,
            policy: self.region(choice).map(policy).unwrap_or_default(),
        });
        let replayed = self.replay();
        json(&PlanJson {
            options: self.setup.json(),
            outcome,
            budget_bytes: self.budget,
            baseline_peak_bytes: self.baseline,
            peak_bytes,
            step_ms: self.step,
            planned_step_ms: self.pace.map(|pace| pace.step),
            pace: self.pace.map(Pace::json),
            recompute_ms: plan.map_or(Millis(0.0), |plan| plan.recompute),
            lower_bound_ms: plan.map_or(Millis(0.0), |plan| plan.lower_bound),
            offload: None,
            regions: regions.collect(),
            least_budget_bytes,
            // Torch's model knows no categories.
            least_budget_categories: None,
            replayed: ReplayedJson {
                baseline_peak_bytes: self.replayed_baseline.peak,
                peak_bytes: replayed.peak,
                recompute_ms: replayed.recompute,
                within_budget: replayed.peak <= self.budget,
            },
            memory: self.on_device.map(|on| on.memory),
            fits: self.on_device.map(|on| on.memory.fits()),
            cheaper: None,
            ways: None,
            loss: self.loss,
            measured: measured_json(self.measured),
        })
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = self.setup.text(style);
        match self.outcome {
            MilpOutcome::Fits { peak } => {
                let fits = style.paint("Fits as it is", Tone::Good);
                let _ = writeln!(text, "{fits}, by torch's model: peak {peak} of {}.", self.budget);
                self.replay_text(&mut text, style);
                text += &self.on_device_text(style);
                text += &pace_text(self.pace, style);
                text += &comparison(self.moments, self.budget, style);
            }
            MilpOutcome::Infeasible { least_budget, .. } => {
                let cannot = style.paint("Cannot fit", Tone::Bad);
                let _ = writeln!(text, "{cannot} {}, by torch's model: it takes at least {least_budget}.", self.budget);
                let _ = writeln!(
                    text,
                    "Raise {} to at least {}{}, or use a smaller batch.",
                    Opt("budget"),
                    least_budget.spelled(),
                    sharding_advice(self.trace)
                );
            }
            MilpOutcome::Planned(plan) => {
                let fits = style.paint("Fits with a plan", Tone::Good);
                let _ = writeln!(
                    text,
                    "{fits}, by torch's model: peak {} -> {} of {}; recomputing takes {} on top of {}.",
                    self.baseline, plan.peak, self.budget, plan.recompute, self.step
                );
                self.replay_text(&mut text, style);
                text += &self.on_device_text(style);
                text += &pace_text(self.pace, style);
                text += &comparison(self.moments, self.budget, style);
                let rows = plan.choices.iter().map(|choice| Row {
                    module: &choice.fqn,
                    freed: choice.saved,
                    discard: format!("{:.2} %", choice.discard * 100.0),
                    recompute: choice.recompute,
                    region: self.region(choice),
                });
                text += "\n";
                text += &regions::table(rows, style);
            }
        }
        text += &self.loss.map_or_else(String::new, |loss| loss.text(style));
        text + &assumed_text(self.trace) + &measured_text(self.measured)
    }

    fn on_device_text(&self, style: Style) -> String {
        self.on_device.map_or_else(String::new, |on| on.text(style))
    }

    /// What was replayed: the plan, or the step as it is.
    fn replay(&self) -> &'a Replayed {
        self.replayed.map_or(self.replayed_baseline, |(_, replayed)| replayed)
    }

    /// The decisions for a module; for its last call, whose facts torch plans with, if there are several.
    fn region(&self, choice: &MilpChoice) -> Option<&'a PlannedRegion> {
        let (document, _) = self.replayed?;
        document.regions.iter().rev().find(|region| region.module == choice.fqn)
    }

    fn replay_text(&self, text: &mut String, style: Style) {
        let replayed = self.replay();
        let place = place(self.trace, replayed.at);
        let (before, time) = match self.replayed {
            Some(_) => {
                let before = format!("{} -> ", self.replayed_baseline.peak);
                (before, format!("; recomputing takes {}", replayed.recompute))
            }
            None => (String::new(), String::new()),
        };
        let peak = format!("peak {before}{} of {}{place}{time}", replayed.peak, self.budget);
        if replayed.peak <= self.budget {
            let _ = writeln!(text, "Replayed, it fits too: {peak}.");
            return;
        }
        let over = replayed.peak.saturating_sub(self.budget);
        let above = style.paint(&format!("Replayed, it is {over} above the budget"), Tone::Bad);
        let _ = writeln!(text, "{above}: {peak}.");
        let _ = writeln!(
            text,
            "Torch's model leaves out optimizer state, and its curves are fits; {} plans by the replay.",
            Opt("planner").to("exact")
        );
    }
}
