use std::path::Path;

use rematic_plan::PlanDocument;
use rematic_trace::{Bytes, StepTrace};
use serde::Serialize;

use crate::json::json;
use crate::style::visible;

/// What `rematic trace` says about the file that it wrote.
#[derive(Clone, Copy)]
pub struct SavedReport<'a> {
    /// The file.
    pub file: &'a Path,
    /// What is in it.
    pub trace: &'a StepTrace,
}

#[derive(Serialize)]
struct Json<'a> {
    file: String,
    model: &'a str,
    ops: usize,
    modules: usize,
    storages: usize,
}

impl SavedReport<'_> {
    /// One JSON document, indented, with a line break at the end.
    #[must_use]
    pub fn json(&self) -> String {
        json(&Json {
            file: self.file.display().to_string(),
            model: &self.trace.origin.model,
            ops: self.trace.ops().len(),
            modules: self.trace.modules().len(),
            storages: self.trace.storages().len(),
        })
    }

    /// One line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let (ops, storages) = (self.trace.ops().len(), self.trace.storages().len());
        format!(
            "{}: {ops} operators and {storages} storages of {}\n",
            self.file.display(),
            visible(&self.trace.origin.model)
        )
    }
}

/// What `rematic report` says about the page that it wrote.
#[derive(Clone, Copy)]
pub struct SavedPage<'a> {
    /// The file.
    pub file: &'a Path,
    /// The plan that it shows.
    pub plan: &'a PlanDocument,
    /// Whether the step fits.
    pub fits: bool,
    /// The device that it has to fit; `None` for the plan's budget.
    pub device: Option<&'a str>,
    /// The step for Perfetto, if it was written too.
    pub chrome_trace: Option<&'a Path>,
    /// The step as a table, if it was written too.
    pub csv: Option<&'a Path>,
}

#[derive(Serialize)]
struct PageJson<'a> {
    file: String,
    model: &'a str,
    budget_bytes: Bytes,
    baseline_peak_bytes: Bytes,
    peak_bytes: Bytes,
    within_budget: bool,
    fits: bool,
    chrome_trace: Option<String>,
    csv: Option<String>,
}

impl SavedPage<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        let PlanDocument { source, budget_bytes, baseline_peak_bytes, peak_bytes, .. } = self.plan;
        json(&PageJson {
            file: self.file.display().to_string(),
            model: source,
            budget_bytes: *budget_bytes,
            baseline_peak_bytes: *baseline_peak_bytes,
            peak_bytes: *peak_bytes,
            within_budget: peak_bytes <= budget_bytes,
            fits: self.fits,
            chrome_trace: self.chrome_trace.map(|path| path.display().to_string()),
            csv: self.csv.map(|path| path.display().to_string()),
        })
    }

    /// A line for people for each file.
    #[must_use]
    pub fn text(&self) -> String {
        let PlanDocument { source, budget_bytes, baseline_peak_bytes, peak_bytes, regions, .. } = self.plan;
        let (on, of, what) = match self.device {
            Some(device) => (format!(" {device}"), String::new(), device.to_owned()),
            None => (String::new(), format!(" of {budget_bytes}"), budget_bytes.to_string()),
        };
        let plan = match (regions.is_empty(), self.fits) {
            (true, true) => format!("fits{on} as it is, {peak_bytes}{of}"),
            (_, true) => format!("fits{on} with a plan, {baseline_peak_bytes} -> {peak_bytes}{of}"),
            (_, false) => format!("cannot fit {what}, {baseline_peak_bytes} -> {peak_bytes} at the least"),
        };
        let mut text = format!("{}: {} {plan}\n", self.file.display(), visible(source));
        for (path, content) in [
            (self.chrome_trace, "the step for Perfetto and chrome://tracing"),
            (self.csv, "a row for every operator that runs"),
        ] {
            text += &path.map_or_else(String::new, |path| format!("{}: {content}\n", path.display()));
        }
        text
    }
}
