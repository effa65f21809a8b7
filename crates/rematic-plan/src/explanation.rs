//! Why a step peaks where it does, and what brings the peak down.
//!
//! A remedy is a rule that looks at the step and says which storages it makes smaller. What that leads to is never guessed:
//! the whole step is replayed with the smaller storages, so that a remedy that only moves the peak elsewhere shows it.

mod flow;
mod loss;
mod place;
mod remedy;
mod residents;
mod rules;
mod scenario;

use rematic_cost::{Costs, Device};
use rematic_replay::{Highest, Regions, Snapshot};
use rematic_trace::{Bytes, Category, Millis, StepTrace, Verdict};
use serde::Serialize;

pub use place::{Moment, Place};
pub use remedy::{Numerics, Remedy, RemedyKind, Together};
pub use residents::{ResidentGroup, resident_groups};

use crate::problem::Problem;
use flow::Flow;
use loss::Loss;
use remedy::Proposal;
use scenario::{Change, replay};

/// A remedy that frees a smaller share of the peak is not worth a line.
const WORTH_A_LINE: f64 = 0.01;
/// So many of the cheapest remedies are also tried together.
const CHEAPEST: usize = 3;

/// Where a step peaks, what is in memory then, and the ways down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The step.
    pub model: String,
    /// Parameters, gradients and optimizer state are spread evenly over so many devices.
    pub world_size: u64,
    /// The highest bytes in use.
    pub peak_bytes: Bytes,
    /// Where they are.
    pub at: Place,
    /// What they are, the largest category first.
    pub categories: Vec<CategoryBytes>,
    /// What they are, storage by storage, alike ones in one row, the largest first.
    pub residents: Vec<ResidentGroup>,
    /// The step's time as it is.
    pub step_ms: Millis,
    /// Every way down that frees at least 1 % of the peak, the cheapest first: those that take no time by what they free,
    /// the others by time per byte; and behind them those that make what is computed approximate.
    pub remedies: Vec<Remedy>,
    /// Those of the three cheapest at once that leave what is computed as it is, on the same devices, if there is more than one.
    pub together: Option<Together>,
    /// Pairs that free more than each of the two alone, on the same devices: where two moments are equally high, one remedy does
    /// not help. The cheapest first, at most three.
    pub pairs: Vec<Together>,
}

/// Bytes of a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryBytes {
    /// The category.
    pub category: Category,
    /// Its bytes.
    pub bytes: Bytes,
}

impl CategoryBytes {
    /// The categories that there are, the largest first.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Vec<Self> {
        let parts = snapshot.iter().filter(|(_, bytes)| bytes.0 > 0);
        let mut parts: Vec<_> = parts.map(|(category, bytes)| CategoryBytes { category, bytes }).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        parts
    }
}

impl Explanation {
    /// Explains the peak of a step on a device. `whole` is the step before it was spread over ranks, if it was.
    #[must_use]
    pub fn new(problem: &Problem, whole: &StepTrace, device: &Device) -> Self {
        let (trace, costs) = (&*problem.trace, &*problem.costs);
        let flow = Flow::new(trace);
        let loss = Loss::find(trace, &flow);
        let step = Step::new(problem, whole, device, &flow, loss.as_ref());
        let plain = step.highest(&Change::default());
        let tried = step.tried(&rules::ALL, plain.bytes);
        let pairs = pairs(&tried, &step, plain.bytes);
        let least = WORTH_A_LINE * plain.bytes.0 as f64;
        let worth = |remedy: &Remedy| remedy.freed_bytes.0 > 0 && remedy.freed_bytes.0 as f64 >= least;
        let found: Vec<(Remedy, Change)> = tried.into_iter().filter(|(remedy, _)| worth(remedy)).collect();
        let together = together(&found, &step);
        Explanation {
            model: trace.origin.model.clone(),
            world_size: step.world_size,
            peak_bytes: plain.bytes,
            at: step.place(&plain),
            categories: CategoryBytes::of(&plain.snapshot),
            residents: resident_groups(trace, problem.allocator, plain.at.map(|ran| ran.op)),
            step_ms: costs.step().time,
            remedies: found.into_iter().map(|(remedy, _)| remedy).collect(),
            together,
            pairs,
        }
    }

