use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{CallId, CollectiveId, LayoutId, NameId, OpId, StorageId, StreamId};

/// The part of the step that an operator runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The model and the loss, up to and including the seed gradient of `backward()`.
    Forward,
    /// Everything that the autograd engine runs.
    Backward,
    /// The optimizer's step and `zero_grad`.
    Optimizer,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
        })
    }
}

/// A tensor as an operator sees it: a layout over a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// The memory that it lies in.
    pub storage: StorageId,
    /// How it lies there.
    pub layout: LayoutId,
}

/// What kind of operator it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The output is a view of an input: no kernel runs, no memory is allocated.
    pub view: bool,
    /// It draws random numbers.
    pub random: bool,
    /// It runs on the host and touches no device memory.
    pub host: bool,
    /// Autograd saves something for its backward that is no storage of the trace: a tensor of the host.
    pub holds: bool,
}

/// One dispatched kernel call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its name with the overload, as PyTorch spells it (`mm.default`).
    pub name: NameId,
    /// Where in the step it runs.
    pub phase: Phase,
    /// The innermost module call that it belongs to. A backward op belongs to the call of the op that it differentiates.
    pub call: Option<CallId>,
    /// For a backward op: the forward op that it differentiates.
    pub differentiates: Option<OpId>,
    /// Its kind.
    pub flags: Flags,
    /// The stream that it runs on.
    pub stream: StreamId,
    /// How it communicates with other ranks, if it does.
    pub collective: Option<CollectiveId>,
    pub(crate) mutates: Range<u32>,
    pub(crate) inputs: Range<u32>,
    pub(crate) outputs: Range<u32>,
    pub(crate) saves: Range<u32>,
}
