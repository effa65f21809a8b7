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
//! enough: what must be freed by the regions that end there or before ([`Ceiling`]). While a region runs again, what it
//! rebuilds takes the place of what it had dropped: a constraint on the regions before it.
//!
//! It is a relaxation: no plan that the replay accepts breaks it. What it leaves out: a region's inputs live until its
//! backward is over; what a policy saves is there while the region is rebuilt; inside its own forward a region has freed
//! only a part. So the solution's time is a lower bound, and it is the optimum if the replay accepts it.
//!
//! # The solution
//!
//! A dynamic programme over the regions keeps the undominated pairs (Σd, Σt). For a rate λ (time per byte), the bound
//!
//! ```text
//! t + λ(need − d) + min Σ(t − λd) over all that is still to come
//! ```
//!
//! holds for every completion of a pair, and the last term is one pass over the regions. Pairs whose bound is above a
//! guess are dropped; if a solution below the guess is found it is optimal, otherwise the guess is raised.

use rematic_memory::Checkpoint;
use rematic_trace::OpId;

use crate::problem::{Node, Problem};

/// A chosen node with the position of its policy in its frontier.
pub(crate) type Pick = (usize, usize);

/// The solution of the relaxation.
#[derive(Clone, Debug)]
pub(crate) struct Relaxed {
    pub(crate) time: f64,
    pub(crate) picks: Vec<Pick>,
    /// No plan takes less, the frontiers' thinning included.
    pub(crate) lower_bound: f64,
}

/// What must be freed, beyond what the plain step says, because a replay has shown it.
#[derive(Clone, Debug)]
pub(crate) struct Tightening {
    /// By rank of the ends.
    pub(crate) ceilings: Vec<u64>,
    /// By node: before it may run again.
    pub(crate) own: Vec<u64>,
}

impl Tightening {
    pub(crate) fn none(problem: &Problem<'_>) -> Self {
        Tightening { ceilings: vec![0; problem.ceilings.len()], own: vec![0; problem.nodes.len()] }
    }
}

/// Pairs that are kept at one node. Real models stay far below; beyond, every other one goes, and the solution may be a
/// little above the optimum (the bound stays true).
const MOST_PAIRS: usize = 30_000;
/// How far above the bound the first guess lies, as a share of the bound, and how quickly the distance grows.
const FIRST_GAP: f64 = 1e-3;
const GAP_GROWTH: f64 = 4.0;
/// Times closer than this share are equal: sums of the same times in another order differ by less.
const TIE: f64 = 1e-12;

/// Solves the relaxation for a budget. `None` if even dropping everything is not enough.
pub(crate) fn solve(problem: &Problem<'_>, budget: u64, tightening: &Tightening) -> Option<Relaxed> {
    let nodes = &problem.nodes;
    // The highest ceiling decides most. Regions around it would excuse it while they run; they are few, contain each
    // other, and so exclude each other: try without them, and with each of them alone.
    let highest = (0..problem.ceilings.len())
        .max_by_key(|&rank| problem.ceilings[rank].forward.max(problem.ceilings[rank].backward))
        .unwrap_or(0);
    let around: Vec<usize> =
        (0..nodes.len()).filter(|&index| highest > 0 && surrounds(&nodes[index], problem.ends[highest - 1])).collect();
    let mut best: Option<Relaxed> = None;
    let mut lower_bound = f64::INFINITY;
    for with in std::iter::once(None).chain(around.iter().copied().map(Some)) {
        let mut usable = vec![true; nodes.len()];
        for &index in &around {
            usable[index] = with == Some(index);
        }
        if let Some(index) = with {
            usable[index + 1..nodes[index].next].fill(false);
        }
        let limit = best.as_ref().map_or(f64::INFINITY, |best| best.time);
        let Some(found) = Case::new(problem, budget, tightening, usable).solve(limit) else { continue };
        lower_bound = lower_bound.min(found.lower_bound);
        if best.as_ref().is_none_or(|best| found.time < best.time) {
            best = Some(found);
        }
    }
    best.map(|best| Relaxed { lower_bound: lower_bound.min(best.time), ..best })
}

