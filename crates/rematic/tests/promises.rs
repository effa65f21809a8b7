//! Every plan keeps its promise, on real models.

use std::time::Instant;

use rematic::replay_milp;
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_layout::even_shards;
use rematic_plan::{Limits, Outcome, Problem};
use rematic_replay::{Allocator, Timeline};
use rematic_torch::{MilpOptions, MilpOutcome, ModuleGraph, StepStats, Tradeoffs, milp};
use rematic_trace::{Bytes, Millis, StepTrace, Verdict};

/// Times that differ by a smaller share are equal: the planner adds them in another order than the replay.
const SAME: f64 = 1e-9;

/// Plans for so many budgets from 95 % of the baseline to the least reachable.
fn keeps_its_promises(name: &str, layers: Option<u64>, world_size: u64, budgets: u64) {
    let model = Model::builtin(name).unwrap().with(&Options { layers, ..Options::default() }).unwrap();
    let trace = model.trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let rank = even_shards(&trace, world_size).unwrap();
    let problem = Problem::new(rank.into_owned(), costs.clone(), Limits::default()).unwrap();
    let start = Instant::now();
    let least = problem.least().replayed.peak.0;
    let found_least = start.elapsed();
    let most = problem.baseline().peak.0 / 100 * 95;
    assert!(least < most, "{name}: nothing to plan between {least} and {most}");
    let (mut last, mut worst_gap, mut worst_rise, mut at_bound) = (f64::INFINITY, 0.0_f64, 0.0_f64, 0);
    let start = Instant::now();
    for part in 0..budgets {
        let budget = least + (most - least) * part / (budgets - 1);
        let Outcome { verdict: Verdict::Planned, solution } = problem.exact(Bytes(budget)) else {
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
    let by_greedy = (0..budgets).map(|part| Bytes(least + (most - least) * part / (budgets - 1)));
    beats(name, "greedy", &problem, against_greedy(&problem, by_greedy));
    if layers.is_none() {
        beats(name, "milp", &problem, against_milp(&problem, &trace, &costs, world_size, budgets));
    }
}

/// Plans of another planner, each as its replayed peak and time.
type Others = Vec<(Bytes, Millis)>;

fn against_greedy(problem: &Problem, budgets: impl Iterator<Item = Bytes>) -> Others {
    let planned = |budget: Bytes| match problem.greedy(budget) {
        Outcome { verdict: Verdict::Planned, solution } => Some((budget, solution.replayed.recompute)),
        _ => None,
    };
    budgets.filter_map(planned).collect()
}

/// Torch's model of the peak is another one: budgets are parts of what it says, and its plans are taken at the peak that
/// they really have.
fn against_milp(problem: &Problem, trace: &StepTrace, costs: &Costs, world_size: u64, budgets: u64) -> Others {
    let stats = StepStats::new(trace, &Timeline::replay(trace, Allocator::Cuda), costs);
    let tradeoffs = Tradeoffs::new(trace, costs, Allocator::Cuda).unwrap();
    let graph = ModuleGraph::new(trace, &stats, &tradeoffs);
    let world_size = u32::try_from(world_size).unwrap();
    let planned = |part: u64| {
        let mut options = MilpOptions::new(Bytes(graph.peak(world_size).0 / (2 * budgets) * (budgets + part)));
        options.world_size = world_size;
        let MilpOutcome::Planned(plan) = milp(&graph, &options).unwrap() else { return None };
        let replayed = replay_milp(problem, &plan, &tradeoffs).unwrap().replayed;
        Some((replayed.peak, replayed.recompute))
    };
    (0..budgets).filter_map(planned).collect()
}

/// The exact planner's time for the same peaks is never above the other's.
fn beats(name: &str, other: &str, problem: &Problem, plans: Others) {
    assert!(!plans.is_empty(), "{name}: {other} plans nothing");
    let mut shares: Vec<f64> = plans
        .into_iter()
        .map(|(peak, theirs)| {
            let Outcome { verdict, solution } = problem.exact(peak);
            assert_ne!(verdict, Verdict::Infeasible, "{name}, {peak}: infeasible, but {other} has a plan");
            let ours = solution.replayed.recompute;
            assert!(ours.0 <= theirs.0 * (1.0 + SAME), "{name}, {peak}: {ours} above the {theirs} of {other}");
            if verdict == Verdict::Fits { 0.0 } else { ours.0 / theirs.0 }
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    if std::env::var_os("REMATIC_FIGURES").is_some() {
        let less = |share: f64| 100.0 * (1.0 - share);
        let text = format!(
            "{name}: {} plans of {other}; less recomputation by {:.1} % (median), {:.1} % to {:.1} %\n",
            shares.len(),
            less(shares[shares.len() / 2]),
            less(shares[shares.len() - 1]),
            less(shares[0]),
        );
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{text}"));
    }
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

/// `cargo test --release -p rematic --test promises -- --ignored`
#[test]
#[ignore = "all layers, 20 budgets"]
fn in_full() {
    for (name, world_size) in [("seed-transformer", 1), ("gpt2", 1), ("llama-3-8b", 8), ("qwen3-8b", 8)] {
        keeps_its_promises(name, None, world_size, 20);
    }
}

#[test]
fn moments_have_the_peaks_of_both_replays() {
    let trace = Model::builtin("seed-transformer").unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let problem = Problem::new(trace.clone(), costs.clone(), Limits::default()).unwrap();
    let solution = problem.least();
    let moments = problem.moments(&solution.checkpoints);
    assert_eq!(moments.len(), trace.ops().len() + solution.replayed.recomputed.len());
    assert_eq!(moments.iter().map(|moment| moment.before).max(), Some(problem.baseline().peak));
    assert_eq!(moments.iter().map(|moment| moment.after).max(), Some(solution.replayed.peak));
    assert!(moments.is_sorted_by_key(|moment| moment.phase), "what is recomputed belongs to backward");
    let plain = problem.moments(&[]);
    assert!(plain.iter().all(|moment| moment.before == moment.after));
    let totals: Vec<Bytes> = plain.iter().map(|moment| moment.after).collect();
    assert_eq!(totals, Timeline::replay(&trace, Allocator::Cuda).totals());
}
