//! Streams and memory pools. Everything is over at once; `events` knows when a card could be behind.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::graphs::capturing;
use super::put;
use super::status::{OK, Status};

type Handle = *mut c_void;

/// A handle that nobody else has. It is never read through.
pub fn handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1_0000);
    NEXT.fetch_add(16, Ordering::Relaxed) as Handle
}

/// Functions of C that hand out a handle in their first argument.
macro_rules! makes {
    ($($name:ident($($argument:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(place: *mut Handle $(, _: $argument)*) -> Status {
            // SAFETY: the caller's variable.
            unsafe { put(place, handle()) };
            OK
        }
    )*};
}
pub(super) use makes;

/// Functions of C that have nothing to do. What they are called with does not matter.
macro_rules! nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            OK
        }
    )*};
}
pub(super) use nothing;

makes! {
    cudaStreamCreate();
    cudaStreamCreateWithFlags(c_uint);
    cudaStreamCreateWithPriority(c_uint, c_int);
    cudaDeviceGetDefaultMemPool(c_int);
    cudaDeviceGetMemPool(c_int);
    cudaMemPoolCreate(*const c_void);
}
nothing! {
    cudaStreamDestroy cudaStreamQuery
    cudaMemPoolSetAttribute cudaMemPoolSetAccess cudaMemPoolTrimTo cudaMemPoolDestroy cudaDeviceSetMemPool
    cudaDeviceSetGraphMemAttribute cudaProfilerStart cudaProfilerStop
    cudaCtxResetPersistingL2Cache cudaStreamSetAttribute cudaStreamGetAttribute
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamIsCapturing(stream: Handle, answer: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(answer, c_int::from(capturing(stream).is_some())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamGetCaptureInfo(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut Handle,
    edges: *mut Handle,
    count: *mut usize,
) -> Status {
    let capture = capturing(stream);
    // SAFETY: the caller's variables, or null where it does not want to know.
    unsafe {
        put(status, c_int::from(capture.is_some()));
        put(id, capture.unwrap_or(0));
        put(graph, capture.unwrap_or(0) as Handle);
        put(dependencies, std::ptr::null_mut());
        put(edges, std::ptr::null_mut());
        put(count, 0);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamGetPriority(_stream: Handle, priority: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(priority, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Status {
    /// What cards from Volta on answer.
    const GREATEST: c_int = -5;
    // SAFETY: the caller's variables.
    unsafe {
        put(least, 0);
        put(greatest, GREATEST);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamAddCallback(
    stream: Handle,
    callback: extern "C" fn(Handle, Status, *mut c_void),
    data: *mut c_void,
    _flags: c_uint,
) -> Status {
    callback(stream, OK, data);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLaunchHostFunc(
    _stream: Handle,
    function: extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Status {
    function(data);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemPoolGetAttribute(_pool: Handle, _attribute: c_int, value: *mut u64) -> Status {
    // SAFETY: attributes of pools have eight bytes, or are zeroed before.
    unsafe { put(value, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetGraphMemAttribute(_device: c_int, _attribute: c_int, value: *mut u64) -> Status {
    // SAFETY: the caller's variable of eight bytes.
    unsafe { put(value, 0) };
    OK
}
