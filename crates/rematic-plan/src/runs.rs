//! Runs of calls as regions.
//!
//! A region that is one call keeps the call's inputs. A run of k calls keeps those of the first alone, so runs reach budgets that
//! single calls do not, and make more again at once. Which calls go together is decided for all at once: a [`Tiling`] cuts every
//! [chain](rematic_replay::long_chains) into runs of one length, one more level in the tree of regions, and is planned like any
//! step; single calls and what is inside them can still be chosen there. Lengths are tried where single calls do not reach the
//! budget or, if the answer is not a quick one, are dear.
//!
//! # The bound
//!
//! The relaxation of [`exact`](crate::exact) is one for plans of single calls. A plan with runs, within a budget B, becomes one of
//! single calls if every run is taken apart and each of its calls keeps its part of the policy. That takes no more time: a call that
//! is recomputed alone stops where nothing more is needed. Between forward and backward it frees what the run freed but for
//!
//! - what one call of a chain makes and another one is given, reads or saves, which the run does not keep between them, and
//! - what calls that cannot be checkpointed alone hold for their own backward.
//!
//! Let D be how many of these bytes the plan frees. At every moment the plan of single calls frees no less than the run less D, so its
//! constraints hold for the budget B + D, and it takes at least the bound L(B + D) for single calls. What is freed has to be made again
//! by an operator that no call runs again alone, and so do larger tensors that only the end of that call makes, unless they are kept in
//! its place: D bytes take at least g(D), the cheapest of them first. No plan within B takes less than the least of L(B + D) + g(D).
//!
//! It needs every part of a policy to be one of the call's own: where a call changes in place what another call of its chain has
//! made, there is no such bound.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rematic_replay::{Chain, Checkpoint, RegionId, Regions, births, long_chains, tiles};
use rematic_trace::{Bytes, CallId, Event, Millis, OpId, Phase, StorageId, Table, Verdict};

use crate::exact;
use crate::planner::{Effort, Outcome, Solution};
use crate::problem::{Limits, Problem};
use crate::region::Candidate;

/// A plan that recomputes more than this share of the forward is dear.
const DEAR: f64 = 0.5;
/// A tiling is planned if it may save more than this share of the best plan so far.
const WORTH: f64 = 3e-3;
/// After so many tilings whose bounds are no lower, longer runs are not looked at.
const RISES: usize = 2;
/// In so many steps the bytes that runs free are looked through for a bound.
const CREDIT_STEPS: u64 = 16;

/// The step with every chain cut into runs of one length.
pub(crate) struct Tiling {
    problem: Problem,
    /// Its regions, among those of the problem that it was made for.
    regions: Table<RegionId, RegionId>,
    /// No plan has a lower peak; found when it is first asked for.
    lowest: OnceLock<Bytes>,
}

/// A tiling that is made when it is first asked for.
pub(crate) struct Slot {
    runs: Vec<Chain>,
    tiling: OnceLock<Option<Tiling>>,
}

impl Tiling {
    fn new(base: &Problem, runs: Vec<Chain>) -> Option<Self> {
        let regions = Regions::with_runs(&base.trace, runs);
        let mut singles = base.regions().all().ids();
        let ids = regions.all().iter().map(|region| {
            if region.then.is_empty() { singles.next() } else { Some(base.regions().add(region.clone())) }
        });
        let ids: Option<Table<RegionId, RegionId>> = ids.collect();
        let limits = Limits { runs: false, ..base.limits.clone() };
        let problem = base.with_other_regions(limits, regions).ok()?;
        Some(Tiling { problem, regions: ids?, lowest: OnceLock::new() })
    }

    fn lowest(&self) -> Bytes {
        *self.lowest.get_or_init(|| exact::lowest(&self.problem))
    }

    /// A plan of the tiling as one of the problem that it was made for.
    fn translated(&self, solution: Solution) -> Solution {
        let named = |checkpoint: Checkpoint| Checkpoint { region: self.regions[checkpoint.region], ..checkpoint };
        Solution { checkpoints: solution.checkpoints.into_iter().map(named).collect(), ..solution }
    }

    fn candidate(&self, region: RegionId) -> Option<Arc<Candidate>> {
        let (id, _) = self.regions.entries().find(|(_, named)| **named == region)?;
        let node = self.problem.nodes.binary_search_by_key(&id, |node| node.region).ok()?;
        Some(Arc::clone(&self.problem.nodes[node].candidate))
    }
}

