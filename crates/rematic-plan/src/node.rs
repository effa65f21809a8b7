//! The regions that may be checkpointed, with what the plain step says about each.

use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use rematic_replay::{RegionId, Regions};
use rematic_trace::{Bytes, Event, OpId, Phase, StepTrace, Table};

use crate::problem::Limits;
use crate::region::{Candidate, Candidates, Frontier, Pricing};
use crate::replayed::Totals;

/// A region that may be checkpointed.
pub(crate) struct Node {
    pub(crate) region: RegionId,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The first node after it that does not lie inside it.
    pub(crate) next: usize,
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) frontier: Arc<Frontier>,
    /// Position of the event from which on it has freed what its policy says.
    settled: usize,
    /// Whether no region that ends with it or later is rebuilt after it.
    pub(crate) rebuilt_last: bool,
    /// Bytes in use just before its recomputation begins, in the plain step.
    pub(crate) before_trigger: u64,
    /// The highest forward total of its own rank from where on it has freed what its policy says.
    pub(crate) forward_after: u64,
    /// The highest bytes in use in its own forward, whatever its policy and if nothing else is checkpointed.
    pub(crate) own_forward: u64,
    /// The same, with what its policy frees between forward and backward still to be taken off.
    pub(crate) own_forward_with: u64,
    /// The highest plain total of the moments of which it is the innermost region and before which nothing inside it has
    /// ended.
    pub(crate) first_forward: u64,
}

impl Node {
    /// Bytes in use at the highest point of its recomputation if nothing else is checkpointed, at least.
    pub(crate) fn rebuilding(&self) -> u64 {
        (self.before_trigger + self.candidate.rebuilt.0 + self.candidate.kept_inputs.0)
            .saturating_sub(self.candidate.held_by_autograd.0)
    }
}

/// The highest plain totals M(τ) among the moments at which just the regions up to a certain one have been dropped.
///
/// A moment belongs to the region that ends last among those that have run and are not recomputed yet. The regions that
/// end no later are then dropped too (or a little more is allowed than there is, which keeps the problem a relaxation).
#[derive(Clone, Copy, Default)]
pub(crate) struct Ceiling {
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

/// What limits a moment if no region around it is chosen.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// [`Node::first_forward`] of a node.
    First(usize),
    /// The ceiling of a rank.
    Ceiling(usize),
}

/// A region that may be checkpointed, as far as nothing around it is known.
pub(crate) struct Span {
    region: RegionId,
    start: usize,
    end: usize,
    candidate: Arc<Candidate>,
    frontier: Arc<Frontier>,
    /// Position of the event from which on it has freed what its policy says.
    settled: usize,
    own_forward: u64,
    own_forward_with: u64,
}

impl Span {
    fn known(region: RegionId, node: &Node) -> Self {
        let (candidate, frontier) = (Arc::clone(&node.candidate), Arc::clone(&node.frontier));
        let &Node { start, end, settled, own_forward, own_forward_with, .. } = node;
        Span { region, start, end, candidate, frontier, settled, own_forward, own_forward_with }
    }
}

/// What equal layers share, by their signatures.
#[derive(Default)]
pub(crate) struct Frontiers(Mutex<HashMap<Vec<u64>, Shared>>);

type Shared = (Arc<Candidate>, Arc<Frontier>);

impl Frontiers {
    fn of(&self, candidate: Candidate) -> Shared {
        let signature = candidate.signature();
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known().get(&signature) {
            return shared.clone();
        }
        let frontier = Arc::new(Frontier::new(&candidate));
        known().entry(signature).or_insert((Arc::new(candidate), frontier)).clone()
    }
}

/// Nodes of the same step with some of its regions: no runs, and all single calls, in the same order.
pub(crate) struct Known<'a> {
    nodes: std::iter::Peekable<std::slice::Iter<'a, Node>>,
    /// How many regions of single calls came before.
    singles: usize,
}

impl<'a> Known<'a> {
    pub(crate) fn new(nodes: &'a [Node]) -> Self {
        Known { nodes: nodes.iter().peekable(), singles: 0 }
    }

