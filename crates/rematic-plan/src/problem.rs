//! The planning problem, as far as it does not depend on the budget.

use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, OnceLock};

use rematic_cost::Costs;
use rematic_replay::{Allocator, Checkpoint, Ledger, Ran, Recording, Regions, Schedule};
use rematic_trace::{Bytes, CallId, Event, Millis, ModuleId, OpId, Phase, StepTrace};

use crate::cancel::Cancel;
use crate::enumeration::Enumeration;
use crate::error::PlanError;
use crate::planner::Solution;
use crate::region::{Candidate, Candidates, Frontier, Pricing};
use crate::replayed::{PlannedMoment, Replayed, Replaying, Totals, first_forward};
use crate::selection::allowed;

/// What may be planned, and what memory is counted.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How memory is rounded.
    pub allocator: Allocator,
    /// If not empty, only modules that match one of these patterns are checkpointed. `*` and `?` stand for anything; a
    /// pattern is for full names, or for those without the root's that reports show.
    pub only: Vec<String>,
    /// Modules that match one of these patterns are not checkpointed.
    pub never: Vec<String>,
    /// Regions are recomputed as a whole, as plain checkpointing does.
    pub whole: bool,
    /// Ends planning early.
    pub cancel: Cancel,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            allocator: Allocator::Cuda,
            only: Vec::new(),
            never: Vec::new(),
            whole: false,
            cancel: Cancel::default(),
        }
    }
}

/// A region that may be checkpointed.
pub(crate) struct Node {
    /// By position in [`Regions::all`].
    pub(crate) region: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The first node after it that does not lie inside it.
    pub(crate) next: usize,
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) frontier: Arc<Frontier>,
    /// Whether no region that ends with it or later is rebuilt after it.
    pub(crate) rebuilt_last: bool,
    /// Bytes in use just before its recomputation begins, in the plain step.
    pub(crate) before_trigger: u64,
    /// Position of the event from which on it has freed what its policy says.
    pub(crate) settled: usize,
    /// The highest forward total of its own rank from there on.
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

/// The highest plain totals among the moments at which just the regions up to a certain one have been dropped.
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

/// A step with everything that planning needs to know about it.
pub struct Problem {
    pub(crate) trace: Arc<StepTrace>,
    pub(crate) costs: Arc<Costs>,
    pub(crate) regions: Regions,
    /// In the order in which forwards begin; a node stands before those inside it.
    pub(crate) nodes: Vec<Node>,
    /// The same, with [`Pricing::High`].
    dear_nodes: Vec<Node>,
    /// Where nodes end, ascending, without repetition.
    pub(crate) ends: Vec<usize>,
    /// By number of ends that lie before.
    pub(crate) ceilings: Vec<Ceiling>,
    /// For every operator, what limits the moment after it if no region around it is chosen.
    pub(crate) limit_of_op: Vec<Limit>,
    pub(crate) cancel: Cancel,
    pub(crate) allocator: Allocator,
    /// The state before the step.
    start: Ledger,
    /// The first and the last operator of the model's first forward.
    first_forward: Option<(OpId, OpId)>,
    baseline: Replayed,
    /// Bytes in use after every operator of the plain step.
    totals: Vec<Bytes>,
    enumeration: OnceLock<Option<Enumeration>>,
}

