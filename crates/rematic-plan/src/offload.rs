//! Plans that move outputs to the host instead of dropping them.
//!
//! A copy costs nothing while it is hidden behind what is computed meanwhile. So each layer may send about as many bytes as the
//! link carries while one layer runs, and those whose recomputation takes longest per byte are worth it most. For several shares
//! of that:
//!
//! 1. The outputs to be moved are chosen in every layer.
//! 2. The rest is planned as if these took no memory at all, by the planner for recomputation.
//! 3. Both together are replayed, with real sizes and the clocks of the copies. What is above the budget then (copies under way,
//!    and what has come back early) is taken off the aim, and it is planned again.
//!
//! The fastest plan by the clock is taken; without a faster one, the plan without offload stays.

use rayon::prelude::*;
use rematic_replay::{Checkpoint, Host, LEAST_OFFLOADED, Ledger, Moves, Region, Regions, births, moved};
use rematic_trace::{Bytes, Millis, OpId, StepTrace, StorageId, Table, Verdict};

use crate::exact::outermost;
use crate::planner::{Outcome, Solution};
use crate::problem::{Limits, Problem};
use crate::region::Frontier;

/// What of the bytes that the link carries while a layer runs is moved.
const SHARES: [f64; 9] = [0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0];
/// How often the aim is corrected by what the replay says.
const AIMS: usize = 6;
/// How often the share is cut down to what the host has.
const CUTS: usize = 16;
/// A cut goes a little further, as blocks do not fill the host to the last byte.
const CUT: f64 = 0.97;
/// What a storage on the host is taken to have on the device: not nothing, so that times per byte stay numbers.
const AWAY: Bytes = Bytes(1);

/// Which outputs of a step can be moved.
pub(crate) struct Movable {
    /// For every storage, whether any operator changes it.
    changed: Table<StorageId, bool>,
}

impl Movable {
    pub(crate) fn new(trace: &StepTrace) -> Self {
        let mut changed = trace.storages().filled(false);
        for &storage in trace.ops().iter().flat_map(|op| trace.mutates(op)) {
            changed[storage] = true;
        }
        Movable { changed }
    }

    /// Why what an operator of a region makes cannot be moved; `None` if it can.
    pub(crate) fn why_not(&self, trace: &StepTrace, region: &Region, op: OpId) -> Option<String> {
        let born = |storage: StorageId| trace.storages()[storage].birth == Some(op);
        if !trace.outputs(trace.op(op)).iter().all(|output| born(output.storage)) {
            return Some("it returns what others have made".to_owned());
        }
        if births(trace, op).any(|storage| self.changed[storage]) {
            return Some("its output is changed in place".to_owned());
        }
        if moved(trace, op).next().is_none() {
            return Some(format!("it makes nothing of {LEAST_OFFLOADED} or more on the device"));
        }
        (!region.reaches(op)).then(|| "nothing reads its output when the module runs again".to_owned())
    }
}

/// What may be moved of a layer, the best first.
struct Layer {
    node: usize,
    /// What the link carries while it runs, or all of it if that is less.
    capacity: f64,
    items: Vec<Movables>,
}

/// Operators that are saved together and can be moved.
struct Movables {
    ops: Vec<OpId>,
    bytes: u64,
    time: f64,
}

/// What is moved for a share of what the link carries.
struct Easing {
    /// The layers.
    nodes: Vec<usize>,
    /// The operators whose outputs are moved.
    chosen: Table<OpId, bool>,
    /// The problem without these outputs.
    problem: Problem,
    /// What the host has.
    host: Bytes,
}

impl Problem {
    /// The plan for a budget with what the limits say that the host has for outputs; `outcome` is that without.
    #[must_use]
    pub fn offloading(&self, budget: Bytes, outcome: Outcome) -> Outcome {
        let easings = self.easings();
        self.offloading_with(&easings, budget, outcome)
    }

