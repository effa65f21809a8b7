use std::collections::BTreeMap;

use rematic_trace::{Bytes, StepTrace};

use crate::{Action, BufferId, Ledger, Observer};

/// What offloading takes of the host: pinned blocks, and the bytes that go there and come back.
///
/// PyTorch's allocator of pinned memory rounds sizes up to powers of two (`aten/src/ATen/core/CachingHostAllocator.h`) and keeps
/// its blocks. A block is free again when its tensor has been handed back, for tensors of its own size: so the most blocks
/// of each size that are in use at once are what is taken.
pub struct Host<'a> {
    trace: &'a StepTrace,
    /// By size, blocks in use and the most of them.
    blocks: BTreeMap<u64, (u64, u64)>,
    out: Bytes,
    back: Bytes,
}

impl<'a> Host<'a> {
    /// Nothing has moved.
    #[must_use]
    pub fn new(trace: &'a StepTrace) -> Self {
        Host { trace, blocks: BTreeMap::new(), out: Bytes(0), back: Bytes(0) }
    }

    /// The pinned memory that is taken.
    #[must_use]
    pub fn pinned(&self) -> Bytes {
        Bytes(self.blocks.iter().fold(0, |sum: u64, (size, (_, most))| sum.saturating_add(size.saturating_mul(*most))))
    }

    /// The bytes that go to the host.
    #[must_use]
    pub fn out(&self) -> Bytes {
        self.out
    }

    /// The bytes that come back.
    #[must_use]
    pub fn back(&self) -> Bytes {
        self.back
    }

    /// What a tensor of so many bytes takes of pinned memory.
    #[must_use]
    pub fn block(bytes: Bytes) -> Bytes {
        Bytes(bytes.0.checked_next_power_of_two().unwrap_or(u64::MAX))
    }

    fn bytes(&self, buffer: BufferId, ledger: &Ledger) -> Bytes {
        bytes_of(self.trace, buffer, ledger)
    }
}

/// What is copied of a buffer.
pub(crate) fn bytes_of(trace: &StepTrace, buffer: BufferId, ledger: &Ledger) -> Bytes {
    let (storage, _) = ledger.storage_of(buffer);
    trace.storages().get(storage).map_or(Bytes(0), |storage| Bytes(storage.own_bytes()))
}

impl Observer for Host<'_> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Offload(buffer) => {
                let bytes = self.bytes(buffer, ledger);
                self.out += bytes;
                let (used, most) = self.blocks.entry(Host::block(bytes).0).or_default();
                *used += 1;
                *most = (*most).max(*used);
            }
            Action::Fetched(buffer) => {
                let bytes = self.bytes(buffer, ledger);
                self.back += bytes;
                let (used, _) = self.blocks.entry(Host::block(bytes).0).or_default();
                *used = used.saturating_sub(1);
            }
            _ => {}
        }
    }
}
