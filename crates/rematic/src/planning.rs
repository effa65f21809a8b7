//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rematic::{
    Allocator, Bytes, CostRule, Costs, CurvePoint, CurveReport, Device, Error, Limits, Millis, MilpOptions,
    MilpOutcome, ModuleGraph, Outcome, PlanDocument, PlanReport, Problem, Solution, StepStats, StepTrace, Timeline,
    Tradeoffs, Verdict, milp,
};

use crate::arguments::{CurveArguments, LimitArguments, PlanArguments, PlannerName, ReplayArguments, StepArguments};
use crate::{Answer, Failure, known_devices, read, style};

/// The exit code of a step that cannot be made to fit.
const INFEASIBLE: u8 = 3;

/// A step that is going to be planned.
struct Planned {
    trace: StepTrace,
    device: Device,
    costs: Costs,
}

impl Planned {
    fn new(arguments: &StepArguments) -> Result<Self, Failure> {
        let devices = known_devices(arguments.device.device_file.as_deref())?;
        let device = devices.find(&arguments.device.device).map_err(Error::from)?.clone();
        let trace = read(&arguments.source)?;
        let costs = Costs::new(&trace, &device, arguments.cost.into()).map_err(Error::from)?;
        Ok(Planned { trace, device, costs })
    }

    fn problem(&self, arguments: &LimitArguments, world_size: u64) -> Result<Problem<'_>, Failure> {
        let limits = Limits {
            allocator: arguments.step.allocator.into(),
            world_size,
            only: arguments.only.clone(),
            never: arguments.never.clone(),
            whole: arguments.whole,
        };
        Ok(Problem::new(&self.trace, &self.costs, limits).map_err(Error::from)?)
    }
}

fn warn(warning: &str) {
    // Nobody is left to tell if this fails.
    let _ = writeln!(std::io::stderr(), "warning: {warning}");
}

pub(crate) fn plan(arguments: &PlanArguments) -> Result<Answer, Failure> {
    if arguments.budget == Bytes(0) {
        return Err(Error::NoBudget { found: arguments.budget }.into());
    }
    let step = Planned::new(&arguments.limits.step)?;
    if arguments.budget > step.device.memory {
        warn(&format!(
            "the budget of {} is larger than the memory of {}, {}",
            arguments.budget, step.device.product, step.device.memory
        ));
    }
    let world_size = arguments.limits.world_size.unwrap_or(1);
    let problem = step.problem(&arguments.limits, world_size.into())?;
    if arguments.planner == PlannerName::Milp {
        return torch_plan(arguments, &step, &problem, world_size);
    }
    let outcome = match arguments.planner {
        PlannerName::Greedy => problem.greedy(arguments.budget),
        _ => problem.exact(arguments.budget),
    };
    let mut report = PlanReport {
        trace: &step.trace,
        budget: arguments.budget,
        baseline: problem.baseline().peak,
        step: step.costs.step().time,
        verdict: Verdict::Fits,
    };
    match &outcome {
        Outcome::Fits => {
            document(arguments, &step, &problem, &nothing_dropped(&problem))?;
            answer(arguments, &report, 0)
        }
        Outcome::Infeasible(infeasible) => {
            nothing_written(arguments);
            report.verdict = Verdict::Infeasible(&infeasible.least.replayed);
            answer(arguments, &report, INFEASIBLE)
        }
        Outcome::Planned(solution) => {
            let document = document(arguments, &step, &problem, solution)?;
            report.verdict = Verdict::Planned(&document, solution.replayed.at);
            answer(arguments, &report, 0)
        }
    }
}

/// The plan as a document, written if a file was asked for.
fn document(
    arguments: &PlanArguments,
    step: &Planned,
    problem: &Problem<'_>,
    solution: &Solution,
) -> Result<PlanDocument, Failure> {
    let document = PlanDocument::new(problem, solution, arguments.budget, &step.device.name);
    if let Some(path) = &arguments.output {
        document.write(path).map_err(Error::from)?;
    }
    Ok(document)
}

/// The plan that checkpoints nothing.
fn nothing_dropped(problem: &Problem<'_>) -> Solution {
    Solution { checkpoints: Vec::new(), replayed: problem.baseline().clone(), lower_bound: Millis(0.0) }
}

/// A file that was asked for is missing, or an old one: somebody might use it.
fn nothing_written(arguments: &PlanArguments) {
    if let Some(path) = &arguments.output {
        warn(&format!("there is no plan, so {} is not written", path.display()));
    }
}

