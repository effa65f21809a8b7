//! What the operators of a step cost: flops, bytes and time, from a device's data sheet.
//!
//! [`Costs`] follow one of two rules, [`CostRule::Physical`] and [`CostRule::Torch`]; [`ModuleTimes`] adds them up per
//! module; [`Devices`] are built in or come from a user's file. A [`CostTable`] of measured times takes the place of the
//! physical rule for the operators that it knows. What is sent between devices takes the time that their [`Links`] need.
//!
//! ```
//! use rematic_cost::{CostRule, Costs, Device};
//! use rematic_trace::{Category, Dtype, Flags, Flops, Layout, OpId, OpRecord, Phase, StepTrace, Tensor};
//!
//! let mut trace = StepTrace::new("one matmul");
//! let layout = trace.layout(&Layout::contiguous(Dtype::Bf16, &[4096, 4096]));
//! let bytes = 4096 * 4096 * 2;
//! let left = Tensor { storage: trace.storage_before_step(bytes, Category::Parameter), layout };
//! let right = Tensor { storage: trace.storage_before_step(bytes, Category::Other), layout };
//! let product = Tensor { storage: trace.next_storage(), layout };
//! trace.run(OpRecord {
//!     name: "mm.default",
//!     phase: Phase::Forward,
//!     call: None,
//!     differentiates: None,
//!     flags: Flags::default(),
//!     mutates: &[],
//!     inputs: &[left, right],
//!     outputs: &[product],
//!     saves: &[left, right],
//!     births: &[(bytes, Category::Activation)],
//! });
//!
//! let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
//! assert_eq!(costs.flops().items()[0], Flops(2 * 4096_u128.pow(3)));
//! assert_eq!(costs.time(OpId::new(0)).to_string(), "175 µs");
//! ```

mod bytes;
mod costs;
mod device;
mod element;
mod error;
mod flops;
mod link;
mod modules;
mod rules;
mod sheet;
mod signature;
mod table;
mod work;

pub use costs::{Cost, Costs, Measured};
pub use device::{
    DEFAULT_LAUNCH, DEFAULT_MATMUL_EFFICIENCY, Device, Devices, GbPerSecond, HostLink, Peaks, TflopPerSecond,
    TorchDatasheet,
};
pub use element::Element;
pub use error::CostError;
pub use flops::Formula;
pub use link::{BUS_SHARE, DEFAULT_NETWORK, DEFAULT_PER_NODE, Links, PCIE_SHARE};
pub use modules::{ModuleOrders, ModuleTimes};
pub use rules::{CostRule, TORCH_SKIPS};
pub use signature::{Signature, Signatures};
pub use table::{CostTable, TABLE_FORMAT, TABLE_VERSION};
pub use work::Work;
