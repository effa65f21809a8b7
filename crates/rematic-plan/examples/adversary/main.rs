//! Tries to beat the exact planner with an annealer on the replay: `tests/adversary [--seconds S] [--budgets N]
//! [--no-runs] [--cpu] CASE…`.
//!
//! A case is a trace file, a built-in model with the number of its layers (`llama-3-8b:4`), or random models by their seeds
//! (`random:0..100`, and `in-place:0..100` with operators that change memory in place). With `--seconds 0` nothing is attacked: what is
//! left is whether time ever rises with the budget, how near bounds are, and the greedy planner at the same peak. With `--cpu` bytes are not
//! rounded.

mod annealer;
#[path = "../../tests/brute_force/model.rs"]
mod model;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use annealer::{Annealer, Effort, Goal};
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Problem};
use rematic_replay::Allocator;
use rematic_trace::{Bytes, StepTrace, Verdict};

type AnyError = Box<dyn std::error::Error>;

/// More modules with children than an enumeration can take.
const UNITS: usize = 20;

fn main() -> Result<(), AnyError> {
    let (mut seconds, mut budgets) = (5.0, 8);
    let mut limits = Limits::default();
    let mut cases = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a number"));
        match argument.as_str() {
            "--seconds" => seconds = value()?.parse()?,
            "--budgets" => budgets = value()?.parse()?,
            "--no-runs" => limits.runs = false,
            "--cpu" => limits.allocator = Allocator::Cpu,
            _ => cases.push(argument),
        }
    }
    if cases.is_empty() {
        return Err("name a trace file, MODEL:LAYERS, random:FROM..TO or in-place:FROM..TO".into());
    }
    let mut out = std::io::stdout().lock();
    let mut tally = Tally::default();
    for case in &cases {
        for (name, trace) in traces(case)? {
            attack(&name, trace, &limits, (seconds, budgets), &mut tally, &mut out)?;
        }
    }
    tally.report(&mut out)?;
    Ok(())
}

#[derive(Default)]
struct Tally {
    budgets: usize,
    beaten: usize,
    by_a_percent: usize,
    worst: f64,
    least: usize,
    least_beaten: usize,
    least_worst: f64,
    rises: usize,
    worst_rise: f64,
    greedy: usize,
    /// How far bounds are below plans that take more than a hundredth of the step.
    gaps: Vec<f64>,
}

impl Tally {
    fn report(&mut self, out: &mut impl Write) -> Result<(), AnyError> {
        writeln!(
            out,
            "{} budgets: beaten {}, by more than 1 % {}, at worst {:.2} %; least peaks: {}, beaten by more than 0.1 % {}, at worst {:.2} %",
            self.budgets,
            self.beaten,
            self.by_a_percent,
            100.0 * self.worst,
            self.least,
            self.least_beaten,
            100.0 * self.least_worst
        )?;
        self.gaps.sort_by(f64::total_cmp);
        writeln!(
            out,
            "time rises with the budget {} times, by {:.4} % at most; greedy is better at {} peaks; of {} bounds half are within {:.2} %, {} are further than 5 %, the furthest {:.2} %",
            self.rises,
            100.0 * self.worst_rise,
            self.greedy,
            self.gaps.len(),
            100.0 * self.gaps.get(self.gaps.len() / 2).unwrap_or(&0.0),
            self.gaps.iter().filter(|gap| **gap > 0.05).count(),
            100.0 * self.gaps.last().unwrap_or(&0.0)
        )?;
        Ok(())
    }

    /// Notes a plan beside the best one for smaller budgets; says if it takes longer.
    fn note(&mut self, (time, bound, step): (f64, f64, f64), smaller: f64) -> &'static str {
        if time > 0.01 * step && time.is_finite() {
            self.gaps.push(time / bound.max(f64::MIN_POSITIVE) - 1.0);
        }
        if time <= smaller * (1.0 + 1e-9) {
            return "";
        }
        self.rises += 1;
        self.worst_rise = self.worst_rise.max(time / smaller - 1.0);
        " NOT MONOTONE"
    }
}