    /// Ways on the same devices that leave what is computed as it is and bring the step within a budget: the cheapest first.
    /// Where none does alone, each is tried on top of greedy plans that drop more and more; the time is then that of both.
    #[must_use]
    pub fn ways_within(
        problem: &Problem,
        whole: &StepTrace,
        device: &Device,
        budget: Bytes,
        verdict: Verdict,
    ) -> (Vec<Remedy>, Vec<Remedy>) {
        let flow = Flow::new(&problem.trace);
        let loss = Loss::find(&problem.trace, &flow);
        let step = Step::new(problem, whole, device, &flow, loss.as_ref());
        let plain = problem.baseline().peak;
        let mut found = step.tried(&rules::BESIDE_PLANS, plain);
        found.retain(|(remedy, _)| remedy.keeps_numerics());
        let alone = found.iter().filter(|(remedy, _)| remedy.peak_bytes <= budget).map(|(remedy, _)| remedy.clone());
        let alone: Vec<Remedy> = alone.collect();
        if !alone.is_empty() || verdict != Verdict::Infeasible {
            return (alone, Vec::new());
        }
        let (count, plan) = problem.greedy_plans();
        let with_plan = found.iter().filter_map(|(remedy, change)| {
            let highest = |steps: usize| step.highest(&Change { checkpoints: plan(steps), ..change.clone() });
            let (mut low, mut high) = (0, count);
            let mut best = Some(highest(high)).filter(|found| found.bytes <= budget)?;
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                let found = highest(middle);
                if found.bytes <= budget { (best, high) = (found, middle) } else { low = middle }
            }
            let extra = problem.replay(&plan(high)).recompute;
            Some(Remedy {
                peak_bytes: best.bytes,
                freed_bytes: plain.saturating_sub(best.bytes),
                extra_ms: remedy.extra_ms.map(|alone| alone + extra),
                at: step.place(&best),
                ..remedy.clone()
            })
        });
        let mut with_plan: Vec<Remedy> = with_plan.collect();
        with_plan.sort_by(|a, b| a.dearness().total_cmp(&b.dearness()));
        (alone, with_plan)
    }

    /// The three cheapest ways down, or as many as there are.
    #[must_use]
    pub fn cheapest(&self) -> &[Remedy] {
        &self.remedies[..self.remedies.len().min(CHEAPEST)]
    }
}

/// The cheapest remedies at once, of those that leave what is computed as it is, on the same devices.
fn together(found: &[(Remedy, Change)], step: &Step<'_>) -> Option<Together> {
    let fits = |(remedy, change): &&(Remedy, Change)| remedy.keeps_numerics() && change.other.is_none();
    let cheapest: Vec<&(Remedy, Change)> = found.iter().take(CHEAPEST).filter(fits).collect();
    if cheapest.len() < 2 {
        return None;
    }
    let changes: Vec<&Change> = cheapest.iter().map(|(_, change)| change).collect();
    let after = step.highest(&Change::all(&changes));
    Some(Together {
        remedies: cheapest.iter().map(|(remedy, _)| remedy.kind).collect(),
        peak_bytes: after.bytes,
        extra_ms: cheapest.iter().try_fold(Millis(0.0), |sum, (remedy, _)| remedy.extra_ms.map(|extra| sum + extra)),
        at: step.place(&after),
    })
}

