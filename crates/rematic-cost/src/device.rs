//! Devices: what their makers' data sheets say, and what of it is measured.

use std::path::Path;

use rematic_trace::{Bytes, Dtype, Flops, Millis};

use crate::{CostError, Links, sheet};

/// The share of the dense peak that a large matmul reaches on a device on which nobody measured it: the median of the
/// seven measured shares in `devices.toml` (A100 87 %, H100 80 %, B200 78 %, GB200 73 %, MI355X 68 %, MI325X 60 %,
/// MI300X 51 %).
pub const DEFAULT_MATMUL_EFFICIENCY: f64 = 0.73;

/// What a kernel costs on top of its work when launches overlap with earlier kernels: on a V100, kernels of 2.9 µs ran
/// every 3.8 µs (NVIDIA's technical blog, "Getting Started with CUDA Graphs", 2019). The figures are quoted from memory
/// and no second source confirms them, so every device that relies on them lists `launch_us` as unverified. The 4–6 µs
/// that the *host* needs per launch (susun-blog.com, "From Launch Overhead to CUDA Graph") are left out: they are hidden
/// as long as the device is the slower of the two.
pub const DEFAULT_LAUNCH: Millis = Millis(0.9e-3);

/// A rate of computing, in 10^12 floating-point operations per second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct TflopPerSecond(pub f64);

impl TflopPerSecond {
    /// How long so many operations take at this rate.
    #[must_use]
    pub fn time(self, flops: Flops) -> Millis {
        Millis(flops.0 as f64 / (self.0 * 1e9))
    }
}

/// A bandwidth, in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct GbPerSecond(pub f64);

impl GbPerSecond {
    /// How long so many bytes take at this bandwidth.
    #[must_use]
    pub fn time(self, bytes: Bytes) -> Millis {
        Millis(bytes.0 as f64 / self.0 / 1e6)
    }
}

/// Dense peak rates by element type; `None` where the device has no such units or the sheet does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// 64-bit float.
    pub f64: Option<TflopPerSecond>,
    /// 32-bit float, without tf32.
    pub f32: Option<TflopPerSecond>,
    /// 32-bit float with inputs rounded to 10 bits of mantissa.
    pub tf32: Option<TflopPerSecond>,
    /// bfloat16.
    pub bf16: Option<TflopPerSecond>,
    /// 16-bit float.
    pub f16: Option<TflopPerSecond>,
    /// 8-bit float.
    pub f8: Option<TflopPerSecond>,
}

impl Peaks {
    /// The rate for a type. Complex numbers are computed in their parts' type. Integers are taken to run on the f32
    /// units: the sheets give no rate, and training never spends its time there.
    #[must_use]
    pub fn of(&self, dtype: Dtype) -> Option<TflopPerSecond> {
        match dtype {
            Dtype::F64 | Dtype::C128 => self.f64,
            Dtype::Bf16 => self.bf16,
            Dtype::F16 => self.f16,
            Dtype::F8 => self.f8,
            Dtype::F32
            | Dtype::C64
            | Dtype::I64
            | Dtype::I32
            | Dtype::I16
            | Dtype::I8
            | Dtype::U64
            | Dtype::U8
            | Dtype::Bool => self.f32,
        }
    }
}

/// How a device is connected to its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HostLink {
    /// PCI Express with 16 lanes, of this generation.
    Pcie(u8),
    /// A chip-to-chip link.
    C2c(GbPerSecond),
    /// Whatever it is, this is what copies from and to pinned memory reach, one direction.
    Measured(GbPerSecond),
}

impl HostLink {
    /// What copies between the device and pinned memory of the host reach, one direction.
    #[must_use]
    pub fn rate(self) -> GbPerSecond {
        match self {
            HostLink::Pcie(generation) => Links::pcie(generation),
            HostLink::C2c(rate) => GbPerSecond(rate.0 * C2C_SHARE),
            HostLink::Measured(rate) => rate,
        }
    }
}

/// The share of NVLink-C2C's data sheet that copies from the device to the host reach on a GH200: 297 of 450 GB/s (Fusco et al.,
/// "Understanding Data Movement in Tightly Coupled Heterogeneous Systems", 2024). Quoted from memory, without a second source; the
/// way back is faster.
const C2C_SHARE: f64 = 0.66;

/// What torch 2.15 believes about a device.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchDatasheet {
    /// Its name there (`NVIDIA A100`).
    pub name: String,
    /// The rates that `datasheet_tops` answers; no tf32, which is off, and no f8, which its estimator refuses.
    pub peaks: Peaks,
    /// The bandwidth that `datasheet_dram_bw_gbs` answers.
    pub dram: GbPerSecond,
}

