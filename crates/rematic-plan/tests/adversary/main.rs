//! What an annealer on the replay finds, the exact planner finds too: the short version of `tests/adversary`.

#[path = "../../examples/adversary/annealer.rs"]
mod annealer;
#[path = "../brute_force/model.rs"]
mod model;

use std::path::Path;

use annealer::{Annealer, Dice, Effort, Goal};
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::Optimizer;
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Problem};
use rematic_trace::{Bytes, StepTrace, Verdict};

fn costs(trace: &StepTrace) -> Costs {
    Costs::new(trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap()
}

fn problem(trace: &StepTrace) -> Problem {
    Problem::new(trace.clone(), costs(trace), Limits::default()).unwrap()
}

fn file(name: &str) -> StepTrace {
    StepTrace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adversary").join(name)).unwrap()
}

fn builtin(name: &str, layers: u64) -> StepTrace {
    let options = Options { layers: Some(layers), optimizer: Some(Optimizer::Adam), ..Options::default() };
    Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap()
}

/// Budgets from the least that can be reached to just below the step as it is.
fn budgets(problem: &Problem, count: u64) -> Vec<Bytes> {
    let (low, high) = (problem.least().replayed.peak.0, problem.baseline().peak.0);
    (0..count).map(|part| Bytes(low + (high - low) * part / count)).filter(|budget| budget.0 < high).collect()
}

#[test]
fn plans_are_as_good_as_the_best_that_are_known() {
    let known =
        [(file("nest8.rmt.zst"), 130_926_182, 0.003_414_455), (builtin("llama-3-8b", 4), 20_281_959_936, 3.999_325)];
    for (trace, budget, best) in known {
        let outcome = problem(&trace).exact(Bytes(budget));
        assert_eq!(outcome.verdict, Verdict::Planned);
        let time = outcome.solution.replayed.recompute.0;
        assert!(time <= best, "{} at {budget} B: {time} ms, {best} ms is known", trace.origin.model);
    }
}

/// Attacks the plans of a step for some budgets, and the one with the lowest peak; says how many attacks that were.
fn attack(name: &str, trace: &StepTrace, seed: u64) -> usize {
    let problem = problem(trace);
    if problem.regions().all().is_empty() {
        return 0;
    }
    let costs = costs(trace);
    let annealer = Annealer::new(&problem, trace, &costs, &Limits::default());
    let effort = Effort::Replays(1500);
    let mut attacks = 0;
    for budget in budgets(&problem, 2) {
        let plan = problem.exact(budget).solution;
        let goal = if plan.replayed.peak > budget { Goal::Peak } else { Goal::Time(budget) };
        let Some(found) = annealer.attack(goal, &plan.checkpoints, effort, seed) else { continue };
        attacks += 1;
        let (time, least) = (plan.replayed.recompute.0, found.recompute.0);
        assert!(least >= 0.99 * time, "{name}, {} B: {time} ms, {least} ms was found", budget.0);
    }
    let least = problem.least();
    let found = annealer.attack(Goal::Peak, &least.checkpoints, effort, seed).unwrap();
    assert!(found.peak.0 as f64 >= 0.999 * least.replayed.peak.0 as f64, "{name}: {found:?}");
    attacks
}

#[test]
fn an_annealer_beats_no_plan_by_more_than_a_percent() {
    let plain = (300..318).map(|seed| (seed, model::step_with(seed, 20)));
    let in_place = (300..308).map(|seed| (seed, model::step_in_place(seed, 20)));
    let mut attacks = attack("nest8", &file("nest8.rmt.zst"), 1);
    for (seed, trace) in plain.chain(in_place) {
        attacks += trace.map_or(0, |trace| attack(&format!("seed {seed}"), &trace, seed));
    }
    assert!(attacks > 20, "{attacks}");
}

#[test]
fn bounds_are_near() {
    let mut traces = vec![builtin("gpt2", 2), builtin("llama-3-8b", 4), file("nest8.rmt.zst")];
    traces.extend((300..312).filter_map(|seed| model::step_in_place(seed, 20)));
    let mut gaps = Vec::new();
    for trace in traces {
        // With runs, every length of them has a bound of its own, and the lowest counts.
        let limits = Limits { runs: false, ..Limits::default() };
        let problem = Problem::new(trace.clone(), costs(&trace), limits).unwrap();
        for budget in budgets(&problem, 5) {
            let plan = problem.exact(budget).solution;
            let gap = 1.0 - plan.lower_bound.0 / plan.replayed.recompute.0;
            assert!((0.0..0.05).contains(&gap), "{} at {} B: {gap}", trace.origin.model, budget.0);
            gaps.push(gap);
        }
    }
    gaps.sort_by(f64::total_cmp);
    assert!(gaps[gaps.len() / 2] < 1e-4, "{gaps:?}");
}

#[test]
fn greedy_is_never_better_at_the_same_peak() {
    for trace in [builtin("gpt2", 2), builtin("llama-3-8b", 2), file("nest8.rmt.zst")] {
        let problem = problem(&trace);
        for budget in budgets(&problem, 5) {
            let greedy = problem.greedy(budget);
            if greedy.verdict == Verdict::Planned {
                let exact = problem.exact(greedy.solution.replayed.peak).solution.replayed.recompute.0;
                let greedy = greedy.solution.replayed.recompute.0;
                assert!(exact <= greedy * (1.0 + 1e-9), "{} at {} B: {exact}, {greedy}", trace.origin.model, budget.0);
            }
        }
    }
}

/// Plans for budgets, the smallest first: none takes longer than one before.
fn never_rises(trace: &StepTrace, problem: &Problem, budgets: impl IntoIterator<Item = Bytes>) {
    let mut last = f64::INFINITY;
    for budget in budgets {
        let time = problem.exact(budget).solution.replayed.recompute.0;
        assert!(
            time <= last * (1.0 + 1e-9),
            "{} at {} B: {time} ms, less takes {last} ms",
            trace.origin.model,
            budget.0
        );
        last = time;
    }
}

#[test]
fn time_never_rises_with_the_budget() {
    let mut traces = vec![builtin("gpt2", 3), builtin("llama-3-8b", 3), file("nest8.rmt.zst")];
    let mut dice = Dice::new(7);
    traces.extend((0..6).filter_map(|_| model::step_with(1000 + dice.roll(1000) as u64, 20)));
    for trace in traces {
        let problem = problem(&trace);
        never_rises(&trace, &problem, budgets(&problem, 9));
    }
    // Runs take less here long before single layers do not reach the budget.
    let trace = builtin("bert-base", 4);
    let problem = problem(&trace);
    never_rises(&trace, &problem, budgets(&problem, 50));
}

/// `cargo test --release -p rematic-plan --test adversary -- --ignored`
#[test]
#[ignore = "minutes"]
fn time_never_rises_on_fine_ladders() {
    for (name, layers) in [("bert-base", 12), ("t5-base", 6), ("qwen3-8b", 4), ("llama-3-8b", 8), ("gpt2", 12)] {
        let trace = builtin(name, layers);
        let problem = problem(&trace);
        let coarse = budgets(&problem, 50);
        never_rises(&trace, &problem, coarse.iter().copied());
        // Beside each other.
        for budget in coarse.into_iter().step_by(5) {
            never_rises(&trace, &problem, (0..6).map(|at| Bytes(budget.0 + (at << 20))));
        }
    }
}
