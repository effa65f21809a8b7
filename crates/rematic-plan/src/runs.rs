//! Runs of calls as regions.
//!
//! A region that is one call keeps the call's inputs. A run of k calls keeps those of the first alone, so runs reach budgets that
//! single calls do not, and make more again at once. Which calls go together is decided for all at once: a [`Tiling`] cuts every
//! [chain](rematic_replay::long_chains) into runs of one length, one more level in the tree of regions, and is planned like any
//! step; single calls and what is inside them can still be chosen there. Lengths are tried where single calls do not reach the
//! budget or, if the answer is not a quick one, where single calls recompute more than half of the forward.
//!
//! # The bound
//!
//! A plan with runs is one of a tiling, and so is every plan of single calls. Each tiling is a step like any other, with bounds for
//! all of its plans; no plan of single calls and of runs of the lengths that are tried takes less than the least of them. A
//! tiling that is not planned, for it cannot be better by much, has a bound too, which is often a quick one.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use rematic_replay::{Chain, Checkpoint, RegionId, Regions, long_chains, tiles};
use rematic_trace::{Bytes, Millis, Phase, Table, Verdict};

use crate::exact;
use crate::planner::{Effort, NEAR, Outcome, Solution, WHOLE};
use crate::problem::{Limits, Problem};
use crate::region::Candidate;

/// A plan that recomputes more than this share of the forward is dear.
const DEAR: f64 = 0.5;
/// A tiling is planned if it may save more than this share of the best plan so far.
const WORTH: f64 = 3e-3;
/// After so many tilings whose bounds are no lower, longer runs are not looked at.
const RISES: usize = 2;
/// Peaks that differ by a smaller part than one in so many are one: the search for the lowest one ends there.
const SAME_PEAK: u64 = 5000;
/// So many are planned at once: as many on every machine, so that the answer is the same.
const AT_ONCE: usize = 2;
/// So few tilings are all looked at.
const FEW_TILINGS: usize = 6;
/// The part of a proof that a tiling is worth that is not planned.
const UNPLANNED: usize = 20;

/// The step with every chain cut into runs of one length.
pub(crate) struct Tiling {
    problem: Problem,
    /// Its regions, among those of the problem that it was made for.
    regions: Table<RegionId, RegionId>,
    /// The other way round.
    named: HashMap<RegionId, RegionId>,
}

/// A tiling that is made when it is first asked for.
pub(crate) struct Slot {
    length: usize,
    runs: Vec<Chain>,
    tiling: OnceLock<Option<Tiling>>,
}

