use std::path::PathBuf;

use pyo3::prelude::*;
use rematic::{Explained, Limits, Style, Target};

use crate::device::DeviceName;
use crate::error::exception;
use crate::option::{TableOrPath, size, target};
use crate::study::Question;
use crate::trace::Trace;
use crate::work::interruptible;

/// Why a step peaks where it does, and the ways to reduce the peak.
#[pyclass(frozen, module = "rematic", name = "Explanation")]
pub(crate) struct Explanation {
    explained: Explained,
}

#[pymethods]
impl Explanation {
    /// What `rematic explain --json` says.
    fn to_json(&self) -> String {
        self.explained.report().json()
    }

    fn __repr__(&self) -> String {
        let explanation = &self.explained.explanation;
        format!("<rematic.Explanation of {}: {} ways>", explanation.model, explanation.remedies.len())
    }

    fn __str__(&self) -> String {
        self.explained.report().text(Style::default()).trim_end().to_owned()
    }
}

/// Explains the peak of a step: what is in memory there, and the ways to reduce it, each with the whole step replayed.
#[pyfunction]
#[pyo3(signature = (trace, budget=None, *, device=DeviceName::default(), device_file=None, cost="physical", cost_table=None,
                    world_size=1, allocator=None, alloc_conf=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn explain(
    py: Python<'_>,
    trace: &Trace,
    budget: Option<&Bound<'_, PyAny>>,
    device: DeviceName,
    device_file: Option<PathBuf>,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    world_size: u64,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
) -> PyResult<Explanation> {
    let budget = budget.map(size).transpose()?;
    let target =
        Target { ranks: world_size, ..target(&device.name, device_file, cost, cost_table, allocator, alloc_conf)? };
    let question = Question::new(&trace.last, &trace.step, target, Limits::default());
    let cancel = question.cancel();
    let explained = interruptible(py, &cancel, move || question.study()?.explained(budget))?.map_err(exception)?;
    Ok(Explanation { explained })
}
