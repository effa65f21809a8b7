//! Reads device files; the head of `devices.toml` documents their format.
//!
//! The tables are walked by hand, because every error has to name the file, the device and the field.

use rematic_trace::{Bytes, Millis};
use toml::{Table, Value};

use crate::device::{
    DEFAULT_LAUNCH, DEFAULT_MATMUL_EFFICIENCY, Device, GbPerSecond, HostLink, Peaks, TflopPerSecond, TorchDatasheet,
};
use crate::error::CostError;

const DEVICE_FIELDS: &[&str] = &[
    "name",
    "product",
    "tflops",
    "memory_gb",
    "dram_gb_per_s",
    "link_gb_per_s",
    "pcie",
    "c2c_gb_per_s",
    "matmul_efficiency",
    "launch_us",
    "unverified",
    "torch_datasheet",
];
const TFLOPS_FIELDS: &[&str] = &["f64", "f32", "tf32", "bf16", "f16", "f8"];
const TORCH_FIELDS: &[&str] = &["name", "f64", "f32", "bf16", "f16", "dram_gb_per_s"];

const POSITIVE: &str = "a finite number above 0";
const SHARE: &str = "a share above 0 and at most 1";
const TEXT: &str = "a text that is not empty";
const NAME: &str = "a name of lower-case letters, digits, `-` and `.`";
const TABLE: &str = "a table such as { f32 = 19.5, bf16 = 312 }";
const GENERATION: &str = "a PCIe generation from 1 to 9";
const HOST_LINK: &str = "either `pcie = 4` (a generation) or `c2c_gb_per_s = 450`, not both";
const FIELD_LIST: &str = "a list of fields of this device, such as [\"tflops.bf16\"]";
/// More memory than any device has for decades, and far from the 2^62 bytes that a trace may hold.
const MOST_MEMORY_GB: f64 = 1e6;
const MEMORY: &str = "a number of GB above 0 and at most 1000000";

/// The devices of a file, in its order.
pub(crate) fn read(text: &str, file: &str) -> Result<Vec<Device>, CostError> {
    let document: Table =
        text.parse().map_err(|source| CostError::NotToml { file: file.to_owned(), source: Box::new(source) })?;
    if let Some(found) = document.keys().find(|key| *key != "device") {
        return Err(CostError::UnknownTable { file: file.to_owned(), found: found.clone() });
    }
    let Some(Value::Array(entries)) = document.get("device") else {
        return Err(CostError::NoDevice { file: file.to_owned() });
    };
    let mut devices: Vec<Device> = Vec::with_capacity(entries.len());
    for (row, entry) in entries.iter().enumerate() {
        let Value::Table(table) = entry else {
            return Err(CostError::NoDevice { file: file.to_owned() });
        };
        let device = read_device(table, file, row)?;
        if devices.iter().any(|other| other.name == device.name) {
            return Err(CostError::DuplicateDevice { file: file.to_owned(), device: device.name });
        }
        devices.push(device);
    }
    if devices.is_empty() {
        return Err(CostError::NoDevice { file: file.to_owned() });
    }
    Ok(devices)
}

fn read_device(table: &Table, file: &str, row: usize) -> Result<Device, CostError> {
    let label = match table.get("name") {
        Some(Value::String(name)) => format!("`{name}`"),
        _ => format!("number {}", row + 1),
    };
    let fields = Fields { file, device: &label, prefix: "", table };
    fields.only(DEVICE_FIELDS)?;
    let name = fields.text("name")?;
    if name.chars().any(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.')) {
        return Err(fields.bad("name", NAME));
    }
    let tflops = fields.required_table("tflops", TFLOPS_FIELDS)?;
    let efficiency = fields.number("matmul_efficiency", SHARE, |share| share <= 1.0)?;
    let launch = fields.positive("launch_us")?;
    let mut unverified = fields.names_of_fields("unverified")?;
    if launch.is_none() {
        unverified.push("launch_us".to_owned());
    }
    let memory_gb = fields
        .number("memory_gb", MEMORY, |gb| gb <= MOST_MEMORY_GB)?
        .ok_or_else(|| fields.missing("memory_gb", MEMORY))?;
    Ok(Device {
        name,
        product: fields.text("product")?,
        peaks: tflops.peaks()?,
        memory: bytes_of_gb(memory_gb),
        dram: GbPerSecond(fields.required("dram_gb_per_s")?),
        link: fields.positive("link_gb_per_s")?.map(GbPerSecond),
        host_link: fields.host_link()?,
        matmul_efficiency: efficiency.unwrap_or(DEFAULT_MATMUL_EFFICIENCY),
        efficiency_is_measured: efficiency.is_some(),
        launch: launch.map_or(DEFAULT_LAUNCH, |micros| Millis(micros / 1e3)),
        unverified,
        torch_datasheet: fields.torch_datasheet()?,
    })
}

/// A value as an error shows it; lists and tables only by their kind.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Table(table) => format!("a table of {}", table.len()),
    }
}

fn bytes_of_gb(gb: f64) -> Bytes {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 10^15 and above 0, so it only drops a fraction of a byte"
    )]
    Bytes((gb * 1e9) as u64)
}

