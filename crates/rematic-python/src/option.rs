//! Options as Python gives them.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rematic::options::{self, LossChoice, Named};
use rematic::{
    Allocator, AttentionKernel, Bytes, CostSource, Dtype, HostBandwidth, Limits, Lora, MilpSettings, NoConnection,
    Optimizer, Planner, Settings, SettingsError, Target,
};

use crate::cost::CostTable;
use crate::device::unknown;
use crate::error::{PlanError, RematicError, exception};

/// One of several values by its name.
pub(crate) fn choose<T: Copy>(option: &str, name: &str, known: &[Named<T>]) -> PyResult<T> {
    options::find(known, name).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|known| known.name).collect();
        RematicError::new_err(format!("{option} is `{name}`; give {}", one_of(&names)))
    })
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// A size: bytes, or text like 38GiB.
#[derive(FromPyObject)]
pub(crate) enum Size {
    #[pyo3(transparent, annotation = "int")]
    Bytes(u64),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
}

impl Size {
    pub(crate) fn bytes(&self) -> PyResult<Bytes> {
        match self {
            Size::Bytes(bytes) => Ok(Bytes(*bytes)),
            Size::Text(text) => {
                text.parse().map_err(|error: rematic_trace::ParseBytesError| RematicError::new_err(error.to_string()))
            }
        }
    }
}

/// A negative or too large number, or something that is no size at all, in the words of the command line.
pub(crate) fn size(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    match object.extract::<Size>() {
        Ok(size) => size.bytes(),
        Err(_) if object.is_instance_of::<pyo3::types::PyInt>() => {
            Err(RematicError::new_err(format!("`{object}` is not a size; write it like 38GiB, 40GB or 1073741824")))
        }
        Err(_) => Err(PyTypeError::new_err(format!(
            "a size is a number of bytes or a text like \"38GiB\", not {}",
            object.get_type().name()?
        ))),
    }
}

/// A table of measured times, or the file that holds one.
#[derive(FromPyObject)]
pub(crate) enum TableOrPath<'py> {
    Table(PyRef<'py, CostTable>),
    Path(PathBuf),
}

pub(crate) fn target(
    device: &str,
    device_file: Option<PathBuf>,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
) -> PyResult<Target> {
    let rule = choose("cost", cost, options::COSTS)?;
    let source = match (rule, cost_table) {
        (None, Some(TableOrPath::Table(table))) => CostSource::Table(table.table.clone()),
        (None, Some(TableOrPath::Path(path))) => CostSource::table(&path).map_err(exception)?,
        (None, None) => {
            let text = "measured times need a table; measure one with rematic.benchmark, and give it as cost_table";
            return Err(RematicError::new_err(text));
        }
        (Some(_), Some(_)) => {
            let text = "a cost table is only used for measured times; add cost=\"measured\"";
            return Err(RematicError::new_err(text));
        }
        (Some(rule), None) => CostSource::Rule(rule),
    };
    let mut target = Target::find(device, device_file.as_deref(), source).map_err(unknown)?;
    target.allocator = allocator.map(self::allocator).transpose()?;
    target.settings = settings(alloc_conf)?;
    target.asks_for_settings = alloc_conf.is_some();
    Ok(target)
}

/// Where torch looks for its allocator's settings; the first that there is counts.
const VARIABLES: [&str; 3] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Settings of PyTorch's caching allocator, as given, or as the environment has them.
fn settings(alloc_conf: Option<&str>) -> PyResult<Settings> {
    if let Some(text) = alloc_conf {
        return text.parse().map_err(|error: SettingsError| exception(error));
    }
    let found = VARIABLES.iter().find_map(|variable| Some((variable, std::env::var(variable).ok()?)));
    let Some((variable, text)) = found else { return Ok(Settings::default()) };
    text.parse().map_err(|error: SettingsError| {
        RematicError::new_err(format!("{variable}: {error}; or give the settings to plan for as alloc_conf"))
    })
}

pub(crate) fn allocator(name: &str) -> PyResult<Allocator> {
    choose("allocator", name, options::ALLOCATORS)
}

