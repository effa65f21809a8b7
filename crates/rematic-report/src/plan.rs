use std::fmt::Write;

use rematic_cost::Measured;
use rematic_plan::{CategoryBytes, Numerics, PlanDocument, PlannedMoment, PlannedOffload, Remedy, Replayed};
use rematic_trace::{Bytes, Millis, Opt, StepTrace, Verdict};
use serde::Serialize;

use crate::assumed::assumed_text;
use crate::comparison::comparison;
use crate::json::json;
use crate::loss::LossTaken;
use crate::measured::{MeasuredJson, measured_json, measured_text};
use crate::memory::{Memory, OnDevice};
use crate::pace::{Pace, PaceJson};
use crate::regions::{self, RegionJson, place, policy};
use crate::setup::{Setup, SetupJson};
use crate::style::{Sentence, Style, Tone};
use crate::ways::{AND_PLAN, Ways};

/// Everything that `rematic plan` says.
#[derive(Clone, Debug)]
pub struct PlanReport<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// The answer.
    pub verdict: Verdict,
    /// The plan, or the one with the lowest peak where none fits.
    pub document: &'a PlanDocument,
    /// The step under it; `None` if nothing is known but the plan.
    pub replayed: Option<&'a Replayed>,
    /// The bytes in use after every operator, without and with the plan; may be empty.
    pub moments: &'a [PlannedMoment],
    /// What the step under the plan takes of the device; `None` where that is not known.
    pub on_device: Option<OnDevice<'a>>,
    /// How fast the step under the plan goes; `None` if nothing is known but the plan.
    pub pace: Option<&'a Pace>,
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
    /// What else brings the step within the budget.
    pub ways: &'a Ways,
    /// Which loss was taken, if that was to be chosen.
    pub loss: Option<&'a LossTaken>,
}