fn surrounds(node: &Node, position: usize) -> bool {
    node.start < position && position < node.end
}

/// The checkpoints that picks stand for.
pub(crate) fn checkpoints(problem: &Problem<'_>, picks: &[Pick]) -> Vec<Checkpoint> {
    picks
        .iter()
        .map(|&(index, point)| {
            let node = &problem.nodes[index];
            let items = node.frontier.saved_items(&node.frontier.points()[point]);
            let mut saved: Vec<OpId> = items
                .iter()
                .flat_map(|&item| &node.candidate.items[item].ops)
                .chain(&node.candidate.always_saved)
                .map(|op| OpId::new(node.start + op))
                .collect();
            saved.sort_unstable();
            Checkpoint { region: node.region, saved }
        })
        .collect()
}

/// The problem with some of the regions.
struct Case<'a> {
    problem: &'a Problem<'a>,
    usable: Vec<bool>,
    /// What must be freed before a node is passed over.
    to_skip: Vec<u64>,
    /// What must be freed before a node may be chosen.
    to_choose: Vec<u64>,
    /// What must be freed, with the node, after it is chosen.
    after: Vec<u64>,
    /// What must be freed at the beginning.
    at_start: u64,
    /// What must be freed in the end, whatever is still chosen.
    to_come: Vec<u64>,
}

/// What one run of the programme finds.
struct Found {
    time: f64,
    picks: Vec<Pick>,
    thinned: bool,
}

#[derive(Clone, Copy)]
struct Pair {
    freed: u64,
    time: f64,
    choice: u32,
}

const NO_CHOICE: u32 = u32::MAX;

/// One rate, with the least reduced time of all that is still to come, by node.
struct Rate {
    per_byte: f64,
    to_come: Vec<f64>,
}

impl<'a> Case<'a> {
    fn new(problem: &'a Problem<'a>, budget: u64, tightening: &Tightening, mut usable: Vec<bool>) -> Self {
        let nodes = &problem.nodes;
        let count = nodes.len();
        let over = |total: u64| total.saturating_sub(budget);
        let tightened = |rank: usize, total: u64| {
            if total == 0 { 0 } else { over(total.saturating_add(tightening.ceilings[rank])) }
        };
        let backward = |rank: usize| tightened(rank, problem.ceilings[rank].backward);
        let both = |rank: usize| backward(rank).max(tightened(rank, problem.ceilings[rank].forward));
        let start_rank =
            |index: usize| nodes.get(index).map_or(problem.ceilings.len() - 1, |node| problem.rank(node.start));
        let mut case = Case {
            problem,
            to_skip: Vec::with_capacity(count),
            to_choose: Vec::with_capacity(count),
            after: Vec::with_capacity(count),
            at_start: (0..=start_rank(0)).map(both).max().unwrap_or(0),
            to_come: vec![0; count + 1],
            usable: Vec::new(),
        };
        for (index, node) in nodes.iter().enumerate() {
            let (here, end) = (start_rank(index), problem.rank(node.end));
            case.to_skip.push((here + 1..=start_rank(index + 1)).map(both).max().unwrap_or(0));
            let inner = (here + 1..end).map(backward).max().unwrap_or(0);
            let rebuilding = (node.before_trigger + node.candidate.rebuilt.0)
                .saturating_sub(node.candidate.held_by_autograd.0)
                .saturating_add(tightening.own[index]);
            case.to_choose.push(inner.max(over(rebuilding)));
            // Right behind it, outputs that its policy keeps may still be in use and so cost nothing: these moments are
            // left to the replay.
            let settled = backward(end).max(tightened(end, node.forward_after));
            case.after.push((end + 1..=start_rank(node.next)).map(both).fold(settled, u64::max));
        }
        // Nothing before a node can free more than this.
        let mut most = vec![0_u64; count + 1];
        for index in 0..count {
            if most[index] < case.to_choose[index] {
                usable[index] = false;
            }
            most[index + 1] = most[index + 1].max(most[index]);
            if usable[index] {
                let next = nodes[index].next;
                most[next] = most[next].max(most[index] + nodes[index].candidate.droppable.0);
            }
        }
        case.usable = usable;
        case.find_needs_to_come(&both, &backward);
        case
    }

