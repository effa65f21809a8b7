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
//! enough: what must be freed by the regions that end there or before ([`Ceiling`](crate::problem::Ceiling)).
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

use std::collections::HashMap;

use rematic_memory::Checkpoint;
use rematic_tradeoff::{Frontier, Point, Pricing};

use crate::problem::{Node, Problem};

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
    pub(crate) fn none(problem: &Problem<'_>, pricing: Pricing) -> Self {
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

/// Pairs that one run of the programme may look at. Where operators all take the same time per byte, very many
/// combinations are nearly equal; then the run is repeated with few pairs and policies at each node, and the solution may
/// be a little above the optimum. The bound stays true.
const MOST_WORK: usize = 60_000;
const FEW_PAIRS: usize = 80;
const FEW_POINTS: usize = 8;
/// How often a good solution is tried to better, and by at least which share.
const REFINEMENTS: usize = 2;
const REFINED_SHARE: f64 = 1e-3;
/// How far above the bound the first guess lies, as a share of the bound, and how quickly the distance grows.
const FIRST_GAP: f64 = 1e-3;
const GAP_GROWTH: f64 = 4.0;
/// Times closer than this share are equal: sums of the same times in another order differ by less.
const TIE: f64 = 1e-12;

/// Solves the relaxation for a budget; only roughly if that is enough. `None` if even dropping everything is not enough.
pub(crate) fn solve(problem: &Problem<'_>, budget: u64, tightening: &Tightening, mut rough: bool) -> Option<Relaxed> {
    // The highest ceiling decides most. Regions around it would excuse it while they run; they are few, contain each
    // other, and so exclude each other: try without them, and with each of them alone.
    let around = around_highest(problem);
    let mut best: Option<Relaxed> = None;
    let mut lower_bound = f64::INFINITY;
    for with in std::iter::once(None).chain(around.iter().copied().map(Some)) {
        let mut usable = vec![true; problem.nodes.len()];
        for &index in &around {
            usable[index] = with == Some(index);
        }
        if let Some(index) = with {
            usable[index + 1..problem.nodes[index].next].fill(false);
        }
        let limit = best.as_ref().map_or(f64::INFINITY, |best| best.time);
        let case = Case::new(problem, budget, tightening, usable);
        let (bound, found) = case.solve(limit, &mut rough);
        lower_bound = lower_bound.min(bound);
        if let Some((time, picks)) = found
            && best.as_ref().is_none_or(|best| time < best.time)
        {
            best = Some(Relaxed { time, picks, lower_bound: 0.0, rough });
        }
    }
    best.map(|best| Relaxed { lower_bound: lower_bound.min(best.time), rough, ..best })
}

/// The nodes that lie in no other but those around the highest ceiling: a model's layers.
pub(crate) fn outermost(problem: &Problem<'_>) -> Vec<usize> {
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

fn around_highest(problem: &Problem<'_>) -> Vec<usize> {
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
pub(crate) fn checkpoints(problem: &Problem<'_>, picks: &[Pick]) -> Vec<Checkpoint> {
    picks.iter().map(|pick| problem.checkpoint(pick.node, pick.saved.iter().copied())).collect()
}

/// The problem with some of the regions.
struct Case<'a> {
    problem: &'a Problem<'a>,
    nodes: &'a [Node],
    usable: Vec<bool>,
    /// What must be freed before a node is passed over; all of these may be negative, where there is room to spare.
    to_skip: Vec<i64>,
    /// What must be freed before a node and all inside it are passed over.
    to_skip_all: Vec<i64>,
    /// What must be freed before a node may be chosen.
    to_choose: Vec<i64>,
    /// What must be freed before a node may be chosen with a policy, less what the policy keeps.
    to_keep: Vec<i64>,
    /// What must be freed, with the node, after it is chosen.
    after: Vec<i64>,
    /// What must be freed at the beginning.
    at_start: i64,
    /// What must be freed at each rank, and what must be even if a region around it is chosen.
    needs: Vec<i64>,
    always: Vec<i64>,
    /// What must be freed at each rank, if no region around it is chosen and one that ends there may be.
    settled: Vec<i64>,
    /// The last usable node around the end that each rank stands for, and the last that ends there.
    last_around: Vec<Option<usize>>,
    last_ending: Vec<Option<usize>>,
    /// By node, the rank of its end.
    end_ranks: Vec<usize>,
}

/// What one run of the programme finds.
enum Run {
    /// Whether all policies that might matter were there.
    Found {
        time: f64,
        picks: Vec<Pick>,
        exact: bool,
    },
    Nothing {
        exact: bool,
    },
    TooMuch,
}

/// No need: there is no such moment.
const NO_NEED: i64 = i64::MIN / 4;

#[derive(Clone, Copy)]
struct Pair {
    freed: i64,
    time: f64,
    choice: u32,
}

const NO_CHOICE: u32 = u32::MAX;

/// Multipliers of the needs, and what follows from them for every node.
struct Rates {
    /// Time per byte that a region is worth which ends at a rank: the multipliers of all needs from there on.
    worth: Vec<f64>,
    /// Least reduced time of all that is still to come, by node.
    to_come: Vec<f64>,
    /// Time that the needs still to come stand for, by node.
    owed: Vec<f64>,
    /// Time per byte freed so far that counts towards them, by node.
    credit: Vec<f64>,
}

impl Rates {
    /// A bound on the time of every completion of a pair that frees so much.
    fn bound(&self, index: usize, freed: i64) -> f64 {
        (self.to_come[index] + self.owed[index] - self.credit[index] * freed as f64).max(0.0)
    }
}

impl<'a> Case<'a> {
    fn new(problem: &'a Problem<'a>, budget: u64, tightening: &Tightening, mut usable: Vec<bool>) -> Self {
        let nodes = problem.priced(tightening.pricing);
        let count = nodes.len();
        let over = |total: u64| signed(total) - signed(budget);
        let tightened = |rank: usize, total: u64| {
            if total == 0 { NO_NEED } else { over(total.saturating_add(tightening.ceilings[rank])) }
        };
        let backward = |rank: usize| tightened(rank, problem.ceilings[rank].backward);
        let both = |rank: usize| backward(rank).max(tightened(rank, problem.ceilings[rank].forward));
        let start_rank =
            |index: usize| nodes.get(index).map_or(problem.ceilings.len() - 1, |node| problem.rank(node.start));
        let mut case = Case {
            problem,
            nodes,
            to_skip: Vec::with_capacity(count),
            to_skip_all: Vec::with_capacity(count),
            to_choose: Vec::with_capacity(count),
            to_keep: Vec::with_capacity(count),
            after: Vec::with_capacity(count),
            at_start: (0..=start_rank(0)).map(both).max().unwrap_or(NO_NEED),
            needs: (0..problem.ceilings.len()).map(both).collect(),
            always: (0..problem.ceilings.len()).map(backward).collect(),
            settled: vec![i64::MAX; problem.ceilings.len()],
            last_around: vec![None; problem.ceilings.len()],
            last_ending: vec![None; problem.ceilings.len()],
            end_ranks: nodes.iter().map(|node| problem.rank(node.end)).collect(),
            usable: Vec::new(),
        };
        for (index, node) in nodes.iter().enumerate() {
            let (here, end) = (start_rank(index), problem.rank(node.end));
            // Had a region around it been chosen, it would not be passed over.
            let first = over(node.first_forward.saturating_add(tightening.first[index]));
            case.to_skip.push((here + 1..=start_rank(index + 1)).map(both).fold(first, i64::max));
            let inner = (here + 1..end).map(backward).max().unwrap_or(NO_NEED);
            let rebuilding = node.rebuilding().saturating_add(tightening.own[index]);
            case.to_choose.push(inner.max(over(rebuilding)).max(over(node.own_forward)));
            case.to_keep.push(
                over(node.own_forward_with.saturating_add(tightening.keep[index])) - signed(node.candidate.droppable.0),
            );
            // Right behind it, outputs that its policy keeps may still be in use and so cost nothing: these moments are
            // left to the replay.
            let settled = backward(end).max(tightened(end, node.forward_after));
            case.after.push((end + 1..=start_rank(node.next)).map(both).fold(settled, i64::max));
        }
        for (index, node) in nodes.iter().enumerate() {
            case.to_skip_all.push(case.to_skip[index..node.next].iter().copied().fold(NO_NEED, i64::max));
        }
        // Nothing before a node can free more than this.
        let mut most = vec![0_i64; count + 1];
        for index in 0..count {
            if most[index] < case.required(index, 0) {
                usable[index] = false;
            }
            most[index + 1] = most[index + 1].max(most[index]);
            if usable[index] {
                let next = nodes[index].next;
                most[next] = most[next].max(most[index] + signed(nodes[index].candidate.droppable.0));
            }
        }
        case.usable = usable;
        for (index, node) in nodes.iter().enumerate().filter(|(index, _)| case.usable[*index]) {
            let end = case.end_ranks[index];
            case.last_ending[end] = Some(index);
            case.settled[end] = case.settled[end].min(backward(end).max(tightened(end, node.forward_after)));
            // Inner ones come later and overwrite.
            let first = (problem.rank(node.start) + 1).min(end);
            case.last_around[first..end].fill(Some(index));
        }
        case
    }

    /// What must be freed before a node may be chosen with a policy that keeps so much.
    fn required(&self, index: usize, kept: u64) -> i64 {
        (self.to_keep[index] + signed(kept)).max(self.to_choose[index])
    }

    /// What a policy frees. Where others are rebuilt before this node although they end behind it, what it keeps beyond
    /// that does not count: it is gone when they are looked at.
    fn freed(&self, index: usize, point: &Point) -> i64 {
        let node = &self.nodes[index];
        let freed = signed(node.candidate.droppable.0) - signed(point.kept.0);
        if node.rebuilt_last { freed } else { freed.max(0) }
    }

    /// The least reduced time of the nodes that end at or before a position, and what that choice frees.
    fn least_reduced(&self, worth: &[f64], position: usize, mut note: impl FnMut(usize, f64)) -> f64 {
        let nodes = self.nodes;
        let last = nodes.partition_point(|node| node.start < position);
        // Reduced time and bytes freed of the best choice from each node on.
        let mut best = vec![(0.0, 0.0); nodes.len() + 1];
        for index in (0..last).rev() {
            let node = &nodes[index];
            best[index] = best[index + 1];
            if self.usable[index] && node.end <= position {
                let rate = worth[self.end_ranks[index]];
                let (freed, time) = node.frontier.cheapest(rate);
                let (reduced, total) = (time - rate * freed + best[node.next].0, freed + best[node.next].1);
                if reduced < best[index].0 || reduced == best[index].0 && total > best[index].1 {
                    best[index] = (reduced, total);
                }
            }
            note(index, best[index].0);
        }
        best[0].1
    }

    /// Multipliers that make the bound nearly as high as it gets.
    ///
    /// For one need, the best multiplier is the rate at which the regions up to it free just enough. A region counts
    /// towards all needs behind it, so what it is worth only falls along the way: each need raises the rate of the
    /// regions before it until they free enough, the largest need first.
    fn rates(&self) -> Rates {
        let problem = self.problem;
        let ranks = problem.ceilings.len();
        let steepest = self.nodes.iter().map(|node| node.frontier.steepest()).fold(0.0, f64::max) * 2.0;
        let mut worth = vec![0.0_f64; ranks + 1];
        let mut order: Vec<usize> = (1..ranks).filter(|&rank| self.needs[rank] > 0).collect();
        order.sort_by_key(|&rank| (std::cmp::Reverse(self.needs[rank]), rank));
        let first = order.first().copied();
        order.sort_by_key(|&rank| (Some(rank) != first, rank));
        for rank in order {
            problem.cancel.check();
            let need = self.needs[rank] as f64;
            let position = problem.ends[rank - 1];
            let raised = |rate: f64, worth: &[f64]| -> Vec<f64> {
                worth.iter().enumerate().map(|(at, old)| if at <= rank { old.max(rate) } else { *old }).collect()
            };
            let frees = |worth: &[f64]| self.least_reduced(worth, position, |_, _| {});
            if frees(&worth) >= need {
                continue;
            }
            let (mut low, mut high) = (worth[rank], steepest);
            for _ in 0..40 {
                let middle = low + (high - low) / 2.0;
                if frees(&raised(middle, &worth)) >= need { high = middle } else { low = middle }
            }
            // The bound is continuous in the rates; at the upper end the need counts as met for the ranks still to come.
            worth = raised(high, &worth);
        }
        let nodes = self.nodes;
        let mut to_come = vec![0.0; nodes.len() + 1];
        self.least_reduced(&worth, usize::MAX, |index, reduced| to_come[index] = reduced);
        let mut rates = Rates { to_come, owed: vec![0.0; nodes.len() + 1], credit: vec![0.0; nodes.len() + 1], worth };
        for rank in 1..ranks {
            let multiplier = rates.worth[rank] - rates.worth[rank + 1];
            if multiplier <= 0.0 {
                continue;
            }
            for index in 0..nodes.partition_point(|node| node.start < problem.ends[rank - 1]) {
                rates.owed[index] += multiplier * self.need(rank, index) as f64;
                rates.credit[index] += multiplier;
            }
        }
        rates
    }

    /// What must be freed at a rank, seen from a node that comes before it: a forward ceiling is excused while a chosen
    /// region around it runs.
    fn need(&self, rank: usize, index: usize) -> i64 {
        let behind = |last: Option<usize>| last.is_none_or(|last| last < index);
        match (behind(self.last_around[rank]), behind(self.last_ending[rank])) {
            (true, true) => self.needs[rank],
            (true, false) => self.settled[rank].min(self.needs[rank]),
            (false, _) => self.always[rank],
        }
    }

    /// A bound on the time of all solutions, and the best one if it takes less than the limit.
    fn solve(&self, limit: f64, rough: &mut bool) -> (f64, Option<(f64, Vec<Pick>)>) {
        if self.at_start > 0 || !self.is_feasible() {
            return (f64::INFINITY, None);
        }
        let rates = self.rates();
        let lower_bound = rates.bound(0, 0);
        if lower_bound >= limit {
            return (lower_bound, None);
        }
        if *rough {
            return (lower_bound, self.good_solution(&rates, limit));
        }
        let mut gap = FIRST_GAP * lower_bound + f64::MIN_POSITIVE;
        loop {
            let guess = (lower_bound + gap).min(limit);
            match self.programme(&rates, guess * (1.0 + TIE), false) {
                Run::Found { time, picks, exact } => {
                    return (if exact { time } else { lower_bound }, Some((time, picks)));
                }
                Run::TooMuch => {
                    *rough = true;
                    return (lower_bound, self.good_solution(&rates, limit));
                }
                Run::Nothing { exact } if guess >= limit => return (if exact { limit } else { lower_bound }, None),
                Run::Nothing { .. } => gap = if gap > 1e12 { f64::INFINITY } else { (gap * GAP_GROWTH).max(1e-9) },
            }
        }
    }

    /// With few pairs and policies at each node: each run looks only below the last one's solution, where the few lie
    /// closer together.
    fn good_solution(&self, rates: &Rates, mut limit: f64) -> Option<(f64, Vec<Pick>)> {
        let mut best = None;
        for _ in 0..REFINEMENTS {
            let Run::Found { mut picks, .. } = self.programme(rates, limit, true) else { break };
            self.polish(&mut picks);
            let time = picks.iter().map(|pick| pick.policy.time.0).sum();
            limit = time * (1.0 - REFINED_SHARE);
            best = Some((time, picks));
        }
        best
    }

    /// Betters a solution that was put together from few policies: first each region, then each two neighbours get the
    /// policies that take least and free as much as is needed.
    fn polish(&self, picks: &mut Vec<Pick>) {
        let exact = |pick: &Pick| self.nodes[pick.node].frontier.is_exact();
        for at in 0..picks.len() {
            if !exact(&picks[at]) {
                continue;
            }
            let points = self.nodes[picks[at].node].frontier.points();
            let present = points.partition_point(|point| point.kept > picks[at].policy.kept);
            let mut tried = picks.clone();
            let enough = points[..present].partition_point(|point| {
                tried[at].policy = *point;
                self.spare(&tried).is_none()
            });
            if enough < present {
                picks[at] = Pick::new(self.nodes, picks[at].node, points[enough]);
            }
        }
        for at in 1..picks.len() {
            self.problem.cancel.check();
            let (first, second) = (&picks[at - 1], &picks[at]);
            let Some(spare) = self.spare(picks).filter(|_| exact(first) && exact(second)) else { continue };
            let (nodes, worth) = ([first.node, second.node], |pick: &Pick| self.freed(pick.node, &pick.policy));
            let needed = worth(first) + worth(second) - spare;
            let present = first.policy.time.0 + second.policy.time.0;
            let [left, right] = nodes.map(|node| self.nodes[node].frontier.points());
            // The more the one frees, the less the other has to.
            let mut other = right.len();
            let mut best: Option<(f64, Point, Point)> = None;
            for point in left {
                let freed = self.freed(nodes[0], point);
                while other > 0 && freed + self.freed(nodes[1], &right[other - 1]) >= needed {
                    other -= 1;
                }
                let Some(partner) = right.get(other) else { continue };
                let time = point.time.0 + partner.time.0;
                if best.is_none_or(|(least, ..)| time < least) {
                    best = Some((time, *point, *partner));
                }
            }
            let Some((_, left, right)) = best.filter(|(time, ..)| *time < present * (1.0 - TIE)) else { continue };
            let mut tried = picks.clone();
            tried[at - 1] = Pick::new(self.nodes, nodes[0], left);
            tried[at] = Pick::new(self.nodes, nodes[1], right);
            if self.spare(&tried).is_some() {
                *picks = tried;
            }
        }
    }

    /// What a choice frees beyond what is needed at the end, or `None` if it does not free enough somewhere.
    fn spare(&self, picks: &[Pick]) -> Option<i64> {
        let (mut freed, mut index, mut spare) = (0, 0, i64::MAX);
        for pick in picks {
            let passed = self.to_skip[index..pick.node].iter().all(|need| freed >= *need);
            if !passed || freed < self.required(pick.node, pick.policy.kept.0) {
                return None;
            }
            freed += self.freed(pick.node, &pick.policy);
            spare = freed - self.after[pick.node];
            if spare < 0 {
                return None;
            }
            index = self.nodes[pick.node].next;
        }
        let rest = self.to_skip[index..].iter().map(|need| freed - need).fold(spare, i64::min);
        (rest >= 0).then_some(rest)
    }

    /// Whether dropping as much as possible is enough.
    fn is_feasible(&self) -> bool {
        let nodes = self.nodes;
        let mut most: Vec<Option<i64>> = vec![None; nodes.len() + 1];
        most[0] = Some(0);
        for index in 0..nodes.len() {
            let Some(freed) = most[index] else { continue };
            let raise = |slot: &mut Option<i64>, value: i64| *slot = Some(slot.map_or(value, |old| old.max(value)));
            if freed >= self.to_skip[index] {
                raise(&mut most[index + 1], freed);
            }
            let with = freed + signed(nodes[index].candidate.droppable.0);
            if self.usable[index] && freed >= self.required(index, 0) && with >= self.after[index] {
                raise(&mut most[nodes[index].next], with);
            }
        }
        most[nodes.len()].is_some()
    }

    /// The dynamic programme, without pairs whose bound lies above the guess.
    fn programme(&self, rates: &Rates, guess: f64, thin: bool) -> Run {
        self.problem.cancel.check();
        let nodes = self.nodes;
        // Least reduced time of all that can come before.
        let mut before = vec![f64::INFINITY; nodes.len() + 1];
        before[0] = 0.0;
        let mut choices: Vec<(u32, u32, u32)> = Vec::new();
        let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); nodes.len() + 1];
        pairs[0].push(Pair { freed: 0, time: 0.0, choice: NO_CHOICE });
        let mut work = 0;
        // For nodes without an exact frontier, the policies that matter.
        let mut near: HashMap<usize, Vec<(Point, Vec<usize>)>> = HashMap::new();
        let mut exact = true;
        for (index, node) in nodes.iter().enumerate() {
            before[index + 1] = before[index + 1].min(before[index]);
            let mut here = std::mem::take(&mut pairs[index]);
            keep_undominated(&mut here);
            if thin {
                let credit = rates.credit[index];
                thin_out(&mut here, FEW_PAIRS, |pair| (pair.freed, pair.time - credit * pair.freed as f64));
            }
            if self.usable[index] {
                let rate = rates.worth[self.end_ranks[index]];
                let reduced = |point: &Point| point.time.0 - rate * self.freed(index, point) as f64;
                let (freed, time) = node.frontier.cheapest(rate);
                before[node.next] = before[node.next].min(before[index] + time - rate * freed);
                let others = before[index] + rates.to_come[node.next] + rates.owed[0];
                if !thin && !node.frontier.is_exact() {
                    let slack = guess - others - (time - rate * freed);
                    // How near a policy is goes by all that it keeps, which does not count for the others.
                    let counts = node.rebuilt_last.then(|| Frontier::near(&node.candidate, rate, slack.max(0.0)));
                    match counts.flatten() {
                        Some(policies) => _ = near.insert(index, policies),
                        None => exact = false,
                    }
                }
                let mut points: Vec<(usize, &Point)> = match near.get(&index) {
                    Some(policies) => policies.iter().map(|(point, _)| point).enumerate().collect(),
                    None => node.frontier.points().iter().enumerate().collect(),
                };
                points.retain(|(_, point)| others + reduced(point) <= guess);
                if thin {
                    thin_out(&mut points, FEW_POINTS, |(_, point)| (self.freed(index, point), reduced(point)));
                }
                work += points.len() * here.len();
                if !thin && work > MOST_WORK {
                    return Run::TooMuch;
                }
                // A policy that frees nothing is good for nothing where the node and all in it can be passed over.
                let passing = here.partition_point(|pair| pair.freed >= self.to_skip_all[index]);
                for (position, point) in points {
                    let required = self.required(index, point.kept.0);
                    let allowed = here.partition_point(|pair| pair.freed >= required);
                    let gain = self.freed(index, point);
                    let from = if gain <= 0 { passing.min(allowed) } else { 0 };
                    for pair in &here[from..allowed] {
                        let (freed, time) = (pair.freed + gain, pair.time + point.time.0);
                        if freed < self.after[index] || time + rates.bound(node.next, freed) > guess {
                            continue;
                        }
                        choices.push((
                            pair.choice,
                            u32::try_from(index).unwrap_or(NO_CHOICE),
                            u32::try_from(position).unwrap_or(NO_CHOICE),
                        ));
                        let choice = u32::try_from(choices.len() - 1).unwrap_or(NO_CHOICE);
                        pairs[node.next].push(Pair { freed, time, choice });
                    }
                }
            }
            here.retain(|pair| {
                pair.freed >= self.to_skip[index] && pair.time + rates.bound(index + 1, pair.freed) <= guess
            });
            pairs[index + 1].append(&mut here);
        }
        let last = pairs[nodes.len()].iter().min_by(|a, b| a.time.total_cmp(&b.time).then(b.freed.cmp(&a.freed)));
        let Some(last) = last else { return Run::Nothing { exact } };
        let mut picks = Vec::new();
        let mut choice = last.choice;
        while choice != NO_CHOICE {
            let (earlier, node, point) = choices[choice as usize];
            let (node, point) = (node as usize, point as usize);
            picks.push(match near.get(&node) {
                Some(policies) => Pick { node, policy: policies[point].0, saved: policies[point].1.clone() },
                None => Pick::new(self.nodes, node, self.nodes[node].frontier.points()[point]),
            });
            choice = earlier;
        }
        picks.reverse();
        Run::Found { time: last.time, picks, exact }
    }
}

