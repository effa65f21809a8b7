//! Devices as Python names them.

use pyo3::prelude::*;
use rematic::options::DEVICE;
use rematic::{CardKind, CostError, CostRule, CostSource, Devices, Error, Target};

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

/// The kind of card that a device is, if that is known.
pub(crate) fn card_of(name: &str) -> PyResult<Option<CardKind>> {
    let sheet = CostSource::Rule(CostRule::default());
    Ok(Target::find(name, None, sheet).map_err(unknown)?.card())
}

/// The kind of card that a device of that name is, or one of that compute capability (80 for 8.0).
#[pyfunction]
#[pyo3(signature = (name, capability=None))]
pub(crate) fn card_kind(name: &str, capability: Option<u32>) -> PyResult<String> {
    let kind = match capability {
        Some(capability) => CardKind::of(capability),
        None => card_of(name)?.unwrap_or_default(),
    };
    Ok(kind.to_string())
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