impl Problem {
    /// The plan with the lowest peak.
    #[must_use]
    pub fn least(&self) -> Solution {
        let Some(tiling) = self.lowest_tiling() else { return self.least_alone() };
        let found = tiling.problem.least_alone();
        self.bounded_by_all(found.replayed.peak, tiling.translated(found))
    }

    /// A plan with the lowest peak, whatever it takes.
    fn lowest(&self) -> Solution {
        match self.lowest_tiling() {
            Some(tiling) => tiling.translated(tiling.problem.lowest_alone()),
            None => self.lowest_alone(),
        }
    }

    /// The tiling with the lowest peak, if it is below that of single calls.
    fn lowest_tiling(&self) -> Option<&Tiling> {
        let mut peak = self.lowest_alone().replayed.peak;
        let mut best = None;
        let mut tilings: Vec<&Tiling> = self.tilings().collect();
        tilings.sort_by_key(|tiling| tiling.lowest());
        for tiling in tilings {
            if tiling.lowest() >= peak {
                break;
            }
            let found = tiling.problem.lowest_alone().replayed.peak;
            if found < peak {
                (peak, best) = (found, Some(tiling));
            }
        }
        best
    }

    /// A plan with runs, with a bound for all plans.
    fn bounded_by_all(&self, budget: Bytes, solution: Solution) -> Solution {
        let credit = self.run_credit.get_or_init(|| Credit::of(self, &long_chains(&self.trace)));
        let time = solution.replayed.recompute;
        let lower_bound = credit.as_ref().map_or(Millis(0.0), |credit| credit.bound(self, budget, time));
        Solution { lower_bound, ..solution }
    }

    /// What runs make of the answer for a budget that was found without them.
    pub(crate) fn with_runs(&self, budget: Bytes, effort: Effort, alone: Option<Solution>) -> Outcome {
        let is_enough =
            |found: &Solution| effort.proof == 0 || found.replayed.recompute.0 <= DEAR * self.forward_time();
        if alone.as_ref().is_some_and(is_enough)
            && let Some(solution) = alone
        {
            return Outcome { verdict: Verdict::Planned, solution };
        }
        let mut best = alone;
        for (bound, tiling) in self.promising(budget).into_iter().take(effort.tilings) {
            if best.as_ref().is_some_and(|best| best.replayed.recompute.0 * (1.0 - WORTH) <= bound) {
                break;
            }
            let Some(found) = tiling.problem.exact_alone(budget, effort, None) else { continue };
            if best.as_ref().is_none_or(|best| found.replayed.recompute.0 < best.replayed.recompute.0) {
                best = Some(self.bounded_by_all(budget, tiling.translated(found)));
            }
        }
        match best {
            Some(solution) => Outcome { verdict: Verdict::Planned, solution },
            None => {
                let solution = if effort.proof > 0 { self.least() } else { self.lowest() };
                let fits = solution.replayed.peak <= budget;
                Outcome { verdict: if fits { Verdict::Planned } else { Verdict::Infeasible }, solution }
            }
        }
    }

    /// Tilings with a solution for a budget and their bounds, the lowest first. Bounds fall with the length of the runs and then
    /// rise, a little unevenly: behind those that rise none is looked at.
    fn promising(&self, budget: Bytes) -> Vec<(f64, &Tiling)> {
        let mut found: Vec<(f64, &Tiling)> = Vec::new();
        let (mut least, mut since) = (f64::INFINITY, 0);
        for tiling in self.tilings() {
            let Some(bound) = exact::quick_bound(&tiling.problem, budget.0) else { continue };
            found.push((bound, tiling));
            since = if bound < least { 0 } else { since + 1 };
            least = least.min(bound);
            if since >= RISES {
                break;
            }
        }
        found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        found
    }

    /// Whether the relaxation of a tiling has a solution for a budget.
    pub(crate) fn runs_may_be_within(&self, budget: Bytes) -> bool {
        self.tilings().any(|tiling| exact::is_feasible(&tiling.problem, budget.0))
    }

    /// What decides about a run that was planned.
    pub(crate) fn planned_run(&self, region: RegionId) -> Option<Arc<Candidate>> {
        let made = self.tilings.get()?.iter().filter_map(|slot| slot.tiling.get()?.as_ref());
        made.into_iter().find_map(|tiling| tiling.candidate(region))
    }

