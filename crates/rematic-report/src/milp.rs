use std::fmt::Write;

use rematic_cost::Measured;
use rematic_plan::MilpOutcome;
use rematic_trace::{Bytes, Millis, StepTrace};

use crate::json::json;
use crate::measured::{measured_json, measured_text};
use crate::plan::{PlanJson, RegionJson};
use crate::style::{Style, Tone};
use crate::table::{Column, Table};

/// What the planner `milp` says: torch's model of the peak, which is not a replay.
#[derive(Clone, Copy, Debug)]
pub struct MilpReport<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// The most bytes that may be in use.
    pub budget: Bytes,
    /// Torch's baseline.
    pub baseline: Bytes,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// The answer.
    pub outcome: &'a MilpOutcome,
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
}

impl MilpReport<'_> {
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
            discard: choice.discard,
            freed_bytes: choice.saved,
            recompute_ms: choice.recompute,
            policy: Vec::new(),
        });
        json(&PlanJson {
            outcome,
            budget_bytes: self.budget,
            baseline_peak_bytes: self.baseline,
            peak_bytes,
            step_ms: self.step,
            recompute_ms: plan.map_or(Millis(0.0), |plan| plan.recompute),
            lower_bound_ms: plan.map_or(Millis(0.0), |plan| plan.lower_bound),
            regions: regions.collect(),
            least_budget_bytes,
            measured: measured_json(self.measured),
        })
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = style.paint(&self.trace.model, Tone::Strong) + "\n";
        match self.outcome {
            MilpOutcome::Fits { peak } => {
                let fits = style.paint("Fits as it is", Tone::Good);
                let _ = writeln!(text, "{fits}, by torch's model: peak {peak} of {}.", self.budget);
            }
            MilpOutcome::Infeasible { least_budget, .. } => {
                let cannot = style.paint("Cannot fit", Tone::Bad);
                let _ = writeln!(text, "{cannot} {}, by torch's model: it takes at least {least_budget}.", self.budget);
            }
            MilpOutcome::Planned(plan) => {
                let fits = style.paint("Fits with a plan", Tone::Good);
                let _ = writeln!(
                    text,
                    "{fits}, by torch's model: peak {} -> {} of {}; recomputing takes {} on top of {}.\n",
                    self.baseline, plan.peak, self.budget, plan.recompute, self.step
                );
                let mut table =
                    Table::new([Column::text("checkpoint"), Column::number("discards"), Column::number("recomputes")]);
                for choice in &plan.choices {
                    let discard = format!("{:.2} %", choice.discard * 100.0);
                    table.row([choice.fqn.clone(), discard, choice.recompute.to_string()]);
                }
                text += &table.render(style);
            }
        }
        text + &measured_text(self.measured)
    }
}
