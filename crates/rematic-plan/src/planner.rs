use rayon::prelude::*;
use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Millis, Verdict};

use crate::exact::{self, Care, Tightening};
use crate::fitted::Fitted;
use crate::problem::Problem;
use crate::region::Pricing;
use crate::replayed::Replayed;
use crate::search::{Goal, Search};

/// What a planner says about a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether the step fits.
    pub verdict: Verdict,
    /// The plan: an empty one where nothing need be dropped, and where none fits the one with the lowest peak that was found.
    pub solution: Solution,
}

/// Checkpointed regions, and what that does.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The regions with their policies.
    pub checkpoints: Vec<Checkpoint>,
    /// What the replay says: the promise.
    pub replayed: Replayed,
    /// No plan within the budget takes less.
    pub lower_bound: Millis,
}

/// Times that differ by a smaller share are equal: the replay adds them in another order.
pub(crate) const SAME: f64 = 1e-9;
/// A plan that is so near to its bound is not searched any further.
pub(crate) const NEAR: f64 = 1e-4;
/// How much is done for a plan.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Effort {
    /// How long plans are searched for a better one, in lives of storages changed.
    changes: usize,
    /// A plan so near to the bound of the relaxation, as a share, is near enough for the search to go on from.
    pub(crate) enough: f64,
    /// Whether several aims are tried where the first does not lead to a plan that is near enough.
    pub(crate) aims: bool,
    /// How much work it may be to show that there is no better one.
    pub(crate) proof: usize,
    /// So many tilings are planned, those with the lowest bounds.
    pub(crate) tilings: usize,
    /// Whether two things are done at once. Never while others wait for what is found: a thread that waits takes up other work, which may be
    /// to wait for the same.
    pub(crate) at_once: bool,
}

impl Effort {
    /// Whether a plan that takes so long is near enough to a bound: what a quick search may make of it is enough too.
    pub(crate) fn is_enough(self, lower_bound: f64, time: Option<Millis>) -> bool {
        let enough = if self.enough > 0.0 { self.enough.max(SEARCHABLE) } else { 0.0 };
        time.is_some_and(|time| time.0 <= lower_bound + enough * time.0)
    }
}

/// For a budget: some 60 ms of search, and as much to show that there is no better plan.
pub(crate) const WHOLE: Effort =
    Effort { changes: 60_000, enough: 0.0, aims: true, proof: 1_000_000, tilings: 3, at_once: true };
/// For a point of a curve.
const POINT: Effort = Effort { changes: 6_000, enough: 5e-3, aims: true, proof: 20_000, tilings: 3, at_once: false };
/// For a question whose answer only leads on.
const QUICK: Effort = Effort { proof: 0, tilings: 1, ..POINT };
/// For what is planned beside outputs that are moved: without a proof, but all aims are tried.
const BESIDE_MOVES: Effort = Effort { enough: 0.0, ..QUICK };
/// The part of a proof that is tried before the search: it often finds the best plan and shows that it is.
const FIRST_PROOF: usize = 4;
/// From a plan so near to the bound, as a share, the search finds what other aims would.
pub(crate) const SEARCHABLE: f64 = 0.05;
/// Any plan within the budget is near enough, and where there is none other budgets are tried.
const ANY: Effort = Effort { enough: 1.0, aims: false, ..QUICK };
/// So many points of a curve are planned one after the other, each from the plan of the one before.
const WALK: usize = 7;
/// The search for the least budget ends when it is known to this share.
const LEAST_SHARE: f64 = 2e-4;

impl Problem {
    /// Plans with the exact planner: the least recomputation under which the replayed step fits.
    #[must_use]
    pub fn exact(&self, budget: Bytes) -> Outcome {
        self.exact_with(budget, WHOLE)
    }

    /// Plans with less search, and without a bound.
    #[must_use]
    pub fn quick(&self, budget: Bytes) -> Outcome {
        self.exact_with(budget, QUICK)
    }

    /// Plans what is recomputed beside outputs that are moved to the host.
    pub(crate) fn beside_moves(&self, budget: Bytes) -> Outcome {
        self.exact_with(budget, BESIDE_MOVES)
    }

