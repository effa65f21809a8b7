use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use rematic::options::LossChoice;
use rematic::{Cancel, Error, Fsdp2, LossKind, Options, Recipe, Source, StepTrace, Study, Target, Timeline};
use rematic_trace::{ModuleId, Table};

use crate::device::{DeviceName, card_of};
use crate::error::{TraceError, exception};
use crate::option::{self, Patterns, TableOrPath, target};
use crate::study::LastStudy;
use crate::work::interruptible;

/// One training step: its modules, memory and operators, and everything that happens, in order.
#[pyclass(frozen, module = "rematic")]
pub(crate) struct Trace {
    pub(crate) step: Arc<StepTrace>,
    pub(crate) last: Arc<LastStudy>,
    /// The same step with its loss in chunks, where both are known.
    pub(crate) chunked: Option<Chunked>,
}

/// A step with its loss in chunks.
#[derive(Clone)]
pub(crate) enum Chunked {
    Step(Arc<StepTrace>, Arc<LastStudy>),
    /// Why there is none.
    Refused(String),
}

impl Chunked {
    fn of(step: Arc<StepTrace>) -> Self {
        Chunked::Step(step, Arc::default())
    }
}

/// One operator of a step.
#[pyclass(frozen, get_all, module = "rematic")]
pub(crate) struct Op {
    /// Its name with overload (`mm.default`).
    name: String,
    /// `forward`, `backward` or `optimizer`.
    phase: String,
    /// The full name of the module that it belongs to.
    module: Option<String>,
    /// What it reads: storage, and layout as (dtype, shape, strides).
    inputs: Vec<(usize, LayoutTuple)>,
    /// What it returns.
    outputs: Vec<(usize, LayoutTuple)>,
    /// Whether it is a view: no kernel runs.
    view: bool,
    /// Whether it draws random numbers.
    random: bool,
}

/// Type, shape, strides.
pub(crate) type LayoutTuple = (String, Vec<u64>, Vec<u64>);

pub(crate) fn layout_tuple(layout: &rematic_trace::Layout) -> LayoutTuple {
    (layout.dtype.name().to_owned(), layout.shape.clone(), layout.strides.clone())
}

#[pymethods]
impl Op {
    fn __repr__(&self) -> String {
        let module = self.module.as_ref().map_or_else(String::new, |module| format!(" in {module}"));
        format!("<rematic.Op {}{module} ({})>", self.name, self.phase)
    }
}

/// One module of a step.
#[pyclass(frozen, get_all, module = "rematic")]
pub(crate) struct Module {
    /// Its full name.
    path: String,
    /// Its class.
    class_name: String,
    /// How often its forward runs.
    calls: usize,
}

#[pymethods]
impl Module {
    fn __repr__(&self) -> String {
        format!("<rematic.Module {}: {}>", self.path, self.class_name)
    }
}

impl Trace {
    fn new(step: StepTrace) -> Self {
        Trace { step: Arc::new(step), last: Arc::default(), chunked: None }
    }

    /// The replayed memory.
    fn timeline_by(&self, py: Python<'_>, allocator: Option<&str>) -> PyResult<Timeline> {
        let allocator = match allocator {
            Some(name) => option::allocator(name)?,
            None => Target::default_allocator(&self.step),
        };
        let step = Arc::clone(&self.step);
        interruptible(py, &Cancel::default(), move || Timeline::replay(&step, allocator))
    }
}

/// What a trace without a file is called in messages.
const IN_MEMORY: &str = "the trace";

