//! The verbs `plan`, `curve` and `replay`.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rematic_trace::Opt;

use super::arguments::{CurveArguments, Language, LimitArguments, PlanArguments, ReplayArguments, SourceArguments};
use super::{Answer, Failure, Warnings, read, style, trace_of, unsharded};
use crate::{
    Alternatives, Bytes, Error, Fsdp2, Limits, LossKind, MilpSettings, Options, PlanAnswer, PlanDocument, Planner,
    Resharding, Source, StepTrace, Study, Target, Verdict, add_planned, emitted_python,
};

/// The exit code of a step that cannot be made to fit.
pub(crate) const INFEASIBLE: u8 = 3;

/// Where a plan takes a smaller share of the step, nothing else takes less.
const WORTH_ASKING: f64 = 0.01;

pub(crate) fn plan(arguments: &PlanArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let planner = planner(arguments)?;
    if arguments.budget == Some(Bytes(0)) {
        return Err(Error::NoBudget { found: Bytes(0) }.into());
    }
    let target = arguments.limits.target()?;
    if let Some(warning) = arguments.budget.and_then(|budget| target.budget_warning(budget)) {
        warnings.warn(&warning);
    }
    let limits =
        Limits { host_memory: arguments.host.host_memory(&arguments.limits.step)?, ..limits(&arguments.limits) };
    let found = Question { arguments, planner, target, limits, warnings }.answer()?;
    let document = (found.verdict != Verdict::Infeasible).then_some(&found.document);
    let answer = emitted(arguments.emit, document, answer(&found, arguments.limits.json))?;
    write(arguments, document, warnings)?;
    Ok(answer)
}

/// The plan in place of a model's step, with its loss as it is asked for or chosen.
struct Question<'a> {
    arguments: &'a PlanArguments,
    planner: Planner,
    target: Target,
    limits: Limits,
    warnings: Warnings,
}

impl Question<'_> {
    fn source(&self) -> &SourceArguments {
        &self.arguments.limits.step.source
    }

    /// The answer, with the loss that is faster if it is to be chosen.
    fn answer(&self) -> Result<PlanAnswer, Failure> {
        if !self.source().recipe.chooses_loss() {
            return self.with_loss(None);
        }
        if let Source::Trace(path) = Source::open(&self.source().source)? {
            return Err(Error::OptionsForTrace { path, option: Opt("loss") }.into());
        }
        let plain = self.with_loss(Some(LossKind::Plain))?;
        let chunked = match self.with_loss(Some(LossKind::Chunked)) {
            Ok(chunked) => Ok(vec![chunked]),
            // Which models it is for, the model knows.
            Err(Failure::Rematic(error @ Error::Model(_))) => Err(error.to_string()),
            Err(other) => return Err(other),
        };
        PlanAnswer::of_losses(vec![plain.clone()], chunked).pop().map_or(Ok(plain), Ok)
    }

    fn with_loss(&self, loss: Option<LossKind>) -> Result<PlanAnswer, Failure> {
        let (source, planner, budget) = (self.source(), self.planner, self.arguments.budget);
        let (whole, how) = unsharded(&source.source, source, &self.target, &[], loss)?;
        self.warnings.warn_if(self.target.attention_warning(&whole));
        if source.chooses_resharding() {
            let question = Resharding { whole: &whole, target: &self.target, limits: &self.limits, planner, budget };
            return Ok(question.plan(how.unwrap_or(Fsdp2::over(0)))?);
        }
        let study = Study::new(sharded(whole, how)?, self.target.clone(), self.limits.clone())?;
        if matches!(planner, Planner::Milp(_)) {
            return Ok(study.plan(planner, budget)?);
        }
        self.beside_others(&study, loss)
    }

    /// The answer with what else fits: what the chunked loss and accumulation would bring, and, for a device, other steps without a
    /// plan.
    fn beside_others(&self, study: &Study, loss: Option<LossKind>) -> Result<PlanAnswer, Failure> {
        let (source, budget) = (self.source(), self.arguments.budget);
        let shard = |trace: StepTrace| sharded(trace, source.sharding());
        let model = Source::open(&source.source)?;
        let mut options = Options { card: study.target().card(), ..source.options() };
        options.recipe.loss = loss.or(options.recipe.loss);
        let alternatives = Alternatives { source: &model, options: &options, shard: &shard };
        let plan = || study.plan(self.planner, budget);
        // Where a plan is likely to be dear, both questions are asked at once.
        let (found, planned) = if study.is_likely_dear(budget, WORTH_ASKING)? {
            rayon::join(plan, || Some(alternatives.planned(study, budget)))
        } else {
            (plan(), None)
        };
        let found = found?;
        if found.verdict == Verdict::Fits {
            return Ok(found);
        }
        let mut ways = found.ways.clone();
        if found.for_device {
            ways.alone = alternatives.fitting(study);
        }
        let share = found.document.extra_ms().0 / found.document.step_ms.0.max(f64::MIN_POSITIVE);
        if found.verdict == Verdict::Infeasible || share >= WORTH_ASKING {
            add_planned(planned.unwrap_or_else(|| alternatives.planned(study, budget)), &mut ways);
        }
        Ok(PlanAnswer { ways, ..found })
    }
}

/// What one rank has of a step.
fn sharded(trace: StepTrace, how: Option<Fsdp2>) -> Result<StepTrace, Error> {
    match how {
        Some(how) => Ok(crate::fsdp2(&trace, &how, &crate::fsdp2_layers(&trace))?),
        None => Ok(trace),
    }
}

/// The plan as code in place of the answer in words. Where there is none, the words are no code, and go to the error
/// stream.
fn emitted(language: Option<Language>, document: Option<&PlanDocument>, answer: Answer) -> Result<Answer, Error> {
    let text = match (language, document) {
        (None, _) => answer.text,
        (Some(Language::Python), Some(document)) => emitted_python(document)?,
        (Some(Language::Python), None) => {
            // Nobody is left to tell if this fails.
            let _ = std::io::stderr().write_all(answer.text.as_bytes());
            String::new()
        }
    };
    Ok(Answer { text, ..answer })
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
    let trace = read(&arguments.limits.step.source, &target)?;
    warnings.warn_if(target.attention_warning(&trace));
    let limits =
        Limits { host_memory: arguments.host.host_memory(&arguments.limits.step)?, ..limits(&arguments.limits) };
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

pub(crate) fn replay(arguments: &ReplayArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let mut target = arguments.limits.target()?;
    let document = PlanDocument::read(&arguments.plan).map_err(Error::from)?;
    let source = &arguments.limits.step.source;
    let trace = trace_of(&source.source, source, &target, &document.facts)?;
    warnings.warn_if(target.attention_warning(&trace));
    if arguments.emit.is_some() {
        document.single().map_err(Error::from)?;
    }
    if arguments.limits.world_size.is_none() {
        target.ranks = ranks(&document, &trace)?;
    }
    let found = Study::new(trace, target, limits(&arguments.limits))?.replay(&document)?;
    let (promised, found_peak) = (document.peak_bytes, found.replayed.peak);
    if found_peak > promised {
        warnings.warn(&format!("the file promises a peak of {promised}, and its decisions give {found_peak}"));
    }
    let mut answer = emitted(arguments.emit, Some(&found.document), answer(&found, arguments.limits.json))?;
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
