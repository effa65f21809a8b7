//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::arguments::{CurveArguments, Language, LimitArguments, PlanArguments, PlannerName, ReplayArguments};
use super::{Answer, Failure, Warnings, read, style};
use crate::{
    Allocator, Bytes, Error, Fit, Limits, Millis, MilpOptions, MilpOutcome, MilpReport, ModuleGraph, PlanAnswer,
    PlanDocument, Planner, Solution, StepStats, StepTrace, Target, Timeline, Tradeoffs, milp, plan_python,
};

/// The exit code of a step that cannot be made to fit.
pub(crate) const INFEASIBLE: u8 = 3;

pub(crate) fn plan(arguments: &PlanArguments, warnings: Warnings) -> Result<Answer, Failure> {
    refuse_unused(arguments)?;
    if arguments.budget == Bytes(0) {
        return Err(Error::NoBudget { found: arguments.budget }.into());
    }
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    if let Some(warning) = target.budget_warning(arguments.budget) {
        warnings.warn(&warning);
    }
    let planner = match arguments.planner {
        PlannerName::Milp => return torch_plan(arguments, &trace, &target, warnings),
        PlannerName::Greedy => Planner::Greedy,
        PlannerName::Exact => Planner::Exact,
    };
    let found = target.plan(&trace, limits(&arguments.limits), planner, arguments.budget)?;
    let document = (found.fit != Fit::Infeasible).then_some(&found.document);
    write(arguments, document, warnings)?;
    Ok(emitted(arguments.emit, document, answer(&found, &trace, arguments.limits.json)))
}

/// The plan as code in place of the answer in words. Where there is none, the words are no code, and go to the error
/// stream.
fn emitted(language: Option<Language>, document: Option<&PlanDocument>, answer: Answer) -> Answer {
    let text = match (language, document) {
        (None, _) => answer.text,
        (Some(Language::Python), Some(document)) => plan_python(document),
        (Some(Language::Python), None) => {
            // Nobody is left to tell if this fails.
            let _ = std::io::stderr().write_all(answer.text.as_bytes());
            String::new()
        }
    };
    Answer { text, ..answer }
}

/// Options that only one planner looks at are not ignored in silence.
fn refuse_unused(arguments: &PlanArguments) -> Result<(), Error> {
    let planner = match arguments.planner {
        PlannerName::Milp => return Ok(()),
        PlannerName::Exact => "exact",
        PlannerName::Greedy => "greedy",
    };
    let given = [(arguments.gap.is_some(), "--gap"), (arguments.time_limit.is_some(), "--time-limit")];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::MilpOnly { option, planner }),
        None => Ok(()),
    }
}

/// Writes the plan if a file was asked for. Where there is none, the file is missing, or an old one: somebody might use
/// it.
fn write(arguments: &PlanArguments, document: Option<&PlanDocument>, warnings: Warnings) -> Result<(), Failure> {
    match (&arguments.output, document) {
        (Some(path), Some(document)) => document.write(path).map_err(Error::from)?,
        (Some(path), None) => warnings.warn(&format!("there is no plan, so {} is not written", path.display())),
        (None, _) => {}
    }
    Ok(())
}

