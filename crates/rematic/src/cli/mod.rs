//! The command line.

mod arguments;
mod explore;
mod fit;
mod gates;
mod manual;
mod planning;
mod recipe;
mod rehearsal;
mod report;
mod snapshot;
mod terminal;
mod typed;
mod values;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::{CommandFactory, FromArgMatches};
use owo_colors::OwoColorize;

use crate::{
    CostRule, CostSource, Devices, Dtype, Error, Fsdp2, Limits, LossKind, Options, PlanDocument, RehearsalError,
    SavedReport, Source, StepTrace, Study, Target, rehearse_compiled, visible,
};
use rematic_trace::Opt;

use arguments::{Arguments, DevicesArguments, ExplainArguments, SourceArguments, StatsArguments, TraceArguments, Verb};
use planning::INFEASIBLE;
use terminal::{Warnings, style};

/// The exit code of a command that was refused.
const REFUSED: u8 = 2;

/// Runs the command `rematic` with these arguments, the first of which is its name, and returns its exit code: 0 done, 2
/// error, 3 infeasible; 128 and the signal's number for a rehearsal that was interrupted.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let parsed = Arguments::command().try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(usage) => {
            // Nobody is left to tell if this fails.
            let _ = usage.print();
            return u8::try_from(usage.exit_code()).unwrap_or(REFUSED);
        }
    };
    let given = snapshot::given(&matches);
    let warnings = if arguments.quiet { Warnings::Silent } else { Warnings::Shown };
    let result = match &arguments.verb {
        Verb::Trace(arguments) => trace(arguments).map(Answer::done),
        Verb::Fit(arguments) => fit::fit(arguments, &given, warnings),
        Verb::Stats(arguments) => stats(arguments, warnings),
        Verb::Explain(arguments) => explain(arguments, &given, warnings),
        Verb::Plan(arguments) => planning::plan(arguments, warnings),
        Verb::Curve(arguments) => planning::curve(arguments, warnings),
        Verb::Replay(arguments) => planning::replay(arguments, warnings),
        Verb::Report(arguments) => report::report(arguments, &given, typed::plan_command(&matches), warnings),
        Verb::Explore(arguments) => explore::explore(arguments, warnings).map(Answer::done),
        Verb::Diff(arguments) => gates::diff(arguments, warnings),
        Verb::Lock(arguments) => gates::lock(arguments, gates::typed(&matches), warnings),
        Verb::Check(arguments) => gates::check(arguments, warnings),
        Verb::Rehearse(arguments) => rehearsal::rehearse(arguments),
        Verb::Devices(arguments) => devices(arguments).map(Answer::done),
        Verb::Models { json } => models(*json).map(Answer::done),
        Verb::Completions { shell } => Ok(Answer::done(manual::completions(*shell))),
        Verb::Man(arguments) => manual::man(arguments).map(Answer::done),
    };
    match result.and_then(|answer| print(&answer.text).map(|()| answer.code)) {
        Ok(code) => code,
        Err(error) => {
            let label = "error:";
            let label = if style(&std::io::stderr()).color { label.red().bold().to_string() } else { label.to_owned() };
            // Nobody is left to tell if this fails too.
            let text: Vec<String> = error.to_string().lines().map(visible).collect();
            let _ = writeln!(std::io::stderr(), "{label} {}", text.join("\n"));
            error.code()
        }
    }
}

/// What a verb says, and the exit code.
struct Answer {
    text: String,
    code: u8,
}

impl Answer {
    fn done(text: String) -> Self {
        Answer { text, code: 0 }
    }
}

fn trace(arguments: &TraceArguments) -> Result<String, Failure> {
    let device = &arguments.device;
    let target = Target::find(&device.device, device.device_file.as_deref(), CostSource::Rule(CostRule::default()))?;
    let trace = read(&arguments.source, &target)?;
    trace.write(&arguments.output).map_err(Error::from)?;
    let report = SavedReport { file: &arguments.output, trace: &trace };
    Ok(if arguments.json { report.json() } else { report.text() })
}

fn stats(arguments: &StatsArguments, warnings: Warnings) -> Result<Answer, Failure> {
    let study = stats_study(arguments, warnings)?;
    let report = study.stats();
    let text = if arguments.json { report.json(arguments.timeline) } else { report.text(style(&std::io::stdout())) };
    let taken = study.memory().map_or_else(|| report.timeline.peak().total(), |memory| memory.reserved);
    match arguments.fail_above.filter(|limit| taken > *limit) {
        Some(limit) if !arguments.json => {
            let more = taken.saturating_sub(limit);
            Ok(Answer {
                text: format!("{text}{taken} are {more} above {}\n", Opt("fail-above").to(limit)),
                code: INFEASIBLE,
            })
        }
        Some(_) => Ok(Answer { text, code: INFEASIBLE }),
        None => Ok(Answer::done(text)),
    }
}

fn stats_study(arguments: &StatsArguments, warnings: Warnings) -> Result<Study, Failure> {
    let target = Target { ranks: arguments.spread.world_size.into(), ..arguments.step.target()? };
    let trace = read(&arguments.step.source, &target)?;
    warnings.warn_if(target.attention_warning(&trace));
    Ok(Study::of_calls(trace, target)?)
}

