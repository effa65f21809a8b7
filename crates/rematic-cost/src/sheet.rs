//! Reads device files; the head of `devices.toml` documents their format.

use rematic_trace::{Bytes, Millis};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use crate::device::{
    DEFAULT_LAUNCH, DEFAULT_MATMUL_EFFICIENCY, Device, GbPerSecond, HostLink, Peaks, TflopPerSecond, TorchDatasheet,
};
use crate::error::CostError;
use crate::link::{DEFAULT_NETWORK, DEFAULT_PER_NODE, Links};

/// More memory than any device has for decades, and far from the 2^62 bytes that a trace may hold.
const MOST_MEMORY_GB: f64 = 1e6;

/// The devices of a file, in its order.
pub(crate) fn read(text: &str, file: &str) -> Result<Vec<Device>, CostError> {
    let document: Table =
        text.parse().map_err(|source| CostError::NotToml { file: file.to_owned(), source: Box::new(source) })?;
    if let Some(found) = document.keys().find(|key| *key != "device") {
        return Err(CostError::UnknownTable { file: file.to_owned(), found: found.clone() });
    }
    let rows = document.get("device").and_then(Value::as_array).filter(|rows| !rows.is_empty());
    let Some(rows) = rows.filter(|rows| rows.iter().all(Value::is_table)) else {
        return Err(CostError::NoDevice { file: file.to_owned() });
    };
    let mut devices: Vec<Device> = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let fault = |field: String, message: String| CostError::BadField {
            file: file.to_owned(),
            device: row
                .get("name")
                .and_then(Value::as_str)
                .map_or(format!("number {}", number + 1), |name| format!("`{name}`")),
            field,
            message,
        };
        let device = serde_path_to_error::deserialize::<_, DeviceRow>(row.clone()).map_err(|error| {
            let field = error.path().to_string();
            fault(if field == "." { String::new() } else { field }, error.into_inner().message().to_owned())
        })?;
        let device = device.into_device().map_err(|(field, message)| fault(field.to_owned(), message.to_owned()))?;
        if devices.iter().any(|other| other.name == device.name) {
            return Err(CostError::DuplicateDevice { file: file.to_owned(), device: device.name });
        }
        devices.push(device);
    }
    Ok(devices)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceRow {
    name: Name,
    product: Text,
    tflops: PeaksRow,
    memory_gb: Positive,
    usable_gib: Option<Positive>,
    capability: Option<Count>,
    processors: Option<Count>,
    dram_gb_per_s: Positive,
    link_gb_per_s: Option<Positive>,
    bus_gb_per_s: Option<Positive>,
    network_gb_per_s: Option<Positive>,
    gpus_per_node: Option<Count>,
    pcie: Option<Generation>,
    c2c_gb_per_s: Option<Positive>,
    matmul_efficiency: Option<Positive>,
    pace_share: Option<Positive>,
    launch_us: Option<Positive>,
    #[serde(default)]
    unverified: Vec<Field>,
    torch_datasheet: Option<TorchRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { f32 = 19.5, bf16 = 312 }")]
struct PeaksRow {
    f64: Option<Positive>,
    f32: Positive,
    tf32: Option<Positive>,
    bf16: Option<Positive>,
    f16: Option<Positive>,
    f8: Option<Positive>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { name = \"A100\", f32 = 19.5, dram_gb_per_s = 2000 }")]
struct TorchRow {
    name: Text,
    f64: Option<Positive>,
    f32: Positive,
    bf16: Option<Positive>,
    f16: Option<Positive>,
    dram_gb_per_s: Positive,
}

impl DeviceRow {
    /// The device, or a field and what is wrong with it.
    fn into_device(self) -> Result<Device, (&'static str, &'static str)> {
        if self.memory_gb.0 > MOST_MEMORY_GB {
            return Err(("memory_gb", "is too large; write a number of GB above 0 and at most 1000000"));
        }
        let (memory, gib) = (bytes_of_gb(self.memory_gb.0), f64::from(1 << 30) / 1e9);
        let usable = self.usable_gib.map_or(memory, |usable| bytes_of_gb(usable.0.min(2.0 * MOST_MEMORY_GB) * gib));
        // A maker's GB is at most a GiB.
        if usable.0 as f64 > memory.0 as f64 * gib {
            return Err(("usable_gib", "is larger than `memory_gb`; write what PyTorch's out-of-memory messages name"));
        }
        if self.capability.is_some() != self.processors.is_some() {
            return Err(("capability", "and `processors` belong together; write both, or neither"));
        }
        if self.matmul_efficiency.is_some_and(|share| share.0 > 1.0) {
            return Err(("matmul_efficiency", "is too large; write a share above 0 and at most 1"));
        }
        if self.pace_share.is_some_and(|share| share.0 > 1.0) {
            return Err(("pace_share", "is too large; write a share above 0 and at most 1"));
        }
        let host_link = match (self.pcie, self.c2c_gb_per_s) {
            (Some(generation), None) => HostLink::Pcie(generation.0),
            (None, Some(bandwidth)) => HostLink::C2c(GbPerSecond(bandwidth.0)),
            (None, None) => {
                return Err(("pcie", "is missing; write it (`pcie = 4`, a generation), or `c2c_gb_per_s = 450`"));
            }
            (Some(_), Some(_)) => return Err(("pcie", "is there beside `c2c_gb_per_s`; write one of them, not both")),
        };
        let links = self.links(host_link);
        let mut unverified: Vec<String> = self.unverified.into_iter().map(|field| field.0).collect();
        if self.launch_us.is_none() {
            unverified.push("launch_us".to_owned());
        }
        Ok(Device {
            name: self.name.0,
            product: self.product.0,
            peaks: self.tflops.into(),
            memory,
            usable,
            chip: self.capability.zip(self.processors).map(|(capability, processors)| (capability.0, processors.0)),
            dram: GbPerSecond(self.dram_gb_per_s.0),
            link: self.link_gb_per_s.map(|bandwidth| GbPerSecond(bandwidth.0)),
            links,
            host_link,
            matmul_efficiency: self.matmul_efficiency.map_or(DEFAULT_MATMUL_EFFICIENCY, |share| share.0),
            efficiency_is_measured: self.matmul_efficiency.is_some(),
            pace_share: self.pace_share.map(|share| share.0),
            launch: self.launch_us.map_or(DEFAULT_LAUNCH, |micros| Millis(micros.0 / 1e3)),
            unverified,
            torch_datasheet: self.torch_datasheet.map(TorchDatasheet::from),
        })
    }
}

impl DeviceRow {
    /// What collectives reach: as the sheet says, or else what NCCL reaches of the links.
    fn links(&self, host_link: HostLink) -> Links {
        let bus = match (self.bus_gb_per_s, self.link_gb_per_s, host_link) {
            (Some(bus), _, _) => GbPerSecond(bus.0),
            (None, Some(link), _) => Links::ring(GbPerSecond(link.0)),
            (None, None, HostLink::Pcie(generation)) => Links::pcie(generation),
            (None, None, HostLink::C2c(rate) | HostLink::Measured(rate)) => Links::ring(rate),
        };
        Links {
            bus,
            // A bridge between two of them does not carry rings of all.
            direct: self.link_gb_per_s.is_some_and(|link| bus.0 > link.0 / 2.0),
            network: self.network_gb_per_s.map_or(DEFAULT_NETWORK, |rate| GbPerSecond(rate.0)),
            per_node: self.gpus_per_node.map_or(DEFAULT_PER_NODE, |count| count.0),
            low_latency: Links::low_latency(self.capability.map(|capability| capability.0)),
        }
    }
}

fn rate(rate: Option<Positive>) -> Option<TflopPerSecond> {
    rate.map(|rate| TflopPerSecond(rate.0))
}

impl From<PeaksRow> for Peaks {
    fn from(row: PeaksRow) -> Self {
        Peaks {
            f64: rate(row.f64),
            f32: rate(Some(row.f32)),
            tf32: rate(row.tf32),
            bf16: rate(row.bf16),
            f16: rate(row.f16),
            f8: rate(row.f8),
        }
    }
}

impl From<TorchRow> for TorchDatasheet {
    fn from(row: TorchRow) -> Self {
        TorchDatasheet {
            name: row.name.0,
            peaks: Peaks {
                f64: rate(row.f64),
                f32: rate(Some(row.f32)),
                bf16: rate(row.bf16),
                f16: rate(row.f16),
                ..Peaks::default()
            },
            dram: GbPerSecond(row.dram_gb_per_s.0),
        }
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

/// A finite number above 0. A denormal rate would make infinite times of finite work.
#[derive(Clone, Copy)]
struct Positive(f64);

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        if number.is_normal() && number > 0.0 {
            Ok(Positive(number))
        } else {
            Err(D::Error::custom(format!("is {number}; write a finite number above 0")))
        }
    }
}

/// A PCIe generation.
#[derive(Clone, Copy)]
struct Generation(u8);

impl<'de> Deserialize<'de> for Generation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let generation = u8::try_from(number).ok().filter(|generation| (1..=9).contains(generation));
        generation
            .map(Generation)
            .ok_or_else(|| D::Error::custom(format!("is {number}; write a PCIe generation from 1 to 9")))
    }
}