/// Pairs of remedies that help each other.
fn pairs(tried: &[(Remedy, Change)], step: &Step<'_>, plain: Bytes) -> Vec<Together> {
    let least = WORTH_A_LINE * plain.0 as f64;
    let fits = |(remedy, change): &&(Remedy, Change)| remedy.keeps_numerics() && change.other.is_none();
    let tried: Vec<&(Remedy, Change)> = tried.iter().filter(fits).collect();
    let mut pairs: Vec<(f64, Together)> = Vec::new();
    for (at, (first, change)) in tried.iter().enumerate() {
        for (second, other) in &tried[at + 1..] {
            let after = step.highest(&Change::all(&[change, other]));
            let freed = plain.saturating_sub(after.bytes);
            let alone = first.freed_bytes.max(second.freed_bytes);
            if (freed.saturating_sub(alone).0 as f64) < least || freed <= alone {
                continue;
            }
            let extra_ms = first.extra_ms.zip(second.extra_ms).map(|(first, second)| first + second);
            let dearness = extra_ms.map_or(f64::INFINITY, |extra| extra.0 / freed.0 as f64);
            let remedies = vec![first.kind, second.kind];
            pairs.push((dearness, Together { remedies, peak_bytes: after.bytes, extra_ms, at: step.place(&after) }));
        }
    }
    pairs.sort_by(|(a, first), (b, second)| a.total_cmp(b).then(first.peak_bytes.cmp(&second.peak_bytes)));
    pairs.into_iter().take(CHEAPEST).map(|(_, pair)| pair).collect()
}

/// What the rules look at.
struct Step<'a> {
    whole: &'a StepTrace,
    trace: &'a StepTrace,
    costs: &'a Costs,
    device: &'a Device,
    problem: &'a Problem,
    flow: &'a Flow,
    loss: Option<&'a Loss>,
    world_size: u64,
}

impl<'a> Step<'a> {
    fn new(
        problem: &'a Problem,
        whole: &'a StepTrace,
        device: &'a Device,
        flow: &'a Flow,
        loss: Option<&'a Loss>,
    ) -> Self {
        let (trace, costs) = (&*problem.trace, &*problem.costs);
        let world_size = trace.place.ranks().unwrap_or(u64::MAX);
        Step { whole, trace, costs, device, problem, flow, loss, world_size }
    }

    /// The highest moment of the whole step with a change.
    fn highest(&self, change: &Change) -> Highest {
        let allocator = self.problem.allocator;
        match change.other.as_deref() {
            Some(other) => replay(other, &Regions::new(other), allocator, &Change::default()),
            None => replay(self.trace, self.problem.regions(), allocator, change),
        }
    }

    fn place(&self, highest: &Highest) -> Place {
        Place::new(self.trace, self.loss, highest.at)
    }

    /// Where a changed step peaks.
    fn place_after(&self, change: &Change, highest: &Highest) -> Place {
        match change.other.as_deref() {
            Some(other) => Place::new(other, Loss::find(other, &Flow::new(other)).as_ref(), highest.at),
            None => self.place(highest),
        }
    }

    /// What rules propose, replayed. The cheapest first; those that make numbers approximate are the last.
    fn tried(&self, rules: &[rules::Rule], plain: Bytes) -> Vec<(Remedy, Change)> {
        let mut found: Vec<(Remedy, Change)> = Vec::new();
        for rule in rules {
            let Some(Proposal { kind, title, how, assumption, extra, numerics, change }) = rule(self) else { continue };
            let after = self.highest(&change);
            let (peak_bytes, at) = (after.bytes, self.place_after(&change, &after));
            let (freed_bytes, extra_ms) = (plain.saturating_sub(peak_bytes), extra);
            let remedy = Remedy { kind, title, how, assumption, peak_bytes, freed_bytes, extra_ms, numerics, at };
            found.push((remedy, change));
        }
        found.sort_by(|(a, _), (b, _)| {
            let approximate = (!a.keeps_numerics()).cmp(&!b.keeps_numerics());
            approximate.then(a.dearness().total_cmp(&b.dearness())).then(b.freed_bytes.cmp(&a.freed_bytes))
        });
        found
    }
}