fn answer(arguments: &PlanArguments, report: &PlanReport<'_>, code: u8) -> Result<Answer, Failure> {
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code })
}

/// Torch's `sac_milp`: it plans by its own idea of the peak; the replay then says what the plan does.
fn torch_plan(
    arguments: &PlanArguments,
    step: &Planned,
    problem: &Problem<'_>,
    world_size: u32,
) -> Result<Answer, Failure> {
    let (trace, limits) = (&step.trace, &arguments.limits);
    if limits.whole {
        return Err(Error::WholeMilp.into());
    }
    let timeline = Timeline::replay(trace, limits.step.allocator.into());
    let stats = StepStats::new(trace, &timeline, &step.costs);
    // Torch counts what it traced on the meta device, without rounding.
    let rounding =
        if CostRule::from(limits.step.cost) == CostRule::Torch { Allocator::Cpu } else { limits.step.allocator.into() };
    let tradeoffs = Tradeoffs::new(trace, &step.costs, rounding).map_err(Error::from)?;
    let graph = ModuleGraph::new(trace, &stats, &tradeoffs);
    let mut options = MilpOptions::new(arguments.budget);
    options.world_size = world_size;
    options.ac_units = (!limits.only.is_empty() || !limits.never.is_empty()).then(|| problem.checkpointable());
    options.gap = arguments.gap;
    options.time_limit = arguments.time_limit.map(Duration::from_secs).or(options.time_limit);
    let outcome = milp(&graph, &options).map_err(Error::from)?;
    let planned = match &outcome {
        MilpOutcome::Planned(plan) => {
            let solution = problem.replay_milp(plan, &tradeoffs).map_err(Error::from)?;
            Some((document(arguments, step, problem, &solution)?, solution.replayed))
        }
        MilpOutcome::Fits { .. } => {
            document(arguments, step, problem, &nothing_dropped(problem))?;
            None
        }
        MilpOutcome::Infeasible { .. } => {
            nothing_written(arguments);
            None
        }
    };
    let report = rematic::MilpReport {
        trace,
        budget: arguments.budget,
        baseline: graph.peak(world_size),
        step: step.costs.step().time,
        outcome: &outcome,
        replayed_baseline: problem.baseline(),
        replayed: planned.as_ref().map(|(document, replayed)| (document, replayed)),
    };
    let code = if matches!(outcome, MilpOutcome::Infeasible { .. }) { INFEASIBLE } else { 0 };
    let text = if limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code })
}

pub(crate) fn curve(arguments: &CurveArguments) -> Result<Answer, Failure> {
    let step = Planned::new(&arguments.limits.step)?;
    let problem = step.problem(&arguments.limits, arguments.limits.world_size.unwrap_or(1).into())?;
    let bar = progress_bar(arguments.points.into());
    let points = problem.curve(arguments.points as usize, || bar.inc(1));
    bar.finish_and_clear();
    let points: Vec<CurvePoint> = points
        .into_iter()
        .map(|(budget, solution)| CurvePoint {
            budget_bytes: budget,
            peak_bytes: solution.replayed.peak,
            recompute_ms: solution.replayed.recompute,
            lower_bound_ms: solution.lower_bound,
        })
        .collect();
    let report = CurveReport { model: &step.trace.model, step: step.costs.step().time, points: &points };
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: 0 })
}

/// On a terminal only.
fn progress_bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} budgets, {eta} left");
    let bar = ProgressBar::new(steps);
    style.map_or(ProgressBar::hidden(), |style| bar.with_style(style))
}

pub(crate) fn replay(arguments: &ReplayArguments) -> Result<Answer, Failure> {
    let step = Planned::new(&arguments.limits.step)?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    let world_size = arguments.limits.world_size.map_or(document.world_size, u64::from);
    let problem = step.problem(&arguments.limits, world_size)?;
    let checkpoints = document.checkpoints(&step.trace, problem.regions()).map_err(Error::from)?;
    let replayed = problem.replay(&checkpoints);
    let document = PlanDocument {
        world_size,
        peak_bytes: replayed.peak,
        recompute_ms: replayed.recompute,
        baseline_peak_bytes: problem.baseline().peak,
        ..document
    };
    let report = PlanReport {
        trace: &step.trace,
        budget: document.budget_bytes,
        baseline: problem.baseline().peak,
        step: step.costs.step().time,
        verdict: Verdict::Planned(&document, replayed.at),
    };
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: 0 })
}