    /// Time of all operators of forward.
    fn forward_time(&self) -> f64 {
        let forward = self.trace.ops().entries().filter(|(_, op)| op.phase == Phase::Forward);
        forward.map(|(id, _)| self.costs.time(id).0).sum()
    }

    /// By length of the runs, the shortest first.
    fn tilings(&self) -> impl Iterator<Item = &Tiling> {
        let slots = self.tilings.get_or_init(|| {
            if !self.limits.runs {
                return Vec::new();
            }
            let chains = long_chains(&self.trace);
            let longest = chains.iter().map(Vec::len).max().unwrap_or(0);
            let slot = |length| Slot { runs: tiles(&chains, length), tiling: OnceLock::new() };
            lengths(longest).map(slot).collect()
        });
        slots.iter().filter_map(|slot| slot.tiling.get_or_init(|| Tiling::new(self, slot.runs.clone())).as_ref())
    }
}

/// What plans with runs may free beyond those of single calls.
pub(crate) struct Credit {
    /// Bytes, and the time that each of them takes at least; the cheapest first.
    parts: Vec<(u64, f64)>,
}

impl Credit {
    /// `None` if it is not known. In time linear in the step, times the depth of the chains in each other.
    fn of(problem: &Problem, chains: &[Chain]) -> Option<Self> {
        let trace = &*problem.trace;
        let calls = Calls::new(problem);
        // With the calls that make them.
        let mut credited: BTreeMap<StorageId, Vec<CallId>> = BTreeMap::new();
        for chain in chains {
            let makers: Vec<(usize, CallId)> = chain.iter().map(|call| (calls.ops[*call].end, *call)).collect();
            let maker = |storage: StorageId| {
                let birth = trace.storages()[storage].birth?.index();
                let (_, call) = makers.get(makers.partition_point(|(end, _)| *end <= birth))?;
                (calls.ops[*call].start <= birth).then_some(*call)
            };
            for &call in chain {
                let other = |storage: StorageId| Some((storage, maker(storage).filter(|maker| *maker != call)?));
                let given = trace.call(call).inputs.iter().chain(&trace.call(call).keywords).copied();
                let mut found: Vec<(StorageId, CallId)> = given.filter_map(other).collect();
                for op in &trace.ops().items()[calls.ops[call].clone()] {
                    if trace.mutates(op).iter().any(|storage| other(*storage).is_some()) {
                        return None;
                    }
                    let saves = || trace.saves(op).iter().map(|tensor| tensor.storage);
                    let read = trace.inputs(op).iter().map(|tensor| tensor.storage);
                    found.extend(read.chain(saves()).filter_map(other));
                    if calls.ends[call].is_none() {
                        found.extend(saves().filter_map(|storage| Some((storage, maker(storage)?))));
                    }
                }
                for (storage, maker) in found {
                    let makers = credited.entry(storage).or_default();
                    if !makers.contains(&maker) {
                        makers.push(maker);
                    }
                }
            }
        }
        let births = credited.keys().filter_map(|storage| trace.storages()[*storage].birth).map(OpId::index);
        let births: BTreeSet<usize> = births.collect();
        let part = |(storage, makers): (&StorageId, &Vec<CallId>)| {
            let prices = makers.iter().map(|call| calls.price(problem, &births, *call, *storage));
            (problem.footprint(*storage).0, prices.fold(f64::INFINITY, f64::min))
        };
        let mut parts: Vec<(u64, f64)> = credited.iter().map(part).collect();
        parts.sort_by(|a, b| a.1.total_cmp(&b.1));
        Some(Credit { parts })
    }

    /// The least time that so many bytes take.
    fn time(&self, bytes: u64) -> f64 {
        let mut left = bytes;
        let mut time = 0.0;
        for &(bytes, price) in &self.parts {
            time += left.min(bytes) as f64 * price;
            left = left.saturating_sub(bytes);
        }
        time
    }

