//! Plans with runs of calls, against every one there is: each way to cut the chains of a small random model, with every policy.

use rematic_cost::{CostRule, Costs, Device};
use rematic_plan::{Limits, Problem};
use rematic_replay::{Allocator, Chain, Checkpoint, RegionId, Regions, chains, long_chains, tiles};
use rematic_trace::{Bytes, StepTrace, Verdict};

use crate::SAME;
use crate::model::{self, Dice};
use crate::plans::Plans;

/// Every way to cut a chain into parts.
fn cuts(chain: &Chain) -> Vec<Vec<Chain>> {
    let cut = |borders: usize| {
        let mut parts: Vec<Chain> = Vec::new();
        for (at, &call) in chain.iter().enumerate() {
            match parts.last_mut() {
                Some(part) if borders >> (at - 1) & 1 == 0 => part.push(call),
                _ => parts.push(vec![call]),
            }
        }
        parts
    };
    (0..1 << (chain.len() - 1)).map(cut).collect()
}

/// All plans in which the chains of calls are cut like this, as plans of the problem.
fn plans_with(
    trace: &StepTrace,
    costs: &Costs,
    limits: &Limits,
    problem: &Problem,
    runs: Vec<Chain>,
    most: usize,
) -> Option<Plans> {
    let regions = Regions::with_runs(trace, runs);
    let mut singles = problem.regions().all().ids();
    let ids: Vec<RegionId> = regions
        .all()
        .iter()
        .map(|region| match region.then.is_empty() {
            true => singles.next().unwrap(),
            false => problem.regions().add(region.clone()),
        })
        .collect();
    Plans::of(trace, costs, limits, problem, &regions, &ids, most)
}

/// Every way to cut all chains.
fn all_cuts(chains: &[Chain]) -> Vec<Vec<Chain>> {
    let mut all = vec![Vec::new()];
    for chain in chains {
        let cuts = cuts(chain);
        let with_each = |before: Vec<Chain>| cuts.iter().map(move |cut| [before.clone(), cut.clone()].concat());
        all = all.into_iter().flat_map(with_each).collect();
    }
    all
}

/// What is compared on one model: how many budgets there were, and how many of their plans have runs.
fn compare(seed: u64, most: usize) -> Option<(usize, usize)> {
    let trace = if seed.is_multiple_of(2) { model::chain(seed)? } else { model::step(seed)? };
    let found = long_chains(&trace);
    if found.is_empty() || found.iter().map(Vec::len).sum::<usize>() > 8 {
        return None;
    }
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let allocator = [Allocator::Cuda, Allocator::Cpu][Dice::new(seed).roll(2)];
    let limits = Limits { allocator, ..Limits::default() };
    let problem = Problem::new(trace.clone(), costs.clone(), limits.clone()).unwrap();
    let without = Problem::new(trace.clone(), costs.clone(), Limits { runs: false, ..limits.clone() }).unwrap();
    let with = |runs: Vec<Chain>| plans_with(&trace, &costs, &limits, &problem, runs, most);
    let single = with(Vec::new())?;
    let all: Option<Vec<Plans>> = all_cuts(&found).into_iter().map(with).collect();
    let (all, longest) = (all?, found.iter().map(Vec::len).max()?);
    let tiled: Option<Vec<Plans>> = [2, 3, 4, 6, 8]
        .into_iter()
        .filter(|length| *length <= longest)
        .map(|length| with(tiles(&found, length)))
        .collect();
    let tiled = tiled?;
    let (baseline, least) = (problem.baseline().peak.0, all.iter().map(Plans::least_peak).min()?);
    let best = |plans: &[Plans], budget: u64| {
        let times = plans.iter().filter_map(|plans| plans.best(budget)).map(|plan| plan.1);
        times.min_by(f64::total_cmp)
    };
    let (mut budgets, mut planned_runs) = (0, 0);
    for part in 0..=16 {
        let budget = least.saturating_sub(least / 50) + (baseline - least) * part / 16;
        let at = format!("seed {seed}, budget {budget} of {least}..{baseline}");
        let outcome = problem.exact(Bytes(budget));
        let alone = without.exact(Bytes(budget));
        assert!(outcome.solution.replayed == problem.replay(&outcome.solution.checkpoints), "{at}: not as replayed");
        budgets += 1;
        let has_runs =
            |plan: &[Checkpoint]| plan.iter().any(|one| !problem.regions().region(one.region).then.is_empty());
        match outcome.verdict {
            Verdict::Fits => assert!(baseline <= budget, "{at}"),
            Verdict::Planned => {
                let (time, bound) = (outcome.solution.replayed.recompute.0, outcome.solution.lower_bound.0);
                assert!(outcome.solution.replayed.peak.0 <= budget, "{at}: above the budget");
                let optimum = best(&all, budget).expect(&at);
                assert!(time >= optimum * (1.0 - SAME), "{at}: {time} is below the optimum {optimum}");
                if alone.verdict == Verdict::Planned {
                    assert!(
                        time <= alone.solution.replayed.recompute.0 * (1.0 + SAME),
                        "{at}: worse than without runs"
                    );
                } else {
                    let reachable = best(&tiled, budget).expect(&at);
                    assert!(time <= reachable * (1.0 + SAME), "{at}: {time}, but {reachable} with runs of one length");
                }
                // With runs the bound is for all of one length, of those that are tried, and for single calls.
                let alone = best(std::slice::from_ref(&single), budget);
                let covered = if has_runs(&outcome.solution.checkpoints) {
                    planned_runs += 1;
                    best(&tiled, budget).into_iter().chain(alone).min_by(f64::total_cmp)
                } else {
                    alone
                };
                let covered = covered.expect(&at);
                assert!(bound <= covered * (1.0 + SAME), "{at}: bound {bound} above the optimum {covered}");
            }
            Verdict::Infeasible => {
                assert_eq!(alone.verdict, Verdict::Infeasible, "{at}");
                assert!(best(&tiled, budget).is_none(), "{at}: a plan with runs of one length fits");
                let lowest = tiled.iter().chain([&single]).map(Plans::least_peak).min().unwrap();
                assert_eq!(outcome.solution.replayed.peak.0, lowest, "{at}: the least budget");
            }
        }
    }
    Some((budgets, planned_runs))
}

fn run(seeds: std::ops::Range<u64>, most: usize) {
    let found: Vec<(usize, usize)> = seeds.filter_map(|seed| compare(seed, most)).collect();
    let budgets: usize = found.iter().map(|found| found.0).sum();
    let runs: usize = found.iter().map(|found| found.1).sum();
    if std::env::var_os("REMATIC_FIGURES").is_some() {
        let text = format!("{} models, {budgets} budgets, {runs} plans with runs\n", found.len());
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    }
    assert!(runs > 0, "{} models", found.len());
}

#[test]
fn runs_against_brute_force() {
    run(0..160, 3000);
}

/// `cargo test --release -p rematic-plan --test brute_force -- --ignored`
#[test]
#[ignore = "minutes"]
fn runs_against_brute_force_on_many() {
    run(1000..4000, 20_000);
}

#[test]
fn long_chains_are_parts_of_chains() {
    for trace in (0..40).filter_map(model::chain) {
        let all = chains(&trace);
        for long in long_chains(&trace) {
            assert!(all.iter().any(|chain| chain.windows(long.len()).any(|part| part == long)));
        }
    }
}
