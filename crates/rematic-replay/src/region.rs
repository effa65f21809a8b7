use std::ops::Range;

use rematic_trace::{CallId, Category, Event, ModuleId, OpId, Phase, StepTrace, StorageId, Table, id};

use crate::births;
use crate::release::Releases;
use crate::run::{Added, Starts, have_children};

id!(
    /// A region of a step, numbered in the order in which their forwards begin.
    RegionId
);

/// One call of a module that has children, or a run of calls, seen as a unit that can be checkpointed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The call; of a run, the first.
    pub call: CallId,
    /// Its module.
    pub module: ModuleId,
    /// The further calls of a run, in order.
    pub then: Vec<CallId>,
    /// The region around it.
    pub parent: Option<RegionId>,
    /// Its forward operators: they run one after the other.
    pub ops: Range<usize>,
    /// Positions of the events inside it, without its own enter and exit.
    pub events: Range<usize>,
    /// What it is given or reads, and does not make, parameters and buffers aside. Checkpointing keeps these until its
    /// backward is over.
    pub inputs: Vec<StorageId>,
    /// The last operator whose backward needs anything: recomputation stops here.
    pub stop: OpId,
    /// Whether that operator itself runs again: only if it saves one of its own outputs. What it saves of its inputs is
    /// there before it runs, and then nothing is missing any more.
    pub stop_runs: bool,
    /// How many of its operators save something; its backward is over when all have let go.
    pub savers: usize,
    /// Position of the first event of backward that needs something saved: here it is recomputed.
    pub trigger: usize,
}

impl Region {
    /// Its calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = CallId> + '_ {
        std::iter::once(self.call).chain(self.then.iter().copied())
    }

    /// The last of its calls.
    #[must_use]
    pub fn last(&self) -> CallId {
        self.then.last().copied().unwrap_or(self.call)
    }

    /// Whether an operator belongs to it.
    #[must_use]
    pub fn contains(&self, op: OpId) -> bool {
        self.ops.contains(&op.index())
    }

    /// Whether recomputation gets as far as this operator of the region.
    #[must_use]
    pub fn reaches(&self, op: OpId) -> bool {
        op < self.stop || op == self.stop && self.stop_runs
    }
}

/// All regions of a step that checkpointing can change: those whose backward needs something that they save, and whose
/// forward can run again as it is, without gathering or releasing anything.
#[derive(Clone, Debug)]
pub struct Regions {
    all: Table<RegionId, Region>,
    /// For every operator, the innermost region that it belongs to.
    innermost: Table<OpId, Option<RegionId>>,
    /// Further ones, numbered behind those.
    added: Added,
}

impl Regions {
    /// Finds the regions, in time linear in the trace times the depth of the module tree.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        Regions::with_runs(trace, [])
    }

    /// The same with runs: each is the calls of a part of a [`chain`](crate::chains), and no two have one in common. A run that is
    /// all that a region around it does is left out.
    #[must_use]
    pub fn with_runs(trace: &StepTrace, runs: impl IntoIterator<Item = Vec<CallId>>) -> Self {
        let spans = spans(trace, &have_children(trace), Starts::new(runs));
        let triggers = triggers(trace, &spans);
        let releases = Releases::new(trace);
        let mut stamps = trace.storages().filled(u32::MAX);
        let mut all: Table<RegionId, Region> = Table::default();
        // Regions that drop out because nothing in them is saved have no use for their children either.
        let mut kept: Vec<Option<RegionId>> = vec![None; spans.len()];
        for (index, span) in spans.iter().enumerate() {
            let Some(trigger) = triggers[index] else { continue };
            let saving = |op: &OpId| !trace.saves(trace.op(*op)).is_empty();
            let ops = || span.ops.clone().map(OpId::new);
            let (true, Some(stop)) = (ops().any(|op| saving(&op)), ops().rev().find(|op| holds(trace, *op))) else {
                continue;
            };
            // What an operator saves of its own results, new or changed in place, is there when it has run.
            let made_there = |storage: StorageId| {
                trace.storages()[storage].birth == Some(stop) || trace.mutates(trace.op(stop)).contains(&storage)
            };
            let saved = trace.saves(trace.op(stop)).iter().map(|tensor| tensor.storage);
            // Of the host it may save what it makes there.
            let beside = births(trace, stop).filter(|storage| trace.storages()[*storage].seen);
            let beside = beside.filter(|_| trace.op(stop).flags.holds);
            let parent = span.parent.and_then(|parent| kept[parent]);
            let region = Region {
                call: span.call,
                module: trace.call(span.call).module,
                then: span.then.clone(),
                parent,
                inputs: inputs(trace, span, &mut stamps, u32::try_from(index).unwrap_or(u32::MAX - 1)),
                stop,
                stop_runs: saved.chain(beside).any(made_there),
                savers: ops().filter(saving).count(),
                ops: span.ops.clone(),
                events: span.events.clone(),
                trigger,
            };
            let is_all_of = |around: RegionId| all[around].ops == region.ops;
            let is_idle = !region.then.is_empty() && parent.is_some_and(is_all_of);
            // What lies inside one that is ruled out lies inside the next one around it.
            let is_out = is_idle || releases.rule_out(trace, &region);
            kept[index] = if is_out { parent } else { Some(all.push(region)) };
        }
        let mut innermost = trace.ops().filled(None);
        for (id, region) in all.entries() {
            // Inner regions come later and overwrite.
            innermost.items_mut()[region.ops.clone()].fill(Some(id));
        }
        Regions { all, innermost, added: Added::default() }
    }

    /// The regions in the order in which their forwards begin; a region stands before those inside it. Those that were added
    /// are not among them.
    #[must_use]
    pub fn all(&self) -> &Table<RegionId, Region> {
        &self.all
    }

    /// A region, be it one that was added.
    ///
    /// # Panics
    /// If there is none with this id.
    #[must_use]
    pub fn region(&self, id: RegionId) -> &Region {
        let added = || self.added.get(id.index() - self.all.len());
        self.all.get(id).or_else(added).expect("a region of this step")
    }

    /// Adds a region of the same step, a run of calls; its id.
    #[must_use]
    pub fn add(&self, run: Region) -> RegionId {
        RegionId::new(self.all.len() + self.added.add(run))
    }

    /// The innermost region that a forward operator belongs to.
    #[must_use]
    pub fn innermost(&self, op: OpId) -> Option<RegionId> {
        self.innermost.get(op).copied().flatten()
    }
}

