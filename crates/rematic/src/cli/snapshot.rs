//! The verbs `explain` and `report` for memory snapshots.

use std::io::Write;
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::arguments::{ExplainArguments, ReportArguments, SourceArguments};
use super::report::write;
use super::{Failure, style, trace_of};
use crate::{Error, Limits, Prediction, Snapshot, SnapshotPage, SnapshotReport, Story, Study, Target};
use rematic_trace::Opt;

/// The options that were given, by name, as opposed to those that have their defaults.
pub(crate) fn given(matches: &ArgMatches) -> Vec<String> {
    let Some((_, verb)) = matches.subcommand() else { return Vec::new() };
    let is_given = |id: &str| verb.value_source(id) == Some(ValueSource::CommandLine);
    // Groups of options are known by the names of their types, and are no options.
    let is_option = |id: &str| id.chars().all(|character| !character.is_uppercase());
    verb.ids().map(clap::Id::as_str).filter(|id| is_option(id) && is_given(id)).map(|id| id.replace('_', "-")).collect()
}

/// Refuses an option that is for snapshots, with anything else.
pub(crate) fn refuse(source: &SourceArguments, is_given: bool, option: &'static str) -> Result<(), Error> {
    if is_given {
        return Err(Error::SnapshotOnly { source_name: source.source.clone(), option: Opt(option) });
    }
    Ok(())
}

/// Refuses options that say nothing about a run that is over.
fn only(path: &Path, given: &[String], allowed: &[&str]) -> Result<(), Error> {
    match given.iter().find(|option| !allowed.contains(&option.as_str())) {
        Some(option) => Err(Error::OptionForSnapshot { path: path.to_owned(), option: format!("--{option}") }),
        None => Ok(()),
    }
}

fn story(path: &Path, gpu: Option<u32>) -> Result<Story, Error> {
    let snapshot = Snapshot::read(path)?;
    let story = Story::new(&snapshot, snapshot.device(path, gpu)?);
    Ok(story)
}

pub(crate) fn explain(path: &Path, arguments: &ExplainArguments, given: &[String]) -> Result<String, Failure> {
    if arguments.against.is_none() {
        only(path, given, &["source", "json", "gpu", "quiet"])?;
    }
    let story = story(path, arguments.snapshot.gpu)?;
    let prediction = prediction(arguments, &story)?;
    let file = path.display().to_string();
    let report = SnapshotReport { file: &file, story: &story, prediction: prediction.as_ref() };
    Ok(if arguments.json { report.json() } else { report.text(style(&std::io::stdout())) })
}

/// What a model that was given too is predicted to take, under the settings of the run.
fn prediction(arguments: &ExplainArguments, story: &Story) -> Result<Option<Prediction>, Failure> {
    let Some(name) = &arguments.against else { return Ok(None) };
    let settings = story.settings.parse().unwrap_or_default();
    let target = Target { settings, ranks: arguments.spread.world_size.into(), ..arguments.step.target()? };
    let study = Study::new(trace_of(name, &arguments.step.source, &target, &[])?, target, Limits::default())?;
    let memory = study.target().memory(study.trace());
    let model = study.trace().origin.model.clone();
    Ok(Some(Prediction { model, allocated_bytes: memory.allocated, reserved_bytes: memory.reserved }))
}

pub(crate) fn report(path: &Path, arguments: &ReportArguments, given: &[String]) -> Result<String, Failure> {
    only(path, given, &["source", "json", "gpu", "quiet", "output"])?;
    let snapshot = Snapshot::read(path).map_err(Error::from)?;
    let record = snapshot.device(path, arguments.snapshot.gpu).map_err(Error::from)?;
    let story = Story::new(&snapshot, record);
    let file = path.display().to_string();
    let page = SnapshotPage { file: &file, story: &story };
    let html = page.html();
    write(&arguments.output, |file| file.write_all(html.as_bytes()))?;
    Ok(if arguments.limits.json { page.saved_json(&arguments.output) } else { page.saved_text(&arguments.output) })
}