/// A table of a device, with what its errors have to name.
struct Fields<'a> {
    file: &'a str,
    device: &'a str,
    prefix: &'static str,
    table: &'a Table,
}

impl<'a> Fields<'a> {
    fn full_name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    fn bad(&self, field: &str, needed: &'static str) -> CostError {
        CostError::BadField {
            file: self.file.to_owned(),
            device: self.device.to_owned(),
            field: self.full_name(field),
            found: self.table.get(field).map_or_else(|| "missing".to_owned(), shown),
            needed,
        }
    }

    fn missing(&self, field: &str, needed: &'static str) -> CostError {
        CostError::MissingField {
            file: self.file.to_owned(),
            device: self.device.to_owned(),
            field: self.full_name(field),
            needed,
        }
    }

    fn only(&self, known: &'static [&'static str]) -> Result<(), CostError> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(field) => Err(CostError::UnknownField {
                file: self.file.to_owned(),
                device: self.device.to_owned(),
                field: self.full_name(field),
                known,
            }),
        }
    }

    fn text(&self, field: &str) -> Result<String, CostError> {
        match self.table.get(field) {
            None => Err(self.missing(field, TEXT)),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
            Some(_) => Err(self.bad(field, TEXT)),
        }
    }

    /// A finite number above 0 that also fulfils `fits`.
    fn number(&self, field: &str, needed: &'static str, fits: fn(f64) -> bool) -> Result<Option<f64>, CostError> {
        let number = match self.table.get(field) {
            None => return Ok(None),
            Some(Value::Float(number)) => *number,
            Some(Value::Integer(number)) => *number as f64,
            Some(_) => return Err(self.bad(field, needed)),
        };
        // A denormal rate would make infinite times of finite work.
        if number.is_normal() && number > 0.0 && fits(number) { Ok(Some(number)) } else { Err(self.bad(field, needed)) }
    }

    fn positive(&self, field: &str) -> Result<Option<f64>, CostError> {
        self.number(field, POSITIVE, |_| true)
    }

    fn required(&self, field: &str) -> Result<f64, CostError> {
        self.positive(field)?.ok_or_else(|| self.missing(field, POSITIVE))
    }

    fn required_table(&self, field: &'static str, known: &'static [&'static str]) -> Result<Fields<'a>, CostError> {
        self.inner_table(field, known)?.ok_or_else(|| self.missing(field, TABLE))
    }

    fn inner_table(
        &self,
        field: &'static str,
        known: &'static [&'static str],
    ) -> Result<Option<Fields<'a>>, CostError> {
        let prefix = if field == "tflops" { "tflops." } else { "torch_datasheet." };
        match self.table.get(field) {
            None => Ok(None),
            Some(Value::Table(table)) => {
                let inner = Fields { file: self.file, device: self.device, prefix, table };
                inner.only(known)?;
                Ok(Some(inner))
            }
            Some(_) => Err(self.bad(field, TABLE)),
        }
    }

    fn peaks(&self) -> Result<Peaks, CostError> {
        let rate = |field| self.positive(field).map(|rate| rate.map(TflopPerSecond));
        Ok(Peaks {
            f64: rate("f64")?,
            f32: Some(TflopPerSecond(self.required("f32")?)),
            tf32: rate("tf32")?,
            bf16: rate("bf16")?,
            f16: rate("f16")?,
            f8: rate("f8")?,
        })
    }

    fn host_link(&self) -> Result<HostLink, CostError> {
        match (self.table.get("pcie"), self.positive("c2c_gb_per_s")?) {
            (None, None) => Err(self.missing("pcie", HOST_LINK)),
            (Some(_), Some(_)) => Err(self.bad("pcie", HOST_LINK)),
            (None, Some(bandwidth)) => Ok(HostLink::C2c(GbPerSecond(bandwidth))),
            (Some(generation), None) => generation
                .as_integer()
                .and_then(|generation| u8::try_from(generation).ok())
                .filter(|generation| (1..=9).contains(generation))
                .map(HostLink::Pcie)
                .ok_or_else(|| self.bad("pcie", GENERATION)),
        }
    }

    fn names_of_fields(&self, field: &str) -> Result<Vec<String>, CostError> {
        let Some(value) = self.table.get(field) else { return Ok(Vec::new()) };
        let is_field = |name: &str| match name.strip_prefix("tflops.") {
            Some(dtype) => TFLOPS_FIELDS.contains(&dtype),
            None => DEVICE_FIELDS.contains(&name),
        };
        let names = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
        match names.flatten() {
            Some(names) if names.iter().all(|name| is_field(name)) => {
                Ok(names.into_iter().map(str::to_owned).collect())
            }
            _ => Err(self.bad(field, FIELD_LIST)),
        }
    }

    fn torch_datasheet(&self) -> Result<Option<TorchDatasheet>, CostError> {
        let Some(sheet) = self.inner_table("torch_datasheet", TORCH_FIELDS)? else { return Ok(None) };
        Ok(Some(TorchDatasheet {
            name: sheet.text("name")?,
            peaks: sheet.peaks()?,
            dram: GbPerSecond(sheet.required("dram_gb_per_s")?),
        }))
    }
}
