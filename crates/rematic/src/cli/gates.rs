//! The verbs `diff`, `lock` and `check`, which compare steps.

use std::path::Path;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use rematic_report::CheckReport;

use super::arguments::{Arguments, CheckArguments, DiffArguments, LockArguments, Verb};
use super::planning::INFEASIBLE;
use super::{Answer, Failure, Warnings, snapshot, stats_study, style, trace_of};
use crate::{Difference, Error, Figures, Limits, Lock, LockedStep, PlanDocument, Study, Target};

/// Options of `lock` that are not the step's.
const NOT_OF_THE_STEP: [&str; 3] = ["source", "file", "quiet"];

/// What is to be compared: a saved answer of `stats --json`, a plan, or whatever `stats` takes.
fn figures(name: &str, arguments: &DiffArguments, warnings: Warnings) -> Result<Figures, Failure> {
    let path = Path::new(name);
    let is_builtin = crate::BUILTIN.iter().any(|model| model.name == name);
    if !is_builtin
        && path.extension().is_some_and(|extension| extension == "json")
        && let Ok(text) = std::fs::read_to_string(path)
        && let Ok(figures) = Figures::of_statistics(&text)
    {
        return Ok(figures);
    }
    if !is_builtin && PlanDocument::recognizes(path) {
        return planned(path, arguments, warnings);
    }
    let target = arguments.target()?;
    let trace = trace_of(name, &arguments.step.source, &target, &[])?;
    warnings.warn_if(target.attention_warning(&trace));
    let study = Study::of_calls(trace, target)?;
    Ok(of(&study))
}

fn of(study: &Study) -> Figures {
    // What is compared is what was said.
    Figures::of_statistics(&study.stats().json(false)).unwrap_or_default()
}

/// A plan for a built-in model: the step under it.
fn planned(path: &Path, arguments: &DiffArguments, warnings: Warnings) -> Result<Figures, Failure> {
    let plan = PlanDocument::read(path).map_err(Error::from)?;
    if !crate::BUILTIN.iter().any(|model| model.name == plan.source) {
        return Err(Error::PlanWithoutModel { path: path.to_owned(), model: plan.source }.into());
    }
    let source = &arguments.step.source;
    let target = arguments.target()?;
    let trace = super::planned_trace(&plan, source, &target)?;
    warnings.warn_if(target.attention_warning(&trace));
    let target = Target { ranks: super::planning::ranks(&plan, &trace)?, ..target };
    let study = Study::new(trace, target, Limits::default())?;
    let answer = study.replay(&plan)?;
    let categories = crate::CategoryBytes::of(&answer.replayed.snapshot);
    Ok(Figures {
        peak_bytes: answer.replayed.peak,
        reserved_bytes: answer.memory.map(|memory| memory.reserved),
        step_ms: Some(answer.pace.step),
        categories: categories.iter().map(|part| (part.category.to_string(), part.bytes)).collect(),
        ..of(&study)
    })
}

pub(crate) fn diff(arguments: &DiffArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let (before_name, after_name) = (arguments.step.source.source.as_str(), arguments.other.as_str());
    let (before, after) = (figures(before_name, arguments, warnings)?, figures(after_name, arguments, warnings)?);
    let difference = Difference { before_name, after_name, before: &before, after: &after };
    Ok(Answer::done(if arguments.json { difference.json() } else { difference.text(style(&std::io::stdout())) }))
}

/// The options of a step as they were typed, in the order of their names.
pub(crate) fn typed(matches: &ArgMatches) -> Vec<String> {
    let Some((_, verb)) = matches.subcommand() else { return Vec::new() };
    let mut given = snapshot::given(matches);
    given.retain(|option| !NOT_OF_THE_STEP.contains(&option.as_str()));
    given.sort_unstable();
    let words = |option: &String| {
        let values = verb.get_raw(&option.replace('-', "_")).into_iter().flatten();
        let values = values.map(|value| value.to_string_lossy().into_owned());
        std::iter::once(format!("--{option}")).chain(values).collect::<Vec<_>>()
    };
    given.iter().flat_map(words).collect()
}

/// The figures of a step that is in a lock file.
fn again(step: &LockedStep, file: &Path, warnings: Warnings) -> Result<Figures, Failure> {
    let words = ["rematic", "stats", &step.source].into_iter().map(str::to_owned).chain(step.options.iter().cloned());
    let parsed = Arguments::command().try_get_matches_from(words);
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    match parsed.map(|parsed| parsed.verb) {
        Ok(Verb::Stats(arguments)) => Ok(of(&stats_study(&arguments, warnings)?)),
        _ => {
            let why = format!("`rematic stats {}` is no command", step.name());
            Err(Error::BrokenLock { path: file.to_owned(), why }.into())
        }
    }
}

/// What is wrong with a step of a lock file, which names it.
fn of_lock(failure: Failure, step: &LockedStep, file: &Path) -> Failure {
    match failure {
        Failure::Rematic(error @ Error::BrokenLock { .. }) => Failure::Rematic(error),
        Failure::Rematic(error) => {
            Error::LockedStep { path: file.to_owned(), step: step.name(), source: Box::new(error) }.into()
        }
        other => other,
    }
}

pub(crate) fn lock(arguments: &LockArguments, options: Vec<String>, warnings: Warnings) -> Result<Answer, Failure> {
    let file = &arguments.file;
    let mut lock = Lock::open(file)?;
    let step = LockedStep { source: arguments.step.source.source.clone(), options, figures: Figures::default() };
    let figures = again(&step, file, warnings)?;
    let said = format!("{}: {} locked in {}\n", step.name(), figures.peak_bytes, file.display());
    lock.put(LockedStep { figures, ..step });
    lock.write(file)?;
    Ok(Answer::done(said))
}

pub(crate) fn check(arguments: &CheckArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let file = &arguments.file;
    let mut lock = Lock::read(file)?;
    let names: Vec<String> = lock.steps.iter().map(LockedStep::name).collect();
    let now = lock.steps.iter().map(|step| again(step, file, warnings).map_err(|failure| of_lock(failure, step, file)));
    let now = now.collect::<Result<Vec<Figures>, Failure>>()?;
    let compared = lock.steps.iter().zip(&now).zip(&names).map(|((step, after), name)| Difference {
        before_name: name,
        after_name: "now",
        before: &step.figures,
        after,
    });
    let locked = arguments.update.then_some(file.as_path());
    let report = CheckReport { differences: compared.collect(), allowed: arguments.allow, locked };
    let grew = report.grew();
    let text = if arguments.json { report.json() } else { report.text(style(&std::io::stdout())) };
    if arguments.update {
        lock.steps.iter_mut().zip(now).for_each(|(step, figures)| step.figures = figures);
        lock.write(file)?;
        return Ok(Answer::done(text));
    }
    Ok(Answer { text, code: if grew { INFEASIBLE } else { 0 } })
}
