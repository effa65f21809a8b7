//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use crate::{
    Allocator, Bytes, CostRule, Costs, CurvePoint, CurveReport, Device, Error, Limits, MilpOptions, MilpOutcome,
    MilpReport, ModuleGraph, Outcome, PlanDocument, PlanReport, Problem, StepStats, StepTrace, Timeline, Tradeoffs,
    Verdict, milp,
};

use super::arguments::{CurveArguments, LimitArguments, PlanArguments, PlannerName, ReplayArguments, StepArguments};
use super::{Answer, Failure, known_devices, read, style};

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

    fn problem(&self, arguments: &LimitArguments) -> Result<Problem<'_>, Failure> {
        let limits = Limits {
            allocator: arguments.step.allocator.into(),
            world_size: arguments.world_size.into(),
            only: arguments.only.clone(),
            never: arguments.never.clone(),
            whole: arguments.whole,
        };
        Ok(Problem::new(&self.trace, &self.costs, limits).map_err(Error::from)?)
    }
}

pub(crate) fn plan(arguments: &PlanArguments) -> Result<Answer, Failure> {
    if arguments.budget == Bytes(0) {
        return Err(Error::NoBudget { found: arguments.budget }.into());
    }
    let step = Planned::new(&arguments.limits.step)?;
    if arguments.budget > step.device.memory {
        let _ = writeln!(
            std::io::stderr(),
            "warning: the budget of {} is larger than the memory of {}, {}",
            arguments.budget,
            step.device.product,
            step.device.memory
        );
    }
    if arguments.planner == PlannerName::Milp {
        return torch_plan(arguments, &step);
    }
    let problem = step.problem(&arguments.limits)?;
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
        Outcome::Fits => answer(arguments, &report, 0),
        Outcome::Infeasible(infeasible) => {
            report.verdict = Verdict::Infeasible(&infeasible.least.replayed);
            answer(arguments, &report, INFEASIBLE)
        }
        Outcome::Planned(solution) => {
            let document = PlanDocument::new(&problem, solution, arguments.budget, &step.device.name);
            if let Some(path) = &arguments.output {
                document.write(path).map_err(Error::from)?;
            }
            report.verdict = Verdict::Planned(&document, solution.replayed.at);
            answer(arguments, &report, 0)
        }
    }
}

fn answer(arguments: &PlanArguments, report: &PlanReport<'_>, code: u8) -> Result<Answer, Failure> {
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code })
}

/// Torch's `sac_milp`: its own idea of the peak, which is not replayed.
fn torch_plan(arguments: &PlanArguments, step: &Planned) -> Result<Answer, Failure> {
    let (trace, limits) = (&step.trace, &arguments.limits);
    let timeline = Timeline::replay(trace, limits.step.allocator.into());
    let stats = StepStats::new(trace, &timeline, &step.costs);
    // Torch counts what it traced on the meta device, without rounding.
    let rounding =
        if CostRule::from(limits.step.cost) == CostRule::Torch { Allocator::Cpu } else { limits.step.allocator.into() };
    let tradeoffs = Tradeoffs::new(trace, &step.costs, rounding).map_err(Error::from)?;
    let graph = ModuleGraph::new(trace, &stats, &tradeoffs);
    let mut options = MilpOptions::new(arguments.budget);
    options.world_size = limits.world_size;
    options.ac_units.clone_from(&limits.only);
    options.gap = arguments.gap;
    options.time_limit = arguments.time_limit.map(Duration::from_secs).or(options.time_limit);
    let outcome = milp(&graph, &options).map_err(Error::from)?;
    let report = MilpReport {
        trace,
        budget: arguments.budget,
        baseline: stats.baseline.peak_bytes,
        step: step.costs.step().time,
        outcome: &outcome,
    };
    let code = if matches!(outcome, MilpOutcome::Infeasible { .. }) { INFEASIBLE } else { 0 };
    let text = if limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code })
}

pub(crate) fn curve(arguments: &CurveArguments) -> Result<Answer, Failure> {
    let step = Planned::new(&arguments.limits.step)?;
    let problem = step.problem(&arguments.limits)?;
    let points = problem.curve(arguments.points as usize);
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

pub(crate) fn replay(arguments: &ReplayArguments) -> Result<Answer, Failure> {
    let step = Planned::new(&arguments.limits.step)?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    let problem = step.problem(&arguments.limits)?;
    let checkpoints = document.checkpoints(&step.trace, problem.regions()).map_err(Error::from)?;
    let replayed = problem.replay(&checkpoints);
    let document = PlanDocument {
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
