//! Devices as Python names them.

use pyo3::prelude::*;
use rematic::options::DEVICE;
use rematic::{CostError, Devices, Error};

use crate::error::{PlanError, RematicError, exception};

/// A device whose data sheet is meant. `rematic._device` knows which one "cuda" and torch's own objects stand for.
pub(crate) struct DeviceName {
    pub(crate) name: String,
    /// The CPU has no data sheet: times are another device's, and its memory is not known.
    pub(crate) is_host: bool,
}

impl Default for DeviceName {
    fn default() -> Self {
        DeviceName { name: DEVICE.to_owned(), is_host: false }
    }
}

impl FromPyObject<'_, '_> for DeviceName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let found = object.py().import("rematic._device")?.call_method1("data_sheet", (object,))?;
        let (name, is_host) = found.extract()?;
        Ok(DeviceName { name, is_host })
    }
}

/// The names of the known devices.
#[pyfunction]
pub(crate) fn devices() -> Vec<String> {
    Devices::builtin().all().iter().map(|device| device.name.clone()).collect()
}

/// What was asked of a device that is not known, with those that are.
pub(crate) fn unknown(error: Error) -> PyErr {
    if let Error::Cost(CostError::UnknownDevice { .. }) = error {
        let names = devices().join(", ");
        return RematicError::new_err(format!("{error}: {names}; cuda and cpu are understood too"));
    }
    exception(error)
}

/// Without a budget it is the device's memory, which nobody knows of the CPU.
pub(crate) fn no_budget_for_host() -> PyErr {
    PlanError::new_err("How much memory the CPU may use is not known; give it as budget=, like \"8GiB\"")
}