    /// What is known of the next region of a single call: whether it can be checkpointed, and as what.
    fn next(&mut self) -> Option<&'a Node> {
        let region = RegionId::new(self.singles);
        self.singles += 1;
        self.nodes.next_if(|node| node.region == region)
    }
}

/// The regions that the limits allow and that can be checkpointed, in the order in which forwards begin.
pub(crate) fn spans(
    mut candidates: Candidates<'_>,
    frontiers: &Frontiers,
    totals: &Table<OpId, Bytes>,
    (allowed, limits): (&Table<RegionId, bool>, &Limits),
    pricing: Pricing,
    mut known: Option<Known<'_>>,
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (id, region) in candidates.regions().all().entries() {
        if let Some(known) = known.as_mut().filter(|_| region.then.is_empty()) {
            let Some(node) = known.next() else { continue };
            // All else is the same whatever other regions there are; and where it is as much, it is the same inputs.
            if candidates.kept_inputs(region, pricing).0 == node.candidate.kept_inputs {
                spans.push(Span::known(id, node));
                continue;
            }
        }
        if !allowed[id] {
            continue;
        }
        limits.cancel.check();
        let Some(mut candidate) = candidates.candidate(region, pricing) else { continue };
        if limits.whole {
            candidate = candidate.whole();
        }
        let settled = candidate.settled;
        let (mut own_forward, mut own_forward_with) = (0, 0);
        candidates.own_forward(region, &candidate, pricing, |op, freed, beyond| {
            let total = totals[op].0;
            own_forward = own_forward.max(total.saturating_sub(freed));
            own_forward_with = own_forward_with.max(total.saturating_add_signed(beyond.saturating_neg()));
        });
        let (candidate, frontier) = frontiers.of(candidate);
        let (start, end) = (region.ops.start, region.ops.end);
        spans.push(Span { region: id, start, end, candidate, frontier, settled, own_forward, own_forward_with });
    }
    spans
}

/// All nodes, and what limits the moments of the step.
pub(crate) struct Nodes {
    /// In the order in which forwards begin; a node stands before those inside it.
    pub(crate) all: Vec<Node>,
    /// Where nodes end, ascending, without repetition.
    pub(crate) ends: Vec<usize>,
    /// By number of ends that lie before.
    pub(crate) ceilings: Vec<Ceiling>,
    /// For every operator, what limits the moment after it if no region around it is chosen.
    pub(crate) limit_of_op: Table<OpId, Limit>,
}

impl Nodes {
    pub(crate) fn new(trace: &StepTrace, regions: &Regions, totals: &Totals, spans: Vec<Span>) -> Self {
        let mut ends: Vec<usize> = spans.iter().map(|span| span.end).collect();
        ends.sort_unstable();
        ends.dedup();
        let rebuilt_last = rebuilt_last(regions, &spans);
        let next: Vec<usize> = (0..spans.len()).map(|index| next(&spans, index)).collect();
        let Highs { first_forward, forward_after, ceilings, limit_of_op } =
            Highs::new(trace, regions, totals, &spans, &ends);
        let node = |(index, span): (usize, Span)| Node {
            region: span.region,
            start: span.start,
            end: span.end,
            next: next[index],
            candidate: span.candidate,
            frontier: span.frontier,
            settled: span.settled,
            rebuilt_last: rebuilt_last[index],
            before_trigger: match trace.events()[regions.all()[span.region].trigger] {
                Event::Op(op) => totals.before[op].0,
                _ => 0,
            },
            forward_after: forward_after[index],
            own_forward: span.own_forward,
            own_forward_with: span.own_forward_with,
            first_forward: first_forward[index],
        };
        Nodes { all: spans.into_iter().enumerate().map(node).collect(), ends, ceilings, limit_of_op }
    }
}

/// The first span after this one that does not lie inside it. An empty one would stand in its own way.
fn next(spans: &[Span], index: usize) -> usize {
    let behind = index + spans[index..].partition_point(|span| span.start < spans[index].end);
    behind.max(index + 1)
}

