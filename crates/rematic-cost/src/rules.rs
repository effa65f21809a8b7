//! The cost model: from flops and bytes to time.
//!
//! # Physical, the default
//! A kernel cannot end before its products are computed nor before its bytes are moved, and it has to be launched:
//!
//! ```text
//! time = max( flops / (efficiency · peak(dtype)),  bytes / bandwidth ) + launch
//! ```
//!
//! | symbol | meaning | source |
//! |---|---|---|
//! | `flops` | two per multiply-add, of products of matrices only | [`Formula`](crate::Formula) |
//! | `peak(dtype)` | the device's *dense* rate for the type of the factors | `devices.toml`, `tflops` |
//! | `efficiency` | share of the peak that a large bf16 matmul reaches | `devices.toml`, `matmul_efficiency` |
//! | `bytes` | every distinct tensor once, as input and as output | the module `bytes` |
//! | `bandwidth` | the data sheet's | `devices.toml`, `dram_gb_per_s` |
//! | `launch` | what each kernel costs on top | `devices.toml`, `launch_us` |
//!
//! - Matmuls in f32 run at the f32 rate: `torch.backends.cuda.matmul.allow_tf32` is off by default. Convolutions in f32 run
//!   at the tf32 rate where there is one: `torch.backends.cudnn.allow_tf32` is on by default (torch 2.15).
//! - bf16 on a device without units for it (V100, T4) runs at the f32 rate: PyTorch emulates it.
//! - Views and operators that run on the host cost nothing, and neither does an allocation (`empty`): no kernel runs.
//! - Collectives take what their links need: [`Links`](crate::Links).
//! - Not modelled: caches (a small output that the next kernel finds there), kernels that reach less than a large matmul
//!   does (small or thin matrices, attention), the bandwidth that is really reached, kernels that collectives slow down, and a
//!   host that cannot launch fast enough.
//! - To refit: measure the best large bf16 matmul, divide by the dense peak, and put the share into a device file.
//!
//! # Torch, for parity
//! What the roofline of torch 2.15's `RuntimeEstimator` computes (`torch/utils/_runtime_estimation.py`):
//!
//! ```text
//! time = max( (flops / 2) / (0.75 · peak(dtype)),  bytes / bandwidth )
//! ```
//!
//! - `peak` and `bandwidth` are those of torch's own data sheet, with its errors (`torch_datasheet` in `devices.toml`).
//! - Halving the flops to multiply-adds, and then dividing by a rate that counts both, makes matmuls look twice as fast.
//! - `bytes` are the plain sum over inputs and outputs, with repetition.
//! - Only the operators of [`TORCH_SKIPS`] are free. Other views (`alias`, `slice`) and host operators cost their bytes.
//! - `dtype` is that of the one floating-point type among the outputs. Where there are two (attention in bf16 returns its
//!   log-sum-exp in f32) torch raises "Only support single out dtype"; here the first output's counts. Where there is none
//!   torch raises too; here the flops then cost nothing.
//! - Optimizer steps count as operators like all others.

use std::fmt;

use rematic_trace::{Bytes, Dtype, Flops, Layout, Millis};

use crate::device::{Device, Devices, GbPerSecond, Peaks, TflopPerSecond};
use crate::error::CostError;
use crate::flops::Formula;

/// The share of its data sheet's peak that torch takes to be reached.
const TORCH_EFFICIENCY: f64 = 0.75;

/// Operators, without their overload, that torch's estimator takes to be free: its lists of views and of creations.
pub const TORCH_SKIPS: [&str; 40] = [
    "_unsafe_view",
    "adjoint",
    "arange",
    "as_strided",
    "chunk",
    "detach",
    "diagonal",
    "expand",
    "expand_as",
    "hsplit",
    "imag",
    "lift_fresh",
    "mH",
    "mT",
    "movedim",
    "ones_like",
    "permute",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "real",
    "select",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "view",
    "view_as",
    "vsplit",
    "zeros_like",
];

/// Operators, without their overload, that only allocate.
const ALLOCATIONS: [&str; 6] =
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"];

/// How flops and bytes become time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CostRule {
    /// Flops as flops, dense peaks, bytes really touched, and a launch.
    #[default]
    Physical,
    /// What torch 2.15's `RuntimeEstimator` computes.
    Torch,
}

