//! How a call ended.

use std::cell::Cell;
use std::ffi::{c_char, c_int};

pub type Status = c_int;

pub const OK: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const INVALID_DEVICE: Status = 101;
pub const NOT_SUPPORTED: Status = 801;
/// `cudaErrorUnknown`: CUDA has no name for what cannot happen on a card.
pub const NO_ADDRESSES: Status = 999;

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(OK) };
}

/// Remembers an error for `cudaGetLastError`, as CUDA does.
pub fn ended(status: Status) -> Status {
    if status != OK {
        // A thread that is going down has nobody to ask.
        let _ = LAST.try_with(|last| last.set(status));
    }
    status
}

fn texts(status: Status) -> (&'static std::ffi::CStr, &'static std::ffi::CStr) {
    match status {
        OK => (c"cudaSuccess", c"no error"),
        INVALID_VALUE => (c"cudaErrorInvalidValue", c"invalid argument"),
        OUT_OF_MEMORY => (c"cudaErrorMemoryAllocation", c"out of memory"),
        INVALID_DEVICE => (c"cudaErrorInvalidDevice", c"invalid device ordinal"),
        NOT_SUPPORTED => (c"cudaErrorNotSupported", c"operation not supported in a rehearsal without a GPU"),
        NO_ADDRESSES => (
            c"cudaErrorUnknown",
            c"the rehearsal has no addresses left for the card's memory, which is not full; raise `ulimit -v` and start again",
        ),
        _ => (c"cudaErrorUnknown", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(status: Status) -> *const c_char {
    texts(status).0.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(status: Status) -> *const c_char {
    texts(status).1.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> Status {
    LAST.try_with(|last| last.replace(OK)).unwrap_or(OK)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> Status {
    LAST.try_with(Cell::get).unwrap_or(OK)
}