/// A call of a module with children, or a run.
struct Span {
    call: CallId,
    then: Vec<CallId>,
    parent: Option<usize>,
    ops: Range<usize>,
    events: Range<usize>,
}

fn spans(trace: &StepTrace, has_children: &Table<ModuleId, bool>, mut runs: Starts) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut next_op = 0;
    for (position, &event) in trace.events().iter().enumerate() {
        match event {
            Event::Op(op) => next_op = op.index() + 1,
            Event::Enter(call) => {
                let single = has_children[trace.call(call).module].then(Vec::new);
                for then in runs.begin(call).into_iter().chain(single) {
                    let (ops, events) = (next_op..next_op, position + 1..position + 1);
                    spans.push(Span { call, then, parent: open.last().copied(), ops, events });
                    open.push(spans.len() - 1);
                }
            }
            Event::Exit(call) => {
                let single = has_children[trace.call(call).module];
                for _ in 0..usize::from(single) + usize::from(runs.end(call)) {
                    let Some(span) = open.pop() else { break };
                    spans[span].ops.end = next_op;
                    spans[span].events.end = position;
                }
            }
            _ => {}
        }
    }
    spans
}

/// For every span, the first event of backward that needs something that one of its operators saved.
fn triggers(trace: &StepTrace, spans: &[Span]) -> Vec<Option<usize>> {
    let mut innermost = trace.ops().filled(None);
    for (index, span) in spans.iter().enumerate() {
        innermost.items_mut()[span.ops.clone()].fill(Some(index));
    }
    let mut triggers = vec![None; spans.len()];
    for (position, &event) in trace.events().iter().enumerate() {
        let Some(forward) = needs(trace, event) else { continue };
        let mut at = innermost[forward];
        // Where one is triggered already, so are all around it.
        while let Some(span) = at.filter(|&span| triggers[span].is_none()) {
            triggers[span] = Some(position);
            at = spans[span].parent;
        }
    }
    triggers
}

/// The forward operator whose saved tensors an event reads. A graph that is thrown away reads nothing.
pub(crate) fn needs(trace: &StepTrace, event: Event) -> Option<OpId> {
    let forward = match event {
        Event::Op(op) if trace.op(op).phase == Phase::Backward => trace.op(op).differentiates?,
        _ => return None,
    };
    holds(trace, forward).then_some(forward)
}

/// Whether autograd saves anything for an operator's backward, on the device or on the host.
fn holds(trace: &StepTrace, op: OpId) -> bool {
    trace.op(op).flags.holds || !trace.saves(trace.op(op)).is_empty()
}

/// Storages that a span is given or reads and did not make, each once.
fn inputs(trace: &StepTrace, span: &Span, stamps: &mut Table<StorageId, u32>, stamp: u32) -> Vec<StorageId> {
    let mut inputs = Vec::new();
    let calls = std::iter::once(&span.call).chain(&span.then).map(|call| trace.call(*call));
    let given = calls.flat_map(|call| call.inputs.iter().chain(&call.keywords)).copied();
    let read =
        trace.ops().items()[span.ops.clone()].iter().flat_map(|op| trace.inputs(op)).map(|tensor| tensor.storage);
    for id in given.chain(read) {
        let storage = &trace.storages()[id];
        let inside = storage.birth.is_some_and(|birth| span.ops.contains(&birth.index()));
        let permanent = matches!(storage.category, Category::Parameter | Category::Buffer);
        if !inside && !permanent && std::mem::replace(&mut stamps[id], stamp) != stamp {
            inputs.push(id);
        }
    }
    inputs
}
