//! The planning problem, as far as it does not depend on the budget.

use std::sync::{Arc, OnceLock};

use rematic_cost::Costs;
use rematic_replay::{Allocator, Checkpoint, Ledger, Ran, Recording, RegionId, Regions, Schedule};
use rematic_trace::{Bytes, CallId, Category, Millis, ModuleId, OpId, Phase, StepTrace, Table};

use crate::cancel::Cancel;
use crate::enumeration::Enumeration;
use crate::error::PlanError;
use crate::exact;
use crate::greedy::GreedySteps;
use crate::node::{Ceiling, Frontiers, Known, Limit, Node, Nodes, spans};
use crate::planner::Solution;
use crate::region::{Candidate, Candidates, Facts, Pricing};
use crate::replayed::{PlannedMoment, Replayed, Replaying, Totals, first_forward};
use crate::runs::Slot;
use crate::search::{Axis, Bound, Lives};
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
    /// Pinned memory of the host that outputs may be moved to between forward and backward; without it nothing is moved.
    pub host_memory: Option<Bytes>,
    /// Calls of modules beside each other may be checkpointed as one.
    pub runs: bool,
    /// Operators of a region of which nothing reads the results need not run again. Regions that are recomputed as a whole run them.
    pub skips: bool,
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
            host_memory: None,
            runs: true,
            skips: true,
            cancel: Cancel::default(),
        }
    }
}

impl Limits {
    /// Whether regions may be recomputed without operators of which nothing reads the results.
    #[must_use]
    pub fn may_skip(&self) -> bool {
        self.skips && !self.whole
    }
}

/// The step without any checkpointing.
struct Plain {
    /// The state before the step.
    start: Ledger,
    /// The first and the last operator of the model's first forward.
    first_forward: Option<(OpId, OpId)>,
    baseline: Replayed,
    /// Bytes in use after every operator.
    totals: Table<OpId, Bytes>,
    /// Bytes in use just before every operator.
    before: Table<OpId, Bytes>,
    /// The same if what a backward function read goes as soon as it returns. What lies between that and the reduction of its
    /// gradients counts for no plan: a checkpointed region has let go of what the function read.
    eager: Totals,
    facts: Facts,
}

impl Plain {
    fn new(trace: &StepTrace, costs: &Costs, start: Ledger) -> Self {
        let first_forward = first_forward(trace);
        let plain = Schedule::plain(trace, &start);
        let mut seen = (Replaying::new(trace, costs, &start, first_forward), Totals::new(trace, &start));
        plain.replay(&mut seen);
        let (baseline, totals, before) = (seen.0.finish(), seen.1.after, seen.1.before);
        let mut eager = Totals::new(trace, &start);
        plain.eager().replay(&mut eager);
        Plain { start, first_forward, baseline, totals, before, eager, facts: Facts::new(trace) }
    }
}

