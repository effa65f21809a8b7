use std::path::Path;

use rematic_trace::StepTrace;
use serde::Serialize;

use crate::json::json;

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
            model: &self.trace.model,
            ops: self.trace.ops().len(),
            modules: self.trace.modules().len(),
            storages: self.trace.storages().len(),
        })
    }

    /// One line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let (ops, storages) = (self.trace.ops().len(), self.trace.storages().len());
        format!("{}: {ops} operators and {storages} storages of {}\n", self.file.display(), self.trace.model)
    }
}