fn traces(case: &str) -> Result<Vec<(String, StepTrace)>, AnyError> {
    for (kind, step) in [("random", model::step_with as fn(_, _) -> _), ("in-place", model::step_in_place)] {
        let seeds = case.strip_prefix(kind).and_then(|rest| rest.strip_prefix(':')?.split_once(".."));
        if let Some((from, to)) = seeds {
            let seeds = from.parse::<u64>()?..to.parse()?;
            let named = |seed: u64| Some((format!("{kind} {seed}"), step(seed, UNITS)?));
            return Ok(seeds.filter_map(named).collect());
        }
    }
    if Path::new(case).exists() {
        let name = Path::new(case).file_name().map_or(case.into(), |name| name.to_string_lossy().into_owned());
        return Ok(vec![(name, StepTrace::read(Path::new(case))?)]);
    }
    let (name, layers) = case.split_once(':').unwrap_or((case, ""));
    let options =
        Options { layers: if layers.is_empty() { None } else { Some(layers.parse()?) }, ..Options::default() };
    Ok(vec![(case.to_owned(), Model::builtin(name)?.with(&options)?.trace()?)])
}

fn attack(
    name: &str,
    trace: StepTrace,
    limits: &Limits,
    (seconds, budgets): (f64, u64),
    tally: &mut Tally,
    out: &mut impl Write,
) -> Result<(), AnyError> {
    let costs = Costs::new(&trace, &Device::find("h100")?, CostRule::Physical)?;
    let problem = Problem::new(trace.clone(), costs.clone(), limits.clone())?;
    let annealer = Annealer::new(&problem, &trace, &costs, limits);
    let effort = Effort::Time(Duration::from_secs_f64(seconds));
    let begin = Instant::now();
    let least = problem.least();
    let took = begin.elapsed();
    let (low, high) = (least.replayed.peak.0, problem.baseline().peak.0);
    if low == high {
        return Ok(());
    }
    if seconds > 0.0
        && let Some(found) = annealer.attack(Goal::Peak, &least.checkpoints, effort, 1)
    {
        let share = 1.0 - found.peak.0 as f64 / low as f64;
        tally.least += 1;
        tally.least_beaten += usize::from(share > 1e-3);
        tally.least_worst = tally.least_worst.max(share);
        writeln!(out, "{name}: least {low} in {took:.1?}, found {} ({:.2} % lower)", found.peak.0, 100.0 * share)?;
    }
    let step = costs.step().time.0;
    let mut last = f64::INFINITY;
    for index in 0..budgets {
        let budget = Bytes(low + (high - low) * index / budgets);
        let begin = Instant::now();
        let outcome = problem.exact(budget);
        let took = begin.elapsed();
        let time = match outcome.verdict {
            Verdict::Infeasible => f64::INFINITY,
            _ => outcome.solution.replayed.recompute.0,
        };
        let attack = || annealer.attack(Goal::Time(budget), &outcome.solution.checkpoints, effort, index + 2);
        let found = if seconds > 0.0 { attack() } else { None }.map_or(time, |found| found.recompute.0);
        let share = if found < time { 1.0 - found / time } else { 0.0 };
        tally.budgets += 1;
        tally.beaten += usize::from(share > 1e-9);
        tally.by_a_percent += usize::from(share > 1e-2);
        tally.worst = tally.worst.max(share);
        let bound = outcome.solution.lower_bound.0;
        writeln!(
            out,
            "{name}: {} B: {time:.6} ms ({:.2} % of the step) in {took:.1?}, bound {:.2} % below, found {found:.6} ms ({:.2} % less){}",
            budget.0,
            100.0 * time / step,
            100.0 * (1.0 - bound / time),
            100.0 * share,
            tally.note((time, bound, step), last)
        )?;
        last = time.min(last);
        let greedy = problem.quick_greedy(budget);
        let peak = greedy.solution.replayed.peak;
        if greedy.verdict == Verdict::Planned {
            let (exact, greedy) = (problem.exact(peak).solution, greedy.solution);
            if exact.replayed.recompute.0 > greedy.replayed.recompute.0 * (1.0 + 1e-9) {
                tally.greedy += 1;
                writeln!(out, "{name}: {} B: GREEDY IS BETTER: {} ms", peak.0, greedy.replayed.recompute.0)?;
            }
        }
    }
    Ok(())
}