    fn offloading_with(&self, easings: &[Easing], budget: Bytes, outcome: Outcome) -> Outcome {
        let is_planned = outcome.verdict == Verdict::Planned;
        if outcome.verdict == Verdict::Fits || is_planned && outcome.solution.replayed.recompute.0 <= 0.0 {
            return outcome;
        }
        let found: Vec<Option<Solution>> = easings.par_iter().map(|easing| self.with_easing(easing, budget)).collect();
        let least = |best: Solution, next: Solution| {
            if next.replayed.extra().0 < best.replayed.extra().0 { next } else { best }
        };
        let Some(best) = found.into_iter().flatten().reduce(least) else { return outcome };
        if is_planned && outcome.solution.replayed.extra().0 <= best.replayed.extra().0 {
            return outcome;
        }
        Outcome { verdict: Verdict::Planned, solution: best }
    }

    /// The plans for budgets, the largest first, with what the host has. A plan for a smaller budget serves for a larger one too.
    #[must_use]
    pub fn offloading_curve(&self, curve: Vec<(Bytes, Solution)>) -> Vec<(Bytes, Solution)> {
        let easings = self.easings();
        if easings.is_empty() {
            return curve;
        }
        let mut best: Option<Solution> = None;
        let mut offloaded: Vec<(Bytes, Solution)> = Vec::with_capacity(curve.len());
        for (budget, solution) in curve.into_iter().rev() {
            let verdict = if solution.checkpoints.is_empty() { Verdict::Fits } else { Verdict::Planned };
            let Outcome { solution, .. } = self.offloading_with(&easings, budget, Outcome { verdict, solution });
            let kept = best.take().filter(|best| best.replayed.extra() < solution.replayed.extra());
            let next = kept.unwrap_or(solution);
            offloaded.push((budget, next.clone()));
            best = Some(next);
        }
        offloaded.reverse();
        offloaded
    }

    /// The layers, with what each can move.
    fn layers(&self) -> Vec<Layer> {
        let movable = Movable::new(&self.trace);
        let mut nodes = outermost(self);
        // A model of a few layers counts as one itself, and backward begins with it.
        if let [whole] = nodes[..] {
            nodes = self.children(whole);
        }
        let alone: Vec<Checkpoint> =
            nodes.iter().map(|&node| Checkpoint::new(self.nodes[node].region, Vec::new())).collect();
        let moves = Moves::new(&self.regions, &alone);
        let per_byte = self.costs.host_rate().time(Bytes(1)).0;
        let mut layers = Vec::new();
        for (at, &node) in nodes.iter().enumerate() {
            // Its copies could not be hidden: backward begins with it.
            if moves.leaves_with[at] == at {
                continue;
            }
            let start = self.nodes[node].start;
            let end = nodes.get(at + 1).map_or(self.nodes[node].end, |&next| self.nodes[next].start);
            let time: f64 = (start..end).map(|op| self.costs.time(OpId::new(op)).0).sum();
            let items = self.movables(&movable, node);
            let all: u64 = items.iter().map(|item| item.bytes).sum();
            layers.push(Layer { node, capacity: (time / per_byte).min(all as f64), items });
        }
        layers
    }

    /// The nodes right inside a node.
    fn children(&self, node: usize) -> Vec<usize> {
        let next = |inner: &usize| self.nodes.get(*inner).map(|inner| inner.next);
        std::iter::successors(Some(node + 1), next).take_while(|&inner| inner < self.nodes[node].next).collect()
    }