pub(crate) fn limits(arguments: &LimitArguments) -> Limits {
    Limits {
        world_size: arguments.world_size.unwrap_or(1).into(),
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

/// Torch's `sac_milp`: it plans by its own idea of the peak; the replay then says what the plan does.
fn torch_plan(
    arguments: &PlanArguments,
    trace: &StepTrace,
    target: &Target,
    warnings: Warnings,
) -> Result<Answer, Failure> {
    let given = &arguments.limits;
    if given.whole {
        return Err(Error::WholeMilp.into());
    }
    let world_size = given.world_size.unwrap_or(1);
    let costs = target.costs(trace)?;
    let problem = target.problem(trace, &costs, limits(given))?;
    let allocator = target.allocator(trace);
    let stats = StepStats::new(trace, &Timeline::replay(trace, allocator), &costs);
    // Torch counts what it traced on the meta device, without rounding.
    let rounding = if target.cost.is_torch() { Allocator::Cpu } else { allocator };
    let tradeoffs = Tradeoffs::new(trace, &costs, rounding).map_err(Error::from)?;
    let graph = ModuleGraph::new(trace, &stats, &tradeoffs);
    let mut options = MilpOptions::new(arguments.budget);
    options.world_size = world_size;
    options.ac_units = (!given.only.is_empty() || !given.never.is_empty()).then(|| problem.checkpointable());
    options.gap = arguments.gap.unwrap_or(0.0);
    options.time_limit = arguments.time_limit.map(Duration::from_secs).or(options.time_limit);
    let outcome = milp(&graph, &options).map_err(Error::from)?;
    let solution = match &outcome {
        MilpOutcome::Planned(plan) => {
            let solution = problem.replay_milp(plan, &tradeoffs).map_err(Error::from)?;
            // Torch's bound is one for its own model; a document's is for all plans.
            let lower_bound = problem.lower_bound(arguments.budget).unwrap_or(Millis(0.0));
            Some(Solution { lower_bound: Millis(lower_bound.0.min(solution.replayed.recompute.0)), ..solution })
        }
        MilpOutcome::Fits { .. } => Some(problem.unplanned()),
        MilpOutcome::Infeasible { .. } => None,
    };
    let moments = solution.as_ref().map(|found| problem.moments(&found.checkpoints)).unwrap_or_default();
    let written = solution
        .map(|found| (PlanDocument::new(&problem, &found, arguments.budget, &target.device.name), found.replayed));
    write(arguments, written.as_ref().map(|(document, _)| document), warnings)?;
    let planned = written.as_ref().filter(|_| matches!(outcome, MilpOutcome::Planned(_)));
    let report = MilpReport {
        trace,
        budget: arguments.budget,
        baseline: graph.peak(world_size),
        step: costs.step().time,
        outcome: &outcome,
        replayed_baseline: problem.baseline(),
        replayed: planned.map(|(document, replayed)| (document, replayed)),
        moments: &moments,
        measured: costs.measurements(),
    };
    let code = if matches!(outcome, MilpOutcome::Infeasible { .. }) { INFEASIBLE } else { 0 };
    let text = if given.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(emitted(arguments.emit, written.as_ref().map(|(document, _)| document), Answer { text, code }))
}

pub(crate) fn curve(arguments: &CurveArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    let bar = progress_bar(arguments.points.into(), warnings);
    let found = target.curve(&trace, limits(&arguments.limits), arguments.points as usize, || bar.inc(1));
    bar.finish_and_clear();
    let found = found?;
    let report = found.report(&trace.origin.model);
    let text = if arguments.limits.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: 0 })
}

/// On a terminal only, as long as anything is to be said beside the answer.
pub(crate) fn progress_bar(steps: u64, warnings: Warnings) -> ProgressBar {
    if warnings == Warnings::Silent {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} budgets, {eta} left");
    let bar = ProgressBar::new(steps);
    style.map_or(ProgressBar::hidden(), |style| bar.with_style(style))
}

pub(crate) fn replay(arguments: &ReplayArguments) -> Result<Answer, Failure> {
    let target = arguments.limits.step.target()?;
    let trace = read(&arguments.limits.step.source)?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    if arguments.emit.is_some() {
        document.single().map_err(Error::from)?;
    }
    let mut limits = limits(&arguments.limits);
    if arguments.limits.world_size.is_none() {
        limits.world_size = document.world_size;
    }
    let found = target.replay(&trace, limits, document)?;
    let mut answer = emitted(arguments.emit, Some(&found.document), answer(&found, &trace, arguments.limits.json));
    if found.replayed.peak > found.document.budget_bytes {
        answer.code = INFEASIBLE;
    }
    Ok(answer)
}