    /// Whether the relaxation has a solution for a budget: where it has none, no plan is within it.
    #[must_use]
    pub fn may_be_within(&self, budget: Bytes) -> bool {
        exact::is_feasible(self, budget.0) || self.runs_may_be_within(budget)
    }

    /// No plan without runs has a lower peak.
    pub(crate) fn lowest_relaxed(&self) -> Bytes {
        *self.lowest_relaxed.get_or_init(|| exact::lowest(self))
    }

    pub(crate) fn exact_with(&self, budget: Bytes, effort: Effort) -> Outcome {
        self.exact_from(budget, effort, None)
    }

    /// The same, where a plan for a smaller budget is known.
    fn exact_from(&self, budget: Bytes, effort: Effort, smaller: Option<&Solution>) -> Outcome {
        if self.baseline().peak <= budget {
            return Outcome { verdict: Verdict::Fits, solution: self.unplanned() };
        }
        let alone = || self.exact_alone(budget, effort, smaller);
        let (alone, promising) = if effort.at_once && self.is_dear(budget) {
            rayon::join(alone, || Some(self.promising(budget)))
        } else {
            (alone(), None)
        };
        self.with_runs(budget, effort, alone, promising)
    }

    /// Without runs.
    pub(crate) fn exact_alone(&self, budget: Bytes, effort: Effort, smaller: Option<&Solution>) -> Option<Solution> {
        if !exact::is_feasible(self, budget.0) {
            return None;
        }
        if let Some(solution) = self.searched(budget, effort, smaller) {
            return Some(solution);
        }
        let least = if effort.proof > 0 { self.least_alone() } else { self.lowest_alone() };
        if least.replayed.peak > budget {
            return None;
        }
        if least.replayed.peak == budget && effort.proof > 0 {
            return Some(least);
        }
        // Its bound is that of a smaller budget.
        let lower_bound = self.lower_bound(budget).unwrap_or(Millis(0.0));
        let solution = Solution { lower_bound, ..least };
        Some(self.bounded(budget, solution, effort.proof))
    }

    /// A time of recomputation that no plan within the budget stays below, from the relaxation alone; `None` if no plan is
    /// within it.
    #[must_use]
    pub fn lower_bound(&self, budget: Bytes) -> Option<Millis> {
        exact::solve(self, budget.0, &Tightening::none(self, Pricing::Low), Care::Exact)
            .map(|relaxed| Millis(relaxed.lower_bound))
    }

    /// The same, quicker and a little lower.
    #[must_use]
    pub fn quick_bound(&self, budget: Bytes) -> Option<Millis> {
        exact::quick_bound(self, budget.0).map(Millis)
    }

