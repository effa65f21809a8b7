//! The driver's side: how much memory there is, and the addresses it hands out.

use crate::rounding::SEGMENT_MULTIPLE;

/// When work that other streams were given is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Completion {
    /// At once, as on a device that is never behind.
    #[default]
    AtOnce,
    /// When its stream is synchronised, as on a device that is always behind.
    WhenSynchronized,
}

/// A GPU as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its memory in bytes.
    pub total: u64,
    /// What others have of it: the context, other processes, libraries that do not use the allocator.
    pub taken: u64,
    /// When other streams are done with a block.
    pub completion: Completion,
}

impl Device {
    /// A device that nobody else uses.
    #[must_use]
    pub fn with_memory(total: u64) -> Self {
        Device { total, taken: 0, completion: Completion::default() }
    }
}

/// Where the first segment lies. No address is 0, which means no memory.
const FIRST_ADDRESS: u64 = 1 << 40;

/// What the driver has handed out.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    free: u64,
    next: u64,
}

impl Driver {
    pub(crate) fn new(device: &Device) -> Self {
        Driver { free: device.total.saturating_sub(device.taken), next: FIRST_ADDRESS }
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes physical memory, if there is so much.
    #[must_use]
    pub(crate) fn take(&mut self, size: u64) -> bool {
        match self.free.checked_sub(size) {
            Some(left) => {
                self.free = left;
                true
            }
            None => false,
        }
    }

    pub(crate) fn give_back(&mut self, size: u64) {
        self.free += size;
    }

    /// Addresses that nobody had before. They grow, so that their order is that in which segments were made, by which
    /// torch breaks ties; `None` when they are used up.
    pub(crate) fn reserve(&mut self, size: u64) -> Option<u64> {
        let address = self.next;
        self.next = size.checked_next_multiple_of(SEGMENT_MULTIPLE).and_then(|size| address.checked_add(size))?;
        Some(address)
    }

    /// Addresses and memory behind them.
    pub(crate) fn malloc(&mut self, size: u64) -> Option<u64> {
        if size > self.free {
            return None;
        }
        let address = self.reserve(size)?;
        self.take(size).then_some(address)
    }
}
