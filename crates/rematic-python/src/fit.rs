//! What fits.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rematic::{Cancel, Devices, Error, FitRequest, Fixed, Fsdp2, Limits, StepSize, StepTrace, Steps, Style};

use crate::device::DeviceName;
use crate::error::exception;
use crate::option::target;
use crate::trace::Trace;
use crate::work::interruptible;

/// The largest batch, the longest sequence, the fewest GPUs and the smallest device that fit, and the fastest set-ups.
#[pyclass(frozen, module = "rematic")]
pub(crate) struct Fit {
    fit: rematic::Fit,
}

#[pymethods]
impl Fit {
    /// Whether anything fits, if only with a plan.
    #[getter]
    fn fits(&self) -> bool {
        self.fit.fits()
    }

    /// What `rematic fit --json` says.
    fn to_json(&self) -> String {
        self.fit.json()
    }

    fn __repr__(&self) -> String {
        format!("<rematic.Fit of {}: {} set-ups that fit>", self.fit.setup.model(), self.fit.setups.len())
    }

    fn __str__(&self) -> String {
        self.fit.text(Style::default()).trim_end().to_owned()
    }
}

/// Steps that a function of Python makes.
struct Made {
    step: Py<PyAny>,
    varies: Varies,
    /// What it raised last.
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// What the function looks at: batch, sequence, ranks that share the model, and whether the optimizer is fused.
type Varies = (bool, bool, bool, bool);

impl Steps for Made {
    fn step(&self, size: &StepSize) -> Result<StepTrace, Error> {
        let StepSize { batch, seq, tp, ranks, fused, card, .. } = *size;
        let card = card.map(|card| card.to_string());
        Python::attach(|py| {
            let made = self.step.call1(py, (batch, seq, tp, ranks, fused, card));
            let made = made.and_then(|made| Ok(made.bind(py).cast::<Trace>()?.get().step.clone()));
            made.map(|step| (*step).clone()).map_err(|raised| {
                let why = raised.value(py).to_string();
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
                Error::NoStep { why }
            })
        })
    }

    fn varies_batch(&self) -> bool {
        self.varies.0
    }

    fn varies_seq(&self) -> bool {
        self.varies.1
    }

    fn varies_tp(&self) -> bool {
        self.varies.2
    }

    fn can_fuse(&self) -> bool {
        self.varies.3
    }
}

/// What fits, of steps that `step` makes: a function of batch, sequence, ranks that share the model, ranks among which it is
/// spread, whether the optimizer is to be fused, and the kind of card.
#[pyfunction]
#[pyo3(signature = (step, varies, *, batch, seq, gpus, tp, mixed, device, device_file, alloc_conf))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn fit(
    py: Python<'_>,
    step: Py<PyAny>,
    varies: Varies,
    batch: Option<u64>,
    seq: Option<u64>,
    gpus: Option<u32>,
    tp: Option<u32>,
    mixed: bool,
    device: Option<DeviceName>,
    device_file: Option<PathBuf>,
    alloc_conf: Option<&str>,
) -> PyResult<Fit> {
    let fixed = Fixed { batch, seq, gpus, tp, device: device.is_some() };
    let name = device.unwrap_or_default().name;
    let target = target(&name, device_file.clone(), rematic::options::COST, None, None, alloc_conf)?;
    let mut devices = Devices::builtin();
    if let Some(file) = device_file {
        devices.extend_from(&file).map_err(exception)?;
    }
    let raised = Arc::default();
    let steps = Made { step, varies, raised: Arc::clone(&raised) };
    let cancel = Cancel::default();
    let limits = Limits { cancel: cancel.clone(), ..Limits::default() };
    let sharding = Fsdp2 { shards: mixed.then_some(rematic::Dtype::F32), ..Fsdp2::over(0) };
    let devices = devices.all().to_vec();
    let found = interruptible(py, &cancel, move || {
        FitRequest { steps: &steps, sharding, target, devices, fixed, limits }.answer()
    })?;
    found.map(|fit| Fit { fit }).map_err(|error| {
        let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Error::NoStep { .. }, Some(raised)) = (&error, raised) { raised } else { exception(error) }
    })
}
