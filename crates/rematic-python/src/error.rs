//! The one place where Rust's errors become exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;
use rematic::{Bytes, CostError, Error};

create_exception!(rematic, RematicError, PyValueError, "Something that Rematic cannot use; says what to do about it.");
create_exception!(rematic, TraceError, RematicError, "A model, config or trace that cannot be used.");
create_exception!(rematic, PlanError, RematicError, "A plan, or a question to a planner, that cannot be used.");
create_exception!(
    rematic,
    Infeasible,
    PlanError,
    "No plan meets the budget; `least_budget` is the least that one meets."
);

create_exception!(rematic, RematicWarning, PyUserWarning, "Something that is most likely not what was meant.");

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("RematicError", py.get_type::<RematicError>())?;
    module.add("TraceError", py.get_type::<TraceError>())?;
    module.add("PlanError", py.get_type::<PlanError>())?;
    module.add("Infeasible", py.get_type::<Infeasible>())?;
    module.add("RematicWarning", py.get_type::<RematicWarning>())
}

pub(crate) fn exception(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        Error::Model(_)
        | Error::File(_)
        | Error::Directory { .. }
        | Error::Read { .. }
        | Error::OptionsForTrace { .. } => TraceError::new_err(text),
        Error::Document(_)
        | Error::Plan(_)
        | Error::Torch(_)
        | Error::WholeMilp
        | Error::MilpOnly { .. }
        | Error::NoBudget { .. } => PlanError::new_err(text),
        _ => RematicError::new_err(text),
    }
}

pub(crate) fn cost_exception(error: CostError) -> PyErr {
    exception(error)
}

/// The exception for a budget that cannot be met.
pub(crate) fn infeasible(py: Python<'_>, words: &str, budget: Bytes, least: Bytes) -> PyErr {
    let error = Infeasible::new_err(words.trim_end().to_owned());
    let value = error.value(py);
    // Exceptions take any attribute.
    let set = value.setattr("budget", budget.0).and_then(|()| value.setattr("least_budget", least.0));
    set.err().unwrap_or(error)
}

/// Warns whoever called, at the line outside of the package.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("rematic._warning")?.call_method1("warn", (text,))?;
    Ok(())
}