    /// A forward ceiling is excused while a chosen region around it runs, so it is a need only for those behind the
    /// last usable region around it.
    fn find_needs_to_come(&mut self, both: &impl Fn(usize) -> u64, backward: &impl Fn(usize) -> u64) {
        let nodes = &self.problem.nodes;
        for rank in 1..self.problem.ceilings.len() {
            let position = self.problem.ends[rank - 1];
            let last_around =
                (0..nodes.len()).rev().find(|&index| self.usable[index] && surrounds(&nodes[index], position));
            // Pairs at nodes that begin before the position have it still before them.
            let before = nodes.partition_point(|node| node.start < position);
            let (always, later) = (backward(rank), both(rank));
            for index in 0..=before {
                let need = if last_around.is_none_or(|around| around < index) { later } else { always };
                self.to_come[index] = self.to_come[index].max(need);
            }
        }
    }

    fn rate(&self, per_byte: f64) -> Rate {
        let nodes = &self.problem.nodes;
        let mut to_come = vec![0.0; nodes.len() + 1];
        let mut last: Option<(*const rematic_tradeoff::Frontier, f64)> = None;
        for (index, node) in nodes.iter().enumerate().rev() {
            to_come[index] = to_come[index + 1];
            if self.usable[index] {
                let frontier = std::rc::Rc::as_ptr(&node.frontier);
                let reduced = match last {
                    Some((same, reduced)) if same == frontier => reduced,
                    _ => node.frontier.least_reduced_time(per_byte),
                };
                last = Some((frontier, reduced));
                to_come[index] = f64::min(to_come[index], reduced + to_come[node.next]);
            }
        }
        Rate { per_byte, to_come }
    }

    /// The rate that gives the highest bound for the whole problem: the bound is concave in it.
    fn best_rate(&self) -> Rate {
        let need = self.to_come[0] as f64;
        let bound = |rate: &Rate| rate.to_come[0] + rate.per_byte * need;
        let steepest = self.problem.nodes.iter().map(|node| node.frontier.steepest()).fold(0.0, f64::max);
        let (mut low, mut high) = (0.0, steepest * 2.0);
        const GOLDEN: f64 = 0.618_033_988_749_895;
        let mut left = self.rate(high - (high - low) * GOLDEN);
        let mut right = self.rate(low + (high - low) * GOLDEN);
        for _ in 0..48 {
            if bound(&left) < bound(&right) {
                low = left.per_byte;
                left = right;
                right = self.rate(low + (high - low) * GOLDEN);
            } else {
                high = right.per_byte;
                right = left;
                left = self.rate(high - (high - low) * GOLDEN);
            }
        }
        if bound(&left) > bound(&right) { left } else { right }
    }

    fn solve(&self, limit: f64) -> Option<Relaxed> {
        if self.at_start > 0 || !self.is_feasible() {
            return None;
        }
        let best = self.best_rate();
        let lower_bound = (best.to_come[0] + best.per_byte * self.to_come[0] as f64).max(0.0);
        if lower_bound >= limit {
            return None;
        }
        let mut gap = FIRST_GAP * lower_bound + f64::MIN_POSITIVE;
        let exact = self.problem.nodes.iter().zip(&self.usable).all(|(node, used)| !used || node.frontier.is_exact());
        loop {
            let guess = (lower_bound + gap).min(limit);
            if let Some(found) = self.programme(&best, guess * (1.0 + TIE)) {
                let proved = if exact && !found.thinned { found.time } else { lower_bound };
                return Some(Relaxed { time: found.time, picks: found.picks, lower_bound: proved });
            }
            if guess >= limit {
                return None;
            }
            gap = if gap > 1e12 { f64::INFINITY } else { (gap * GAP_GROWTH).max(1e-9) };
        }
    }

