use std::fmt::Write;

use rematic_cost::Measured;
use rematic_plan::{CategoryBytes, PlanDocument, PlannedMoment, Replayed};
use rematic_replay::Ran;
use rematic_trace::{Bytes, Millis, StepTrace};
use serde::Serialize;

use crate::assumed::assumed_text;
use crate::comparison::comparison;
use crate::json::json;
use crate::measured::{MeasuredJson, measured_json, measured_text};
use crate::regions::{self, RegionJson, place, policy};
use crate::style::{Style, Tone};
use crate::table::{Column, Table};

/// What a planner says, in the words of the command line.
#[derive(Clone, Debug)]
pub enum Verdict<'a> {
    /// Nothing to drop.
    Fits,
    /// A plan, and where its peak is.
    Planned(&'a PlanDocument, Option<Ran>),
    /// The least budget that can be reached, and the state at its peak.
    Infeasible(&'a Replayed),
}

/// Everything that `rematic plan` says.
#[derive(Clone, Debug)]
pub struct PlanReport<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// The most bytes that may be in use.
    pub budget: Bytes,
    /// The peak without a plan.
    pub baseline: Bytes,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// The answer.
    pub verdict: Verdict<'a>,
    /// The bytes in use after every operator, without and with the plan; may be empty.
    pub moments: &'a [PlannedMoment],
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
}

/// What every planner's answer looks like as JSON.
#[derive(Serialize)]
pub(crate) struct PlanJson<'a> {
    pub(crate) outcome: &'static str,
    pub(crate) budget_bytes: Bytes,
    pub(crate) baseline_peak_bytes: Bytes,
    pub(crate) peak_bytes: Bytes,
    pub(crate) step_ms: Millis,
    pub(crate) recompute_ms: Millis,
    pub(crate) lower_bound_ms: Millis,
    pub(crate) regions: Vec<RegionJson<'a>>,
    pub(crate) least_budget_bytes: Option<Bytes>,
    /// What is in memory at the peak of the least budget, the largest category first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_budget_categories: Option<Vec<CategoryBytes>>,
    pub(crate) replayed: ReplayedJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measured: Option<MeasuredJson<'a>>,
}

/// What the replay says about the plan, or about the step as it is where there is none.
#[derive(Serialize)]
pub(crate) struct ReplayedJson {
    pub(crate) baseline_peak_bytes: Bytes,
    pub(crate) peak_bytes: Bytes,
    pub(crate) recompute_ms: Millis,
    pub(crate) within_budget: bool,
}

impl PlanReport<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        let plan = match &self.verdict {
            Verdict::Planned(plan, _) => Some(*plan),
            _ => None,
        };
        let regions = plan.into_iter().flat_map(|plan| &plan.regions).map(|region| RegionJson {
            module: &region.module,
            discard: region.discard,
            freed_bytes: region.freed_bytes,
            recompute_ms: region.recompute_ms,
            policy: policy(region),
        });
        let (peak_bytes, recompute_ms) = match &self.verdict {
            Verdict::Fits => (self.baseline, Millis(0.0)),
            Verdict::Planned(plan, _) => (plan.peak_bytes, plan.recompute_ms),
            Verdict::Infeasible(least) => (least.peak, least.recompute),
        };
        json(&PlanJson {
            outcome: match self.verdict {
                Verdict::Fits => "fits",
                Verdict::Planned(..) => "planned",
                Verdict::Infeasible(_) => "infeasible",
            },
            budget_bytes: self.budget,
            baseline_peak_bytes: self.baseline,
            peak_bytes,
            step_ms: self.step,
            recompute_ms: plan.map_or(Millis(0.0), |plan| plan.recompute_ms),
            lower_bound_ms: plan.map_or(Millis(0.0), |plan| plan.lower_bound_ms),
            regions: regions.collect(),
            least_budget_bytes: match &self.verdict {
                Verdict::Infeasible(least) => Some(least.peak),
                _ => None,
            },
            least_budget_categories: match &self.verdict {
                Verdict::Infeasible(least) => Some(CategoryBytes::of(&least.snapshot)),
                _ => None,
            },
            replayed: ReplayedJson {
                baseline_peak_bytes: self.baseline,
                peak_bytes,
                recompute_ms,
                within_budget: peak_bytes <= self.budget,
            },
            measured: measured_json(self.measured),
        })
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = style.paint(&self.trace.origin.model, Tone::Strong) + "\n";
        match &self.verdict {
            Verdict::Fits => {
                let spare = self.budget.saturating_sub(self.baseline);
                let fits = style.paint("Fits as it is", Tone::Good);
                let _ = writeln!(
                    text,
                    "{fits}: peak {} of {}, {spare} to spare. Nothing to drop.",
                    self.baseline, self.budget
                );
                text += &comparison(self.moments, self.budget, style);
            }
            Verdict::Infeasible(least) => {
                let cannot = style.paint("Cannot fit", Tone::Bad);
                let _ = writeln!(
                    text,
                    "{cannot} {}: the least reachable peak is {}{}.",
                    self.budget,
                    least.peak,
                    place(self.trace, least.at)
                );
                let parts = CategoryBytes::of(&least.snapshot);
                let parts: Vec<String> =
                    parts.iter().map(|CategoryBytes { category, bytes }| format!("{category} {bytes}")).collect();
                let _ = writeln!(text, "There it is {}.", parts.join(", "));
                let _ = writeln!(
                    text,
                    "Raise --budget to at least {} bytes{}, or use a smaller batch.",
                    least.peak.0,
                    sharding_advice(self.trace)
                );
                text += &comparison(self.moments, self.budget, style);
            }
            Verdict::Planned(plan, at) => self.planned(&mut text, plan, *at, style),
        }
        text + &assumed_text(self.trace) + &measured_text(self.measured)
    }

    fn planned(&self, text: &mut String, plan: &PlanDocument, at: Option<Ran>, style: Style) {
        let over = plan.peak_bytes.saturating_sub(self.budget);
        let fits = match over {
            Bytes(0) => style.paint("Fits with a plan", Tone::Good),
            over => style.paint(&format!("Does not fit with this plan, by {over}"), Tone::Bad),
        };
        let place = place(self.trace, at);
        let _ = writeln!(text, "{fits}: peak {} -> {} of {}{place}.", self.baseline, plan.peak_bytes, self.budget);
        let share = plan.recompute_ms.0 / self.step.0.max(f64::MIN_POSITIVE) * 100.0;
        let quality = quality(plan);
        let _ = writeln!(
            text,
            "Recomputing takes {} on top of {} ({share:.2} %); {quality}.",
            plan.recompute_ms, self.step
        );
        *text += &comparison(self.moments, self.budget, style);
        text.push('\n');
        *text += &regions::table(regions::rows(plan), style);
    }
}