/// What every planner's answer looks like as JSON.
#[derive(Serialize)]
pub(crate) struct PlanJson<'a> {
    pub(crate) options: &'a SetupJson,
    pub(crate) outcome: &'static str,
    pub(crate) budget_bytes: Bytes,
    pub(crate) baseline_peak_bytes: Bytes,
    pub(crate) peak_bytes: Bytes,
    pub(crate) step_ms: Millis,
    /// Time of the step under the plan; what follows is for that step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) planned_step_ms: Option<Millis>,
    #[serde(flatten)]
    pub(crate) pace: Option<PaceJson>,
    pub(crate) recompute_ms: Millis,
    pub(crate) lower_bound_ms: Millis,
    /// What goes to the host and comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offload: Option<PlannedOffload>,
    pub(crate) regions: Vec<RegionJson<'a>>,
    pub(crate) least_budget_bytes: Option<Bytes>,
    /// What is in memory at the peak of the least budget, the largest category first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_budget_categories: Option<Vec<CategoryBytes>>,
    pub(crate) replayed: ReplayedJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<&'a Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fits: Option<bool>,
    /// A way to bring the step within the budget that takes less time than the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cheaper: Option<&'a Remedy>,
    /// Where no plan is within it: ways that are, alone or on top of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ways: Option<Vec<&'a Remedy>>,
    /// Which loss was taken, and what the other one would have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<&'a LossTaken>,
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
        let (plan, setup) = (self.document, self.setup());
        let (is_planned, is_infeasible) = (self.verdict == Verdict::Planned, self.verdict == Verdict::Infeasible);
        let regions = plan.regions.iter().filter(|_| is_planned).map(|region| RegionJson {
            module: &region.module,
            then: &region.then,
            discard: region.discard,
            freed_bytes: region.freed_bytes,
            recompute_ms: region.recompute_ms,
            policy: policy(region),
        });
        let of_plan = |time: Millis| if is_planned { time } else { Millis(0.0) };
        let least = self.replayed.filter(|_| self.verdict == Verdict::Infeasible);
        json(&PlanJson {
            options: setup.json(),
            outcome: self.verdict.word(),
            budget_bytes: plan.budget_bytes,
            baseline_peak_bytes: plan.baseline_peak_bytes,
            peak_bytes: plan.peak_bytes,
            step_ms: plan.step_ms,
            planned_step_ms: self.pace.map(|pace| pace.step),
            pace: self.pace.map(Pace::json),
            recompute_ms: of_plan(plan.recompute_ms),
            lower_bound_ms: of_plan(plan.lower_bound_ms),
            offload: plan.offload.filter(|_| is_planned),
            regions: regions.collect(),
            // For a device, a lower peak is no answer: what is reserved for it decides.
            least_budget_bytes: least.filter(|_| self.budget().is_some()).map(|least| least.peak),
            least_budget_categories: least.map(|least| CategoryBytes::of(&least.snapshot)),
            replayed: ReplayedJson {
                baseline_peak_bytes: plan.baseline_peak_bytes,
                peak_bytes: plan.peak_bytes,
                recompute_ms: plan.recompute_ms,
                within_budget: plan.peak_bytes <= plan.budget_bytes && (self.budget().is_some() || !is_infeasible),
            },
            memory: self.on_device.map(|on| on.memory),
            fits: self.on_device.map(|on| on.memory.fits()),
            cheaper: self.cheaper().map(|(remedy, _)| remedy),
            ways: is_infeasible.then(|| self.ways.alone.iter().chain(&self.ways.with_plan).collect()),
            loss: self.loss,
            measured: measured_json(self.measured),
        })
    }

    fn setup(&self) -> Setup {
        Setup::new(self.trace, &self.document.device)
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = self.setup().text(style);
        match self.verdict {
            Verdict::Fits => {
                let PlanDocument { baseline_peak_bytes: peak, budget_bytes: budget, .. } = self.document;
                let fits = if self.beyond_device() { "Within the budget" } else { "Fits as it is" };
                let spare = match self.budget() {
                    Some(budget) => format!(" of {budget}, {} to spare", budget.saturating_sub(*peak)),
                    None => String::new(),
                };
                text += &style.sentence(&Sentence {
                    lead: (fits, Tone::Good),
                    head: ":",
                    gap: " ",
                    tail: (&format!("peak {peak}{spare}. Nothing to drop."), Tone::Plain),
                });
                text += &self.on_device_text(style);
                text += &self.loss_text(style);
                text += &pace_text(self.pace, style);
                text += &comparison(self.moments, *budget, style);
            }
            Verdict::Infeasible => self.infeasible(&mut text, style),
            Verdict::Planned => self.planned(&mut text, style),
        }
        text + &assumed_text(self.trace) + &measured_text(self.measured)
    }

    fn infeasible(&self, text: &mut String, style: Style) {
        let PlanDocument { peak_bytes: least, budget_bytes: budget, .. } = self.document;
        let (cannot, what) = match self.on_device {
            Some(on) if on.decides => ("No plan was found that fits", on.device.product.clone()),
            _ => ("Cannot fit", budget.to_string()),
        };
        let cannot = style.paint(cannot, Tone::Bad);
        let _ = writeln!(text, "{cannot} {what}: the least reachable peak is {least}{}.", self.place());
        if self.budget().is_none() {
            *text += &self.on_device_text(style);
        }
        if let Some(replayed) = self.replayed {
            let parts = CategoryBytes::of(&replayed.snapshot);
            let parts: Vec<String> =
                parts.iter().map(|CategoryBytes { category, bytes }| format!("{category} {bytes}")).collect();
            let _ = writeln!(text, "There it is {}.", parts.join(", "));
        }
        let raise = match self.budget() {
            Some(_) => format!("Raise {} to at least {}", Opt("budget"), least.spelled()),
            None => format!("Choose a larger device with {}", Opt("device")),
        };
        *text += &self.rescue(style);
        *text += &self.loss_text(style);
        let sizes = (self.trace.origin.batch, self.trace.origin.seq);
        let less = match sizes {
            (Some(1), Some(1) | None) => ", or use a smaller model",
            (Some(1), _) => ", or use a shorter sequence",
            _ => ", or use a smaller batch",
        };
        let _ = writeln!(text, "{raise}{}{less}.", sharding_advice(self.trace));
        *text += &comparison(self.moments, *budget, style);
    }

    /// What brings the step within the budget where no plan does.
    fn rescue(&self, style: Style) -> String {
        let Ways { alone, with_plan } = self.ways;
        let (remedy, plan) = match (alone.first(), with_plan.first()) {
            (Some(remedy), _) => (remedy, ""),
            (None, Some(remedy)) => (remedy, AND_PLAN),
            (None, None) => return String::new(),
        };
        let share = |extra: Millis| 100.0 * extra.0 / self.document.step_ms.0.max(f64::MIN_POSITIVE);
        let time = remedy.extra_ms.map_or_else(String::new, |extra| format!(" at + {:.2} %", share(extra)));
        let lead = format!("It fits with {}{plan}:", remedy.kind.words());
        let tail = format!("peak {}{time}; {}.", remedy.peak_bytes, remedy.how);
        style.sentence(&Sentence { lead: (&lead, Tone::Good), head: "", gap: " ", tail: (&tail, Tone::Plain) })
    }

    /// A way to bring the step within the budget that takes less time than the plan.
    fn cheaper(&self) -> Option<(&Remedy, &'static str)> {
        let is_planned = self.verdict == Verdict::Planned && self.document.peak_bytes <= self.document.budget_bytes;
        self.ways.cheaper_than(self.document.extra_ms()).filter(|_| is_planned)
    }

    fn cheaper_text(&self, style: Style) -> String {
        let (Some((remedy, plan)), step) = (self.cheaper(), self.document.step_ms.0.max(f64::MIN_POSITIVE)) else {
            return String::new();
        };
        let extra = remedy.extra_ms.map_or(0.0, |extra| extra.0 / step * 100.0);
        let this = self.document.extra_ms().0 / step * 100.0;
        let lead = format!("Cheaper than this plan: {}{plan}:", remedy.kind.words());
        let rounding = if remedy.numerics == Numerics::Same { "" } else { "; results differ by rounding" };
        let tail =
            format!("{} at + {extra:.2} %, the plan: + {this:.2} %; {}{rounding}.", remedy.peak_bytes, remedy.how);
        style.sentence(&Sentence { lead: (&lead, Tone::Strong), head: "", gap: " ", tail: (&tail, Tone::Plain) })
    }

    /// Where the peak is, as far as is known.
    fn place(&self) -> String {
        place(self.trace, self.replayed.and_then(|replayed| replayed.at))
    }

    /// Whether the device has not what the budget allows.
    fn beyond_device(&self) -> bool {
        self.on_device.is_some_and(|on| !on.decides && !on.memory.fits())
    }

    /// What the step has to fit, unless it is the device.
    fn budget(&self) -> Option<Bytes> {
        (!self.on_device.is_some_and(|on| on.decides)).then_some(self.document.budget_bytes)
    }

    fn loss_text(&self, style: Style) -> String {
        self.loss.map_or_else(String::new, |loss| loss.text(style))
    }

    fn on_device_text(&self, style: Style) -> String {
        self.on_device.map_or_else(String::new, |on| on.text(style))
    }

    fn planned(&self, text: &mut String, style: Style) {
        let plan = self.document;
        let (budget, step) = (plan.budget_bytes, plan.step_ms);
        let over = plan.peak_bytes.saturating_sub(budget);
        let fits = match over {
            Bytes(0) if self.beyond_device() => style.paint("Within the budget with a plan", Tone::Good),
            Bytes(0) => style.paint("Fits with a plan", Tone::Good),
            over => style.paint(&format!("Does not fit with this plan, by {over}"), Tone::Bad),
        };
        let (before, place) = (plan.baseline_peak_bytes, self.place());
        let of_budget = self.budget().map_or_else(String::new, |budget| format!(" of {budget}"));
        let _ = writeln!(text, "{fits}: peak {before} -> {}{of_budget}{place}.", plan.peak_bytes);
        *text += &self.on_device_text(style);
        let share = plan.extra_ms().0 / step.0.max(f64::MIN_POSITIVE) * 100.0;
        let quality = match self.budget() {
            Some(_) => quality(plan),
            None if is_unknown(plan) => quality(plan),
            None => format!("{} with a peak of at most {budget}", quality(plan)),
        };
        let waits =
            plan.offload.map_or_else(String::new, |offload| format!(" and waiting for copies {}", offload.stall_ms));
        let _ = writeln!(
            text,
            "Recomputing takes {}{waits} on top of {step} ({share:.2} %); {quality}.",
            plan.recompute_ms
        );
        *text += &offload_text(plan);
        *text += &self.loss_text(style);
        *text += &self.cheaper_text(style);
        *text += &pace_text(self.pace, style);
        *text += &comparison(self.moments, budget, style);
        text.push('\n');
        *text += &regions::table(regions::rows(plan), style);
    }
}