/// A number of things, above 0.
#[derive(Clone, Copy)]
struct Count(u32);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let count = u32::try_from(number).ok().filter(|count| (1..=100_000).contains(count));
        count.map(Count).ok_or_else(|| D::Error::custom(format!("is {number}; write a whole number from 1 to 100000")))
    }
}

/// A text that is not empty.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.trim().is_empty() {
            Err(D::Error::custom("is empty; write a text that is not empty"))
        } else {
            Ok(Text(text))
        }
    }
}

/// What is typed after `--device`.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(name) = Text::deserialize(deserializer)?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if name.chars().all(fits) {
            Ok(Name(name))
        } else {
            Err(D::Error::custom(format!("is {name:?}; write a name of lower-case letters, digits, `-` and `.`")))
        }
    }
}

/// The name of a figure of a device.
struct Field(String);

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const FIGURES: [&str; 15] = [
            "tflops",
            "memory_gb",
            "usable_gib",
            "capability",
            "processors",
            "dram_gb_per_s",
            "link_gb_per_s",
            "bus_gb_per_s",
            "network_gb_per_s",
            "gpus_per_node",
            "pcie",
            "c2c_gb_per_s",
            "matmul_efficiency",
            "pace_share",
            "launch_us",
        ];
        const TYPES: [&str; 6] = ["f64", "f32", "tf32", "bf16", "f16", "f8"];
        let name = String::deserialize(deserializer)?;
        let is_known = match name.strip_prefix("tflops.") {
            Some(dtype) => TYPES.contains(&dtype),
            None => FIGURES.contains(&name.as_str()),
        };
        if is_known {
            Ok(Field(name))
        } else {
            Err(D::Error::custom(format!(
                "is {name:?}, no figure; write a list of such, for example [\"tflops.bf16\"]"
            )))
        }
    }
}