/// A device to train on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Device {
    /// Its short name (`a100-80`).
    pub name: String,
    /// The maker's name.
    pub product: String,
    /// Dense peak rates.
    pub peaks: Peaks,
    /// Memory size.
    pub memory: Bytes,
    /// What of it PyTorch sees.
    pub usable: Bytes,
    /// Its CUDA compute capability (80 for 8.0) and number of multiprocessors, if both are known.
    pub chip: Option<(u32, u32)>,
    /// Memory bandwidth.
    pub dram: GbPerSecond,
    /// Bandwidth to the other devices of the node, one direction.
    pub link: Option<GbPerSecond>,
    /// What collectives reach, within a node and between nodes.
    pub links: Links,
    /// Connection to the host.
    pub host_link: HostLink,
    /// Share of the peak that a large matmul reaches.
    pub matmul_efficiency: f64,
    /// Whether that share was measured; otherwise it is [`DEFAULT_MATMUL_EFFICIENCY`].
    pub efficiency_is_measured: bool,
    /// The share of the pace that is worked out for a step that published runs reached; `None` if there are none.
    pub pace_share: Option<f64>,
    /// What each kernel costs on top of its work.
    pub launch: Millis,
    /// Fields, as the device file names them, that no second source confirms.
    pub unverified: Vec<String>,
    /// What torch believes about it.
    pub torch_datasheet: Option<TorchDatasheet>,
}

impl Device {
    /// The built-in device with this name.
    ///
    /// # Errors
    /// If there is none; the error suggests the nearest names.
    ///
    /// ```
    /// use rematic_cost::Device;
    /// assert_eq!(Device::find("a100-80").unwrap().product, "NVIDIA A100 SXM4 80GB");
    /// let error = Device::find("a100").unwrap_err().to_string();
    /// assert!(error.contains("did you mean a100-40 or a100-80?"));
    /// ```
    pub fn find(name: &str) -> Result<Device, CostError> {
        Devices::builtin().find(name).cloned()
    }

    /// Whether it is AMD's, whose driver and libraries have other names.
    #[must_use]
    pub fn is_amd(&self) -> bool {
        self.product.starts_with("AMD ")
    }
}

/// The devices to choose from, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    devices: Vec<Device>,
}

impl Devices {
    /// Those of `devices.toml`.
    #[must_use]
    pub fn builtin() -> Self {
        let devices = sheet::read(include_str!("../devices.toml"), "devices.toml")
            .expect("the built-in devices.toml is part of the program, and a test reads it");
        Devices { devices }
    }

    /// Adds the devices of a user's file; those with known names replace the known ones.
    ///
    /// # Errors
    /// If the file cannot be read or a field of it is wrong; then nothing is added.
    pub fn extend_from(&mut self, path: &Path) -> Result<(), CostError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| CostError::DeviceFile { path: path.to_owned(), source })?;
        for device in sheet::read(&text, &path.display().to_string())? {
            match self.devices.iter_mut().find(|known| known.name == device.name) {
                Some(known) => *known = device,
                None => self.devices.push(device),
            }
        }
        Ok(())
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Device] {
        &self.devices
    }

    /// The device with this name, in upper or lower case, with spaces or dashes.
    ///
    /// # Errors
    /// If there is none; the error suggests the nearest names.
    pub fn find(&self, name: &str) -> Result<&Device, CostError> {
        let wanted = name.trim().to_lowercase().replace([' ', '_'], "-");
        self.devices.iter().find(|device| device.name == wanted).ok_or_else(|| CostError::UnknownDevice {
            name: name.to_owned(),
            suggestions: self.suggestions(&wanted),
            known: self.devices.len(),
        })
    }

    /// Names that contain the wanted one, or that it contains; if there are none, those with the fewest typing errors.
    fn suggestions(&self, wanted: &str) -> Vec<String> {
        const MOST: usize = 4;
        let names = || self.devices.iter().map(|device| device.name.as_str());
        let part_of = |name: &str| !wanted.is_empty() && (name.contains(wanted) || wanted.contains(name));
        let mut near: Vec<&str> = names().filter(|name| part_of(name)).collect();
        if near.is_empty() {
            // A third of the letters wrong is no longer a typing error.
            let distance = |name: &str| strsim::damerau_levenshtein(wanted, name);
            let limit = (wanted.chars().count() / 3).max(1);
            let least = names().map(distance).min().filter(|&least| least <= limit);
            near = names().filter(|name| Some(distance(name)) == least).collect();
        }
        near.into_iter().take(MOST).map(str::to_owned).collect()
    }
}