impl CostRule {
    /// All of them, in the order in which they are shown.
    pub const ALL: [CostRule; 2] = [CostRule::Physical, CostRule::Torch];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CostRule::Physical => "physical",
            CostRule::Torch => "torch",
        }
    }
}

impl fmt::Display for CostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An operator's name without its overload: `mm` of `mm.default`.
pub(crate) fn without_overload(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(operator, _)| operator)
}

/// Whether torch's estimator takes the operator to be free.
pub(crate) fn torch_skips(operator: &str) -> bool {
    TORCH_SKIPS.contains(&operator)
}

/// Whether the operator only allocates.
pub(crate) fn only_allocates(operator: &str) -> bool {
    ALLOCATIONS.contains(&operator)
}

/// A type that the device has no rate for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRate(pub(crate) Dtype);

/// One rule on one device.
#[derive(Debug)]
pub(crate) struct Roofline<'a> {
    rule: CostRule,
    peaks: &'a Peaks,
    efficiency: f64,
    bandwidth: GbPerSecond,
    launch: Millis,
}

impl<'a> Roofline<'a> {
    pub(crate) fn new(device: &'a Device, rule: CostRule) -> Result<Self, CostError> {
        Ok(match rule {
            CostRule::Physical => Roofline {
                rule,
                peaks: &device.peaks,
                efficiency: device.matmul_efficiency,
                bandwidth: device.dram,
                launch: device.launch,
            },
            CostRule::Torch => {
                let sheet = device.torch_datasheet.as_ref().ok_or_else(|| not_in_torch_datasheet(device))?;
                Roofline {
                    rule,
                    peaks: &sheet.peaks,
                    efficiency: TORCH_EFFICIENCY,
                    bandwidth: sheet.dram,
                    launch: Millis(0.0),
                }
            }
        })
    }

    /// The rule.
    pub(crate) fn rule(&self) -> CostRule {
        self.rule
    }

    /// The time of one kernel.
    pub(crate) fn time(&self, compute: Millis, bytes: Bytes) -> Millis {
        Millis(compute.0.max(self.bandwidth.time(bytes).0)) + self.launch
    }

    /// The time that the products alone take.
    pub(crate) fn compute_time(
        &self,
        formula: Formula,
        flops: Flops,
        inputs: &[&Layout],
        outputs: &[&Layout],
    ) -> Result<Millis, NoRate> {
        let dtype = match self.rule {
            CostRule::Physical => formula.dtype(inputs),
            CostRule::Torch => outputs.iter().map(|layout| layout.dtype).find(|dtype| torch_floats(*dtype)),
        };
        let Some(dtype) = dtype.filter(|_| flops.0 > 0) else { return Ok(Millis(0.0)) };
        let TflopPerSecond(peak) = self.peak(formula, dtype).ok_or(NoRate(dtype))?;
        let products = match self.rule {
            CostRule::Physical => flops.0 as f64,
            CostRule::Torch => flops.0 as f64 / 2.0,
        };
        // TFLOP/s are 10^9 flops per millisecond.
        Ok(Millis(products / (self.efficiency * peak * 1e9)))
    }

    fn peak(&self, formula: Formula, dtype: Dtype) -> Option<TflopPerSecond> {
        let convolution = matches!(formula, Formula::Convolution | Formula::ConvolutionBackward);
        match self.rule {
            CostRule::Physical if convolution && dtype == Dtype::F32 => self.peaks.tf32.or(self.peaks.f32),
            // Where there are no units for it, PyTorch computes bf16 as f32.
            CostRule::Physical if dtype == Dtype::Bf16 => self.peaks.bf16.or(self.peaks.f32),
            _ => self.peaks.of(dtype),
        }
    }
}

/// The types that torch's estimator takes for floating point; f8 is not among them.
fn torch_floats(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

fn not_in_torch_datasheet(device: &Device) -> CostError {
    let known = Devices::builtin()
        .all()
        .iter()
        .filter(|known| known.torch_datasheet.is_some())
        .map(|known| known.name.clone())
        .collect();
    CostError::NotInTorchDatasheet { device: device.name.clone(), known }
}
