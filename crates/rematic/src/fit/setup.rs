use rematic_cost::Device;

use super::StepSize;
use crate::target::card_of;

/// A step on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// Of each rank, or of those together that share the model.
    pub(crate) batch: u64,
    pub(crate) seq: Option<u64>,
    /// All together.
    pub(crate) gpus: u32,
    /// How many of them share the model.
    pub(crate) tp: u32,
    pub(crate) fused: bool,
    pub(crate) chunked: bool,
    /// Micro-batches for each batch that was asked for.
    pub(crate) parts: u32,
    /// Whether weights go between forward and backward.
    pub(crate) reshard: bool,
    pub(crate) device: Device,
}

/// What tells set-ups apart.
pub(crate) type Key = (StepSize, u32, bool, String);

impl Setup {
    /// Among how many ranks parameters are spread.
    pub(crate) fn ranks(&self) -> u32 {
        self.gpus / self.tp.max(1)
    }

    pub(crate) fn size(&self) -> StepSize {
        StepSize {
            batch: Some(self.batch),
            seq: self.seq,
            tp: self.tp,
            ranks: self.ranks(),
            fused: self.fused,
            chunked: self.chunked,
            parts: self.parts,
            card: card_of(&self.device),
        }
    }

    pub(crate) fn key(&self) -> Key {
        (self.size(), self.gpus, self.reshard, self.device.name.clone())
    }
}