    /// What the programme finds, bettered on the replay; a plan for a smaller budget is one to start from too.
    fn searched(&self, budget: Bytes, effort: Effort, smaller: Option<&Solution>) -> Option<Solution> {
        let Fitted { best: fitted, others } = self.fit(budget, effort);
        if self.enumeration().is_some() {
            return fitted;
        }
        let near = effort.enough.max(NEAR);
        let is_best = |found: &Solution| found.replayed.recompute.0 <= found.lower_bound.0 * (1.0 + near);
        if fitted.as_ref().is_some_and(is_best) {
            return fitted;
        }
        let first_proof = if effort == WHOLE { effort.proof / FIRST_PROOF } else { effort.proof };
        let fitted = fitted.map(|found| self.bounded(budget, found, first_proof));
        if fitted.as_ref().is_some_and(is_best) {
            return fitted;
        }
        let mut starts: Vec<Vec<Checkpoint>> = fitted.iter().map(|found| found.checkpoints.clone()).collect();
        starts.extend(
            smaller.filter(|smaller| self.is_of_single_calls(smaller)).map(|smaller| smaller.checkpoints.clone()),
        );
        let is_quick = effort != WHOLE && fitted.is_some();
        let others = if is_quick { Vec::new() } else { others.unwrap_or_else(|| self.other_plans(budget)) };
        for (other, _) in others {
            if !starts.contains(&other) {
                starts.push(other);
            }
        }
        let found = Search::new(self, Goal::Time(budget)).run(&starts, effort.changes).and_then(|checkpoints| {
            let replayed = self.replay(&checkpoints);
            (replayed.peak <= budget).then_some((checkpoints, replayed))
        });
        let was_fitted = fitted.is_some();
        let solution = match (fitted, found) {
            (Some(fitted), Some((checkpoints, replayed))) if replayed.recompute.0 < fitted.replayed.recompute.0 => {
                let lower_bound = Millis(fitted.lower_bound.0.min(replayed.recompute.0));
                Some(Solution { checkpoints, replayed, lower_bound })
            }
            (None, Some((checkpoints, replayed))) => {
                let bound = self.lower_bound(budget).map_or(0.0, |bound| bound.0);
                let lower_bound = Millis(bound.min(replayed.recompute.0));
                Some(Solution { checkpoints, replayed, lower_bound })
            }
            (fitted, _) => fitted,
        };
        // A quick one is bounded once.
        let last_proof = if is_quick { 0 } else { effort.proof };
        let solution = solution.map(|solution| self.bounded(budget, solution, last_proof))?;
        let gap = solution.replayed.recompute.0 / solution.lower_bound.0.max(f64::MIN_POSITIVE) - 1.0;
        let is_open = gap > NEAR && !was_fitted || gap > SEARCHABLE && self.is_near_least(budget);
        Some(if effort == WHOLE && is_open { self.or_least(budget, solution) } else { solution })
    }

    /// Whether a budget is one of the lowest tenth of those that may be reached.
    fn is_near_least(&self, budget: Bytes) -> bool {
        let (lowest, highest) = (self.lowest_relaxed().0, self.baseline().peak.0);
        budget.0 <= lowest + (highest - lowest) / 10
    }

    /// The plan with the lowest peak in a plan's place if that takes less, and its bound if it is for the same budget.
    fn or_least(&self, budget: Bytes, solution: Solution) -> Solution {
        let least = self.least_alone();
        if least.replayed.peak > budget {
            return solution;
        }
        let mut lower_bound = solution.lower_bound.0;
        if least.replayed.peak == budget {
            lower_bound = lower_bound.max(least.lower_bound.0);
        }
        let best = if least.replayed.recompute.0 < solution.replayed.recompute.0 { least } else { solution };
        let lower_bound = Millis(lower_bound.min(best.replayed.recompute.0));
        Solution { lower_bound, ..best }
    }

    /// Plans for budgets in equal steps from the step as it is down to the least that can be reached, the largest first.
    /// Time never rises with the budget: a plan for a smaller one serves for a larger one too.
    ///
    /// The budgets are shared out among the processor's cores; `progress` is told after each one.
    #[must_use]
    pub fn curve(&self, points: usize, progress: impl Fn() + Sync) -> Vec<(Bytes, Solution)> {
        let lowest = self.lowest();
        let (high, low) = (self.baseline().peak.0, lowest.replayed.peak.0);
        let steps = points.max(2) as u64 - 1;
        let budget = |index: u64| {
            Bytes(low + u64::try_from(u128::from(high - low) * u128::from(index) / u128::from(steps)).unwrap_or(0))
        };
        let indices: Vec<u64> = (1..=steps).collect();
        let walked = indices.par_chunks(WALK).map(|walk| {
            let mut smaller = walk.first().filter(|index| **index == 1).map(|_| lowest.clone());
            let outcome = |&index: &u64| {
                let outcome = self.exact_from(budget(index), POINT, smaller.as_ref());
                smaller = (outcome.verdict == Verdict::Planned).then(|| outcome.solution.clone());
                progress();
                (index, outcome)
            };
            walk.iter().map(outcome).collect::<Vec<_>>()
        });
        let least = || {
            let least = self.least();
            progress();
            least
        };
        let (least, outcomes): (Solution, Vec<(u64, Outcome)>) = rayon::join(least, || walked.flatten_iter().collect());
        let mut curve = vec![(least.replayed.peak, least)];
        for (index, outcome) in outcomes {
            let before = &curve[curve.len() - 1].1;
            let Outcome { verdict, solution } = outcome;
            let solution = match verdict {
                Verdict::Infeasible => before.clone(),
                _ if solution.replayed.recompute.0 <= before.replayed.recompute.0 => solution,
                _ => Solution { lower_bound: solution.lower_bound, ..before.clone() },
            };
            curve.push((budget(index), solution));
        }
        curve.reverse();
        curve
    }

