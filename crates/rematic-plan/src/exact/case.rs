//! The needs of a problem with some of its regions: at a moment τ, the regions that are dropped there must free
//! Σd ≥ M(τ) − B.

use super::Tightening;
use crate::node::Node;
use crate::problem::Problem;
use crate::region::Point;

/// The problem with some of the regions.
pub(super) struct Case<'a> {
    pub(super) problem: &'a Problem,
    pub(super) nodes: &'a [Node],
    pub(super) usable: Vec<bool>,
    /// Σd that must be there before a node is passed over; all of these needs, M(τ) − B, may be negative, where there is room to
    /// spare.
    pub(super) to_skip: Vec<i64>,
    /// What must be freed before a node and all inside it are passed over.
    pub(super) to_skip_all: Vec<i64>,
    /// What must be freed before a node may be chosen.
    pub(super) to_choose: Vec<i64>,
    /// What must be freed before a node may be chosen with a policy, less what the policy keeps.
    pub(super) to_keep: Vec<i64>,
    /// What must be freed, with the node, after it is chosen.
    pub(super) after: Vec<i64>,
    /// What must be freed at the beginning.
    pub(super) at_start: i64,
    /// What must be freed at each rank, and what must be even if a region around it is chosen.
    pub(super) needs: Vec<i64>,
    pub(super) always: Vec<i64>,
    /// What must be freed at each rank, if no region around it is chosen and one that ends there may be.
    pub(super) settled: Vec<i64>,
    /// The last usable node around the end that each rank stands for, and the last that ends there.
    pub(super) last_around: Vec<Option<usize>>,
    pub(super) last_ending: Vec<Option<usize>>,
    /// By node, the rank of its end.
    pub(super) end_ranks: Vec<usize>,
    /// By node, and behind the last: whether all before it have run again, so that nothing is freed when it begins.
    pub(super) begins: Vec<bool>,
}

/// No need: there is no such moment.
const NO_NEED: i64 = i64::MIN / 4;

impl<'a> Case<'a> {
    pub(super) fn new(problem: &'a Problem, budget: u64, tightening: &Tightening, usable: Vec<bool>) -> Self {
        let nodes = problem.priced(tightening.pricing);
        let count = nodes.len();
        // M(τ) − B.
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
            begins: begins(problem),
            usable,
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
        case.rule_out();
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

    /// A node before which not enough can be freed is not usable.
    fn rule_out(&mut self) {
        let nodes = self.nodes;
        // Nothing before a node can free more than this: the largest Σd.
        let mut most = vec![0_i64; nodes.len() + 1];
        for (index, node) in nodes.iter().enumerate() {
            if self.begins[index] {
                most[index] = 0;
            }
            self.usable[index] &= most[index] >= self.required(index, 0);
            most[index + 1] = most[index + 1].max(most[index]);
            if self.usable[index] {
                most[node.next] = most[node.next].max(most[index] + signed(node.candidate.droppable.0));
            }
        }
    }

    /// What must be freed before a node may be chosen with a policy that keeps so much.
    pub(super) fn required(&self, index: usize, kept: u64) -> i64 {
        (self.to_keep[index] + signed(kept)).max(self.to_choose[index])
    }

    /// What a policy frees: its d. Where others are rebuilt before this node although they end behind it, what it keeps beyond
    /// that does not count: it is gone when they are looked at.
    pub(super) fn freed(&self, index: usize, point: &Point) -> i64 {
        let node = &self.nodes[index];
        let freed = signed(node.candidate.droppable.0) - signed(point.kept.0);
        if node.rebuilt_last { freed } else { freed.max(0) }
    }

    /// What is left at a node of what was freed before it.
    pub(super) fn carried(&self, index: usize, freed: i64) -> i64 {
        if self.begins[index] { 0 } else { freed }
    }

    /// What must be freed at a rank, seen from a node that comes before it: a forward ceiling is excused while a chosen
    /// region around it runs.
    pub(super) fn need(&self, rank: usize, index: usize) -> i64 {
        let behind = |last: Option<usize>| last.is_none_or(|last| last < index);
        match (behind(self.last_around[rank]), behind(self.last_ending[rank])) {
            (true, true) => self.needs[rank],
            (true, false) => self.settled[rank].min(self.needs[rank]),
            (false, _) => self.always[rank],
        }
    }

    /// Whether dropping as much as possible is enough.
    pub(super) fn is_feasible(&self) -> bool {
        if self.at_start > 0 {
            return false;
        }
        let nodes = self.nodes;
        let mut most: Vec<Option<i64>> = vec![None; nodes.len() + 1];
        most[0] = Some(0);
        for index in 0..nodes.len() {
            let Some(freed) = most[index].map(|freed| self.carried(index, freed)) else { continue };
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
}

/// By node, and behind the last: whether a micro-batch begins with it. Of those that begin together the outermost does.
fn begins(problem: &Problem) -> Vec<bool> {
    let mut begins = vec![false; problem.nodes.len() + 1];
    for &beginning in &problem.beginnings {
        let first = problem.nodes.partition_point(|node| node.start < beginning);
        begins[first] = true;
    }
    begins
}

/// Bytes of a valid trace are far below 2^63.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}
