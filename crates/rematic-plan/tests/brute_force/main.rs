//! The exact planner against every plan there is, on small random models.

mod model;
mod plans;
mod runs;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options, Recipe};
use rematic_layout::even_shards;
use rematic_plan::{Limits, Outcome, Problem};
use rematic_replay::Allocator;
use rematic_trace::{Bytes, Millis, StepTrace, Verdict};

use model::Dice;
use plans::Plans;

/// Times that differ by a smaller share are equal: the planner adds them in another order than the replay.
const SAME: f64 = 1e-9;

/// What was compared, and what differed.
#[derive(Default)]
struct Tally {
    models: usize,
    plans: usize,
    budgets: usize,
    equal: usize,
    feasible: usize,
    worst_gap: f64,
    worst_bound_gap: f64,
    faults: Vec<String>,
}

impl Tally {
    fn fault(&mut self, text: String) {
        self.faults.push(text);
    }
}

fn compare(seed: u64, step: impl Fn(u64) -> Option<StepTrace>, most: usize, tally: &mut Tally) {
    let Some(trace) = step(seed) else { return };
    assert_eq!(trace.validate(), Ok(()), "seed {seed}");
    let mut dice = Dice::new(seed ^ 0x5eed);
    let device = Device::find(["a100-80", "h100"][dice.roll(2)]).unwrap();
    let costs = Costs::new(&trace, &device, CostRule::Physical).unwrap();
    let allocator = [Allocator::Cuda, Allocator::Cpu][dice.roll(2)];
    let trace = even_shards(&trace, 1 + dice.roll(3) as u64).unwrap().into_owned();
    let limits = Limits { allocator, whole: dice.roll(8) == 0, runs: false, ..Limits::default() };
    let problem = Problem::new(trace.clone(), costs.clone(), limits.clone()).unwrap();
    let Some(plans) = Plans::all(&trace, &costs, &limits, &problem, most) else { return };
    judge(&format!("seed {seed}"), &problem, &plans, tally);
}

/// The planner's answers for many budgets, beside all plans.
fn judge(name: &str, problem: &Problem, plans: &Plans, tally: &mut Tally) {
    let (baseline, least) = (problem.baseline().peak.0, plans.least_peak());
    if least == baseline {
        return;
    }
    tally.models += 1;
    tally.plans += plans.count();
    for budget in budgets(plans, baseline, least) {
        tally.budgets += 1;
        let at = format!("{name}, budget {budget} of {least}..{baseline}");
        if baseline > budget {
            relaxation(problem, plans, budget, &at, tally);
        }
        let Outcome { verdict, solution } = problem.exact(Bytes(budget));
        match (verdict, plans.best(budget)) {
            (Verdict::Fits, _) => {
                tally.equal += 1;
                if baseline > budget {
                    tally.fault(format!("{at}: said to fit"));
                }
            }
            (Verdict::Planned, Some((_, best, best_plan))) => {
                let (time, bound) = (solution.replayed.recompute.0, solution.lower_bound.0);
                if solution.replayed != problem.replay(&solution.checkpoints) {
                    tally.fault(format!("{at}: not what the replay says"));
                }
                if solution.replayed.peak.0 > budget {
                    tally.fault(format!("{at}: above the budget"));
                }
                if bound > best * (1.0 + SAME) {
                    tally.fault(format!("{at}: bound {bound} above the optimum {best}: {best_plan:?}"));
                }
                if time < best * (1.0 - SAME) {
                    tally.fault(format!("{at}: {time} is below the optimum {best}"));
                }
                tally.feasible += 1;
                tally.worst_gap = tally.worst_gap.max(time / best - 1.0);
                if (time / best - 1.0).abs() <= SAME || time == *best {
                    tally.equal += 1;
                } else {
                    tally.fault(format!("{at}: takes {time}, the optimum {best} (bound {bound}): {best_plan:?}"));
                }
            }
            (Verdict::Planned, None) => tally.fault(format!("{at}: planned what no plan reaches")),
            (Verdict::Infeasible, best) => {
                if let Some((_, best, best_plan)) = best {
                    tally.fault(format!("{at}: infeasible, but {best} does: {best_plan:?}"));
                } else if solution.replayed.peak.0 != least {
                    tally.fault(format!("{at}: least said to be {}", solution.replayed.peak.0));
                } else {
                    tally.equal += 1;
                }
            }
        }
    }
}