    fn movables(&self, movable: &Movable, node: usize) -> Vec<Movables> {
        let node = &self.nodes[node];
        let region = self.regions.region(node.region);
        let mut items: Vec<Movables> = Vec::new();
        for item in node.candidate.items.iter().filter(|item| item.bytes.0 > 0) {
            let ops = item.ops.iter().map(|op| OpId::new(node.start + op));
            let ops: Vec<OpId> = ops.filter(|op| moved(&self.trace, *op).next().is_some()).collect();
            if ops.iter().any(|&op| movable.why_not(&self.trace, region, op).is_some()) {
                continue;
            }
            let bytes = ops.iter().flat_map(|op| moved(&self.trace, *op)).map(|storage| self.own(storage)).sum();
            items.push(Movables { ops, bytes, time: item.time.0 });
        }
        items.retain(|item| item.bytes > 0);
        items.sort_by(|a, b| {
            (b.time * a.bytes as f64).total_cmp(&(a.time * b.bytes as f64)).then_with(|| a.ops.cmp(&b.ops))
        });
        items
    }

    fn own(&self, storage: StorageId) -> u64 {
        self.trace.storages()[storage].own_bytes()
    }

    /// The operators to be moved for a share of what the link carries, cut down to what the host has.
    fn chosen(&self, layers: &[Layer], mut share: f64, host: Bytes) -> Table<OpId, bool> {
        for _ in 0..CUTS {
            let mut chosen = self.trace.ops().filled(false);
            let mut pinned = 0_u64;
            for layer in layers {
                let mut room = share * layer.capacity;
                for item in &layer.items {
                    if item.bytes as f64 > room {
                        continue;
                    }
                    room -= item.bytes as f64;
                    for &op in &item.ops {
                        chosen[op] = true;
                        let blocks = moved(&self.trace, op).map(|storage| Host::block(Bytes(self.own(storage))).0);
                        pinned = blocks.fold(pinned, u64::saturating_add);
                    }
                }
            }
            if pinned <= host.0 {
                return chosen;
            }
            share *= CUT * host.0 as f64 / pinned as f64;
        }
        self.trace.ops().filled(false)
    }

    /// What may be moved, for every share; nothing without memory of the host.
    fn easings(&self) -> Vec<Easing> {
        let Some(host) = self.limits.host_memory else { return Vec::new() };
        let layers = self.layers();
        let mut chosen: Vec<Table<OpId, bool>> =
            SHARES.iter().map(|&share| self.chosen(&layers, share, host)).collect();
        chosen.dedup_by(|a, b| a.items() == b.items());
        chosen.into_par_iter().filter_map(|chosen| self.eased(&layers, chosen, host)).collect()
    }

    /// The problem without what is moved.
    fn eased(&self, layers: &[Layer], chosen: Table<OpId, bool>, host: Bytes) -> Option<Easing> {
        let mut away = self.trace.storages().filled(false);
        for (op, _) in chosen.entries().filter(|(_, chosen)| **chosen) {
            moved(&self.trace, op).for_each(|storage| away[storage] = true);
        }
        if !away.iter().any(|away| *away) {
            return None;
        }
        let size = |storage: StorageId| if away[storage] { AWAY } else { Bytes(self.own(storage)) };
        let start = Ledger::with_sizes(&self.trace, self.allocator, size);
        // Runs of calls keep nothing that could move.
        let limits = Limits { host_memory: None, runs: false, ..self.limits.clone() };
        let regions = Regions::new(&self.trace);
        let problem = Problem::from_state(self.trace.clone(), self.costs.clone(), limits, regions, start).ok()?;
        Some(Easing { nodes: layers.iter().map(|layer| layer.node).collect(), chosen, problem, host })
    }