pub(crate) fn planner(name: &str, gap: Option<f64>, time_limit: Option<f64>) -> PyResult<Planner> {
    let planner = choose("planner", name, options::PLANNERS)?;
    let time_limit = time_limit.map(Duration::try_from_secs_f64).transpose().map_err(|_| {
        let found = time_limit.unwrap_or_default();
        PlanError::new_err(format!("time_limit is {found}; give a number of seconds that is not negative"))
    })?;
    planner.with(MilpSettings { gap, time_limit }).map_err(exception)
}

pub(crate) fn optimizer(name: &str) -> PyResult<Optimizer> {
    choose("optimizer", name, options::OPTIMIZERS)
}

pub(crate) fn attention(name: &str) -> PyResult<AttentionKernel> {
    choose("attention", name, options::ATTENTION)
}

/// A type by its name here, in torch, or as torch's own object.
pub(crate) fn dtype(object: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let text = object.str()?.to_string();
    let name = match text.strip_prefix("torch.").unwrap_or(&text) {
        "float32" => "fp32",
        "bfloat16" => "bf16",
        "float16" => "fp16",
        other => other,
    };
    choose("dtype", name, options::DTYPES)
}

/// One pattern, or several.
#[derive(FromPyObject)]
pub(crate) enum Patterns {
    One(String),
    Many(Vec<String>),
}

pub(crate) fn list(patterns: Option<Patterns>) -> Vec<String> {
    match patterns {
        None => Vec::new(),
        Some(Patterns::One(pattern)) => vec![pattern],
        Some(Patterns::Many(patterns)) => patterns,
    }
}

pub(crate) fn loss(name: &str) -> PyResult<LossChoice> {
    choose("loss", name, options::LOSSES)
}

/// The type of a model, and that of autocast: by a type for all, or by a precision.
pub(crate) fn types(dtype: Option<Dtype>, precision: Option<&str>) -> PyResult<(Option<Dtype>, Option<Dtype>)> {
    match (dtype, precision) {
        (Some(_), Some(_)) => Err(RematicError::new_err("dtype and precision say the same thing; give one of the two")),
        (dtype, None) => Ok((dtype, None)),
        (None, Some(name)) => {
            let (dtype, autocast) = choose("precision", name, options::PRECISIONS)?.types(false);
            Ok((Some(dtype), autocast))
        }
    }
}

pub(crate) fn lora(rank: Option<u64>, targets: Option<Patterns>, alpha: Option<f64>) -> PyResult<Option<Lora>> {
    match rank {
        Some(rank) => Ok(Some(Lora { rank, targets: list(targets), alpha, dtype: None })),
        None if targets.is_some() || alpha.is_some() => {
            Err(RematicError::new_err("lora_targets and lora_alpha are for lora; give its rank"))
        }
        None => Ok(None),
    }
}

pub(crate) fn limits(only: Option<Patterns>, never: Option<Patterns>, whole: bool, runs: bool) -> Limits {
    Limits { only: list(only), never: list(never), whole, runs, ..Limits::default() }
}

/// The rate of the link to the host: GB/s, or a text as the command line takes it.
#[derive(FromPyObject)]
pub(crate) enum HostRate {
    #[pyo3(transparent, annotation = "float")]
    Rate(f64),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
}

/// Limits with what the host has, and a target with the link to it.
pub(crate) fn with_host(
    limits: Limits,
    target: &mut Target,
    memory: Option<&Bound<'_, PyAny>>,
    rate: Option<HostRate>,
) -> PyResult<Limits> {
    let rate = rate.map(|rate| match rate {
        HostRate::Rate(rate) => rate.to_string(),
        HostRate::Text(text) => text,
    });
    if memory.is_none() && rate.is_some() {
        return Err(exception(rematic::Error::UnusedHostBandwidth));
    }
    let wrong = |error: NoConnection| RematicError::new_err(format!("host_bandwidth: {error}"));
    let rate = rate.map(|rate| rate.parse::<HostBandwidth>().map_err(wrong)).transpose()?;
    *target = target.clone().with_host(rate);
    Ok(Limits { host_memory: memory.map(size).transpose()?, ..limits })
}
