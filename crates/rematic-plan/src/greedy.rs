//! The greedy planner: the baseline to beat, and what the exact planner falls back on.
//!
//! It takes the regions that the exact planner would take at the outermost level, and again and again drops what frees
//! the most bytes per time of recomputation, until the replayed step fits.

use std::collections::HashMap;
use std::sync::Arc;

use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Millis, Verdict};

use crate::exact;
use crate::planner::{Outcome, Solution};
use crate::problem::Problem;
use crate::replayed::Replayed;

/// What the greedy steps lead to: nodes with the positions of their policies.
type Policies = Vec<(usize, Option<usize>)>;
/// What they begin with, and the steps: which of these gets which policy.
pub(crate) type GreedySteps = (Policies, Vec<(usize, usize)>);

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
        let (count, after) = self.greedy_plans();
        self.first_within(budget, count, after).1
    }

    /// How many steps there are, and the plan after so many of them: each drops more than the one before.
    pub(crate) fn greedy_plans(&self) -> (usize, impl Fn(usize) -> Vec<Checkpoint>) {
        let (start, steps) = self.greedy_steps.get_or_init(|| self.find_greedy_steps());
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
        let mut policies: Policies = exact::outermost(self).into_iter().map(|node| (node, None)).collect();
        let start = policies.clone();
        // Equal layers share a frontier, and with it their steps.
        let mut known = HashMap::new();
        let mut steps = Vec::new();
        loop {
            let step = policies
                .iter()
                .enumerate()
                .filter_map(|(index, &(node, present))| {
                    let key = (Arc::as_ptr(&self.nodes[node].frontier), present);
                    let step = *known.entry(key).or_insert_with(|| self.best_step(node, present));
                    step.map(|(policy, rate)| (index, policy, rate))
                })
                .max_by(|(a, _, rate_a), (b, _, rate_b)| rate_a.total_cmp(rate_b).then(b.cmp(a)));
            let Some((index, policy, _)) = step else { return (start, steps) };
            policies[index].1 = Some(policy);
            steps.push((index, policy));
        }
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