    /// The best plan that moves what was chosen, or some of it.
    fn with_easing(&self, easing: &Easing, budget: Bytes) -> Option<Solution> {
        let Easing { problem: eased, host, .. } = easing;
        let mut aim = budget;
        let mut best: Option<Solution> = None;
        for _ in 0..AIMS {
            let planned = eased.beside_moves(aim);
            if planned.verdict == Verdict::Infeasible {
                break;
            }
            let checkpoints = self.with_moved(easing, planned.solution.checkpoints);
            let solution = self.offload_solution(checkpoints);
            let peak = solution.replayed.peak;
            if peak <= budget {
                let is_better = best.as_ref().is_none_or(|best| solution.replayed.extra() < best.replayed.extra());
                if solution.replayed.offload.pinned <= *host && is_better {
                    best = Some(solution);
                } else if best.is_some() {
                    break;
                }
                if peak == budget || planned.verdict == Verdict::Fits {
                    break;
                }
                aim += Bytes((budget.0 - peak.0).div_ceil(2));
            } else {
                if best.is_some() {
                    break;
                }
                aim = aim.saturating_sub(Bytes(peak.0 - budget.0));
            }
        }
        best.map(|best| self.kept_where_possible(best, budget))
    }

    fn offload_solution(&self, checkpoints: Vec<Checkpoint>) -> Solution {
        let replayed = self.replay(&checkpoints);
        // What was proved holds for plans that move nothing.
        Solution { checkpoints, replayed, lower_bound: Millis(0.0) }
    }

    /// A plan with the chosen operators moved: those of its regions, and those of layers that it leaves alone.
    fn with_moved(&self, easing: &Easing, mut checkpoints: Vec<Checkpoint>) -> Vec<Checkpoint> {
        let planned: Vec<std::ops::Range<usize>> =
            checkpoints.iter().map(|checkpoint| self.regions.region(checkpoint.region).ops.clone()).collect();
        for &node in &easing.nodes {
            self.cover(easing, node, &planned, &mut checkpoints);
        }
        for checkpoint in &mut checkpoints {
            checkpoint.offloaded = checkpoint.saved.iter().copied().filter(|op| easing.chosen[*op]).collect();
        }
        checkpoints.sort_by_key(|checkpoint| self.regions.region(checkpoint.region).ops.start);
        checkpoints
    }

    /// Checkpoints a node, or what lies in it beside what is planned, so that it keeps no more than the plain step but what moves.
    fn cover(
        &self,
        easing: &Easing,
        node: usize,
        planned: &[std::ops::Range<usize>],
        checkpoints: &mut Vec<Checkpoint>,
    ) {
        let Easing { problem: eased, chosen, .. } = easing;
        let (start, end, region) = (self.nodes[node].start, self.nodes[node].end, self.nodes[node].region);
        if !(start..end).any(|op| chosen[OpId::new(op)]) {
            return;
        }
        if planned.iter().any(|ops| ops.start <= start && end <= ops.end) {
            return;
        }
        if planned.iter().any(|ops| ops.start < end && start < ops.end) {
            for inner in self.children(node) {
                self.cover(easing, inner, planned, checkpoints);
            }
            return;
        }
        let Ok(at) = eased.nodes.binary_search_by_key(&region, |node| node.region) else { return };
        let candidate = &eased.nodes[at].candidate;
        if let Some(items) = Frontier::best_within(candidate, candidate.droppable) {
            checkpoints.push(eased.checkpoint(at, items.into_iter()));
        }
    }

    /// The same plan with as much as the budget allows left on the device, from the last layer on; never a slower one.
    fn kept_where_possible(&self, solution: Solution, budget: Bytes) -> Solution {
        let all: usize = solution.checkpoints.iter().map(|checkpoint| checkpoint.offloaded.len()).sum();
        let without = |count: usize| {
            let mut left = all - count;
            let mut checkpoints = solution.checkpoints.clone();
            for checkpoint in &mut checkpoints {
                let stays = left.min(checkpoint.offloaded.len());
                checkpoint.offloaded.truncate(stays);
                left -= stays;
            }
            self.offload_solution(checkpoints)
        };
        let (mut low, mut high, mut best) = (0, all, None);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let tried = without(middle);
            if tried.replayed.peak <= budget && tried.replayed.extra().0 <= solution.replayed.extra().0 {
                (low, best) = (middle, Some(tried));
            } else {
                high = middle;
            }
        }
        best.unwrap_or(solution)
    }
}