/// What the plan moves to the host and back.
fn offload_text(plan: &PlanDocument) -> String {
    plan.offload.map_or_else(String::new, |PlannedOffload { bytes, host_bytes, gb_per_s, .. }| {
        format!("Offload: {bytes} to the host and back at {gb_per_s:.1} GB/s, in {host_bytes} of its pinned memory.\n")
    })
}

/// How fast the step under the plan goes.
pub(crate) fn pace_text(pace: Option<&Pace>, style: Style) -> String {
    let Some((pace, words)) = pace.map(|pace| (pace, pace.words())).filter(|(_, words)| !words.is_empty()) else {
        return String::new();
    };
    let lead = format!("Step {}:", pace.step);
    style.sentence(&Sentence { lead: (&lead, Tone::Strong), head: "", gap: " ", tail: (&words, Tone::Plain) })
}

/// How near a plan is to the best one.
pub(crate) fn quality(plan: &PlanDocument) -> String {
    if plan.peak_bytes > plan.budget_bytes {
        return "it is not within the budget".to_owned();
    }
    let nearness = nearness(plan.recompute_ms, plan.lower_bound_ms);
    if !nearness.ends_with("optimal") {
        return nearness;
    }
    // The bound of a plan without runs is one for such plans; that of a plan with runs is for those that are tried.
    let is_single = plan.regions.iter().all(|region| region.then.is_empty());
    nearness + if is_single { " for single modules" } else { " for single modules and runs of one length" }
}

