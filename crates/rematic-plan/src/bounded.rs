//! How near a plan is to the best.

use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Millis};

use crate::exact;
use crate::planner::{NEAR, SAME, Solution};
use crate::problem::Problem;
use crate::search::{Part, Proven};

/// How much work a proof may be whose bound is wanted by itself.
const WORK: usize = 1_000_000;
/// With less work than this, plans are not split, and what several hold is shared once: for a point of a curve.
const THOROUGH: usize = 100_000;
/// How often what is left open is looked at again, with the better plan that was found.
const LOOKS: usize = 3;

/// How often plans are split into those without a large region and those with it.
const MOST_SPLITS: usize = 4;

impl Problem {
    /// A time of recomputation that no plan within the budget stays below, from the bytes at each moment; `known` is that of a
    /// plan within it. It is highest if `near` is a good plan.
    #[must_use]
    pub fn bound_by_moments(&self, budget: Bytes, known: Millis, near: &[Checkpoint]) -> Millis {
        Millis(self.proven(budget, near, (0.0, known.0), WORK).bound)
    }

    /// The bound alone.
    pub(crate) fn proven_bound(&self, budget: Bytes, near: &[Checkpoint], known: (f64, f64), work: usize) -> f64 {
        self.proven(budget, near, known, work).bound * (1.0 - SAME)
    }

    /// What can be shown beyond a bound, up to the time of a plan.
    fn proven(&self, budget: Bytes, near: &[Checkpoint], (bound, known): (f64, f64), work: usize) -> Proven {
        let mut all = Proven { bound: known, plans: Vec::new() };
        if self.nodes.is_empty() {
            return all;
        }
        let part = |usable: bool| if usable { Part::May } else { Part::Not };
        let cases = exact::usable(self, budget.0).into_iter();
        let mut cases: Vec<Vec<Part>> = cases.map(|usable| usable.into_iter().map(part).collect()).collect();
        let thorough = work >= THOROUGH;
        let mut splits = if thorough { 0 } else { MOST_SPLITS };
        while let Some(parts) = cases.pop() {
            let (moments, prices) = self.bound().shared_prices(self, &parts, budget, (near, known), thorough);
            if prices.bound >= known * (1.0 - SAME) {
                continue;
            }
            if splits < MOST_SPLITS
                && let Some(split) = prices.split(self, &parts)
            {
                splits += 1;
                cases.extend(split);
                continue;
            }
            let proven = moments.prove(self, &parts, budget, &prices, (bound, known), work);
            all.bound = all.bound.min(proven.bound);
            all.plans.extend(proven.plans);
        }
        all
    }

    /// The plan with the better of two bounds, or a better plan that was found on the way.
    pub(crate) fn bounded(&self, budget: Bytes, mut solution: Solution, work: usize) -> Solution {
        for _ in 0..if work < THOROUGH { work.min(1) } else { LOOKS } {
            let time = solution.replayed.recompute.0;
            if time <= solution.lower_bound.0 * (1.0 + NEAR) {
                break;
            }
            let proven = self.proven(budget, &solution.checkpoints, (solution.lower_bound.0, time), work);
            // Sums of the same times in another order differ a little.
            let bound = solution.lower_bound.0.max(proven.bound * (1.0 - SAME));
            let plans = proven.plans.into_iter().map(|checkpoints| {
                let replayed = self.replay(&checkpoints);
                (checkpoints, replayed)
            });
            let within = plans.filter(|(_, found)| found.peak <= budget && found.recompute.0 < time * (1.0 - SAME));
            let better = within.min_by(|(_, a), (_, b)| a.recompute.0.total_cmp(&b.recompute.0));
            let found = better.is_some();
            if let Some((checkpoints, replayed)) = better {
                solution = Solution { checkpoints, replayed, ..solution };
            }
            solution.lower_bound = Millis(bound.min(solution.replayed.recompute.0));
            if !found {
                break;
            }
        }
        solution
    }
}