impl Problem {
    /// Looks at all regions of a step. The trace must be valid.
    ///
    /// # Errors
    /// If there is no device, a pattern that nothing matches, or the step of one rank is to be spread again.
    pub fn new(
        trace: impl Into<Arc<StepTrace>>,
        costs: impl Into<Arc<Costs>>,
        limits: Limits,
    ) -> Result<Self, PlanError> {
        let (shared, costs) = (trace.into(), costs.into());
        let trace = &*shared;
        let regions = Regions::new(trace);
        let start = Ledger::new(trace, limits.allocator);
        let first_forward = first_forward(trace);
        let plain = Schedule::plain(trace, &start);
        let mut seen = (Replaying::new(&costs, &start, first_forward), Totals::new(trace, &start));
        plain.replay(&mut seen);
        let (baseline, totals) = (seen.0.finish(), seen.1.after);
        // What lies between the return of a backward function and the reduction of its gradients counts for no plan: a
        // checkpointed region has let go of what the function read.
        let mut eager = Totals::new(trace, &start);
        plain.eager().replay(&mut eager);
        let allowed = allowed(trace, &regions, &limits)?;
        let [mut nodes, mut dear_nodes] = [Pricing::Low, Pricing::High].map(|pricing| {
            let candidates = Candidates::new(trace, &regions, &start, &costs);
            nodes(candidates, &regions, &totals, &allowed, &limits, pricing)
        });
        let mut ends: Vec<usize> = nodes.iter().map(|node| node.end).collect();
        ends.sort_unstable();
        ends.dedup();
        ceilings(trace, &regions, &eager, &mut dear_nodes, &ends);
        let (ceilings, limit_of_op) = ceilings(trace, &regions, &eager, &mut nodes, &ends);
        Ok(Problem {
            trace: shared,
            costs,
            regions,
            nodes,
            dear_nodes,
            ends,
            ceilings,
            limit_of_op,
            cancel: limits.cancel,
            allocator: limits.allocator,
            start,
            first_forward,
            baseline,
            totals,
            enumeration: OnceLock::new(),
        })
    }

    /// The step.
    #[must_use]
    pub fn trace(&self) -> &Arc<StepTrace> {
        &self.trace
    }

    /// What its operators cost.
    #[must_use]
    pub fn costs(&self) -> &Arc<Costs> {
        &self.costs
    }

    /// The step without any checkpointing.
    #[must_use]
    pub fn baseline(&self) -> &Replayed {
        &self.baseline
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Replays the step with these regions checkpointed; they must not contain each other.
    #[must_use]
    pub fn replay(&self, checkpoints: &[Checkpoint]) -> Replayed {
        self.replay_watched(checkpoints, |_, _| {})
    }

    /// The bytes in use after every operator that runs under a plan, beside those of the step as it is.
    #[must_use]
    pub fn moments(&self, checkpoints: &[Checkpoint]) -> Vec<PlannedMoment> {
        let mut moments = Vec::with_capacity(self.totals.len());
        let mut plain = self.start.snapshot().total();
        self.replay_watched(checkpoints, |ran, total| {
            // Without the plan, nothing happens while operators run again.
            let phase = if ran.again { Phase::Backward } else { self.trace.op(ran.op).phase };
            if !ran.again {
                plain = self.totals[ran.op.index()];
            }
            moments.push(PlannedMoment { phase, before: plain, after: Bytes(total) });
        });
        moments
    }

    /// Replays as [`Problem::replay`], with a look at the bytes in use after every operator.
    pub(crate) fn replay_watched(&self, checkpoints: &[Checkpoint], mut watch: impl FnMut(Ran, u64)) -> Replayed {
        self.cancel.check();
        let watch = |ran: Ran, ledger: &Ledger| watch(ran, ledger.snapshot().total().0);
        let mut seen = (Replaying::new(&self.costs, &self.start, self.first_forward), watch);
        self.schedule(checkpoints).replay(&mut seen);
        seen.0.finish()
    }

    /// Replays the step with these regions checkpointed, and writes down all that happens.
    #[must_use]
    pub fn record(&self, checkpoints: &[Checkpoint]) -> Recording {
        Recording::new(&self.schedule(checkpoints))
    }

    fn schedule<'s>(&'s self, checkpoints: &'s [Checkpoint]) -> Schedule<'s> {
        Schedule::planned(&self.trace, &self.start, &self.regions, checkpoints)
    }

    /// The full names of the modules that the limits let be checkpointed, each once, in the order of the model.
    #[must_use]
    pub fn checkpointable(&self) -> Vec<String> {
        let mut seen = vec![false; self.trace.modules().len()];
        let modules = self.nodes.iter().map(|node| self.regions.all()[node.region].module);
        let new = |module: &ModuleId| !std::mem::replace(&mut seen[module.index()], true);
        modules.filter(new).map(|module| self.trace.path(module)).collect()
    }

    /// The region of a call, by position in [`Regions::all`]; `None` if it cannot be checkpointed, or the limits exclude it.
    #[must_use]
    pub fn region_of(&self, call: CallId) -> Option<usize> {
        let mut regions = self.nodes.iter().map(|node| node.region);
        regions.find(|region| self.regions.all()[*region].call == call)
    }

    /// What autograd would hold of a checkpointed region, and what of it is freed; nothing for a region that the limits
    /// exclude.
    #[must_use]
    pub fn freed(&self, checkpoint: &Checkpoint) -> (Bytes, Bytes) {
        let Ok(index) = self.nodes.binary_search_by_key(&checkpoint.region, |node| node.region) else {
            return (Bytes(0), Bytes(0));
        };
        let (candidate, start) = (&self.nodes[index].candidate, self.nodes[index].start);
        let is_saved = |op: &usize| checkpoint.saved.binary_search(&OpId::new(start + op)).is_ok();
        let kept = candidate.items.iter().filter(|item| item.ops.iter().all(is_saved)).map(|item| item.bytes).sum();
        (candidate.held_by_autograd, candidate.droppable.saturating_sub(kept))
    }

    /// A node checkpointed with some of its items saved.
    pub(crate) fn checkpoint(&self, node: usize, items: impl Iterator<Item = usize>) -> Checkpoint {
        let node = &self.nodes[node];
        let ops = items.flat_map(|item| &node.candidate.items[item].ops).chain(&node.candidate.always_saved);
        let mut saved: Vec<OpId> = ops.map(|op| OpId::new(node.start + op)).collect();
        saved.sort_unstable();
        Checkpoint { region: node.region, saved }
    }

    /// The step as it is, as a plan.
    #[must_use]
    pub fn unplanned(&self) -> Solution {
        Solution { checkpoints: Vec::new(), replayed: self.baseline.clone(), lower_bound: Millis(0.0) }
    }

    /// Every plan, if there are few; made when it is first asked for.
    pub(crate) fn enumeration(&self) -> Option<&Enumeration> {
        self.enumeration.get_or_init(|| Enumeration::of(self)).as_ref()
    }

    /// The nodes with what their policies count as kept.
    pub(crate) fn priced(&self, pricing: Pricing) -> &[Node] {
        match pricing {
            Pricing::Low => &self.nodes,
            Pricing::High => &self.dear_nodes,
        }
    }

    /// How many ends lie at or before a position.
    pub(crate) fn rank(&self, position: usize) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }
}

