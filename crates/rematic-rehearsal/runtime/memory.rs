//! Addresses and who has how many bytes: the state behind `cudaMalloc` and virtual memory.
//!
//! One range of addresses is reserved once, unreadable, and handed out upwards, never twice: an address that was freed
//! stays invalid. A card's bytes are counted. A process whose addresses are limited (`ulimit -v`) has a smaller range.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::card::card;

/// What the driver hands out is a multiple of this.
pub const PAGE: usize = 2 << 20;
/// Room for addresses: 32 TiB, which 47 bits have and no run uses up.
const RANGE: usize = 1 << 45;
/// A range below which nothing worth while fits.
const SMALLEST: usize = 1 << 28;

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The card has no room.
    Room,
    /// The process has no addresses.
    Addresses,
}

/// What is handed out.
#[derive(Default)]
pub struct Memory {
    first: usize,
    next: usize,
    /// Where the range ends.
    end: usize,
    /// Bytes in use of every card.
    used: Vec<usize>,
    /// By address: bytes and card.
    blocks: BTreeMap<usize, (usize, usize)>,
}

static MEMORY: Mutex<Memory> =
    Mutex::new(Memory { first: 0, next: 0, end: 0, used: Vec::new(), blocks: BTreeMap::new() });

pub fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Addresses for so many bytes; none if there are no more.
    pub fn addresses(&mut self, size: usize) -> Option<usize> {
        if self.first == 0 {
            let (at, size) = granted(reserve, release)?;
            self.first = at.next_multiple_of(PAGE);
            self.next = self.first;
            self.end = at.saturating_add(size);
        }
        let at = self.next;
        let next = size.max(1).checked_next_multiple_of(PAGE).and_then(|size| at.checked_add(size))?;
        if next > self.end {
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

    /// A block of a card.
    pub fn allocate(&mut self, size: usize, device: usize) -> Result<usize, Missing> {
        if !self.take(size, device) {
            return Err(Missing::Room);
        }
        let Some(at) = self.addresses(size) else {
            self.give_back(size, device);
            return Err(Missing::Addresses);
        };
        self.blocks.insert(at, (size, device));
        Ok(at)
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
        self.first != 0 && (self.first..self.end).contains(&at)
    }
}

/// The largest range that is granted, where it begins and its bytes. If not all is, half of that: the script itself needs
/// addresses too.
fn granted(reserve: impl Fn(usize) -> Option<usize>, release: impl Fn(usize, usize)) -> Option<(usize, usize)> {
    let mut size = RANGE;
    while size >= SMALLEST {
        match reserve(size) {
            Some(at) if size == RANGE => return Some((at, size)),
            Some(at) => {
                release(at, size);
                return reserve(size / 2).map(|at| (at, size / 2));
            }
            None => size /= 2,
        }
    }
    None
}

/// Addresses which nobody can read or write.
fn reserve(size: usize) -> Option<usize> {
    const NO_ACCESS: i32 = 0;
    const PRIVATE: i32 = 0x02;
    const ANONYMOUS: i32 = 0x20;
    const NORESERVE: i32 = 0x4000;
    unsafe extern "C" {
        fn mmap(at: *mut u8, size: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut u8;
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { mmap(std::ptr::null_mut(), size, NO_ACCESS, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) };
    // Failure is -1.
    (at as isize != -1).then_some(at as usize)
}

/// Gives a range back that `reserve` has just handed out.
fn release(at: usize, size: usize) {
    unsafe extern "C" {
        fn munmap(at: *mut u8, size: usize) -> i32;
    }
    // SAFETY: a mapping of `reserve`, of which nobody has been told an address.
    unsafe { munmap(at as *mut u8, size) };
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

    #[test]
    fn a_process_with_few_addresses_gives_half_of_them() {
        let below = |limit: usize| granted(move |size| (size <= limit).then_some(PAGE), |_, _| {});
        assert_eq!(below(usize::MAX), Some((PAGE, RANGE)));
        assert_eq!(below(100 << 30), Some((PAGE, 32 << 30)));
        assert_eq!(below(SMALLEST - 1), None);
    }

    #[test]
    fn addresses_that_are_used_up_are_not_a_card_that_is_full() {
        let mut memory = Memory { first: PAGE, next: PAGE, end: 3 * PAGE, ..Memory::default() };
        assert_eq!(memory.allocate(PAGE, 0), Ok(PAGE));
        assert_eq!(memory.allocate(2 * PAGE, 0), Err(Missing::Addresses));
        assert_eq!(memory.used(0), PAGE, "nothing is taken for it");
        assert_eq!(memory.allocate(usize::MAX, 0), Err(Missing::Room));
        assert!(memory.holds(3 * PAGE - 1) && !memory.holds(3 * PAGE));
    }
}