impl Slot {
    fn tiling(&self, base: &Problem) -> Option<&Tiling> {
        self.tiling.get_or_init(|| Tiling::new(base, self.runs.clone())).as_ref()
    }
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
        let regions = ids?;
        let named = regions.entries().map(|(id, named)| (*named, id)).collect();
        Some(Tiling { problem, regions, named })
    }

    fn lowest(&self) -> Bytes {
        self.problem.lowest_relaxed()
    }

    /// A plan of the tiling as one of the problem that it was made for.
    fn translated(&self, solution: Solution) -> Solution {
        let named = |checkpoint: Checkpoint| Checkpoint { region: self.regions[checkpoint.region], ..checkpoint };
        Solution { checkpoints: solution.checkpoints.into_iter().map(named).collect(), ..solution }
    }

    fn candidate(&self, region: RegionId) -> Option<Arc<Candidate>> {
        let id = *self.named.get(&region)?;
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
        let budget = found.replayed.peak;
        let may_be = |other: &&Tiling| !std::ptr::eq(*other, tiling) && other.lowest() <= budget;
        let bound = |other| Looked { bound: quick_bound(other, budget), tiling: other, plan: None };
        let mut looked: Vec<Looked> = self.tilings().filter(may_be).map(bound).collect();
        looked.push(Looked { bound: found.lower_bound.0, tiling, plan: Some(found.clone()) });
        bounded_by(&looked, budget, tiling.translated(found), WHOLE)
    }

    /// A plan with the lowest peak, whatever it takes.
    pub(crate) fn lowest(&self) -> Solution {
        match self.lowest_tiling() {
            Some(tiling) => tiling.translated(tiling.problem.lowest_alone()),
            None => self.lowest_alone(),
        }
    }

    /// The tiling with the lowest peak, if it is below that of single calls.
    ///
    /// No plan has a lower peak than its relaxation, so those with the lowest one are planned first, and the others only as long as
    /// theirs is below what was found.
    fn lowest_tiling(&self) -> Option<&Tiling> {
        let mut ways: Vec<(Bytes, Option<&Tiling>)> = vec![(self.lowest_relaxed(), None)];
        ways.extend(self.likely_tilings().into_iter().map(|tiling| (tiling.lowest(), Some(tiling))));
        ways.sort_by_key(|(lowest, _)| *lowest);
        let near = |lowest| if self.slots().len() <= FEW_TILINGS { lowest } else { nearly(lowest) };
        let (mut peak, mut best) = (Bytes(u64::MAX), None);
        for some in ways.chunks(AT_ONCE) {
            let some: Vec<_> = some.iter().filter(|(lowest, _)| near(*lowest) < peak).collect();
            if some.is_empty() {
                break;
            }
            let found = some.par_iter().map(|(_, way)| {
                let peak = way.map_or(self, |tiling| &tiling.problem).lowest_alone().replayed.peak;
                (peak, *way)
            });
            for (found, way) in found.collect::<Vec<_>>() {
                if found < peak {
                    (peak, best) = (found, way);
                }
            }
        }
        best
    }

    /// Tilings around the one whose relaxation has the lowest peak. It falls with the length of the runs, as fewer inputs are kept, and
    /// rises again, as more is made again at once: so lengths are looked at from the square root of the longest chain's on, in both
    /// directions, until it rises.
    fn likely_tilings(&self) -> Vec<&Tiling> {
        let slots = self.slots();
        if slots.len() <= FEW_TILINGS {
            return self.tilings().collect();
        }
        let longest = slots.last().map_or(0, |slot| slot.length);
        let middle = slots.partition_point(|slot| slot.length * slot.length < longest);
        let (shorter, longer) = slots.split_at(middle);
        let mut found = self.until_they_rise(longer.iter());
        found.extend(self.until_they_rise(shorter.iter().rev()));
        found
    }

    fn until_they_rise<'s>(&'s self, slots: impl Iterator<Item = &'s Slot>) -> Vec<&'s Tiling> {
        let mut found: Vec<&Tiling> = Vec::new();
        let (mut least, mut since) = (Bytes(u64::MAX), 0);
        for tiling in slots.filter_map(|slot| slot.tiling(self)) {
            found.push(tiling);
            since = if tiling.lowest() < least { 0 } else { since + 1 };
            least = least.min(tiling.lowest());
            if since >= RISES {
                break;
            }
        }
        found
    }

    /// What runs make of the answer for a budget that was found without them. [`Problem::promising`] tilings may be known.
    pub(crate) fn with_runs<'s>(
        &'s self,
        budget: Bytes,
        effort: Effort,
        alone: Option<Solution>,
        promising: Option<Vec<(f64, &'s Tiling)>>,
    ) -> Outcome {
        let limit = match &alone {
            Some(_) if effort.proof == 0 => 0.0,
            Some(found) => self.worth_with_runs(found.replayed.recompute.0),
            None => f64::INFINITY,
        };
        if limit <= 0.0
            && let Some(solution) = alone
        {
            return Outcome { verdict: Verdict::Planned, solution };
        }
        let (mut best, mut has_runs) = (alone, false);
        let mut looked: Vec<Looked> = Vec::new();
        let promising = promising.unwrap_or_else(|| self.promising(budget));
        for (at, (bound, tiling)) in promising.into_iter().enumerate() {
            let may_be = |best: &Solution| best.replayed.recompute.0 * (1.0 - WORTH) > bound;
            looked.push(Looked { bound, tiling, plan: None });
            if at >= effort.tilings || bound >= limit || !best.as_ref().is_none_or(may_be) {
                continue;
            }
            let Some(found) = tiling.problem.exact_alone(budget, effort, None) else { continue };
            looked[at] = Looked { bound: bound.max(found.lower_bound.0), tiling, plan: Some(found.clone()) };
            if best.as_ref().is_none_or(|best| found.replayed.recompute.0 < best.replayed.recompute.0) {
                (best, has_runs) = (Some(tiling.translated(found)), true);
            }
        }
        if effort == WHOLE && (has_runs || best.is_none()) {
            let is_new = |tiling: &&Tiling| !looked.iter().any(|known| std::ptr::eq(known.tiling, *tiling));
            let others: Vec<&Tiling> = self.tilings().filter(is_new).collect();
            let known =
                others.into_iter().map(|tiling| Looked { bound: quick_bound(tiling, budget), tiling, plan: None });
            looked.extend(known);
        }
        let solution = match best {
            Some(best) if has_runs => bounded_by(&looked, budget, best, effort),
            Some(best) => best,
            None => {
                let least = if effort.proof > 0 { self.least() } else { self.lowest() };
                if least.replayed.peak > budget {
                    return Outcome { verdict: Verdict::Infeasible, solution: least };
                }
                // Its bound is that of a smaller budget.
                bounded_by(&looked, budget, least, effort)
            }
        };
        Outcome { verdict: Verdict::Planned, solution }
    }

    /// Tilings with a solution for a budget and their bounds, the lowest first. Bounds fall with the length of the runs and then
    /// rise, a little unevenly: behind those that rise none is looked at.
    pub(crate) fn promising(&self, budget: Bytes) -> Vec<(f64, &Tiling)> {
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
        self.start_bytes() <= budget && self.likely_tilings().iter().any(|tiling| tiling.lowest() <= budget)
    }

    /// What decides about a run that was planned.
    pub(crate) fn planned_run(&self, region: RegionId) -> Option<Arc<Candidate>> {
        let made = self.tilings.get()?.iter().filter_map(|slot| slot.tiling.get()?.as_ref());
        made.into_iter().find_map(|tiling| tiling.candidate(region))
    }

    /// The bound that a tiling must be below to be worth a plan, beside one of single calls that takes so long; 0 if none is.
    fn worth_with_runs(&self, time: f64) -> f64 {
        if !self.limits.runs {
            return 0.0;
        }
        if time > DEAR * self.forward_time() { time * (1.0 - WORTH) } else { 0.0 }
    }

    /// Whether every plan of single calls is dear, or there is none.
    pub(crate) fn is_dear(&self, budget: Bytes) -> bool {
        let bound = || exact::quick_bound(self, budget.0);
        self.limits.runs && bound().is_none_or(|bound| bound > DEAR * self.forward_time())
    }

    /// Time of all operators of forward.
    fn forward_time(&self) -> f64 {
        let forward = self.trace.ops().entries().filter(|(_, op)| op.phase == Phase::Forward);
        forward.map(|(id, _)| self.costs.time(id).0).sum()
    }

    /// By length of the runs, the shortest first.
    fn tilings(&self) -> impl Iterator<Item = &Tiling> {
        self.slots().iter().filter_map(|slot| slot.tiling(self))
    }

    fn slots(&self) -> &[Slot] {
        self.tilings.get_or_init(|| {
            if !self.limits.runs {
                return Vec::new();
            }
            let chains = long_chains(&self.trace);
            let longest = chains.iter().map(Vec::len).max().unwrap_or(0);
            let slot = |length| Slot { length, runs: tiles(&chains, length), tiling: OnceLock::new() };
            lengths(longest).map(slot).collect()
        })
    }
}

