use std::path::PathBuf;

use pyo3::prelude::*;
use rematic::options::POINTS;
use rematic::{Error, PageOptions, Target};

use crate::device::{DeviceName, no_budget_for_host};
use crate::error::exception;
use crate::option::{self, Patterns, TableOrPath, target};
use crate::plan::Plan;
use crate::study::Question;
use crate::trace::Trace;
use crate::work::interruptible;

/// Writes one HTML page that shows a step, its peak, its plan and the plans for other budgets.
#[pyfunction]
#[pyo3(signature = (trace, output, *, budget=None, plan=None, device=DeviceName::default(), device_file=None, cost="physical",
                    cost_table=None, only=None, never=None, whole=false, runs=true, world_size=None, allocator=None, alloc_conf=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn report(
    py: Python<'_>,
    trace: &Trace,
    output: PathBuf,
    budget: Option<&Bound<'_, PyAny>>,
    plan: Option<&Plan>,
    device: DeviceName,
    device_file: Option<PathBuf>,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    only: Option<Patterns>,
    never: Option<Patterns>,
    whole: bool,
    runs: bool,
    world_size: Option<u64>,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
) -> PyResult<()> {
    let ranks = world_size.or(plan.map(|plan| plan.document.world_size)).unwrap_or(1);
    let target = Target { ranks, ..target(&device.name, device_file, cost, cost_table, allocator, alloc_conf)? };
    if device.is_host && budget.is_none() && plan.is_none() {
        return Err(no_budget_for_host());
    }
    let limits = option::limits(only, never, whole, runs);
    let options = PageOptions {
        budget: budget.map(option::size).transpose()?,
        plan: plan.map(|plan| plan.document.clone()),
        points: POINTS as usize,
        command: None,
    };
    let question = Question::new(&trace.last, &trace.step, target, limits);
    interruptible(py, &question.cancel(), move || {
        let page = question.study()?.page(options, || {})?;
        std::fs::write(&output, page.html).map_err(|source| Error::Write { path: output, source })
    })?
    .map_err(exception)
}