/// How near a plan is to the best one.
pub(crate) fn quality(plan: &PlanDocument) -> String {
    let gap = (plan.recompute_ms.0 / plan.lower_bound_ms.0.max(f64::MIN_POSITIVE) - 1.0).max(0.0) * 100.0;
    if plan.lower_bound_ms.0 <= 0.0 && plan.recompute_ms.0 > 0.0 {
        "how much less is possible is not known".to_owned()
    } else if plan.peak_bytes > plan.budget_bytes {
        "it is not within the budget".to_owned()
    } else if gap < 0.005 {
        "no plan takes less".to_owned()
    } else {
        format!("at most {gap:.2} % above the best plan")
    }
}

/// One point of the curve of budget against time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CurvePoint {
    /// The budget.
    pub budget_bytes: Bytes,
    /// The peak of its plan.
    pub peak_bytes: Bytes,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// No plan within the budget takes less.
    pub lower_bound_ms: Millis,
}

/// The curve of budget against time, from the step as it is down to the least that can be reached.
#[derive(Clone, Debug)]
pub struct CurveReport<'a> {
    /// The model.
    pub model: &'a str,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// The largest budget first.
    pub points: &'a [CurvePoint],
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
}

impl CurveReport<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            step_ms: Millis,
            points: &'a [CurvePoint],
            #[serde(skip_serializing_if = "Option::is_none")]
            measured: Option<MeasuredJson<'a>>,
        }
        json(&Json { step_ms: self.step, points: self.points, measured: measured_json(self.measured) })
    }

    /// A table with bars.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        const BAR: f64 = 30.0;
        let most = self.points.iter().map(|point| point.recompute_ms.0).fold(f64::MIN_POSITIVE, f64::max);
        let mut table = Table::new([
            Column::number("budget"),
            Column::number("peak").leave_out(1),
            Column::number("recompute"),
            Column::number("of the step"),
            Column::text("").tone(Tone::Accent).leave_out(0),
        ]);
        for point in self.points {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a short bar")]
            let bar = "█".repeat((point.recompute_ms.0 / most * BAR).round() as usize);
            table.row([
                point.budget_bytes.to_string(),
                point.peak_bytes.to_string(),
                point.recompute_ms.to_string(),
                format!("{:.2} %", point.recompute_ms.0 / self.step.0.max(f64::MIN_POSITIVE) * 100.0),
                bar,
            ]);
        }
        style.paint(self.model, Tone::Strong) + "\n" + &table.render(style) + &measured_text(self.measured)
    }
}

/// One rank's step is sharded already.
pub(crate) fn sharding_advice(trace: &StepTrace) -> &'static str {
    if trace.place.ranks() == Some(1) { ", shard with --world-size" } else { "" }
}
