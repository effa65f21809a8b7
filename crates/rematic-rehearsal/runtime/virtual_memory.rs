//! The driver's virtual memory, which expandable segments use: addresses and memory are apart, and mapped.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::memory::{PAGE, memory};
use super::put;
use super::status::{INVALID_VALUE, NO_ADDRESSES, OK, OUT_OF_MEMORY, Status};

/// Memory without an address.
struct Physical {
    size: usize,
    device: usize,
    /// Whoever made it does not want it any more.
    released: bool,
    mappings: usize,
}

/// Memory and where it is mapped. Its bytes come back when it is released and mapped nowhere.
#[derive(Default)]
struct Mappings {
    next: u64,
    physical: BTreeMap<u64, Physical>,
    mapped: BTreeMap<usize, (usize, u64)>,
}

static MAPPINGS: Mutex<Mappings> = Mutex::new(Mappings { next: 1, physical: BTreeMap::new(), mapped: BTreeMap::new() });

fn mappings() -> MutexGuard<'static, Mappings> {
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mappings {
    fn create(&mut self, size: usize, device: usize) -> u64 {
        let id = self.next;
        self.next += 1;
        self.physical.insert(id, Physical { size, device, released: false, mappings: 0 });
        id
    }

    /// Bytes and card, if nothing holds them any more.
    fn gone(&mut self, id: u64) -> Option<(usize, usize)> {
        let physical = self.physical.get(&id)?;
        (physical.released && physical.mappings == 0).then_some((physical.size, physical.device)).inspect(|_| {
            self.physical.remove(&id);
        })
    }

    fn release(&mut self, id: u64) -> Option<(usize, usize)> {
        self.physical.get_mut(&id)?.released = true;
        self.gone(id)
    }

    fn map(&mut self, at: usize, size: usize, id: u64) -> bool {
        let Some(physical) = self.physical.get_mut(&id) else { return false };
        physical.mappings += 1;
        self.mapped.insert(at, (size, id));
        true
    }

    /// Bytes and cards of what was mapped in a range and nobody holds any more.
    fn unmap(&mut self, at: usize, size: usize) -> Vec<(usize, usize)> {
        let inside: Vec<(usize, u64)> =
            self.mapped.range(at..at.saturating_add(size)).map(|(at, (_, id))| (*at, *id)).collect();
        let mut gone = Vec::new();
        for (at, id) in inside {
            self.mapped.remove(&at);
            if let Some(physical) = self.physical.get_mut(&id) {
                physical.mappings = physical.mappings.saturating_sub(1);
            }
            gone.extend(self.gone(id));
        }
        gone
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    place: *mut usize,
    size: usize,
    _align: usize,
    _at: usize,
    _f: u64,
) -> Status {
    let addresses = memory().addresses(size);
    // SAFETY: the caller's variable.
    unsafe { put(place, addresses.unwrap_or(0)) };
    if addresses.is_some() { OK } else { NO_ADDRESSES }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(_at: usize, _size: usize) -> Status {
    OK
}

/// The beginning of `CUmemAllocationProp`.
#[repr(C)]
pub struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    device: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    properties: *const AllocationProperties,
    _flags: u64,
) -> Status {
    // SAFETY: the caller's description, or null.
    let device = unsafe { properties.as_ref() }.map_or(0, |properties| usize::try_from(properties.device).unwrap_or(0));
    if !memory().take(size, device) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the caller's variable.
    unsafe { put(handle, mappings().create(size, device)) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Status {
    let gone = mappings().release(handle);
    if let Some((size, device)) = gone {
        memory().give_back(size, device);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(at: usize, size: usize, _offset: usize, handle: u64, _flags: u64) -> Status {
    if mappings().map(at, size, handle) { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(at: usize, size: usize) -> Status {
    let gone = mappings().unmap(at, size);
    for (size, device) in gone {
        memory().give_back(size, device);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(_at: usize, _size: usize, _access: *const c_void, _count: usize) -> Status {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    size: *mut usize,
    _properties: *const c_void,
    _o: c_int,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(size, PAGE) };
    OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_when_released_and_unmapped_in_either_order() {
        let mut mappings = Mappings::default();
        let (a, b) = (mappings.create(10, 0), mappings.create(20, 1));
        assert!(mappings.map(100, 10, a) && mappings.map(110, 20, b));
        assert_eq!(mappings.release(a), None, "still mapped");
        assert_eq!(mappings.unmap(100, 10), vec![(10, 0)]);
        assert_eq!(mappings.unmap(100, 100), vec![], "b is not released");
        assert_eq!(mappings.release(b), Some((20, 1)));
        assert_eq!(mappings.release(b), None, "twice is once");
        assert!(!mappings.map(0, 1, b));
    }
}
