//! The exact planner.
//!
//! # The problem
//!
//! Regions in the order in which their forwards begin; each has a frontier of policies (d, t): bytes freed between its
//! forward and its backward, and time of recomputation. Regions that contain each other exclude each other. Let M(τ) be
//! the plain step's memory at moment τ, and B the budget. A region is dropped at τ if its forward is over and its backward
//! has not yet needed anything. Then
//!
//! ```text
//! minimise Σ t   subject to   M(τ) − Σ{d of regions dropped at τ} ≤ B   for every τ
//! ```
//!
//! The sets of dropped regions grow through forward and shrink through backward, so one constraint per end of a region is
//! enough: what must be freed by the regions that end there or before ([`Ceiling`](crate::node::Ceiling)).
//!
//! What a micro-batch drops is there again before the next one begins, so that the needs of each are met by its own regions alone.
//!
//! # Why it is a relaxation
//!
//! Every plan whose replay stays within the budget satisfies the constraints, so that no plan takes less than their
//! optimum:
//!
//! - Between its forward and its backward a checkpointed region changes memory by exactly what its policy keeps less what
//!   autograd alone held. An output counts as kept only if nothing outside refers to it when the next module returns, and
//!   an input only if no other region counts it too.
//! - A policy that keeps more than that frees a negative amount. That counts where the region is surely dropped; where one
//!   that ends later is rebuilt after it, it is taken as nothing.
//! - In its own forward a region has freed at most what autograd alone holds by then, and at most so much more than its
//!   policy frees in the end as if all that is not yet made were saved ([`Node::own_forward`], `own_forward_with`).
//!   Moments before anything inside a region has ended belong to that region (`first_forward`): they are excused if it is
//!   chosen.
//! - While it runs again, at least what was made and needed up to there is in memory, whatever was saved
//!   ([`Node::rebuilding`]), and afterwards no less than in the plain step: a constraint on the regions before it.
//! - What a plain step holds until gradients have been reduced, a checkpointed one lets go when the backward function
//!   returns: the ceilings take the earlier moment for all.
//!
//! What it leaves out makes it weaker, not wrong: the replay decides, and where it is above the budget the constraints are
//! tightened there ([`Tightening`]); the bound is that of the first solution, without any tightening.
//!
//! # The solution
//!
//! A dynamic programme over the regions keeps the undominated pairs (Σd, Σt). For multipliers λ ≥ 0 of the needs, and Λ
//! of a region the sum of those of all needs behind it,
//!
//! ```text
//! t + Σ λ(need − d) + min Σ(t − Λd) over all that is still to come
//! ```
//!
//! is a bound for every completion of a pair, and the last term is one pass over the regions. Pairs whose bound is above a
//! guess are dropped; if a solution below the guess is found it is optimal, otherwise the guess is raised.

mod case;
mod polish;
mod programme;
mod rates;

use rematic_replay::Checkpoint;
use rematic_trace::Bytes;

use crate::node::Node;
use crate::problem::Problem;
use crate::region::{Point, Pricing};
use case::Case;

/// Times closer than this share are equal: sums of the same times in another order differ by less.
const TIE: f64 = 1e-12;

/// A chosen node with its policy.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub(crate) node: usize,
    pub(crate) policy: Point,
    /// The items that it saves.
    pub(crate) saved: Vec<usize>,
}

impl Pick {
    pub(crate) fn new(nodes: &[Node], node: usize, policy: Point) -> Self {
        Pick { node, policy, saved: nodes[node].frontier.saved_items(&policy) }
    }
}

/// The solution of the relaxation.
#[derive(Clone, Debug)]
pub(crate) struct Relaxed {
    pub(crate) time: f64,
    pub(crate) picks: Vec<Pick>,
    /// No plan takes less, the frontiers' thinning included.
    pub(crate) lower_bound: f64,
    /// Whether there was too much to look at, and it may be a little above the optimum.
    pub(crate) rough: bool,
}

/// What must be freed, beyond what the plain step says, because a replay has shown it.
#[derive(Clone, Debug)]
pub(crate) struct Tightening {
    pub(crate) pricing: Pricing,
    /// By rank of the ends.
    pub(crate) ceilings: Vec<u64>,
    /// By node: before it may run again.
    pub(crate) own: Vec<u64>,
    /// By node: before it may be chosen, with what its policy keeps.
    pub(crate) keep: Vec<u64>,
    /// By node: before it may be passed over.
    pub(crate) first: Vec<u64>,
}

impl Tightening {
    pub(crate) fn none(problem: &Problem, pricing: Pricing) -> Self {
        let count = problem.nodes.len();
        Tightening {
            pricing,
            ceilings: vec![0; problem.ceilings.len()],
            own: vec![0; count],
            keep: vec![0; count],
            first: vec![0; count],
        }
    }
}

