//! Every plan keeps its promise, on real models.

use std::time::Instant;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Outcome, Problem};
use rematic_trace::Bytes;

/// Times that differ by a smaller share are equal: the planner adds them in another order than the replay.
const SAME: f64 = 1e-9;

/// Plans for so many budgets from 95 % of the baseline to the least reachable.
fn keeps_its_promises(name: &str, layers: Option<u64>, world_size: u64, budgets: u64) {
    let model = Model::builtin(name).unwrap().with(&Options { layers, ..Options::default() }).unwrap();
    let trace = model.trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let problem = Problem::new(&trace, &costs, Limits { world_size, ..Limits::default() }).unwrap();
    let start = Instant::now();
    let least = problem.least().replayed.peak.0;
    let found_least = start.elapsed();
    let most = problem.baseline().peak.0 / 100 * 95;
    assert!(least < most, "{name}: nothing to plan between {least} and {most}");
    let (mut last, mut worst_gap, mut worst_rise, mut at_bound) = (f64::INFINITY, 0.0_f64, 0.0_f64, 0);
    let start = Instant::now();
    for part in 0..budgets {
        let budget = least + (most - least) * part / (budgets - 1);
        let Outcome::Planned(solution) = problem.exact(Bytes(budget)) else {
            panic!("{name}: no plan for {budget}, least {least}")
        };
        let (time, bound) = (solution.replayed.recompute.0, solution.lower_bound.0);
        assert_eq!(solution.replayed, problem.replay(&solution.checkpoints));
        assert!(solution.replayed.peak.0 <= budget, "{name}: {} above {budget}", solution.replayed.peak.0);
        assert!(time >= bound * (1.0 - SAME), "{name} at {budget}: {time} below its bound {bound}");
        worst_gap = worst_gap.max(time / bound - 1.0);
        worst_rise = worst_rise.max(time / last - 1.0);
        at_bound += u64::from(time <= bound * (1.0 + SAME));
        last = time;
        if std::env::var_os("REMATIC_ALL").is_some() {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("  {budget} {time} {bound}\n"));
        }
    }
    if std::env::var_os("REMATIC_FIGURES").is_some() {
        let text = format!(
            "{name}: {at_bound} of {budgets} at the bound, worst gap {:.3} %, worst rise {:.4} %, least in {found_least:?}, {:?} a plan\n",
            100.0 * worst_gap,
            100.0 * worst_rise,
            start.elapsed() / u32::try_from(budgets).unwrap()
        );
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{text}"));
    }
    assert!(worst_rise <= SAME, "{name}: a larger budget costs {worst_rise} more");
}

#[test]
fn seed_transformer() {
    keeps_its_promises("seed-transformer", None, 1, 8);
}

#[test]
fn gpt2() {
    keeps_its_promises("gpt2", Some(4), 1, 6);
}

#[test]
fn llama() {
    keeps_its_promises("llama-3-8b", Some(4), 8, 6);
}

#[test]
fn qwen() {
    keeps_its_promises("qwen3-8b", Some(4), 8, 6);
}

/// `cargo test --release -p rematic-plan --test promises -- --ignored`
#[test]
#[ignore = "all layers, 20 budgets"]
fn in_full() {
    for (name, world_size) in [("seed-transformer", 1), ("gpt2", 1), ("llama-3-8b", 8), ("qwen3-8b", 8)] {
        keeps_its_promises(name, None, world_size, 20);
    }
}
