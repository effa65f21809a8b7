use rematic_trace::{Bytes, Millis};

use super::super::remedy::{Proposal, RemedyKind};
use super::super::scenario::Change;
use super::Step;
use crate::planner::{Outcome, Solution};

/// The share of the step's time that recomputation may take.
const SHARE: f64 = 0.05;
/// Budgets that are tried between the step as it is and the least that can be reached.
const TRIES: usize = 6;

/// Recomputation: the plan with the lowest peak among those that take at most 5 % of the step's time.
///
/// Assumes nothing: the plan is the planner's, and the replay's are its peak and its time.
pub(super) fn checkpointing(step: &Step<'_>) -> Option<Proposal> {
    let limit = Millis(step.costs.step().time.0 * SHARE);
    let solution = cheap(step, limit)?;
    if solution.checkpoints.is_empty() {
        return None;
    }
    let Bytes(peak) = solution.replayed.peak;
    Some(Proposal {
        kind: RemedyKind::Checkpointing,
        title: "Recompute what the planner chooses".to_owned(),
        how: format!("rematic plan with --budget {peak}, or rematic.auto"),
        assumption: "The lowest peak at 5 % more time or less; rematic curve shows the rest".to_owned(),
        extra: Some(solution.replayed.recompute),
        change: Change { checkpoints: solution.checkpoints, ..Change::default() },
    })
}

/// The least budget within the limit, by bisection.
fn cheap(step: &Step<'_>, limit: Millis) -> Option<Solution> {
    let least = step.problem.least();
    if least.replayed.recompute <= limit {
        return Some(least);
    }
    let (mut low, mut high) = (least.replayed.peak.0, step.problem.baseline().peak.0);
    let mut best: Option<Solution> = None;
    for _ in 0..TRIES {
        let budget = low + (high - low) / 2;
        match step.problem.exact(Bytes(budget)) {
            Outcome::Planned(solution) if solution.replayed.recompute <= limit => {
                high = solution.replayed.peak.0.clamp(low, budget);
                best = Some(solution);
            }
            Outcome::Fits => return best,
            Outcome::Planned(_) | Outcome::Infeasible(_) => low = budget,
        }
    }
    best
}