/// Whether the relaxation has a solution for a budget.
pub(crate) fn is_feasible(problem: &Problem, budget: u64) -> bool {
    let tightening = Tightening::none(problem, Pricing::Low);
    cases(problem).any(|usable| Case::new(problem, budget, &tightening, usable).is_feasible())
}

/// The least budget for which the relaxation has a solution, of those up to the peak without a plan: no plan has a lower peak.
pub(crate) fn lowest(problem: &Problem) -> Bytes {
    // What is there before the step stays.
    let (mut low, mut high) = (problem.start_bytes().0.saturating_sub(1), problem.baseline().peak.0);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_feasible(problem, middle) { high = middle } else { low = middle }
    }
    Bytes(high)
}

/// Which nodes may be chosen within a budget, case by case: every plan within it is one of a case.
pub(crate) fn usable(problem: &Problem, budget: u64) -> Vec<Vec<bool>> {
    let tightening = Tightening::none(problem, Pricing::Low);
    let cases = cases(problem).map(|usable| Case::new(problem, budget, &tightening, usable));
    cases.filter(Case::is_feasible).map(|case| case.usable).collect()
}

/// A bound on the time of all plans within a budget, quicker and a little lower than that of [`solve`]; `None` if no plan is within it.
pub(crate) fn quick_bound(problem: &Problem, budget: u64) -> Option<f64> {
    let tightening = Tightening::none(problem, Pricing::Low);
    let cases = cases(problem).map(|usable| Case::new(problem, budget, &tightening, usable));
    cases.filter(Case::is_feasible).map(|case| case.rates().bound(0, 0)).reduce(f64::min)
}

/// With how much care the relaxation is solved.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Care {
    /// To the optimum, if that is not too much to look at; otherwise as [`Care::Rough`].
    Exact,
    /// With few pairs and policies, and then with those that are below what was found.
    Rough,
    /// With few pairs and policies.
    Quick,
}

/// Solves the relaxation for a budget. `None` if even dropping everything is not enough.
pub(crate) fn solve(problem: &Problem, budget: u64, tightening: &Tightening, mut care: Care) -> Option<Relaxed> {
    let mut best: Option<Relaxed> = None;
    let mut lower_bound = f64::INFINITY;
    for usable in cases(problem) {
        let limit = best.as_ref().map_or(f64::INFINITY, |best| best.time);
        let case = Case::new(problem, budget, tightening, usable);
        let (bound, found) = case.solve(limit, &mut care);
        lower_bound = lower_bound.min(bound);
        if let Some((time, picks)) = found
            && best.as_ref().is_none_or(|best| time < best.time)
        {
            best = Some(Relaxed { time, picks, lower_bound: 0.0, rough: false });
        }
    }
    let rough = care != Care::Exact;
    best.map(|best| Relaxed { lower_bound: lower_bound.min(best.time), rough, ..best })
}

/// Which nodes may be chosen, case by case.
///
/// The highest ceiling decides most. Regions around it would excuse it while they run; they are few, contain each other, and so
/// exclude each other: one case is without them, and one with each of them alone.
fn cases(problem: &Problem) -> impl Iterator<Item = Vec<bool>> {
    let around = around_highest(problem);
    let alone: Vec<Option<usize>> = std::iter::once(None).chain(around.iter().copied().map(Some)).collect();
    alone.into_iter().map(move |with| {
        let mut usable = vec![true; problem.nodes.len()];
        for &index in &around {
            usable[index] = with == Some(index);
        }
        if let Some(index) = with {
            usable[index + 1..problem.nodes[index].next].fill(false);
        }
        usable
    })
}

/// The nodes that lie in no other but those around the highest ceiling: a model's layers.
pub(crate) fn outermost(problem: &Problem) -> Vec<usize> {
    let around = around_highest(problem);
    let mut chosen: Vec<usize> = Vec::new();
    for (index, node) in problem.nodes.iter().enumerate() {
        let inside = chosen.last().is_some_and(|last| problem.nodes[*last].end > node.start);
        let holds_many = problem.nodes[index + 1..node.next].len() > MANY_INSIDE;
        if !inside && !around.contains(&index) && !holds_many {
            chosen.push(index);
        }
    }
    chosen
}

/// A node with more nodes inside is a whole model rather than a layer.
const MANY_INSIDE: usize = 8;

fn around_highest(problem: &Problem) -> Vec<usize> {
    let highest = (0..problem.ceilings.len())
        .max_by_key(|&rank| problem.ceilings[rank].forward.max(problem.ceilings[rank].backward))
        .unwrap_or(0);
    (0..problem.nodes.len())
        .filter(|&index| highest > 0 && surrounds(&problem.nodes[index], problem.ends[highest - 1]))
        .collect()
}

fn surrounds(node: &Node, position: usize) -> bool {
    node.start < position && position < node.end
}

/// The checkpoints that picks stand for.
pub(crate) fn checkpoints(problem: &Problem, picks: &[Pick]) -> Vec<Checkpoint> {
    picks.iter().map(|pick| problem.checkpoint(pick.node, pick.saved.iter().copied())).collect()
}
