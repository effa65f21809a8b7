use std::path::PathBuf;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};
use rematic::{CurveAnswer, Style, Target};

use crate::device::DeviceName;
use crate::error::{RematicError, exception};
use crate::option::{self, HostRate, Patterns, TableOrPath, target};
use crate::study::Question;
use crate::trace::Trace;
use crate::work::interruptible;

/// Budget against time, from the step as it is down to the least that can be reached.
#[pyclass(frozen, module = "rematic")]
pub(crate) struct Curve {
    answer: CurveAnswer,
}

/// The plan for one budget.
#[pyclass(frozen, get_all, eq, module = "rematic")]
#[derive(PartialEq)]
pub(crate) struct CurvePoint {
    /// The budget.
    budget: u64,
    /// The peak of its plan.
    peak: u64,
    /// What PyTorch's allocator reserves under its plan; `None` on the CPU.
    reserved: Option<u64>,
    /// Whether the device has that; `None` on the CPU.
    fits: Option<bool>,
    /// Time of recomputation.
    recompute_ms: f64,
    /// Bytes that go to the host, and come back.
    offload_bytes: u64,
    /// What they take of the host's pinned memory.
    host_bytes: u64,
    /// How long the device waits for these copies.
    stall_ms: f64,
    /// No plan within the budget takes less.
    lower_bound_ms: f64,
}

impl CurvePoint {
    fn of(point: &rematic::CurvePoint) -> Self {
        CurvePoint {
            budget: point.budget_bytes.0,
            peak: point.peak_bytes.0,
            reserved: point.reserved_bytes.map(|bytes| bytes.0),
            fits: point.fits,
            recompute_ms: point.recompute_ms.0,
            offload_bytes: point.offload.map_or(0, |offload| offload.offload_bytes.0),
            host_bytes: point.offload.map_or(0, |offload| offload.host_bytes.0),
            stall_ms: point.offload.map_or(0.0, |offload| offload.stall_ms.0),
            lower_bound_ms: point.lower_bound_ms.0,
        }
    }
}

#[pymethods]
impl CurvePoint {
    fn __repr__(&self) -> String {
        let CurvePoint { budget, peak, recompute_ms, .. } = self;
        format!("<rematic.CurvePoint budget={budget}, peak={peak}, recompute_ms={recompute_ms}>")
    }
}

#[pymethods]
impl Curve {
    /// The points, the largest budget first.
    #[getter]
    fn points(&self) -> Vec<CurvePoint> {
        self.answer.points.iter().map(CurvePoint::of).collect()
    }

    /// Time of the step without recomputation.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.answer.step.0
    }

    /// What `rematic curve --json` says.
    fn to_json(&self) -> String {
        self.answer.report().json()
    }

    fn __len__(&self) -> usize {
        self.answer.points.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.points())?.try_iter()
    }

    fn __getitem__(&self, index: isize) -> PyResult<CurvePoint> {
        let points = &self.answer.points;
        let at = if index < 0 { points.len().checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) };
        let point = at.and_then(|at| points.get(at));
        point.map(CurvePoint::of).ok_or_else(|| PyIndexError::new_err(format!("the curve has {} points", points.len())))
    }

    fn __repr__(&self) -> String {
        format!("<rematic.Curve of {}: {} budgets>", self.answer.setup.model(), self.answer.points.len())
    }

    fn _repr_html_(&self) -> String {
        self.answer.report().html()
    }

    fn __str__(&self) -> String {
        self.answer.report().text(Style::default()).trim_end().to_owned()
    }
}

/// Plans for budgets from the step as it is down to the least that can be reached.
#[pyfunction]
#[pyo3(signature = (trace, points=50, *, device=DeviceName::default(), device_file=None, cost="physical", cost_table=None, only=None,
                    never=None, whole=false, runs=true, world_size=1, allocator=None, alloc_conf=None, host_memory=None,
                    host_bandwidth=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn curve(
    py: Python<'_>,
    trace: &Trace,
    points: usize,
    device: DeviceName,
    device_file: Option<PathBuf>,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    only: Option<Patterns>,
    never: Option<Patterns>,
    whole: bool,
    runs: bool,
    world_size: u64,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
    host_memory: Option<&Bound<'_, PyAny>>,
    host_bandwidth: Option<HostRate>,
) -> PyResult<Curve> {
    if !(2..=10_000).contains(&points) {
        return Err(RematicError::new_err(format!("points is {points}; give a number from 2 to 10000")));
    }
    let mut target =
        Target { ranks: world_size, ..target(&device.name, device_file, cost, cost_table, allocator, alloc_conf)? };
    let limits = option::with_host(option::limits(only, never, whole, runs), &mut target, host_memory, host_bandwidth)?;
    let question = Question::new(&trace.last, &trace.step, target, limits);
    let answer =
        interruptible(py, &question.cancel(), move || question.study()?.curve(points, || {}))?.map_err(exception)?;
    Ok(Curve { answer })
}