/// A step with everything that planning needs to know about it.
pub struct Problem {
    pub(crate) trace: Arc<StepTrace>,
    pub(crate) costs: Arc<Costs>,
    pub(crate) regions: Regions,
    /// In the order in which forwards begin; a node stands before those inside it.
    pub(crate) nodes: Vec<Node>,
    /// The same, with [`Pricing::High`]; made when they are first asked for.
    dear_nodes: OnceLock<Vec<Node>>,
    /// The regions that the limits allow.
    allowed: Table<RegionId, bool>,
    plain: Arc<Plain>,
    /// What is known about equal layers.
    frontiers: Arc<Frontiers>,
    /// Where nodes end, ascending, without repetition.
    pub(crate) ends: Vec<usize>,
    /// By number of ends that lie before.
    pub(crate) ceilings: Vec<Ceiling>,
    /// For every operator, what limits the moment after it if no region around it is chosen.
    pub(crate) limit_of_op: Table<OpId, Limit>,
    pub(crate) cancel: Cancel,
    pub(crate) allocator: Allocator,
    pub(crate) limits: Limits,
    /// By node, the innermost one around it.
    around: Vec<Option<usize>>,
    /// Where nodes begin before which all others have run again: a new micro-batch. By position, ascending, the first node's first.
    pub(crate) beginnings: Vec<usize>,
    enumeration: OnceLock<Option<Enumeration>>,
    /// The moments of all plans, and who lives until when; made when they are first asked for.
    moments: OnceLock<(Axis, Lives)>,
    bound: OnceLock<Bound>,
    /// The steps of the greedy planner; found when they are first asked for.
    pub(crate) greedy_steps: OnceLock<GreedySteps>,
    /// The plan with the lowest peak; found when it is first asked for.
    pub(crate) least: OnceLock<Solution>,
    /// The same, whatever it takes.
    pub(crate) lowest: OnceLock<Solution>,
    /// The peak below which no plan without runs is; found when it is first asked for.
    pub(crate) lowest_relaxed: OnceLock<Bytes>,
    /// The same step with runs of calls, by their length; each is made when it is first asked for.
    pub(crate) tilings: OnceLock<Vec<Slot>>,
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
        let trace = trace.into();
        let regions = Regions::new(&trace);
        Problem::with_regions(trace, costs.into(), limits, regions)
    }

    /// The same with other regions.
    fn with_regions(
        trace: Arc<StepTrace>,
        costs: Arc<Costs>,
        limits: Limits,
        regions: Regions,
    ) -> Result<Self, PlanError> {
        let start = Ledger::new(&trace, limits.allocator);
        Problem::from_state(trace, costs, limits, regions, start)
    }

    /// The same from a state before the step, which says how large storages are.
    pub(crate) fn from_state(
        trace: Arc<StepTrace>,
        costs: Arc<Costs>,
        limits: Limits,
        regions: Regions,
        start: Ledger,
    ) -> Result<Self, PlanError> {
        let plain = Arc::new(Plain::new(&trace, &costs, start));
        Problem::from_plain(trace, costs, limits, (regions, plain, Arc::default()), None)
    }

    /// The same step with runs of calls as further regions.
    pub(crate) fn with_other_regions(&self, limits: Limits, regions: Regions) -> Result<Self, PlanError> {
        let known = (regions, Arc::clone(&self.plain), Arc::clone(&self.frontiers));
        Problem::from_plain(Arc::clone(&self.trace), Arc::clone(&self.costs), limits, known, Some(&self.nodes))
    }

    fn from_plain(
        shared: Arc<StepTrace>,
        costs: Arc<Costs>,
        limits: Limits,
        (regions, plain, frontiers): (Regions, Arc<Plain>, Arc<Frontiers>),
        singles: Option<&[Node]>,
    ) -> Result<Self, PlanError> {
        let trace = &*shared;
        let allowed = allowed(trace, &regions, &limits)?;
        let candidates =
            Candidates::new(trace, &plain.facts, &regions, &plain.start, &costs).skipping(limits.may_skip());
        let (may, known) = ((&allowed, &limits), singles.map(Known::new));
        let spans = spans(candidates, &frontiers, &plain.totals, may, Pricing::Low, known);
        let Nodes { all: nodes, ends, ceilings, limit_of_op } = Nodes::new(trace, &regions, &plain.eager, spans);
        let beginnings = beginnings(&regions, &nodes);
        Ok(Problem {
            trace: shared,
            costs,
            regions,
            dear_nodes: OnceLock::new(),
            allowed,
            plain,
            frontiers,
            ends,
            ceilings,
            limit_of_op,
            cancel: limits.cancel.clone(),
            allocator: limits.allocator,
            limits,
            around: around(&nodes),
            beginnings,
            nodes,
            enumeration: OnceLock::new(),
            moments: OnceLock::new(),
            bound: OnceLock::new(),
            greedy_steps: OnceLock::new(),
            least: OnceLock::new(),
            lowest: OnceLock::new(),
            lowest_relaxed: OnceLock::new(),
            tilings: OnceLock::new(),
        })
    }

    /// The step.
    #[must_use]
    pub fn trace(&self) -> &Arc<StepTrace> {
        &self.trace
    }

    /// The step without any checkpointing.
    #[must_use]
    pub fn baseline(&self) -> &Replayed {
        &self.plain.baseline
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
        let mut moments = Vec::with_capacity(self.plain.totals.len());
        let mut plain = self.plain.start.snapshot().total();
        self.replay_watched(checkpoints, |ran, total| {
            // Without the plan, nothing happens while operators run again.
            let phase = if ran.again { Phase::Backward } else { self.trace.op(ran.op).phase };
            if !ran.again {
                plain = self.plain.totals[ran.op];
            }
            moments.push(PlannedMoment { phase, before: plain, after: Bytes(total) });
        });
        moments
    }

    /// Replays as [`Problem::replay`], with a look at the bytes in use after every operator.
    pub(crate) fn replay_watched(&self, checkpoints: &[Checkpoint], mut watch: impl FnMut(Ran, u64)) -> Replayed {
        self.cancel.check();
        let watch = |ran: Ran, ledger: &Ledger| watch(ran, ledger.snapshot().total().0);
        let mut replaying = Replaying::new(&self.trace, &self.costs, &self.plain.start, self.plain.first_forward);
        if checkpoints.iter().any(|checkpoint| !checkpoint.offloaded.is_empty()) {
            replaying = replaying.copying();
        }
        let mut seen = (replaying, watch);
        self.schedule(checkpoints).replay(&mut seen);
        seen.0.finish()
    }

    /// Replays the step with these regions checkpointed, and writes down all that happens.
    #[must_use]
    pub fn record(&self, checkpoints: &[Checkpoint]) -> Recording {
        Recording::new(&self.schedule(checkpoints))
    }

    /// What happens with these regions checkpointed.
    #[must_use]
    pub fn schedule<'s>(&'s self, checkpoints: &'s [Checkpoint]) -> Schedule<'s> {
        Schedule::planned(&self.trace, &self.plain.start, &self.regions, checkpoints)
    }

    /// The full names of the modules that the limits let be checkpointed, each once, in the order of the model.
    #[must_use]
    pub fn checkpointable(&self) -> Vec<String> {
        let mut seen = self.trace.modules().filled(false);
        let modules = self.nodes.iter().map(|node| self.regions.all()[node.region].module);
        let new = |module: &ModuleId| !std::mem::replace(&mut seen[*module], true);
        modules.filter(new).map(|module| self.trace.path(module)).collect()
    }

    /// The region of a call; `None` if it cannot be checkpointed, or the limits exclude it.
    #[must_use]
    pub fn region_of(&self, call: CallId) -> Option<RegionId> {
        let mut regions = self.nodes.iter().map(|node| node.region);
        regions.find(|region| self.regions.all()[*region].call == call)
    }

    /// What autograd would hold of a checkpointed region, and what of it is freed; nothing for a region that the limits
    /// exclude.
    #[must_use]
    pub fn freed(&self, checkpoint: &Checkpoint) -> (Bytes, Bytes) {
        let region = self.regions.region(checkpoint.region);
        let Some(candidate) = self.candidate_of(checkpoint.region) else { return (Bytes(0), Bytes(0)) };
        let start = region.ops.start;
        let is_among = |ops: &[OpId], op: &usize| ops.binary_search(&OpId::new(start + op)).is_ok();
        let is_saved = |op: &usize| is_among(&checkpoint.saved, op) && !is_among(&checkpoint.offloaded, op);
        let kept = candidate.items.iter().filter(|item| item.ops.iter().all(is_saved)).map(|item| item.bytes).sum();
        (candidate.held_by_autograd, candidate.droppable.saturating_sub(kept))
    }

    fn candidates(&self) -> Candidates<'_> {
        Candidates::new(&self.trace, &self.plain.facts, &self.regions, &self.plain.start, &self.costs)
            .skipping(self.limits.may_skip())
    }

    /// What decides about the policies of a region; nothing for one that the limits exclude.
    fn candidate_of(&self, id: RegionId) -> Option<Arc<Candidate>> {
        if let Ok(index) = self.nodes.binary_search_by_key(&id, |node| node.region) {
            return Some(Arc::clone(&self.nodes[index].candidate));
        }
        let region = self.regions.region(id);
        if region.then.is_empty() {
            return None;
        }
        self.planned_run(id).or_else(|| self.candidates().candidate(region, Pricing::Low).map(Arc::new))
    }

    /// A node checkpointed with some of its items saved.
    pub(crate) fn checkpoint(&self, node: usize, items: impl Iterator<Item = usize>) -> Checkpoint {
        let node = &self.nodes[node];
        node.candidate.checkpoint(node.region, node.start, items)
    }

    /// The step as it is, as a plan.
    #[must_use]
    pub fn unplanned(&self) -> Solution {
        Solution { checkpoints: Vec::new(), replayed: self.plain.baseline.clone(), lower_bound: Millis(0.0) }
    }

    /// Every plan, if there are few; made when it is first asked for.
    pub(crate) fn enumeration(&self) -> Option<&Enumeration> {
        self.enumeration.get_or_init(|| Enumeration::of(self)).as_ref()
    }

    /// The moments of all plans, and who lives until when under them.
    pub(crate) fn moments_of_plans(&self) -> &(Axis, Lives) {
        self.moments.get_or_init(|| {
            let axis = Axis::new(&self.trace, &self.regions, &self.nodes);
            let Plain { start, facts, .. } = &*self.plain;
            let lives = Lives::new(&self.trace, &facts.lifetimes, &self.regions, &self.nodes, &axis, start);
            (axis, lives)
        })
    }

    /// The bound by moments; made when it is first asked for.
    pub(crate) fn bound(&self) -> &Bound {
        self.bound.get_or_init(|| Bound::new(self))
    }

    /// The innermost node around a node.
    pub(crate) fn around(&self, node: usize) -> Option<usize> {
        self.around[node]
    }

    /// Bytes in use before the step.
    pub(crate) fn start_bytes(&self) -> Bytes {
        self.plain.start.snapshot().total()
    }

    /// Of these, what no batch, no loss and no plan changes: parameters, buffers and the optimizer's state.
    #[must_use]
    pub fn state_bytes(&self) -> Bytes {
        let before = self.plain.start.snapshot();
        before[Category::Parameter] + before[Category::Buffer] + before[Category::Optimizer]
    }

    /// Bytes in use when the last layer has returned, in the step as it is, without what is left of the previous step.
    #[must_use]
    pub fn held_by_layers(&self) -> Bytes {
        let last = exact::outermost(self).into_iter().map(|node| self.nodes[node].end).max();
        let behind = last.map(OpId::new).filter(|op| op.index() < self.trace.ops().len());
        let left = self.start_bytes().saturating_sub(self.state_bytes());
        behind.map_or(self.state_bytes(), |op| self.before(op).saturating_sub(left))
    }

    /// Bytes in use just before an operator of the plain step.
    pub(crate) fn before(&self, op: OpId) -> Bytes {
        self.plain.before[op]
    }

    /// Bytes in use right after an operator of the plain step.
    pub(crate) fn after(&self, op: OpId) -> Bytes {
        self.plain.totals[op]
    }

    /// The nodes with what their policies count as kept.
    pub(crate) fn priced(&self, pricing: Pricing) -> &[Node] {
        match pricing {
            Pricing::Low => &self.nodes,
            Pricing::High => self.dear_nodes.get_or_init(|| {
                let (plain, may) = (&self.plain, (&self.allowed, &self.limits));
                let spans = spans(self.candidates(), &self.frontiers, &plain.totals, may, Pricing::High, None);
                Nodes::new(&self.trace, &self.regions, &plain.eager, spans).all
            }),
        }
    }

    /// Where the last micro-batch begins that does so at or before a position.
    pub(crate) fn beginning(&self, position: usize) -> usize {
        let behind = self.beginnings.partition_point(|beginning| *beginning <= position);
        behind.checked_sub(1).map_or(0, |at| self.beginnings[at])
    }

    /// How many ends lie at or before a position.
    pub(crate) fn rank(&self, position: usize) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }
}

/// Where nodes begin before which all earlier ones have run again.
fn beginnings(regions: &Regions, nodes: &[Node]) -> Vec<usize> {
    let mut last_trigger = 0;
    let mut beginnings = Vec::new();
    for node in nodes {
        let region = &regions.all()[node.region];
        if beginnings.is_empty() || last_trigger < region.events.start {
            beginnings.push(node.start);
        }
        last_trigger = last_trigger.max(region.trigger);
    }
    beginnings
}

/// For every node, the innermost one around it.
fn around(nodes: &[Node]) -> Vec<Option<usize>> {
    let mut open: Vec<usize> = Vec::new();
    (0..nodes.len())
        .map(|index| {
            while open.last().is_some_and(|&last| nodes[last].next <= index) {
                open.pop();
            }
            let around = open.last().copied();
            open.push(index);
            around
        })
        .collect()
}
