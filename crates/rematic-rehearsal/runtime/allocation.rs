//! `cudaMalloc` and its kin.

use std::ffi::{c_int, c_uint, c_void};

use super::card::card;
use super::device::current;
use super::memory::{Missing, memory};
use super::put;
use super::status::{INVALID_VALUE, NO_ADDRESSES, OK, OUT_OF_MEMORY, Status, ended};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMalloc(place: *mut *mut c_void, size: usize) -> Status {
    let block = memory().allocate(size, current());
    // SAFETY: the caller's variable for the pointer.
    unsafe { put(place, block.unwrap_or(0) as *mut c_void) };
    ended(match block {
        Ok(_) => OK,
        Err(Missing::Room) => OUT_OF_MEMORY,
        Err(Missing::Addresses) => NO_ADDRESSES,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFree(block: *mut c_void) -> Status {
    memory().free(block as usize);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocAsync(place: *mut *mut c_void, size: usize, _stream: *mut c_void) -> Status {
    // SAFETY: as the caller promises.
    unsafe { cudaMalloc(place, size) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeAsync(block: *mut c_void, _stream: *mut c_void) -> Status {
    cudaFree(block)
}

/// Managed memory can be read by the host, so that it is the host's here. It is not counted: on a card, pages come and go as
/// they are used, and a card that is full does not refuse them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocManaged(place: *mut *mut c_void, size: usize, _flags: c_uint) -> Status {
    // SAFETY: as the caller promises.
    unsafe { cudaMallocHost(place, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    let card = card();
    // SAFETY: the caller's variables.
    unsafe {
        put(free, card.room().saturating_sub(memory().used(current())));
        put(total, card.total);
    }
    OK
}

unsafe extern "C" {
    fn posix_memalign(place: *mut *mut c_void, alignment: usize, size: usize) -> c_int;
    #[link_name = "free"]
    fn c_free(block: *mut c_void);
}

/// Pinned memory is the host's, and real.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocHost(place: *mut *mut c_void, size: usize) -> Status {
    const HOST_PAGE: usize = 4096;
    if place.is_null() {
        return ended(INVALID_VALUE);
    }
    // SAFETY: `place` is the caller's variable; the alignment is a power of two.
    let failed = unsafe { posix_memalign(place, HOST_PAGE, size.max(1)) } != 0;
    ended(if failed { OUT_OF_MEMORY } else { OK })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) -> Status {
    // SAFETY: as the caller promises.
    unsafe { cudaMallocHost(place, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFreeHost(block: *mut c_void) -> Status {
    // SAFETY: the caller has it from `cudaMallocHost`.
    unsafe { c_free(block) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostRegister(_block: *mut c_void, _size: usize, _flags: c_uint) -> Status {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostUnregister(_block: *mut c_void) -> Status {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostGetDevicePointer(
    place: *mut *mut c_void,
    host: *mut c_void,
    _flags: c_uint,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(place, host) };
    OK
}

#[repr(C)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
    reserved: [i64; 8],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaPointerGetAttributes(place: *mut PointerAttributes, pointer: *const c_void) -> Status {
    const UNREGISTERED: c_int = 0;
    const DEVICE: c_int = 2;
    let memory = memory();
    let at = pointer as usize;
    let attributes = if memory.holds(at) {
        let device = memory.block(at).map_or_else(current, |(_, _, device)| device);
        let device = c_int::try_from(device).unwrap_or(0);
        PointerAttributes {
            kind: DEVICE,
            device,
            device_pointer: pointer,
            host_pointer: std::ptr::null(),
            reserved: [0; 8],
        }
    } else {
        let nowhere = std::ptr::null();
        PointerAttributes {
            kind: UNREGISTERED,
            device: -1,
            device_pointer: nowhere,
            host_pointer: pointer,
            reserved: [0; 8],
        }
    };
    // SAFETY: the caller's variable.
    unsafe { put(place, attributes) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcGetMemHandle(_handle: *mut c_void, _block: *mut c_void) -> Status {
    OK
}
