//! The verb `report`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::arguments::ReportArguments;
use super::planning::{INFEASIBLE, limits, progress_bar, warn};
use super::{Answer, Failure, read};
use crate::{BUILTIN, ChromeTrace, Error, PageOptions, PlanDocument, Source, StepTrace, timeline_csv};

/// Budgets that the page has plans for.
const POINTS: usize = 50;

pub(crate) fn report(arguments: &ReportArguments) -> Result<Answer, Failure> {
    let target = arguments.limits.step.target()?;
    let (trace, plan) = sources(arguments)?;
    let mut limits = limits(&arguments.limits);
    if let (None, Some(plan)) = (arguments.limits.world_size, &plan) {
        limits.world_size = plan.world_size;
    }
    if let Some(warning) = arguments.budget.and_then(|budget| target.budget_warning(budget)) {
        warn(&warning);
    }
    let bar = progress_bar(POINTS as u64);
    let options = PageOptions { budget: arguments.budget, plan, points: POINTS };
    let found = target.page(&trace, limits, options, || bar.inc(1));
    bar.finish_and_clear();
    let found = found?;
    write(&arguments.output, |file| file.write_all(found.html.as_bytes()))?;
    let (costs, recording) = (&found.costs, &found.recording);
    if let Some(path) = &arguments.chrome_trace {
        write(path, |file| ChromeTrace { trace: &trace, costs, recording }.write(file))?;
    }
    if let Some(path) = &arguments.csv {
        write(path, |file| timeline_csv(&trace, costs, recording, file))?;
    }
    let within = found.document.peak_bytes <= found.document.budget_bytes;
    let files = [Some(&arguments.output), arguments.chrome_trace.as_ref(), arguments.csv.as_ref()];
    let text = files.into_iter().flatten().map(|path| format!("{}\n", path.display())).collect();
    Ok(Answer { text, code: if within { 0 } else { INFEASIBLE } })
}

fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        fill(&mut file)?;
        file.flush()
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// The step, and the plan to show. A plan for a built-in model is enough for both.
fn sources(arguments: &ReportArguments) -> Result<(StepTrace, Option<PlanDocument>), Failure> {
    let source = &arguments.limits.step.source;
    let path = Path::new(&source.source);
    let is_builtin = |name: &str| BUILTIN.iter().any(|entry| entry.name == name);
    if !is_builtin(&source.source) && PlanDocument::recognizes(path) {
        if arguments.plan.is_some() {
            return Err(Error::TwoPlans { path: path.to_owned() }.into());
        }
        let plan = PlanDocument::read(path).map_err(Error::from)?;
        if !is_builtin(&plan.source) {
            return Err(Error::PlanWithoutModel { path: path.to_owned(), model: plan.source }.into());
        }
        let trace = Source::open(&plan.source)?.trace(&source.options_like(&plan.facts))?;
        return Ok((trace, Some(plan)));
    }
    let plan = arguments.plan.as_deref().map(PlanDocument::read).transpose().map_err(Error::from)?;
    Ok((read(source)?, plan))
}
