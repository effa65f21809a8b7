use std::fmt;

use serde::{Deserialize, Serialize};

use crate::OpId;

/// What a storage is for; the categories of PyTorch's MemTracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// A module's parameter.
    Parameter,
    /// A module's buffer.
    Buffer,
    /// The gradient of a parameter.
    Gradient,
    /// Made in forward.
    Activation,
    /// Made in backward: gradients of activations and intermediate results.
    Temp,
    /// Optimizer state, and what the optimizer makes while it steps.
    Optimizer,
    /// Made outside the step: the batch.
    Other,
}

impl Category {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Category; 7] = [
        Category::Parameter,
        Category::Buffer,
        Category::Gradient,
        Category::Activation,
        Category::Temp,
        Category::Optimizer,
        Category::Other,
    ];
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Category::Parameter => "parameter",
            Category::Buffer => "buffer",
            Category::Gradient => "gradient",
            Category::Activation => "activation",
            Category::Temp => "temp",
            Category::Optimizer => "optimizer",
            Category::Other => "other",
        })
    }
}

/// Where a storage lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// The device's memory.
    #[default]
    Device,
    /// Pinned memory of the host, which takes nothing of the device's.
    Pinned,
}

/// A block of memory. Several tensors may lie in one; memory is counted per storage, never per tensor.
///
/// Its bytes may go while references to it stay, and come back: [`Event::Release`](crate::Event::Release).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its size as requested, before any allocator rounds it.
    pub bytes: u64,
    /// What it is counted as when it is born.
    pub category: Category,
    /// The operator that makes it; `None` if it exists before the step.
    pub birth: Option<OpId>,
    /// Where it lies.
    pub pool: Pool,
    /// Whether its bytes are released when the step begins, as those of a parameter that is yet to be gathered.
    pub released: bool,
    /// The bytes that the rank has of it, where others have the rest.
    pub share: Option<u64>,
    /// Whether more than operators reads it: Python, or code that looks at memory of the host.
    pub seen: bool,
}

impl Storage {
    /// The bytes that the rank asks for when it makes it.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.share.unwrap_or(self.bytes)
    }
}