/// Keeps `most` of many: the range of bytes is cut into equal parts, and of each part the one with the least reduced time
/// stays. The one with the most bytes always does.
fn thin_out<T>(many: &mut Vec<T>, most: usize, place: impl Fn(&T) -> (i64, f64)) {
    if many.len() <= most {
        return;
    }
    let bytes = |item: &T| place(item).0;
    let (low, high) = many.iter().map(bytes).fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
    let part = |item: &T| {
        let share = (bytes(item) - low) as f64 / (high - low).max(1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small number")]
        let part = (share * (most - 1) as f64) as usize;
        part
    };
    let mut best: Vec<Option<usize>> = vec![None; most];
    for (index, item) in many.iter().enumerate() {
        let slot = &mut best[part(item)];
        let better = slot.is_none_or(|other| place(item).1 < place(&many[other]).1) || bytes(item) == high;
        if better {
            *slot = Some(index);
        }
    }
    let mut index = 0;
    let kept: Vec<usize> = best.into_iter().flatten().collect();
    many.retain(|_| {
        index += 1;
        kept.contains(&(index - 1))
    });
}

/// Bytes of a valid trace are far below 2^63.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}

/// Sorts by bytes freed, the most first, and keeps those that take less time than all before.
fn keep_undominated(pairs: &mut Vec<Pair>) {
    pairs.sort_by(|a, b| b.freed.cmp(&a.freed).then(a.time.total_cmp(&b.time)));
    let mut least = f64::INFINITY;
    pairs.retain(|pair| {
        let better = pair.time < least;
        least = least.min(pair.time);
        better
    });
}
