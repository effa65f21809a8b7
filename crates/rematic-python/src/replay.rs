use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rematic::{Limits, PlanAnswer};

use crate::device::DeviceName;
use crate::error::exception;
use crate::option::{TableOrPath, target};
use crate::plan::Plan;
use crate::study::Question;
use crate::trace::Trace;
use crate::work::interruptible;

/// A step as it runs under a plan.
#[pyclass(frozen, module = "rematic")]
pub(crate) struct Replay {
    answer: PlanAnswer,
    plan: Py<Plan>,
    recomputed: Vec<String>,
}

#[pymethods]
impl Replay {
    /// The plan, with peaks and times as replayed.
    #[getter]
    fn plan(&self, py: Python<'_>) -> Py<Plan> {
        self.plan.clone_ref(py)
    }

    /// The highest bytes in use.
    #[getter]
    fn peak(&self) -> u64 {
        self.answer.replayed.peak.0
    }

    /// The same without a plan.
    #[getter]
    fn baseline_peak(&self) -> u64 {
        self.answer.document.baseline_peak_bytes.0
    }

    /// Bytes by category where the total is highest.
    #[getter]
    fn categories<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let categories = PyDict::new(py);
        for (category, bytes) in self.answer.replayed.snapshot.iter() {
            categories.set_item(category.to_string(), bytes.0)?;
        }
        Ok(categories)
    }

    /// Time of the operators that run again.
    #[getter]
    fn recompute_ms(&self) -> f64 {
        self.answer.replayed.recompute.0
    }

    /// Their floating-point operations.
    #[getter]
    fn recompute_flops(&self) -> u128 {
        self.answer.recompute_flops.0
    }

    /// Their names, in the order in which they run again.
    #[getter]
    fn recomputed(&self) -> &[String] {
        &self.recomputed
    }

    fn __repr__(&self) -> String {
        let (replayed, again) = (&self.answer.replayed, self.recomputed.len());
        format!("<rematic.Replay: peak {}, {again} operators run again in {}>", replayed.peak, replayed.recompute)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.plan.bind(py).str()?.to_string())
    }
}

/// Replays the step under a plan, and checks that the plan is for it.
#[pyfunction]
#[pyo3(signature = (trace, plan, *, device=None, device_file=None, cost="physical", cost_table=None, world_size=None,
                    allocator=None, alloc_conf=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn replay(
    py: Python<'_>,
    trace: &Trace,
    plan: &Plan,
    device: Option<DeviceName>,
    device_file: Option<PathBuf>,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    world_size: Option<u64>,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
) -> PyResult<Replay> {
    let document = plan.document.clone();
    let mut target = target(
        device.as_ref().map_or(&document.device, |device| &device.name),
        device_file,
        cost,
        cost_table,
        allocator,
        alloc_conf,
    )?;
    target.ranks = world_size.unwrap_or(document.world_size);
    let question = Question::new(&trace.last, &trace.step, target, Limits::default());
    let answer =
        interruptible(py, &question.cancel(), move || question.study()?.replay(&document))?.map_err(exception)?;
    let name = |op: &rematic_trace::OpId| trace.step.op_name(trace.step.op(*op)).to_owned();
    let recomputed = answer.replayed.recomputed.iter().map(name).collect();
    let plan = Py::new(py, Plan::of(answer.clone()))?;
    Ok(Replay { answer, plan, recomputed })
}