/// A bound further away than this share of it says nothing about a plan.
const USEFUL: f64 = 1.0;
/// What is said then.
const UNKNOWN: &str = "how far from optimal is not known";

/// Whether nothing can be said of how near a plan is to the best one.
fn is_unknown(plan: &PlanDocument) -> bool {
    plan.peak_bytes <= plan.budget_bytes && nearness(plan.recompute_ms, plan.lower_bound_ms) == UNKNOWN
}

/// How near a time is to what no plan stays below.
fn nearness(time: Millis, bound: Millis) -> String {
    let gap = (time.0 - bound.0).max(0.0);
    if gap > USEFUL * bound.0 {
        return UNKNOWN.to_owned();
    }
    match 100.0 * gap / bound.0.max(f64::MIN_POSITIVE) {
        share if share < 0.005 => "optimal".to_owned(),
        share => format!("within {share:.2} % of optimal"),
    }
}

/// A step that is sharded can be sharded more.
pub(crate) fn sharding_advice(trace: &StepTrace) -> String {
    match trace.place.ranks() {
        Some(1) => format!(", shard with {}", Opt("fsdp")),
        _ => ", shard over more devices".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_far_away_is_not_quoted() {
        let nearness = |time: f64, bound: f64| nearness(Millis(time), Millis(bound));
        let unknown = UNKNOWN;
        assert_eq!(nearness(2.0, 0.0), unknown);
        assert_eq!(nearness(2.0, 3.5e-16), unknown);
        assert_eq!(nearness(2.1, 1.0), unknown);
        assert_eq!(nearness(1.05, 1.0), "within 5.00 % of optimal");
        assert_eq!(nearness(1.0, 1.0), "optimal");
        assert_eq!(nearness(0.0, 0.0), "optimal");
    }
}
