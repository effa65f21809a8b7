//! Tensor parallelism: several ranks share the weights and the sequence, as PyTorch's `parallelize_module` deals them out.

use rematic_trace::{Axis, Collective, CollectiveKind};

use crate::kernel::Kernel;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The axis of the mesh along which weights are cut.
pub(crate) const AXIS: &str = "tp";

/// The names of facts.
pub(crate) const TP: &str = "tp";
pub(crate) const TP_RANK: &str = "tp-rank";

/// The ranks that share a model, and which of them it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorParallel {
    /// At least two.
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
}

impl TensorParallel {
    /// What the first rank has of an extent that is cut into equal chunks.
    pub(crate) fn chunk(self, extent: u64) -> u64 {
        extent.div_ceil(u64::from(self.ranks))
    }

    /// What the rank has of an extent that is cut into equal chunks; the last ranks may have less.
    pub(crate) fn share(self, extent: u64) -> u64 {
        let chunk = self.chunk(extent);
        extent.saturating_sub(chunk.saturating_mul(u64::from(self.rank))).min(chunk)
    }

    /// What the rank has of an extent that is cut, if several share it.
    pub(crate) fn share_of(group: Option<Self>, extent: u64) -> u64 {
        group.map_or(extent, |group| group.share(extent))
    }

    /// Where the rank stands.
    pub(crate) fn axis(self) -> Axis {
        Axis { name: AXIS.to_owned(), size: self.ranks, coordinate: self.rank }
    }

    /// Runs a kernel that sends a message between the ranks.
    pub(crate) fn communicate(self, tape: &Tape, kind: CollectiveKind, kernel: Kernel<'_>) -> Tensor {
        let inputs = kernel.inputs.clone();
        let sent = tape.launch_one(kernel);
        // The whole message is the larger of what goes in and what comes out.
        let bytes = |tensor: &Tensor| tensor.layout().checked_bytes().unwrap_or(0);
        let message = inputs.iter().map(|input| bytes(input)).chain([bytes(&sent)]).max().unwrap_or(0);
        tape.set_collective(Collective { kind, group: self.ranks, axis: AXIS.to_owned(), bytes: message });
        sent
    }
}

/// How the gradient of a parameter is spread over the ranks when backward has made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spread {
    /// As the parameter is.
    #[default]
    Own,
    /// Every rank has a summand of it: those of what all ranks have, read with a part of the sequence.
    Summand(TensorParallel),
    /// Every rank has all of it, in this shape: that of an embedding, of which it keeps some rows.
    Whole(TensorParallel, Vec<u64>),
    /// As the parameter is, a table of this shape that is an output layer too: of the gradient of the first, which every rank has all
    /// of, its rows are added.
    Tied(TensorParallel, Vec<u64>),
}