#[pymethods]
impl Trace {
    /// Reads and validates the content of an `.rmt` or `.rmt.zst` file.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Self> {
        let data = data.to_vec();
        let read = interruptible(py, &Cancel::default(), move || StepTrace::from_bytes(&data, Path::new(IN_MEMORY)))?;
        read.map(Trace::new).map_err(exception)
    }

    /// Reads and validates a trace file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        interruptible(py, &Cancel::default(), move || StepTrace::read(&path))?.map(Trace::new).map_err(exception)
    }

    /// The step of one rank with the layers and the model sharded by FSDP2 over so many GPUs, with all buffers.
    ///
    /// `replicate`: groups of GPUs with a copy of the model each (HSDP). `rank`: whose step it is, within its group. `reshard`:
    /// whether a layer's weights go after its forward. `mixed`: shards, their gradients and the optimizer's state are fp32,
    /// while the step computes in a half type.
    #[pyo3(signature = (gpus, *, replicate=1, rank=0, reshard=true, mixed=false))]
    fn fsdp(&self, py: Python<'_>, gpus: u32, replicate: u32, rank: u32, reshard: bool, mixed: bool) -> PyResult<Self> {
        let shards = mixed.then_some(rematic::Dtype::F32);
        let how = Fsdp2 { replicas: replicate, rank, reshard, shards, ..Fsdp2::over(gpus) };
        let spread = |step: &Arc<StepTrace>| {
            let step = Arc::clone(step);
            let spread =
                move || rematic::fsdp2(&step, &how, &rematic::fsdp2_layers(&step)).map_err(rematic::Error::from);
            interruptible(py, &Cancel::default(), spread)?.map_err(exception)
        };
        let chunked = match &self.chunked {
            Some(Chunked::Step(step, _)) => Some(Chunked::of(Arc::new(spread(step)?))),
            other => other.clone(),
        };
        Ok(Trace { chunked, ..Trace::new(spread(&self.step)?) })
    }

    /// Traces a built-in model, or the one that a Hugging Face config (a path, or a dict) describes.
    #[staticmethod]
    #[pyo3(signature = (source, *, batch=None, seq=None, dtype=None, optimizer=None, attention=None, device=None, layers=None,
                        dropout=None, dim=None, heads=None, vocab=None, tp=None, tp_rank=None, precision=None, accumulate=None,
                        lora=None, lora_targets=None, lora_alpha=None, freeze=None, loss=None))]
    #[expect(clippy::too_many_arguments, reason = "the options of the command line")]
    fn model(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        batch: Option<u64>,
        seq: Option<u64>,
        dtype: Option<&Bound<'_, PyAny>>,
        optimizer: Option<&str>,
        attention: Option<&str>,
        device: Option<DeviceName>,
        layers: Option<u64>,
        dropout: Option<f64>,
        dim: Option<u64>,
        heads: Option<u64>,
        vocab: Option<u64>,
        tp: Option<u32>,
        tp_rank: Option<u32>,
        precision: Option<&str>,
        accumulate: Option<u32>,
        lora: Option<u64>,
        lora_targets: Option<Patterns>,
        lora_alpha: Option<f64>,
        freeze: Option<Patterns>,
        loss: Option<&str>,
    ) -> PyResult<Self> {
        let dtype = dtype.map(option::dtype).transpose()?;
        let (dtype, autocast) = option::types(dtype, precision)?;
        let loss = loss.map(option::loss).transpose()?;
        let recipe = Recipe {
            autocast,
            scaler: false,
            accumulate,
            lora: option::lora(lora, lora_targets, lora_alpha)?,
            freeze: option::list(freeze),
            loss: loss.and_then(LossChoice::kind),
        };
        let options = Options {
            batch,
            seq,
            dtype,
            optimizer: optimizer.map(option::optimizer).transpose()?,
            attention: attention.map(option::attention).transpose()?,
            card: device.map(|device| card_of(&device.name)).transpose()?.flatten(),
            layers,
            dropout,
            dim,
            heads,
            vocab,
            tp,
            tp_rank,
            recipe,
        };
        let source = source_of(py, source)?;
        let traced =
            |source: Source, options: Options| interruptible(py, &Cancel::default(), move || source.trace(&options));
        let plain = traced(source.clone(), options.clone())?.map(Trace::new).map_err(exception)?;
        if loss != Some(LossChoice::Chosen) {
            return Ok(plain);
        }
        let mut other = options;
        other.recipe.loss = Some(LossKind::Chunked);
        let chunked = match traced(source, other)? {
            Ok(step) => Chunked::of(Arc::new(step)),
            Err(error @ Error::Model(_)) => Chunked::Refused(error.to_string()),
            Err(error) => return Err(exception(error)),
        };
        Ok(Trace { chunked: Some(chunked), ..plain })
    }

    /// The same step, which knows how it would be with its loss in chunks, or why it cannot be.
    #[pyo3(signature = (chunked, refused=None))]
    fn beside(&self, chunked: Option<&Trace>, refused: Option<String>) -> Self {
        let chunked = match (chunked, refused) {
            (Some(trace), _) => Some(Chunked::Step(Arc::clone(&trace.step), Arc::clone(&trace.last))),
            (None, why) => why.map(Chunked::Refused),
        };
        Trace { step: Arc::clone(&self.step), last: Arc::clone(&self.last), chunked }
    }

    /// The same step with its loss in chunks, where both are known.
    #[getter]
    fn chunked(&self) -> Option<Self> {
        match &self.chunked {
            Some(Chunked::Step(step, last)) => {
                Some(Trace { step: Arc::clone(step), last: Arc::clone(last), chunked: None })
            }
            _ => None,
        }
    }

    /// Writes the trace; a name that ends in `.zst` compresses it.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.step.write(&path)).map_err(exception)
    }

    /// The content of a trace file.
    #[pyo3(signature = (*, compress=false))]
    fn to_bytes<'py>(&self, py: Python<'py>, compress: bool) -> PyResult<Bound<'py, PyBytes>> {
        let mut content = Vec::new();
        py.detach(|| if compress { self.step.to_packed(&mut content) } else { self.step.to_writer(&mut content) })?;
        Ok(PyBytes::new(py, &content))
    }

    /// What was traced.
    #[getter]
    fn name(&self) -> &str {
        &self.step.origin.model
    }

    /// The kind of device that it was traced for, if it says so.
    #[getter]
    fn device(&self) -> Option<String> {
        self.step.origin.device.map(|device| device.to_string())
    }

    /// How it was traced.
    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        facts(py, &self.step.origin.facts())
    }

    /// The modules, each after the module that holds it.
    #[getter]
    fn modules(&self) -> Vec<Module> {
        let mut calls = self.step.modules().filled(0);
        for call in self.step.calls() {
            calls[call.module] += 1;
        }
        let module =
            |(id, &calls)| Module { path: self.step.path(id), class_name: self.step.module(id).class.clone(), calls };
        calls.entries().map(module).collect()
    }

    /// The operators, in the order of execution.
    #[getter]
    fn ops(&self) -> Vec<Op> {
        let step = &self.step;
        let paths: Table<ModuleId, String> = step.modules().ids().map(|module| step.path(module)).collect();
        let tensors = |tensors: &[rematic_trace::Tensor]| {
            let tuple =
                |tensor: &rematic_trace::Tensor| (tensor.storage.index(), layout_tuple(step.layout_of(*tensor)));
            tensors.iter().map(tuple).collect()
        };
        let op = |op: &rematic_trace::Op| Op {
            name: step.op_name(op).to_owned(),
            phase: op.phase.to_string(),
            module: step.module_of(op).map(|module| paths[module].clone()),
            inputs: tensors(step.inputs(op)),
            outputs: tensors(step.outputs(op)),
            view: op.flags.view,
            random: op.flags.random,
        };
        step.ops().iter().map(op).collect()
    }

    /// The highest bytes in use.
    #[pyo3(signature = (allocator=None))]
    fn peak(&self, py: Python<'_>, allocator: Option<&str>) -> PyResult<u64> {
        Ok(self.timeline_by(py, allocator)?.peak().total().0)
    }

    /// Bytes by category where the total is highest.
    #[pyo3(signature = (allocator=None))]
    fn categories<'py>(&self, py: Python<'py>, allocator: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
        let categories = PyDict::new(py);
        for (category, bytes) in self.timeline_by(py, allocator)?.peak().snapshot.iter() {
            categories.set_item(category.to_string(), bytes.0)?;
        }
        Ok(categories)
    }

    /// Bytes in use after every operator.
    #[pyo3(signature = (allocator=None))]
    fn timeline(&self, py: Python<'_>, allocator: Option<&str>) -> PyResult<Vec<u64>> {
        Ok(self.timeline_by(py, allocator)?.totals().iter().map(|total| total.0).collect())
    }

    /// What `rematic stats --json` says.
    #[pyo3(signature = (*, device=DeviceName::default(), device_file=None, cost="physical", cost_table=None, allocator=None, alloc_conf=None,
                        timeline=false))]
    #[expect(clippy::too_many_arguments, reason = "the options of the command line")]
    fn stats<'py>(
        &self,
        py: Python<'py>,
        device: DeviceName,
        device_file: Option<PathBuf>,
        cost: &str,
        cost_table: Option<TableOrPath<'_>>,
        allocator: Option<&str>,
        alloc_conf: Option<&str>,
        timeline: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let target = target(&device.name, device_file, cost, cost_table, allocator, alloc_conf)?;
        let step = Arc::clone(&self.step);
        let json = interruptible(py, &Cancel::default(), move || {
            Study::of_calls((*step).clone(), target).map(|study| study.stats().json(timeline))
        })?;
        py.import("json")?.call_method1("loads", (json.map_err(exception)?,))
    }

    fn __len__(&self) -> usize {
        self.step.ops().len()
    }

    fn __eq__(&self, other: &Trace) -> bool {
        *self.step == *other.step
    }

    fn __repr__(&self) -> String {
        let (ops, modules) = (self.step.ops().len(), self.step.modules().len());
        format!("<rematic.Trace of {}: {ops} operators, {modules} modules>", self.step.origin.model)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let timeline = self.timeline_by(py, None)?;
        Ok(rematic::trace_text(&self.step, &timeline).trim_end().to_owned())
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        Ok(rematic::trace_html(&self.step, &self.timeline_by(py, None)?))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let from_bytes = py.get_type::<Trace>().getattr("from_bytes")?;
        Ok((from_bytes, (self.to_bytes(py, true)?,)))
    }
}

/// How a step was traced, as a dictionary. Assumptions, of which there may be several, are one text.
pub(crate) fn facts<'py>(py: Python<'py>, facts: &[(String, String)]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, value) in facts {
        match found.get_item(name)? {
            Some(before) if name == "assumed" => found.set_item(name, format!("{before}; {value}"))?,
            _ => found.set_item(name, value)?,
        }
    }
    Ok(found)
}

/// A model by its name, the path of its config, or the config itself.
fn source_of(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Source> {
    let source = if source.is_instance_of::<PyDict>() {
        let text: String = py.import("json")?.call_method1("dumps", (source,))?.extract()?;
        Source::of_config("the config", &text).map_err(exception)?
    } else {
        let path: PathBuf = source.extract()?;
        let name = path.to_str().ok_or_else(|| TraceError::new_err("the name of the model is not text in UTF-8"))?;
        Source::open(name).map_err(exception)?
    };
    Ok(match source {
        // This Python captures it, if it knows what it was started as.
        Source::Foreign(model) => match py.import("sys")?.getattr("executable")?.extract::<Option<PathBuf>>()? {
            Some(python) if !python.as_os_str().is_empty() => Source::Foreign(model.by(python)),
            _ => Source::Foreign(model),
        },
        known => known,
    })
}
