//! Every plan there is, each one replayed.

use rematic_cost::Costs;
use rematic_plan::{Candidate, Candidates, Facts, Limits, Pricing, Problem};
use rematic_replay::{Checkpoint, Ledger, RegionId, Regions};
use rematic_trace::StepTrace;

/// Peak and time of recomputation of every plan.
pub(crate) struct Plans(Vec<(u64, f64, Vec<Checkpoint>)>);

impl Plans {
    /// All plans of a step, unless there are more than `most`.
    pub(crate) fn all(
        trace: &StepTrace,
        costs: &Costs,
        limits: &Limits,
        problem: &Problem,
        most: usize,
    ) -> Option<Plans> {
        let ids: Vec<RegionId> = problem.regions().all().ids().collect();
        Plans::of(trace, costs, limits, problem, problem.regions(), &ids, most)
    }

    /// The same for other regions, which are these of the problem.
    pub(crate) fn of(
        trace: &StepTrace,
        costs: &Costs,
        limits: &Limits,
        problem: &Problem,
        regions: &Regions,
        ids: &[RegionId],
        most: usize,
    ) -> Option<Plans> {
        let ledger = Ledger::new(trace, limits.allocator);
        let facts = Facts::new(trace);
        let mut look = Candidates::new(trace, &facts, regions, &ledger, costs).skipping(limits.may_skip());
        let candidates: Vec<Option<Candidate>> = regions
            .all()
            .iter()
            .map(|region| look.candidate(region, Pricing::Low))
            .map(|candidate| if limits.whole { candidate.map(Candidate::whole) } else { candidate })
            .collect();
        if candidates.iter().flatten().any(|candidate| candidate.items.len() > 12)
            || count(regions, &candidates, 0) > most
        {
            return None;
        }
        let mut plans = Plans(Vec::new());
        let mut chosen = Vec::new();
        plans.extend(problem, (regions, ids), &candidates, 0, &mut chosen);
        Some(plans)
    }

    fn extend(
        &mut self,
        problem: &Problem,
        (regions, ids): (&Regions, &[RegionId]),
        candidates: &[Option<Candidate>],
        at: usize,
        chosen: &mut Vec<Checkpoint>,
    ) {
        let Some(region) = regions.all().items().get(at) else {
            let replayed = problem.replay(chosen);
            self.0.push((replayed.peak.0, replayed.recompute.0, chosen.clone()));
            return;
        };
        self.extend(problem, (regions, ids), candidates, at + 1, chosen);
        let next = next(regions, at);
        let Some(candidate) = &candidates[at] else { return };
        for policy in 0..1_usize << candidate.items.len() {
            let picked = (0..candidate.items.len()).filter(|item| policy >> item & 1 == 1);
            chosen.push(candidate.checkpoint(ids[at], region.ops.start, picked));
            self.extend(problem, (regions, ids), candidates, next, chosen);
            chosen.pop();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn least_peak(&self) -> u64 {
        self.0.iter().map(|plan| plan.0).min().unwrap()
    }

    /// The least time of a plan within a budget.
    pub(crate) fn best(&self, budget: u64) -> Option<&(u64, f64, Vec<Checkpoint>)> {
        self.0.iter().filter(|plan| plan.0 <= budget).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Peaks of the plans that nothing beats, ascending: the budgets at which the optimum changes.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let mut order: Vec<(u64, f64)> = self.0.iter().map(|plan| (plan.0, plan.1)).collect();
        order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut least = f64::INFINITY;
        order.retain(|plan| {
            let better = plan.1 < least;
            least = least.min(plan.1);
            better
        });
        order.into_iter().map(|plan| plan.0).collect()
    }
}

/// The first region after one that does not lie inside it.
fn next(regions: &Regions, at: usize) -> usize {
    let inside = |index: usize| {
        let mut around = regions.all().items()[index].parent;
        while let Some(parent) = around {
            if parent.index() == at {
                return true;
            }
            around = regions.all()[parent].parent;
        }
        false
    };
    (at + 1..regions.all().len()).find(|&index| !inside(index)).unwrap_or(regions.all().len())
}

fn count(regions: &Regions, candidates: &[Option<Candidate>], at: usize) -> usize {
    if at >= candidates.len() {
        return 1;
    }
    let policies = candidates[at].as_ref().map_or(0, |candidate| 1_usize << candidate.items.len());
    let with = policies.saturating_mul(count(regions, candidates, next(regions, at)));
    count(regions, candidates, at + 1).saturating_add(with)
}
