//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rematic_report::Ways;

use super::arguments::{CurveArguments, Language, LimitArguments, PlanArguments, ReplayArguments, SourceArguments};
use super::{Answer, Failure, Warnings, read, style, trace_of, unsharded};
use crate::{
    Alternatives, Bytes, Error, Fsdp2, Limits, MilpSettings, PlanAnswer, PlanDocument, Planner, Resharding, Source,
    StepTrace, Study, Verdict, plan_python,
};

/// The exit code of a step that cannot be made to fit.
pub(crate) const INFEASIBLE: u8 = 3;

pub(crate) fn plan(arguments: &PlanArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let planner = planner(arguments)?;
    if arguments.budget == Some(Bytes(0)) {
        return Err(Error::NoBudget { found: Bytes(0) }.into());
    }
    let target = arguments.limits.target()?;
    let source = &arguments.limits.step.source;
    if let Some(warning) = arguments.budget.and_then(|budget| target.budget_warning(budget)) {
        warnings.warn(&warning);
    }
    let limits = Limits { host_memory: arguments.host.host_memory, ..limits(&arguments.limits) };
    let found = match source.chooses_resharding() {
        true => {
            let (whole, how) = unsharded(&source.source, source, &[])?;
            let question =
                Resharding { whole: &whole, target: &target, limits: &limits, planner, budget: arguments.budget };
            question.plan(how.unwrap_or(Fsdp2::over(0)))?
        }
        false => {
            let step = read(source)?;
            warnings.warn_if(target.attention_warning(&step));
            let study = Study::new(step, target, limits)?;
            let found = study.plan(planner, arguments.budget)?;
            if found.for_device && found.verdict != Verdict::Fits { beside(&study, found, source)? } else { found }
        }
    };
    let document = (found.verdict != Verdict::Infeasible).then_some(&found.document);
    check_emitted(arguments.emit, document)?;
    write(arguments, document, warnings)?;
    Ok(emitted(arguments.emit, document, answer(&found, arguments.limits.json)))
}

/// Refuses to write a plan as code that torch alone cannot follow.
fn check_emitted(language: Option<Language>, document: Option<&PlanDocument>) -> Result<(), Error> {
    match (language, document.and_then(|document| document.offload)) {
        (Some(Language::Python), Some(offload)) => Err(Error::EmitsOffload { bytes: offload.bytes }),
        _ => Ok(()),
    }
}

/// The answer for a device, with what else fits it.
fn beside(study: &Study, found: PlanAnswer, source: &SourceArguments) -> Result<PlanAnswer, Failure> {
    let shard = |trace: StepTrace| match source.sharding() {
        Some(how) => Ok(crate::fsdp2(&trace, &how, &crate::fsdp2_layers(&trace))?),
        None => Ok(trace),
    };
    let model = Source::open(&source.source)?;
    let alone = Alternatives { source: &model, options: &source.options(), shard: &shard }.fitting(study);
    Ok(PlanAnswer { ways: Ways { alone, ..Ways::default() }, ..found })
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

fn planner(arguments: &PlanArguments) -> Result<Planner, Error> {
    let time_limit = arguments.time_limit.map(Duration::from_secs);
    arguments.planner.with(MilpSettings { gap: arguments.gap, time_limit })
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
        only: arguments.only.clone(),
        never: arguments.never.clone(),
        whole: arguments.whole,
        runs: !arguments.no_runs,
        ..Limits::default()
    }
}

fn answer(found: &PlanAnswer, json: bool) -> Answer {
    let text = if json { found.json() } else { found.text(style(&std::io::stdout())) };
    Answer { text, code: if found.verdict == Verdict::Infeasible { INFEASIBLE } else { 0 } }
}

pub(crate) fn curve(arguments: &CurveArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let target = arguments.limits.target()?;
    let trace = read(&arguments.limits.step.source)?;
    warnings.warn_if(target.attention_warning(&trace));
    let limits = Limits { host_memory: arguments.host.host_memory, ..limits(&arguments.limits) };
    let study = Study::new(trace, target, limits)?;
    let bar = progress_bar(arguments.points.into(), warnings);
    let found = study.curve(arguments.points as usize, || bar.inc(1));
    bar.finish_and_clear();
    let found = found?;
    let report = found.report();
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
    let mut target = arguments.limits.target()?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    let source = &arguments.limits.step.source;
    let trace = trace_of(&source.source, source, &document.facts)?;
    if arguments.emit.is_some() {
        document.single().map_err(Error::from)?;
    }
    if arguments.limits.world_size.is_none() {
        target.ranks = ranks(&document, &trace)?;
    }
    let found = Study::new(trace, target, limits(&arguments.limits))?.replay(&document)?;
    check_emitted(arguments.emit, Some(&found.document))?;
    let mut answer = emitted(arguments.emit, Some(&found.document), answer(&found, arguments.limits.json));
    if found.replayed.peak > found.document.budget_bytes {
        answer.code = INFEASIBLE;
    }
    Ok(answer)
}

/// The ranks of a plan, whose step must be that of one of as many.
pub(crate) fn ranks(plan: &PlanDocument, trace: &StepTrace) -> Result<u64, Error> {
    match trace.place.ranks().filter(|ranks| ![1, plan.world_size].contains(ranks)) {
        Some(ranks) => Err(Error::OtherRanks { plan: plan.world_size, step: ranks }),
        None => Ok(plan.world_size),
    }
}