    /// Whether dropping as much as possible is enough.
    fn is_feasible(&self) -> bool {
        let nodes = &self.problem.nodes;
        let mut most: Vec<Option<u64>> = vec![None; nodes.len() + 1];
        most[0] = Some(0);
        for index in 0..nodes.len() {
            let Some(freed) = most[index] else { continue };
            let raise = |slot: &mut Option<u64>, value: u64| *slot = Some(slot.map_or(value, |old| old.max(value)));
            if freed >= self.to_skip[index] {
                raise(&mut most[index + 1], freed);
            }
            let with = freed + nodes[index].candidate.droppable.0;
            if self.usable[index] && freed >= self.to_choose[index] && with >= self.after[index] {
                raise(&mut most[nodes[index].next], with);
            }
        }
        most[nodes.len()].is_some()
    }

    /// The dynamic programme, without pairs whose bound lies above the guess.
    fn programme(&self, rate: &Rate, guess: f64) -> Option<Found> {
        let nodes = &self.problem.nodes;
        let bound = |index: usize, freed: u64| {
            let missing = self.to_come[index].saturating_sub(freed);
            let lagrange = rate.to_come[index] + rate.per_byte * (self.to_come[index] as f64 - freed as f64);
            if missing == 0 { lagrange.max(0.0) } else { lagrange.max(f64::MIN_POSITIVE) }
        };
        // Least reduced time of all that can come before.
        let mut before = vec![f64::INFINITY; nodes.len() + 1];
        before[0] = 0.0;
        let mut choices: Vec<(u32, u32, u32)> = Vec::new();
        let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); nodes.len() + 1];
        pairs[0].push(Pair { freed: 0, time: 0.0, choice: NO_CHOICE });
        let mut thinned = false;
        for (index, node) in nodes.iter().enumerate() {
            before[index + 1] = before[index + 1].min(before[index]);
            let mut here = std::mem::take(&mut pairs[index]);
            keep_undominated(&mut here);
            while here.len() > MOST_PAIRS {
                thinned = true;
                let mut odd = false;
                here.retain(|_| {
                    odd = !odd;
                    odd
                });
            }
            if self.usable[index] {
                let reduced_before = before[index];
                let least = node.frontier.least_reduced_time(rate.per_byte);
                before[node.next] = before[node.next].min(reduced_before + least);
                let whole_need = rate.per_byte * self.to_come[0] as f64;
                for (position, point) in node.frontier.points().iter().enumerate() {
                    let reduced = point.time.0 - rate.per_byte * point.freed.0 as f64;
                    if reduced_before + reduced + rate.to_come[node.next] + whole_need > guess {
                        continue;
                    }
                    for pair in &here {
                        if pair.freed < self.to_choose[index] {
                            break;
                        }
                        let (freed, time) = (pair.freed + point.freed.0, pair.time + point.time.0);
                        if freed < self.after[index] || time + bound(node.next, freed) > guess {
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
            here.retain(|pair| pair.freed >= self.to_skip[index] && pair.time + bound(index + 1, pair.freed) <= guess);
            pairs[index + 1].append(&mut here);
        }
        let last = pairs[nodes.len()].iter().min_by(|a, b| a.time.total_cmp(&b.time).then(b.freed.cmp(&a.freed)))?;
        let mut picks = Vec::new();
        let mut choice = last.choice;
        while choice != NO_CHOICE {
            let (earlier, node, point) = choices[choice as usize];
            picks.push((node as usize, point as usize));
            choice = earlier;
        }
        picks.reverse();
        Some(Found { time: last.time, picks, thinned })
    }
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