fn nodes(
    mut candidates: Candidates<'_>,
    regions: &Regions,
    totals: &[Bytes],
    allowed: &[bool],
    limits: &Limits,
    pricing: Pricing,
) -> Vec<Node> {
    // Equal layers share one frontier.
    let mut known: HashMap<Vec<u64>, (Arc<Candidate>, Arc<Frontier>)> = HashMap::new();
    let mut nodes: Vec<Node> = Vec::new();
    for (index, region) in regions.all().iter().enumerate().filter(|(index, _)| allowed[*index]) {
        limits.cancel.check();
        let Some(mut candidate) = candidates.candidate(region, pricing) else { continue };
        if limits.whole {
            candidate = candidate.whole();
        }
        let settled = candidate.settled;
        let (mut own_forward, mut own_forward_with) = (0, 0);
        candidates.own_forward(region, &candidate, pricing, |op, freed, beyond| {
            let total = totals[op.index()].0;
            own_forward = own_forward.max(total.saturating_sub(freed));
            own_forward_with = own_forward_with.max(total.saturating_add_signed(beyond.saturating_neg()));
        });
        let (candidate, frontier) = known
            .entry(candidate.signature())
            .or_insert_with(|| {
                let frontier = Arc::new(Frontier::new(&candidate));
                (Arc::new(candidate), frontier)
            })
            .clone();
        nodes.push(Node {
            region: index,
            start: region.ops.start,
            end: region.ops.end,
            next: 0,
            candidate,
            frontier,
            rebuilt_last: true,
            before_trigger: 0,
            settled,
            forward_after: 0,
            own_forward,
            own_forward_with,
            first_forward: 0,
        });
    }
    for index in 0..nodes.len() {
        let end = nodes[index].end;
        nodes[index].next = index + nodes[index..].partition_point(|node| node.start < end);
        // An empty region would stand in its own way.
        nodes[index].next = nodes[index].next.max(index + 1);
    }
    let mut by_end: Vec<usize> = (0..nodes.len()).collect();
    by_end.sort_unstable_by_key(|&index| std::cmp::Reverse(nodes[index].end));
    let mut last_trigger = 0;
    for same_end in by_end.chunk_by(|&a, &b| nodes[a].end == nodes[b].end).map(<[usize]>::to_vec).collect::<Vec<_>>() {
        let trigger = |index: &usize| regions.all()[nodes[*index].region].trigger;
        last_trigger = same_end.iter().map(trigger).fold(last_trigger, usize::max);
        for index in same_end {
            nodes[index].rebuilt_last = regions.all()[nodes[index].region].trigger >= last_trigger;
        }
    }
    nodes
}

