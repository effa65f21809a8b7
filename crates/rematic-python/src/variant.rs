use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rematic::{Error, PlanDocument, PlannedLoss, StepTrace};

use crate::error::{PlanError, exception};
use crate::plan::{Region, regions};
use crate::study::LastStudy;
use crate::trace::{Chunked, Trace, facts};

/// What a loss in chunks is called.
pub(crate) const CHUNKED_LOSS: &str = "chunked";

/// What a plan decides for one of the steps that it was made for.
#[pyclass(frozen, module = "rematic")]
pub(crate) struct Variant {
    document: PlanDocument,
}

impl Variant {
    pub(crate) fn of(document: PlanDocument) -> Self {
        Variant { document }
    }
}

#[pymethods]
impl Variant {
    /// What it is called; empty if it is the only one.
    #[getter]
    fn name(&self) -> &str {
        &self.document.name
    }

    /// The first operators of its forward, up to where it differs from each other variant.
    #[getter]
    fn opening(&self) -> Vec<String> {
        self.document.opening.clone()
    }

    /// How it was traced.
    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        facts(py, &self.document.facts)
    }

    /// The peak under the plan, as replayed.
    #[getter]
    fn peak(&self) -> u64 {
        self.document.peak_bytes.0
    }

    /// The peak without a plan.
    #[getter]
    fn baseline_peak(&self) -> u64 {
        self.document.baseline_peak_bytes.0
    }

    /// Time of the step without recomputation.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.document.step_ms.0
    }

    /// Time of recomputation.
    #[getter]
    fn recompute_ms(&self) -> f64 {
        self.document.recompute_ms.0
    }

    /// The checkpointed regions, in the order of forward.
    #[getter]
    fn regions(&self) -> Vec<Region> {
        regions(&self.document.regions)
    }

    fn __repr__(&self) -> String {
        let PlanDocument { name, peak_bytes, baseline_peak_bytes, regions, .. } = &self.document;
        format!("<rematic.Variant `{name}`: {} regions, peak {baseline_peak_bytes} -> {peak_bytes}>", regions.len())
    }
}

/// The steps that a plan is to be made for, and what each is called.
pub(crate) struct Traces {
    pub(crate) names: Vec<String>,
    pub(crate) steps: Vec<Arc<StepTrace>>,
    pub(crate) lasts: Vec<Arc<LastStudy>>,
    /// The same with their loss in chunks, where it is known.
    chunked: Vec<Option<Chunked>>,
}

impl Traces {
    /// One trace, several in a list, or several by name.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(trace) = given.cast::<Trace>() {
            let trace = trace.get();
            let (steps, lasts) = (vec![Arc::clone(&trace.step)], vec![Arc::clone(&trace.last)]);
            return Ok(Traces { names: vec![String::new()], steps, lasts, chunked: vec![trace.chunked.clone()] });
        }
        let mut names = Vec::new();
        let (mut steps, mut lasts, mut chunked) = (Vec::new(), Vec::new(), Vec::new());
        let by_name = given.cast::<PyDict>().ok();
        if given.is_instance_of::<PyString>() {
            return Err(Self::other(given));
        }
        for (index, item) in given.try_iter().map_err(|_| Self::other(given))?.enumerate() {
            let item = item?;
            let trace = match by_name {
                Some(by_name) => by_name.get_item(&item)?.unwrap_or_else(|| item.clone()),
                None => item.clone(),
            };
            let trace = trace.cast::<Trace>().map_err(|_| Self::other(&trace))?;
            names.push(if by_name.is_some() { item.str()?.to_string() } else { format!("variant {index}") });
            steps.push(Arc::clone(&trace.get().step));
            lasts.push(Arc::clone(&trace.get().last));
            chunked.push(trace.get().chunked.clone());
        }
        match steps.first() {
            None => Err(Self::none()),
            Some(first) => match steps.iter().find(|step| step.origin.model != first.origin.model) {
                Some(other) => Err(PlanError::new_err(format!(
                    "The variants of a plan are steps of one model, but these are of {} and {}; plan for each alone",
                    first.origin.model, other.origin.model
                ))),
                None => Ok(Traces { names, steps, lasts, chunked }),
            },
        }
    }

    /// The same with their loss in chunks, or why there is none.
    ///
    /// # Errors
    /// If nobody knows.
    pub(crate) fn with_chunked_loss(&self, asked: &'static str) -> PyResult<Result<Traces, String>> {
        let (mut steps, mut lasts) = (Vec::new(), Vec::new());
        for (step, chunked) in self.steps.iter().zip(&self.chunked) {
            match chunked {
                Some(Chunked::Step(step, last)) => {
                    steps.push(Arc::clone(step));
                    lasts.push(Arc::clone(last));
                }
                Some(Chunked::Refused(why)) => return Ok(Err(why.clone())),
                None if asked == CHUNKED_LOSS && PlannedLoss::of(&step.origin).is_some() => {
                    steps.push(Arc::clone(step));
                    lasts.push(Arc::default());
                }
                None => return Err(exception(Error::OneLoss { asked })),
            }
        }
        let chunked = steps.iter().map(|_| None).collect();
        Ok(Ok(Traces { names: self.names.clone(), steps, lasts, chunked }))
    }

    /// The error that there is nothing to plan for.
    pub(crate) fn none() -> PyErr {
        PlanError::new_err("There is no trace to plan for; give one, or a list with one for each variant")
    }

    fn other(given: &Bound<'_, PyAny>) -> PyErr {
        let kind = given.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("plan takes a Trace, a list of them, or a dict from names to them, not {kind}"))
    }
}