    /// No plan within a budget takes less; a plan that takes `known` is within it.
    fn bound(&self, problem: &Problem, budget: Bytes, known: Millis) -> Millis {
        let all: u64 = self.parts.iter().map(|(bytes, _)| bytes).sum();
        // By step: what plans take at least that free so many bytes, and the budget of the plans of single calls that they become.
        let step = |step: u64| {
            let to = if step + 1 == CREDIT_STEPS { all } else { all / CREDIT_STEPS * (step + 1) };
            (self.time(all / CREDIT_STEPS * step), budget.0.saturating_add(to))
        };
        let cheap = (0..CREDIT_STEPS).map(step).take_while(|(time, _)| *time < known.0);
        // Where no plan of single calls is within so much, none with runs frees so little.
        let quick =
            cheap.filter_map(|(time, budget)| Some((exact::quick_bound(problem, budget)? + time, time, budget)));
        let mut steps: Vec<(f64, f64, u64)> = quick.collect();
        steps.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        // Only the least counts: it is worked out where the quick bound is below it.
        let mut bound = known.0;
        for (quick, time, budget) in steps {
            if quick >= bound {
                break;
            }
            if let Some(single) = problem.lower_bound(Bytes(budget)) {
                bound = bound.min(single.0 + time);
            }
        }
        Millis(bound)
    }
}

/// What is known about the calls of a step.
struct Calls {
    /// The operators of the forward of each.
    ops: Table<CallId, Range<usize>>,
    /// Where the recomputation of each ends if it is alone; `None` if it cannot be checkpointed alone.
    ends: Table<CallId, Option<usize>>,
    /// How many operators have run when a storage's last ordinary reference goes.
    dropped: Table<StorageId, usize>,
}

impl Calls {
    fn new(problem: &Problem) -> Self {
        let trace = &*problem.trace;
        let mut ops = trace.calls().filled(0..0);
        let mut dropped = trace.storages().filled(usize::MAX);
        let mut next_op = 0;
        for &event in trace.events() {
            match event {
                Event::Op(op) => next_op = op.index() + 1,
                Event::Enter(call) => ops[call] = next_op..next_op,
                Event::Exit(call) => ops[call].end = next_op,
                Event::Drop(storage) => dropped[storage] = next_op,
                _ => {}
            }
        }
        let mut ends = trace.calls().filled(None);
        for region in problem.nodes.iter().map(|node| problem.regions().region(node.region)) {
            ends[region.call] = Some(region.stop.index() + usize::from(region.stop_runs));
        }
        Calls { ops, ends, dropped }
    }

    /// The time per byte that it takes at least to make a storage of a call again that a run need not keep.
    ///
    /// Its maker runs again, which is in the call's own time already if the call alone runs it again. If nothing else that is
    /// credited is made behind the end of the call's own recomputation, so does all else there that makes no less and that nothing
    /// holds when the call is over: to keep that in its place frees nothing.
    fn price(&self, problem: &Problem, credited: &BTreeSet<usize>, call: CallId, storage: StorageId) -> f64 {
        let trace = &*problem.trace;
        let Some(maker) = trace.storages()[storage].birth else { return 0.0 };
        let end = self.ends[call];
        if end.is_some_and(|end| maker.index() < end) {
            return 0.0;
        }
        let bytes = problem.footprint(storage).0.max(1) as f64;
        let made = |op: OpId| births(trace, op).map(|storage| problem.footprint(storage).0).sum::<u64>() as f64;
        let own = problem.costs.time(maker).0 / made(maker).max(bytes);
        let Some(end) = end else { return own };
        let tail = end.max(self.ops[call].start)..maker.index();
        let is_only = credited.range(end..self.ops[call].end).all(|at| *at == maker.index());
        if !is_only || births(trace, maker).count() > 1 {
            return own;
        }
        let runs_again = |op: &OpId| {
            let goes = |storage: StorageId| self.dropped[storage] <= self.ops[call].end;
            births(trace, *op).count() == 1 && made(*op) >= bytes && births(trace, *op).all(goes)
        };
        let before: f64 = tail.map(OpId::new).filter(runs_again).map(|op| problem.costs.time(op).0).sum();
        own + before / bytes
    }
}

/// The lengths of runs that are tried for chains of so many calls: 2, 3, 4, 6, 8, 12, …, up to the longest chain.
fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    let powers = (2..).map(|half: u32| {
        let power = 1_usize << (half / 2).min(40);
        if half.is_multiple_of(2) { power } else { power + power / 2 }
    });
    powers.take_while(move |length| *length <= longest)
}