/// Goes through the plain step, and notes the highest totals and the states before each recomputation.
fn ceilings(
    trace: &StepTrace,
    regions: &Regions,
    totals: &Totals,
    nodes: &mut [Node],
    ends: &[usize],
) -> (Vec<Ceiling>, Vec<Limit>) {
    let innermost = innermost(nodes, trace.ops().len());
    let mut limit_of_op = vec![Limit::Ceiling(0); trace.ops().len()];
    let mut ceilings = vec![Ceiling::default(); ends.len() + 1];
    ceilings[0].forward = totals.start.0;
    for node in nodes.iter_mut() {
        if let Event::Op(op) = trace.events()[regions.all()[node.region].trigger] {
            node.before_trigger = totals.before[op.index()].0;
        }
    }
    // Exits come in the order of events: innermost first where they coincide.
    let mut by_exit: Vec<(usize, usize)> =
        nodes.iter().enumerate().map(|(index, node)| (regions.all()[node.region].events.end, index)).collect();
    by_exit.sort_unstable();
    let mut exits = by_exit.into_iter().peekable();
    // The region that returned last.
    let mut returned: Option<usize> = None;
    // Dropped regions by their end, with their triggers.
    let mut dropped: BinaryHeap<(usize, usize)> = BinaryHeap::new();
    for (position, &event) in trace.events().iter().enumerate() {
        while let Some((_, node)) = exits.next_if(|(exit, _)| *exit <= position) {
            dropped.push((nodes[node].end, regions.all()[nodes[node].region].trigger));
            returned = Some(node);
        }
        let Event::Op(op) = event else { continue };
        while dropped.peek().is_some_and(|(_, trigger)| *trigger <= position) {
            dropped.pop();
        }
        let rank = dropped.peek().map_or(0, |(end, _)| ends.partition_point(|other| other <= end));
        let total = totals.after[op.index()].0;
        limit_of_op[op.index()] = Limit::Ceiling(rank);
        let ceiling = &mut ceilings[rank];
        let forward = trace.op(op).phase == Phase::Forward;
        let begins = |node: &usize| rank.checked_sub(1).is_none_or(|last| ends[last] <= nodes[*node].start);
        if let Some(node) = innermost[op.index()].filter(begins).filter(|_| forward) {
            limit_of_op[op.index()] = Limit::First(node);
            nodes[node].first_forward = nodes[node].first_forward.max(total);
        } else if forward {
            ceiling.forward = ceiling.forward.max(total);
            if let Some(node) = returned.filter(|&node| nodes[node].settled < position) {
                nodes[node].forward_after = nodes[node].forward_after.max(total);
            }
        } else {
            ceiling.backward = ceiling.backward.max(total);
        }
    }
    // Where a region ends with the one around it, what comes behind is behind both.
    for index in (1..nodes.len()).rev() {
        if let Some(around) = (0..index).rev().find(|&other| nodes[other].end == nodes[index].end) {
            nodes[index].forward_after = nodes[index].forward_after.max(nodes[around].forward_after);
        }
    }
    (ceilings, limit_of_op)
}

/// For every operator, the innermost node that contains it.
fn innermost(nodes: &[Node], ops: usize) -> Vec<Option<usize>> {
    let mut innermost = vec![None; ops];
    for (index, node) in nodes.iter().enumerate() {
        // Inner ones come later and overwrite.
        innermost[node.start..node.end].fill(Some(index));
    }
    innermost
}
