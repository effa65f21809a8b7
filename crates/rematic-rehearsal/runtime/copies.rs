//! Copies between host and device, and fills.

use std::ffi::{c_int, c_void};

use super::memory::memory;
use super::reads;
use super::shadow::shadow;
use super::status::{OK, Status};

/// One copy. Which side is the device's follows from the addresses.
unsafe fn copied(to: *mut u8, from: *const u8, size: usize) {
    if size == 0 || to.is_null() || from.is_null() {
        return;
    }
    let (there, here) = {
        let memory = memory();
        (memory.holds(to as usize), memory.holds(from as usize))
    };
    match (there, here) {
        (true, true) => shadow().copy(to as usize, from as usize, size),
        // SAFETY: the caller promises `size` bytes of host memory at `from`.
        (true, false) => shadow().write(to as usize, unsafe { std::slice::from_raw_parts(from, size) }),
        (false, true) => {
            // SAFETY: the caller promises room for `size` bytes of host memory at `to`.
            let known = shadow().read(from as usize, unsafe { std::slice::from_raw_parts_mut(to, size) });
            reads::count(size, known);
        }
        // SAFETY: two ranges of host memory, as the caller promises; they may overlap.
        (false, false) => unsafe { std::ptr::copy(from, to, size) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: c_int,
    _stream: *mut c_void,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { copied(to.cast(), from.cast(), size) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, _kind: c_int) -> Status {
    // SAFETY: as the caller promises.
    unsafe { copied(to.cast(), from.cast(), size) };
    // The host waits for the default stream.
    super::events::cudaStreamSynchronize(std::ptr::null_mut());
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyPeerAsync(
    to: *mut c_void,
    _to_device: c_int,
    from: *const c_void,
    _from_device: c_int,
    size: usize,
    _stream: *mut c_void,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { copied(to.cast(), from.cast(), size) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: c_int,
    _stream: *mut c_void,
) -> Status {
    for row in 0..height {
        let to = to.cast::<u8>().wrapping_add(row.wrapping_mul(to_pitch));
        let from = from.cast::<u8>().wrapping_add(row.wrapping_mul(from_pitch));
        // SAFETY: a row of what the caller promises.
        unsafe { copied(to, from, width) };
    }
    OK
}

/// Variables of kernels: nothing reads them.
#[unsafe(no_mangle)]
pub extern "C" fn cudaMemcpyToSymbol(
    _s: *const c_void,
    _from: *const c_void,
    _n: usize,
    _at: usize,
    _k: c_int,
) -> Status {
    OK
}

fn filled(at: *mut c_void, value: c_int, size: usize) -> Status {
    if memory().holds(at as usize) {
        shadow().fill(at as usize, value.to_le_bytes()[0], size);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemset(at: *mut c_void, value: c_int, size: usize) -> Status {
    filled(at, value, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemsetAsync(at: *mut c_void, value: c_int, size: usize, _stream: *mut c_void) -> Status {
    filled(at, value, size)
}