/// A peak that is larger by so little that a search may not tell the two apart.
fn nearly(peak: Bytes) -> Bytes {
    Bytes(peak.0.saturating_add(peak.0 / SAME_PEAK))
}

/// What is known about a tiling and a budget.
struct Looked<'a> {
    /// None of its plans within the budget takes less.
    bound: f64,
    tiling: &'a Tiling,
    /// The plan that was found, if it was planned.
    plan: Option<Solution>,
}

/// A plan with a bound for those of all tilings that may be within the budget.
fn bounded_by(looked: &[Looked], budget: Bytes, solution: Solution, effort: Effort) -> Solution {
    let time = solution.replayed.recompute.0;
    let mut lower_bound = time;
    for Looked { bound, tiling, plan } in looked {
        let mut bound = *bound;
        let near = plan.as_ref().map_or(&[][..], |plan| &plan.checkpoints);
        // Whatever can be shown for its own plan is shown.
        let is_known = plan.as_ref().is_some_and(|plan| plan.replayed.recompute.0 <= time);
        if bound < lower_bound * (1.0 - NEAR) && effort.proof > 0 && !is_known {
            let work = effort.proof / UNPLANNED;
            bound = bound.max(tiling.problem.proven_bound(budget, near, (bound, lower_bound), work));
        }
        lower_bound = lower_bound.min(bound);
    }
    Solution { lower_bound: Millis(lower_bound), ..solution }
}

/// A bound for all plans of a tiling within a budget.
fn quick_bound(tiling: &Tiling, budget: Bytes) -> f64 {
    exact::quick_bound(&tiling.problem, budget.0).unwrap_or(f64::INFINITY)
}

/// The lengths of runs that are tried for chains of so many calls: 2, 3, 4, 6, 8, 12, …, up to the longest chain.
fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    let powers = (2..).map(|half: u32| {
        let power = 1_usize << (half / 2).min(40);
        if half.is_multiple_of(2) { power } else { power + power / 2 }
    });
    powers.take_while(move |length| *length <= longest)
}
