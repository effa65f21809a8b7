//! Addresses and who has how many bytes: the state behind `cudaMalloc` and virtual memory.
//!
//! One range of addresses is reserved once, unreadable, and handed out upwards, never twice: an address that was freed
//! stays invalid. A card's bytes are counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::card::card;

/// What the driver hands out is a multiple of this.
pub const PAGE: usize = 2 << 20;
/// Room for addresses: 32 TiB, which 47 bits have and no run uses up.
const RANGE: usize = 1 << 45;

/// What is handed out.
#[derive(Default)]
pub struct Memory {
    first: usize,
    next: usize,
    /// Bytes in use of every card.
    used: Vec<usize>,
    /// By address: bytes and card.
    blocks: BTreeMap<usize, (usize, usize)>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { first: 0, next: 0, used: Vec::new(), blocks: BTreeMap::new() });

pub fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Addresses for so many bytes; none if there are no more.
    pub fn addresses(&mut self, size: usize) -> Option<usize> {
        if self.first == 0 {
            self.first = range()?.next_multiple_of(PAGE);
            self.next = self.first;
        }
        let at = self.next;
        let next = size.max(1).checked_next_multiple_of(PAGE).and_then(|size| at.checked_add(size))?;
        if next > self.first + RANGE - PAGE {
            return None;
        }
        self.next = next;
        Some(at)
    }

    /// Counts bytes of a card, if it has them.
    pub fn take(&mut self, size: usize, device: usize) -> bool {
        self.take_of(size, device, card().room())
    }

    fn take_of(&mut self, size: usize, device: usize, room: usize) -> bool {
        if self.used.len() <= device {
            self.used.resize(device + 1, 0);
        }
        match self.used[device].checked_add(size) {
            Some(sum) if sum <= room => {
                self.used[device] = sum;
                true
            }
            _ => false,
        }
    }

    pub fn give_back(&mut self, size: usize, device: usize) {
        if let Some(used) = self.used.get_mut(device) {
            *used = used.saturating_sub(size);
        }
    }

    /// Bytes of a card in use.
    pub fn used(&self, device: usize) -> usize {
        self.used.get(device).copied().unwrap_or(0)
    }

    /// A block of a card; none if there is no room.
    pub fn allocate(&mut self, size: usize, device: usize) -> Option<usize> {
        if !self.take(size, device) {
            return None;
        }
        let Some(at) = self.addresses(size) else {
            self.give_back(size, device);
            return None;
        };
        self.blocks.insert(at, (size, device));
        Some(at)
    }

    pub fn free(&mut self, at: usize) {
        if let Some((size, device)) = self.blocks.remove(&at) {
            self.give_back(size, device);
        }
    }

    /// The block that an address lies in: where it begins, its bytes and card.
    pub fn block(&self, at: usize) -> Option<(usize, usize, usize)> {
        let (&start, &(size, device)) = self.blocks.range(..=at).next_back()?;
        (at < start + size.max(1)).then_some((start, size, device))
    }

    /// Whether an address is the device's.
    pub fn holds(&self, at: usize) -> bool {
        self.first != 0 && (self.first..self.first + RANGE).contains(&at)
    }
}

/// The addresses, which nobody can read or write.
fn range() -> Option<usize> {
    const NO_ACCESS: i32 = 0;
    const PRIVATE: i32 = 0x02;
    const ANONYMOUS: i32 = 0x20;
    const NORESERVE: i32 = 0x4000;
    unsafe extern "C" {
        fn mmap(at: *mut u8, size: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut u8;
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { mmap(std::ptr::null_mut(), RANGE, NO_ACCESS, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) };
    // Failure is -1.
    (at as isize != -1).then_some(at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_so_many_bytes_and_no_more() {
        let mut memory = Memory::default();
        assert!(memory.take_of(600, 0, 1000));
        assert!(!memory.take_of(401, 0, 1000));
        assert!(memory.take_of(401, 1, 1000), "another card has its own");
        assert!(memory.take_of(400, 0, 1000));
        memory.give_back(600, 0);
        assert_eq!((memory.used(0), memory.used(1), memory.used(7)), (400, 401, 0));
        assert!(!memory.take_of(usize::MAX, 0, 1000));
    }

    #[test]
    fn addresses_are_handed_out_once() {
        let mut memory = Memory::default();
        let a = memory.allocate(1, 0).expect("room");
        memory.free(a);
        let b = memory.allocate(3 << 20, 0).expect("room");
        let c = memory.allocate(1, 1).expect("room");
        assert_eq!((b - a, c - b), (PAGE, 2 * PAGE));
        assert_eq!(memory.block(b + 5), Some((b, 3 << 20, 0)));
        assert_eq!(memory.block(c), Some((c, 1, 1)));
        assert_eq!(memory.block(a), None);
        assert!(memory.holds(a) && !memory.holds(1));
        assert_eq!(memory.addresses(usize::MAX), None);
    }
}
