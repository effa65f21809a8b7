//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use super::arguments::{CurveArguments, LimitArguments, PlanArguments, PlannerName, ReplayArguments};
use super::{Answer, Failure, read, style};
use crate::{
    Allocator, Bytes, Error, Fit, Limits, MilpOptions, MilpOutcome, MilpReport, ModuleGraph, PlanAnswer, PlanDocument,
    Planner, StepStats, StepTrace, Target, Timeline, Tradeoffs, milp,
};

/// The exit code of a step that cannot be made to fit.
const INFEASIBLE: u8 = 3;

pub(crate) fn plan(arguments: &PlanArguments) -> Result<Answer, Failure> {
    if arguments.budget == Bytes(0) {
        return Err(Error::NoBudget { found: arguments.budget }.into());
    }
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    if arguments.budget > target.device.memory {
        let _ = writeln!(
            std::io::stderr(),
            "warning: the budget of {} is larger than the memory of {}, {}",
            arguments.budget,
            target.device.product,
            target.device.memory
        );
    }
    let planner = match arguments.planner {
        PlannerName::Milp => return torch_plan(arguments, &trace, &target),
        PlannerName::Greedy => Planner::Greedy,
        PlannerName::Exact => Planner::Exact,
    };
    let found = target.plan(&trace, limits(&arguments.limits), planner, arguments.budget)?;
    if let Some(path) = arguments.output.as_deref().filter(|_| found.fit == Fit::Planned) {
        found.document.write(path).map_err(Error::from)?;
    }
    Ok(answer(&found, &trace, arguments.limits.json))
}

fn limits(arguments: &LimitArguments) -> Limits {
    Limits {
        world_size: arguments.world_size.into(),
        only: arguments.only.clone(),
        never: arguments.never.clone(),
        whole: arguments.whole,
        ..Limits::default()
    }
}

fn answer(found: &PlanAnswer, trace: &StepTrace, json: bool) -> Answer {
    let report = found.report(trace);
    let text = if json { report.json() } else { report.text(style(&std::io::stdout())) };
    Answer { text, code: if found.fit == Fit::Infeasible { INFEASIBLE } else { 0 } }
}

/// Torch's `sac_milp`: its own idea of the peak, which is not replayed.
fn torch_plan(arguments: &PlanArguments, trace: &StepTrace, target: &Target) -> Result<Answer, Failure> {
    let limits = &arguments.limits;
    let allocator = target.allocator(trace);
    let costs = target.costs(trace)?;
    let timeline = Timeline::replay(trace, allocator);
    let stats = StepStats::new(trace, &timeline, &costs);
    // Torch counts what it traced on the meta device, without rounding.
    let rounding = if target.cost.is_torch() { Allocator::Cpu } else { allocator };
    let tradeoffs = Tradeoffs::new(trace, &costs, rounding).map_err(Error::from)?;
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
        step: costs.step().time,
        outcome: &outcome,
        measured: costs.measurements(),
    };
    let code = if matches!(outcome, MilpOutcome::Infeasible { .. }) { INFEASIBLE } else { 0 };
    let text = if limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code })
}

pub(crate) fn curve(arguments: &CurveArguments) -> Result<Answer, Failure> {
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    let found = target.curve(&trace, limits(&arguments.limits), arguments.points as usize)?;
    let report = found.report(&trace.model);
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: 0 })
}

pub(crate) fn replay(arguments: &ReplayArguments) -> Result<Answer, Failure> {
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    let found = target.replay(&trace, limits(&arguments.limits), document)?;
    Ok(answer(&found, &trace, arguments.limits.json))
}
