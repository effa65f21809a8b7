use rematic_trace::{Bytes, Millis, Verdict};

use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::Change;
use super::Step;
use crate::planner::{Outcome, Solution};

/// The share of the step's time that recomputation may take.
const SHARE: f64 = 0.05;
/// Rounds of bisection: to less than a thousandth of the peak.
const BISECTIONS: usize = 10;
/// Budgets that are tried from there to the step as it is.
const TRIES: u64 = 8;

/// Recomputation: the plan with the lowest peak among those that take at most 5 % of the step's time.
///
/// Assumes nothing: the plan is the planner's, and the replay's are its peak and its time.
pub(super) fn checkpointing(step: &Step<'_>) -> Option<Proposal> {
    let limit = Millis(step.costs.step().time.0 * SHARE);
    let solution = cheap(step, limit)?;
    if solution.checkpoints.is_empty() {
        return None;
    }
    let peak = solution.replayed.peak.spelled();
    Some(Proposal {
        kind: RemedyKind::Checkpointing,
        title: "Recompute what the planner chooses".to_owned(),
        how: format!("rematic plan with --budget {peak}, or rematic.auto"),
        assumption: "The lowest peak at 5 % more time or less; rematic curve shows the rest".to_owned(),
        extra: Some(solution.replayed.recompute),
        numerics: Numerics::Same,
        change: Change { checkpoints: solution.checkpoints, ..Change::default() },
    })
}

/// The least budget within the limit: where the bound crosses it, by bisection; from there upwards until a plan is within it.
fn cheap(step: &Step<'_>, limit: Millis) -> Option<Solution> {
    let peak = step.problem.baseline().peak.0;
    let (mut low, mut high) = (0, peak);
    for _ in 0..BISECTIONS {
        let middle = low + (high - low) / 2;
        match step.problem.lower_bound(Bytes(middle)) {
            Some(bound) if bound <= limit => high = middle,
            _ => low = middle,
        }
    }
    for try_number in 0..TRIES {
        let budget = high + (peak - high) / TRIES * try_number;
        let Outcome { verdict, solution } = step.problem.quick(Bytes(budget));
        if verdict == Verdict::Fits {
            return None;
        }
        if solution.replayed.recompute <= limit {
            return Some(solution);
        }
    }
    None
}
