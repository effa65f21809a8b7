//! The greedy planner: the baseline to beat, and what the exact planner falls back on.
//!
//! It takes the regions that the exact planner would take at the outermost level, and again and again drops what frees
//! the most bytes per time of recomputation, until the replayed step fits.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, OnceLock};

use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Millis, Verdict};

use crate::exact;
use crate::planner::{Outcome, Solution};
use crate::problem::Problem;
use crate::replayed::Replayed;

/// So often the first plan within a budget is looked for where it likely is.
const GUESSES: usize = 6;

/// What the greedy steps lead to: nodes with the positions of their policies.
type Policies = Vec<(usize, Option<usize>)>;

/// The greedy planner's way down.
pub(crate) struct GreedySteps {
    /// What it begins with.
    start: Policies,
    /// Which of these gets which policy.
    steps: Vec<(usize, usize)>,
    /// By number of steps, what they free together.
    freed: Vec<Bytes>,
    /// By number of steps, the peak of the step after them, once it is known: budgets ask for the same ones.
    peaks: Vec<OnceLock<Bytes>>,
}

/// A step that may be next.
struct Next {
    /// Bytes per time.
    rate: f64,
    index: usize,
    policy: usize,
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    /// The most bytes per time is the highest, and of equal ones the first in the model.
    fn cmp(&self, other: &Self) -> Ordering {
        self.rate.total_cmp(&other.rate).then(other.index.cmp(&self.index))
    }
}

impl Problem {
    /// Plans greedily.
    #[must_use]
    pub fn greedy(&self, budget: Bytes) -> Outcome {
        let mut outcome = self.quick_greedy(budget);
        if outcome.verdict == Verdict::Planned {
            outcome.solution.lower_bound = self.lower_bound(budget).unwrap_or(Millis(0.0));
        }
        outcome
    }

    /// The same plan without a bound.
    #[must_use]
    pub fn quick_greedy(&self, budget: Bytes) -> Outcome {
        if self.baseline().peak <= budget {
            return Outcome { verdict: Verdict::Fits, solution: self.unplanned() };
        }
        let (checkpoints, replayed) = self.greedy_fit(budget);
        let verdict = if replayed.peak > budget { Verdict::Infeasible } else { Verdict::Planned };
        Outcome { verdict, solution: Solution { checkpoints, replayed, lower_bound: Millis(0.0) } }
    }

    /// The first step that is within the budget, or the last one.
    pub(crate) fn greedy_fit(&self, budget: Bytes) -> (Vec<Checkpoint>, Replayed) {
        let (_, after) = self.greedy_plans();
        let GreedySteps { freed, peaks, .. } = self.greedy_steps();
        let peak = |steps: usize| *peaks[steps].get_or_init(|| self.replay(&after(steps)).peak);
        let checkpoints = after(first_within(budget, self.baseline().peak, freed, peak));
        let replayed = self.replay(&checkpoints);
        (checkpoints, replayed)
    }

    fn greedy_steps(&self) -> &GreedySteps {
        self.greedy_steps.get_or_init(|| self.find_greedy_steps())
    }

    /// How many steps there are, and the plan after so many of them: each drops more than the one before.
    pub(crate) fn greedy_plans(&self) -> (usize, impl Fn(usize) -> Vec<Checkpoint>) {
        let GreedySteps { start, steps, .. } = self.greedy_steps();
        let after = |count: usize| {
            let mut policies = start.clone();
            for &(index, policy) in &steps[..count] {
                policies[index].1 = Some(policy);
            }
            let chosen = policies.into_iter().filter_map(|(node, policy)| {
                let frontier = &self.nodes[node].frontier;
                Some(self.checkpoint(node, frontier.saved_items(&frontier.points()[policy?]).into_iter()))
            });
            chosen.collect()
        };
        (steps.len(), after)
    }

    /// The steps in order.
    fn find_greedy_steps(&self) -> GreedySteps {
        let start: Policies = exact::outermost(self).into_iter().map(|node| (node, None)).collect();
        // Equal layers share a frontier, and with it their steps.
        let mut known = HashMap::new();
        let mut next = |index: usize, present: Option<usize>| {
            let node = start[index].0;
            let key = (Arc::as_ptr(&self.nodes[node].frontier), present);
            let step: &Option<(usize, f64)> = known.entry(key).or_insert_with(|| self.best_step(node, present));
            step.map(|(policy, rate)| Next { rate, index, policy })
        };
        let mut open: BinaryHeap<Next> = (0..start.len()).filter_map(|index| next(index, None)).collect();
        let (mut steps, mut freed, mut total) = (Vec::new(), vec![Bytes(0)], Bytes(0));
        let mut by_index = vec![Bytes(0); start.len()];
        while let Some(Next { index, policy, .. }) = open.pop() {
            steps.push((index, policy));
            let now = self.nodes[start[index].0].frontier.points()[policy].freed;
            total += now.saturating_sub(std::mem::replace(&mut by_index[index], now));
            freed.push(total);
            open.extend(next(index, Some(policy)));
        }
        let peaks = (0..=steps.len()).map(|_| OnceLock::new()).collect();
        GreedySteps { start, steps, freed, peaks }
    }

    /// The policy behind the present one that frees the most for its time, and its bytes per time.
    fn best_step(&self, node: usize, present: Option<usize>) -> Option<(usize, f64)> {
        let points = self.nodes[node].frontier.points();
        let (freed, time) = present.map_or((0, 0.0), |at| (points[at].freed.0, points[at].time.0));
        let behind = present.map_or(0, |at| at + 1);
        (behind..points.len())
            .filter(|&at| points[at].freed.0 > freed)
            .map(|at| (at, (points[at].freed.0 - freed) as f64 / (points[at].time.0 - time).max(f64::MIN_POSITIVE)))
            .max_by(|(a, rate_a), (b, rate_b)| rate_a.total_cmp(rate_b).then(b.cmp(a)))
    }
}

/// The first of some plans, each of which drops more than the one before, whose peak is within the budget; the last one if none is.
/// `freed` is what each of them frees, of which the first is none, `plain` the peak without a plan.
///
/// Each lowers the peak or leaves it, up to small things, so it is found by bisection. The peak falls by about what is freed, which
/// tells where to look first.
pub(crate) fn first_within(budget: Bytes, plain: Bytes, freed: &[Bytes], peak: impl Fn(usize) -> Bytes) -> usize {
    let (mut low, mut high) = (0, freed.len() - 1);
    if high == 0 || peak(high) > budget {
        return high;
    }
    let (mut before, mut found) = (Bytes(0), plain);
    let mut guesses = 0..GUESSES;
    while high - low > 1 {
        let wanted = before.0.saturating_add(found.0).saturating_sub(budget.0);
        let likely = freed.partition_point(|freed| freed.0 < wanted);
        let middle = low + (high - low) / 2;
        let at = guesses.next().map_or(middle, |_| likely.clamp(low + 1, high - 1));
        (before, found) = (freed[at], peak(at));
        if found <= budget { high = at } else { low = at }
    }
    high
}
