//! Runs of calls as regions.
//!
//! A region that is one call keeps the call's inputs. A run of k calls keeps those of the first alone, so runs reach budgets that
//! single calls do not, and make more again at once. Which calls go together is decided for all at once: a [`Tiling`] cuts every
//! [chain](rematic_replay::long_chains) into runs of one length, one more level in the tree of regions, and is planned like any
//! step; single calls and what is inside them can still be chosen there. Lengths are tried where single calls do not reach the
//! budget or are dear.

use std::sync::Arc;

use rematic_replay::{Checkpoint, RegionId, Regions, long_chains, tiles};
use rematic_trace::{Bytes, Phase, Table, Verdict};

use crate::exact;
use crate::planner::{Effort, Outcome, Solution};
use crate::problem::{Limits, Problem};
use crate::region::Candidate;

/// A plan that recomputes more than this share of the forward is dear.
const DEAR: f64 = 0.5;

/// The step with every chain cut into runs of one length.
pub(crate) struct Tiling {
    problem: Problem,
    /// Its regions, among those of the problem that it was made for.
    regions: Table<RegionId, RegionId>,
    /// No plan has a lower peak.
    lowest: Bytes,
}

impl Tiling {
    fn new(base: &Problem, runs: Vec<Vec<rematic_trace::CallId>>) -> Option<Self> {
        let regions = Regions::with_runs(&base.trace, runs);
        let mut singles = base.regions().all().ids();
        let ids = regions.all().iter().map(|region| {
            if region.then.is_empty() { singles.next() } else { Some(base.regions().add(region.clone())) }
        });
        let ids: Option<Table<RegionId, RegionId>> = ids.collect();
        let limits = Limits { runs: false, ..base.limits.clone() };
        let problem = Problem::with_regions(Arc::clone(&base.trace), Arc::clone(&base.costs), limits, regions).ok()?;
        let lowest = exact::lowest(&problem);
        Some(Tiling { problem, regions: ids?, lowest })
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
        let mut best = self.least_alone();
        let mut tilings: Vec<&Tiling> = self.tilings().iter().collect();
        tilings.sort_by_key(|tiling| tiling.lowest);
        for tiling in tilings {
            if tiling.lowest >= best.replayed.peak {
                break;
            }
            let found = tiling.problem.least_alone();
            if found.replayed.peak < best.replayed.peak {
                best = tiling.translated(found);
            }
        }
        best
    }

    /// What runs make of the answer for a budget that was found without them.
    pub(crate) fn with_runs(&self, budget: Bytes, effort: Effort, alone: Outcome) -> Outcome {
        let fits = alone.verdict == Verdict::Planned;
        if fits && alone.solution.replayed.recompute.0 <= DEAR * self.forward_time() {
            return alone;
        }
        let mut best = fits.then_some(alone.solution);
        let bound = |tiling: &Tiling| tiling.problem.lower_bound(budget).map(|bound| bound.0);
        let within = self.tilings().iter().filter(|tiling| tiling.lowest <= budget);
        let mut tilings: Vec<(f64, &Tiling)> = within.filter_map(|tiling| Some((bound(tiling)?, tiling))).collect();
        tilings.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        for (bound, tiling) in tilings {
            if best.as_ref().is_some_and(|best| best.replayed.recompute.0 <= bound) {
                break;
            }
            let found = tiling.problem.exact_with(budget, effort);
            let better = |best: &Solution| found.solution.replayed.recompute.0 < best.replayed.recompute.0;
            if found.verdict == Verdict::Planned && best.as_ref().is_none_or(better) {
                best = Some(tiling.translated(found.solution));
            }
        }
        match best {
            Some(solution) => Outcome { verdict: Verdict::Planned, solution },
            None => {
                let solution = self.least();
                let fits = solution.replayed.peak <= budget;
                Outcome { verdict: if fits { Verdict::Planned } else { Verdict::Infeasible }, solution }
            }
        }
    }

    /// Whether the relaxation of a tiling has a solution for a budget.
    pub(crate) fn runs_may_be_within(&self, budget: Bytes) -> bool {
        self.tilings().iter().any(|tiling| tiling.lowest <= budget)
    }

    /// What decides about a run that was planned.
    pub(crate) fn planned_run(&self, region: RegionId) -> Option<Arc<Candidate>> {
        self.tilings.get()?.iter().find_map(|tiling| tiling.candidate(region))
    }

    /// Time of all operators of forward.
    fn forward_time(&self) -> f64 {
        let forward = self.trace.ops().entries().filter(|(_, op)| op.phase == Phase::Forward);
        forward.map(|(id, _)| self.costs.time(id).0).sum()
    }

    fn tilings(&self) -> &[Tiling] {
        self.tilings.get_or_init(|| {
            if !self.limits.runs {
                return Vec::new();
            }
            let chains = long_chains(&self.trace);
            let longest = chains.iter().map(Vec::len).max().unwrap_or(0);
            lengths(longest).filter_map(|length| Tiling::new(self, tiles(&chains, length))).collect()
        })
    }
}

/// The lengths of runs that are tried for chains of so many calls: each about 1.4 times the one before, up to half a chain and the whole of it.
fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    let powers = (2..).map(|half: u32| {
        let power = 1_usize << (half / 2).min(40);
        if half % 2 == 0 { power } else { power + power / 2 }
    });
    powers.take_while(move |length| *length <= longest)
}