    fn is_of_single_calls(&self, solution: &Solution) -> bool {
        let is_single =
            |checkpoint: &Checkpoint| self.nodes.binary_search_by_key(&checkpoint.region, |node| node.region).is_ok();
        solution.checkpoints.iter().all(is_single)
    }

    /// The plan with the lowest peak without runs: of all where they are few, otherwise by bisection over budgets.
    pub(crate) fn least_alone(&self) -> Solution {
        self.least.get_or_init(|| self.find_least()).clone()
    }

    /// The plan of the programme with the lowest peak.
    ///
    /// No plan lies below the least budget for which the relaxation has a solution, which is quickly found; often one lies right
    /// above it. So budgets are tried at growing distances from there, and then between the last two.
    fn least_fitted(&self) -> Solution {
        let mut best = self.unplanned();
        let mut low = self.lowest_relaxed().0.saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small part of the peak")]
        let near = |best: &Solution| ((LEAST_SHARE * best.replayed.peak.0 as f64) as u64).max(1);
        let mut distance = near(&best);
        while low.saturating_add(distance) < best.replayed.peak.0 {
            let budget = low + distance;
            match self.fit(Bytes(budget), ANY).best {
                Some(solution) => {
                    best = solution;
                    break;
                }
                None => (low, distance) = (budget, distance.saturating_mul(4)),
            }
        }
        // At a distance of one byte there is nothing in between.
        while best.replayed.peak.0.saturating_sub(low) > near(&best) {
            let middle = Bytes(low + (best.replayed.peak.0 - low) / 2);
            match self.fit(middle, ANY).best {
                Some(solution) => best = solution,
                None => low = middle.0,
            }
        }
        best
    }

    /// A plan with the lowest peak without runs, whatever it takes.
    pub(crate) fn lowest_alone(&self) -> Solution {
        self.lowest.get_or_init(|| self.find_lowest()).clone()
    }

    fn find_lowest(&self) -> Solution {
        let found = self.enumeration().and_then(|plans| plans.least(self));
        if let Some((checkpoints, replayed)) = found {
            let lower_bound = replayed.recompute;
            return Solution { checkpoints, replayed, lower_bound };
        }
        let mut best = self.least_fitted();
        // What only the replay knows.
        let found = Search::new(self, Goal::Peak).run(std::slice::from_ref(&best.checkpoints), WHOLE.changes);
        if let Some(checkpoints) = found {
            let replayed = self.replay(&checkpoints);
            if replayed.peak < best.replayed.peak {
                best = Solution { checkpoints, replayed, lower_bound: Millis(0.0) };
            }
        }
        best
    }

    fn find_least(&self) -> Solution {
        let mut best = self.lowest_alone();
        if self.enumeration().is_some() {
            return best;
        }
        let peak = best.replayed.peak;
        if let Some(solution) = self.fit(peak, Effort { at_once: false, ..WHOLE }).best
            && solution.replayed.recompute < best.replayed.recompute
        {
            best = solution;
        }
        let found = Search::new(self, Goal::Time(peak)).run(std::slice::from_ref(&best.checkpoints), WHOLE.changes);
        if let Some(checkpoints) = found {
            let replayed = self.replay(&checkpoints);
            if replayed.peak <= peak && replayed.recompute.0 < best.replayed.recompute.0 {
                best = Solution { checkpoints, replayed, lower_bound: Millis(0.0) };
            }
        }
        let lower_bound = self.lower_bound(peak).map_or(0.0, |bound| bound.0).min(best.replayed.recompute.0);
        self.bounded(peak, Solution { lower_bound: Millis(lower_bound), ..best }, WHOLE.proof)
    }
}