fn explain(arguments: &ExplainArguments, given: &[String], warnings: Warnings) -> Result<Answer, Failure> {
    if let Some(path) = arguments.step.source.snapshot() {
        return snapshot::explain(path, arguments, given).map(Answer::done);
    }
    snapshot::refuse(&arguments.step.source, arguments.snapshot.gpu.is_some(), "gpu")?;
    snapshot::refuse(&arguments.step.source, arguments.against.is_some(), "against")?;
    let target = Target { ranks: arguments.spread.world_size.into(), ..arguments.step.target()? };
    let study = Study::new(read(&arguments.step.source, &target)?, target, Limits::default())?;
    warnings.warn_if(study.target().attention_warning(study.trace()));
    let mut explained = study.explained(arguments.budget)?;
    if arguments.with_compile {
        let (name, options) = (&arguments.step.source.source, arguments.step.source.options());
        explained.compiled = Some(rehearse_compiled(name, &options, study.trace(), study.target())?);
    }
    let report = explained.report();
    let text = if arguments.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: if explained.within_budget() == Some(false) { INFEASIBLE } else { 0 } })
}

fn devices(arguments: &DevicesArguments) -> Result<String, Failure> {
    let devices = known_devices(arguments.device_file.as_deref())?;
    Ok(if arguments.json {
        crate::devices_json(devices.all())
    } else {
        crate::devices_text(devices.all(), style(&std::io::stdout()))
    })
}

fn models(json: bool) -> Result<String, Failure> {
    let models: Vec<(&str, &str)> = crate::BUILTIN.iter().map(|model| (model.name, model.description)).collect();
    Ok(if json { crate::models_json(&models) } else { crate::models_text(&models, style(&std::io::stdout())) })
}

fn read(arguments: &SourceArguments, target: &Target) -> Result<StepTrace, Failure> {
    trace_of(&arguments.source, arguments, target, &[])
}

/// The step of a source on a device, or what one rank has of it. What is not said about a model or how it is sharded is as a plan's facts
/// have it, and so is the kind of card then.
fn trace_of(
    name: &str,
    arguments: &SourceArguments,
    target: &Target,
    facts: &[(String, String)],
) -> Result<StepTrace, Failure> {
    if arguments.chooses_resharding() {
        return Err(Error::ReshardingChosen.into());
    }
    if arguments.recipe.chooses_loss() {
        return Err(Error::LossChosen.into());
    }
    match unsharded(name, arguments, target, facts, None)? {
        (trace, Some(how)) => Ok(crate::fsdp2(&trace, &how, &crate::fsdp2_layers(&trace)).map_err(Error::from)?),
        (trace, None) => Ok(trace),
    }
}

/// The step of a plan for a built-in model.
fn planned_trace(plan: &PlanDocument, source: &SourceArguments, target: &Target) -> Result<StepTrace, Failure> {
    trace_of(&plan.source, source, target, &plan.facts)
}

/// The step of a source, with another loss if one is given, and how it is to be sharded.
fn unsharded(
    name: &str,
    arguments: &SourceArguments,
    target: &Target,
    facts: &[(String, String)],
    loss: Option<LossKind>,
) -> Result<(StepTrace, Option<Fsdp2>), Failure> {
    arguments.recipe.check()?;
    let planned = Fsdp2::from_facts(facts);
    let mixed = arguments.recipe.is_mixed();
    let source = Source::open(name)?;
    let (trace, planned) = match source {
        Source::Trace(path) => {
            if arguments.recipe.precision.is_some() && !mixed {
                return Err(Error::OptionsForTrace { path, option: Opt("precision") }.into());
            }
            // What a saved step computes in is known; mixed says what its shards are.
            let mut options = arguments.options();
            if mixed {
                (options.dtype, options.recipe.autocast) = (None, None);
            }
            let trace = Source::Trace(path).trace(&options)?;
            let planned = planned.filter(|how| !how.has_spread(&trace));
            if mixed && planned.or(arguments.sharding()).is_none() {
                return Err(Error::MixedTrace.into());
            }
            (trace, planned)
        }
        model => {
            let mut options = match facts {
                [] => Options { card: target.card(), ..arguments.options() },
                planned => arguments.options_like(planned),
            };
            if let Some(loss) = loss {
                options.recipe.loss = Some(loss).filter(|loss| *loss != LossKind::Plain);
            }
            (model.trace(&options)?, planned)
        }
    };
    let shards = |how: Fsdp2| if mixed { Fsdp2 { shards: Some(Dtype::F32), ..how } } else { how };
    Ok((trace, arguments.sharding().or(planned.map(shards))))
}

fn known_devices(file: Option<&Path>) -> Result<Devices, Failure> {
    let mut devices = Devices::builtin();
    if let Some(file) = file {
        devices.extend_from(file).map_err(Error::from)?;
    }
    Ok(devices)
}

/// Why a command stops.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Rematic(#[from] Error),
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
}

impl Failure {
    /// The exit code. After a signal it is what a shell says of a program that was ended by one.
    fn code(&self) -> u8 {
        match self {
            Failure::Rematic(Error::Rehearsal(RehearsalError::Interrupted { signal, .. })) => {
                u8::try_from(128 + signal).unwrap_or(REFUSED)
            }
            _ => REFUSED,
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader has seen enough, as `head` does.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::Output),
    }
}
