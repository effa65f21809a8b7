//! The verb `report`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::arguments::ReportArguments;
use super::planning::{INFEASIBLE, limits, progress_bar, ranks};
use super::{Answer, Failure, Warnings, planned_trace, snapshot, trace_of};
use crate::options::POINTS;
use crate::{
    BUILTIN, ChromeTrace, Error, PageAnswer, PageOptions, PlanDocument, SavedPage, StepTrace, Study, Target,
    timeline_csv,
};

pub(crate) fn report(
    arguments: &ReportArguments,
    given: &[String],
    command: Option<String>,
    warnings: Warnings,
) -> Result<Answer, Failure> {
    if let Some(path) = arguments.limits.step.source.snapshot() {
        return snapshot::report(path, arguments, given).map(Answer::done);
    }
    snapshot::refuse(&arguments.limits.step.source, arguments.snapshot.gpu.is_some(), "gpu")?;
    let mut target = arguments.limits.target()?;
    let (trace, plan) = sources(arguments, &target)?;
    let limits = limits(&arguments.limits);
    if let (None, Some(plan)) = (arguments.limits.world_size, &plan) {
        target.ranks = ranks(plan, &trace)?;
    }
    if let Some(warning) = arguments.budget.and_then(|budget| target.budget_warning(budget)) {
        warnings.warn(&warning);
    }
    warnings.warn_if(target.attention_warning(&trace));
    let study = Study::new(trace, target, limits)?;
    let bar = progress_bar(POINTS.into(), warnings);
    let command = command.filter(|_| !is_plan(&arguments.limits.step.source.source));
    let options = PageOptions { budget: arguments.budget, plan, points: POINTS as usize, command };
    let for_device = options.budget.is_none() && options.plan.is_none() && study.memory().is_some();
    let found = study.page(options, || bar.inc(1));
    bar.finish_and_clear();
    let PageAnswer { html, document, recording, fits } = &found?;
    let (trace, costs) = (study.trace(), study.costs());
    write(&arguments.output, |file| file.write_all(html.as_bytes()))?;
    if let Some(path) = &arguments.chrome_trace {
        write(path, |file| ChromeTrace { trace, costs, recording }.write(file))?;
    }
    if let Some(path) = &arguments.csv {
        write(path, |file| timeline_csv(trace, costs, recording, file))?;
    }
    let saved = SavedPage {
        file: &arguments.output,
        plan: document,
        fits: *fits,
        device: for_device.then_some(&study.target().device.product),
        chrome_trace: arguments.chrome_trace.as_deref(),
        csv: arguments.csv.as_deref(),
    };
    let text = if arguments.limits.json { saved.json() } else { saved.text() };
    Ok(Answer { text, code: if *fits { 0 } else { INFEASIBLE } })
}

/// Writes a file.
pub(crate) fn write(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        content(&mut file)?;
        file.flush()
    });
    Ok(written.map_err(|source| Error::Write { path: path.to_owned(), source })?)
}

fn is_builtin(name: &str) -> bool {
    BUILTIN.iter().any(|entry| entry.name == name)
}

/// Whether a source is a plan itself.
fn is_plan(source: &str) -> bool {
    !is_builtin(source) && PlanDocument::recognizes(Path::new(source))
}

/// The step, and the plan to show. A plan for a built-in model is enough for both.
fn sources(arguments: &ReportArguments, target: &Target) -> Result<(StepTrace, Option<PlanDocument>), Failure> {
    let source = &arguments.limits.step.source;
    let path = Path::new(&source.source);
    if is_plan(&source.source) {
        if arguments.plan.is_some() {
            return Err(Error::TwoPlans { path: path.to_owned() }.into());
        }
        let plan = PlanDocument::read(path).map_err(Error::from)?;
        if !is_builtin(&plan.source) {
            return Err(Error::PlanWithoutModel { path: path.to_owned(), model: plan.source }.into());
        }
        return Ok((planned_trace(&plan, source, target)?, Some(plan)));
    }
    let plan = arguments.plan.as_deref().map(PlanDocument::read).transpose().map_err(Error::from)?;
    let facts = plan.as_ref().map_or(&[][..], |plan| &plan.facts);
    Ok((trace_of(&source.source, source, target, facts)?, plan))
}
