//! The greedy planner: the baseline to beat.
//!
//! It takes the regions that the exact planner would take at the outermost level, and again and again drops what frees
//! the most bytes per time of recomputation, until the replayed step fits.

use rematic_trace::{Bytes, Millis};
use rematic_tradeoff::Point;

use crate::exact::{self, Pick};
use crate::planner::{Infeasible, Outcome, Solution};
use crate::problem::Problem;

impl Problem<'_> {
    /// Plans greedily.
    #[must_use]
    pub fn greedy(&self, budget: Bytes) -> Outcome {
        if self.baseline().peak <= budget {
            return Outcome::Fits;
        }
        let outermost = exact::outermost(self);
        // The policy of each region, by position in its frontier; none yet.
        let mut policies: Vec<Option<usize>> = vec![None; outermost.len()];
        let mut best: Option<Solution> = None;
        loop {
            let step = (0..outermost.len())
                .filter_map(|index| self.best_step(outermost[index], policies[index]).map(|step| (index, step)))
                .max_by(|(a, (_, rate_a)), (b, (_, rate_b))| rate_a.total_cmp(rate_b).then(b.cmp(a)));
            let Some((index, (policy, _))) = step else { break };
            policies[index] = Some(policy);
            let point = |node: usize, policy: usize| self.nodes[node].frontier.points()[policy];
            let chosen: Vec<(usize, Point)> = outermost
                .iter()
                .zip(&policies)
                .filter_map(|(node, policy)| Some((*node, point(*node, (*policy)?))))
                .collect();
            let freed: u64 = chosen.iter().map(|(_, policy)| policy.freed.0).sum();
            // No replay can say yes before enough is freed for the highest point.
            if self.baseline().peak.0.saturating_sub(freed) > budget.0 && best.is_some() {
                continue;
            }
            let picks: Vec<Pick> = chosen.into_iter().map(|(node, policy)| Pick::new(self, node, policy)).collect();
            let checkpoints = exact::checkpoints(self, &picks);
            let replayed = self.replay(&checkpoints);
            let fits = replayed.peak <= budget;
            let solution = Solution { checkpoints, replayed, lower_bound: Millis(0.0) };
            if fits {
                let lower_bound = self.lower_bound(budget).unwrap_or(Millis(0.0));
                return Outcome::Planned(Solution { lower_bound, ..solution });
            }
            if best.as_ref().is_none_or(|best| solution.replayed.peak < best.replayed.peak) {
                best = Some(solution);
            }
        }
        let nothing =
            || Solution { checkpoints: Vec::new(), replayed: self.baseline().clone(), lower_bound: Millis(0.0) };
        Outcome::Infeasible(Infeasible { least: best.unwrap_or_else(nothing) })
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