/// For every span, whether no region that ends with it or later is rebuilt after it.
fn rebuilt_last(regions: &Regions, spans: &[Span]) -> Vec<bool> {
    let trigger = |index: usize| regions.all()[spans[index].region].trigger;
    let mut by_end: Vec<usize> = (0..spans.len()).collect();
    by_end.sort_unstable_by_key(|&index| std::cmp::Reverse(spans[index].end));
    let mut rebuilt_last = vec![true; spans.len()];
    let mut last_trigger = 0;
    for same_end in by_end.chunk_by(|&a, &b| spans[a].end == spans[b].end) {
        last_trigger = same_end.iter().map(|&index| trigger(index)).fold(last_trigger, usize::max);
        for &index in same_end {
            rebuilt_last[index] = trigger(index) >= last_trigger;
        }
    }
    rebuilt_last
}

/// The highest totals of the plain step, by what limits them.
struct Highs {
    /// By span.
    first_forward: Vec<u64>,
    /// By span.
    forward_after: Vec<u64>,
    /// By number of ends that lie before.
    ceilings: Vec<Ceiling>,
    limit_of_op: Table<OpId, Limit>,
}

impl Highs {
    fn new(trace: &StepTrace, regions: &Regions, totals: &Totals, spans: &[Span], ends: &[usize]) -> Self {
        let innermost = innermost(spans, trace);
        let mut highs = Highs {
            first_forward: vec![0; spans.len()],
            forward_after: vec![0; spans.len()],
            ceilings: vec![Ceiling::default(); ends.len() + 1],
            limit_of_op: trace.ops().filled(Limit::Ceiling(0)),
        };
        highs.ceilings[0].forward = totals.start.0;
        // Exits come in the order of events: innermost first where they coincide.
        let exit = |(index, span): (usize, &Span)| (regions.all()[span.region].events.end, index);
        let mut by_exit: Vec<(usize, usize)> = spans.iter().enumerate().map(exit).collect();
        by_exit.sort_unstable();
        let mut exits = by_exit.into_iter().peekable();
        // The region that returned last.
        let mut returned: Option<usize> = None;
        // Dropped regions by their end, with their triggers.
        let mut dropped: BinaryHeap<(usize, usize)> = BinaryHeap::new();
        for (position, &event) in trace.events().iter().enumerate() {
            while let Some((_, span)) = exits.next_if(|(exit, _)| *exit <= position) {
                dropped.push((spans[span].end, regions.all()[spans[span].region].trigger));
                returned = Some(span);
            }
            let Event::Op(op) = event else { continue };
            while dropped.peek().is_some_and(|(_, trigger)| *trigger <= position) {
                dropped.pop();
            }
            let rank = dropped.peek().map_or(0, |(end, _)| ends.partition_point(|other| other <= end));
            let total = totals.after[op].0;
            let forward = trace.op(op).phase == Phase::Forward;
            let begins = |span: &usize| rank.checked_sub(1).is_none_or(|last| ends[last] <= spans[*span].start);
            let ceiling = &mut highs.ceilings[rank];
            highs.limit_of_op[op] = Limit::Ceiling(rank);
            if let Some(span) = innermost[op].filter(begins).filter(|_| forward) {
                highs.limit_of_op[op] = Limit::First(span);
                highs.first_forward[span] = highs.first_forward[span].max(total);
            } else if forward {
                ceiling.forward = ceiling.forward.max(total);
                if let Some(span) = returned.filter(|&span| spans[span].settled < position) {
                    highs.forward_after[span] = highs.forward_after[span].max(total);
                }
            } else {
                ceiling.backward = ceiling.backward.max(total);
            }
        }
        // Where a region ends with the one around it, what comes behind is behind both.
        let mut last: HashMap<usize, usize> = HashMap::new();
        let around: Vec<Option<usize>> =
            spans.iter().enumerate().map(|(index, span)| last.insert(span.end, index)).collect();
        for index in (1..spans.len()).rev() {
            if let Some(around) = around[index] {
                highs.forward_after[index] = highs.forward_after[index].max(highs.forward_after[around]);
            }
        }
        highs
    }
}

/// For every operator, the innermost span that contains it.
fn innermost(spans: &[Span], trace: &StepTrace) -> Table<OpId, Option<usize>> {
    let mut innermost = trace.ops().filled(None);
    for (index, span) in spans.iter().enumerate() {
        // Inner ones come later and overwrite.
        innermost.items_mut()[span.start..span.end].fill(Some(index));
    }
    innermost
}