/// The relaxation by itself, which enumeration hides from small problems.
fn relaxation(problem: &Problem, plans: &Plans, budget: u64, at: &str, tally: &mut Tally) {
    let Some((_, best, best_plan)) = plans.best(budget) else { return };
    let other = plans.best(problem.baseline().peak.0).map_or(&best_plan[..], |(_, _, plan)| plan);
    for (known, near) in [(*best, &best_plan[..]), (*best, other), (3.0 * best, &[])] {
        let bound = problem.bound_by_moments(Bytes(budget), Millis(known), near).0;
        if bound > best * (1.0 + SAME) {
            tally.fault(format!("{at}: the bound by moments says {bound}, the optimum is {best}: {best_plan:?}"));
        }
    }
    match problem.lower_bound(Bytes(budget)) {
        Some(bound) if bound.0 <= best * (1.0 + SAME) => {
            tally.worst_bound_gap = tally.worst_bound_gap.max(best - bound.0);
        }
        bound => tally.fault(format!("{at}: relaxation says {bound:?}, the optimum is {best}: {best_plan:?}")),
    }
}

/// From the baseline to below the least peak, and where the optimum changes.
fn budgets(plans: &Plans, baseline: u64, least: u64) -> Vec<u64> {
    let mut budgets: Vec<u64> = (0..6).map(|part| least + (baseline - least) * part / 5).collect();
    let steps = plans.steps();
    budgets.extend((0..6).map(|part| steps[(steps.len() - 1) * part / 5]));
    budgets.extend([least - 1, least - least / 50]);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

fn run(seeds: std::ops::Range<u64>, step: impl Fn(u64) -> Option<StepTrace>, most: usize) {
    let mut tally = Tally::default();
    for seed in seeds {
        compare(seed, &step, most, &mut tally);
    }
    report(&tally);
}

fn report(tally: &Tally) {
    let summary = format!(
        "{} models, {} plans, {} budgets, {} equal, worst gap {:.3} %, worst distance of the relaxation's bound and the optimum {:.3} ms",
        tally.models,
        tally.plans,
        tally.budgets,
        tally.equal,
        100.0 * tally.worst_gap,
        tally.worst_bound_gap
    );
    if std::env::var_os("REMATIC_FIGURES").is_some() {
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{summary}\n"));
    }
    assert!(tally.faults.is_empty(), "{summary}; {} faults:\n{}", tally.faults.len(), tally.faults.join("\n"));
    assert!(tally.models > 0);
}

#[test]
fn equals_brute_force() {
    run(0..150, model::step, 3000);
}

#[test]
fn equals_brute_force_where_memory_is_changed_in_place() {
    run(0..150, |seed| model::step_in_place(seed, 6), 3000);
}

/// Regions as a whole, so that there are few plans: what counts is what one micro-batch leaves to the next.
#[test]
fn equals_brute_force_on_micro_batches() {
    let mut tally = Tally::default();
    for (name, layers, accumulate) in [("seed-transformer", 2, 2), ("seed-transformer", 1, 3), ("gpt2", 2, 2)] {
        let recipe = Recipe { accumulate: Some(accumulate), ..Recipe::default() };
        let options = Options { layers: Some(layers), recipe, ..Options::default() };
        let trace = Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
        let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
        let limits = Limits { whole: true, runs: false, ..Limits::default() };
        let problem = Problem::new(trace.clone(), costs.clone(), limits.clone()).unwrap();
        let plans = Plans::all(&trace, &costs, &limits, &problem, 30_000).unwrap();
        judge(&format!("{accumulate} micro-batches of {name}"), &problem, &plans, &mut tally);
    }
    report(&tally);
}

/// `cargo test --release -p rematic-plan --test brute_force -- --ignored`
#[test]
#[ignore = "minutes"]
fn equals_brute_force_on_many() {
    run(1000..3000, model::step, 30_000);
}

#[test]
#[ignore = "minutes"]
fn equals_brute_force_on_many_that_change_in_place() {
    run(1000..3000, |seed| model::step_in_place(seed, 6), 30_000);
}
