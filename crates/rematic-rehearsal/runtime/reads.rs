//! What the host asked of the device and got no answer to: such reads are zeros, and the script may decide by them.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::shadow::shadow;

static UNKNOWN: AtomicU64 = AtomicU64::new(0);
static KNOWN: AtomicU64 = AtomicU64::new(0);
static LISTENER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Told the bytes of each read that was not known, on the thread that reads.
type Listener = extern "C" fn(usize);

/// Counts a read, and tells the listener where it was not known.
pub fn count(size: usize, known: bool) {
    if QUIET.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    if known {
        KNOWN.fetch_add(1, Ordering::Relaxed);
        return;
    }
    UNKNOWN.fetch_add(1, Ordering::Relaxed);
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() {
        // SAFETY: only `rematic_listen` stores here, and it takes a function of this type.
        let listener: Listener = unsafe { std::mem::transmute::<*mut c_void, Listener>(listener) };
        listener(size);
    }
}

/// Registers who is told of reads that were not known; null for nobody.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_listen(listener: *mut c_void) {
    LISTENER.store(listener, Ordering::Release);
}

/// Whether reads of this thread count; not, while an answer is on its way by another road.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_quiet(quiet: bool) {
    let _ = QUIET.try_with(|cell| cell.set(quiet));
}

/// How many reads got zeros because nothing was known.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_unknown_reads() -> u64 {
    UNKNOWN.load(Ordering::Relaxed)
}

/// How many reads got the values that had been uploaded.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_known_reads() -> u64 {
    KNOWN.load(Ordering::Relaxed)
}

/// Copies what is known of device memory to the host without counting it as a read of the script. Says whether all was
/// known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rematic_peek(from: usize, to: *mut u8, size: usize) -> bool {
    if to.is_null() {
        return false;
    }
    // SAFETY: the caller's buffer of that size.
    let out = unsafe { std::slice::from_raw_parts_mut(to, size) };
    shadow().read(from, out)
}

/// Says what device memory holds: a value that was worked out on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rematic_poke(to: usize, from: *const u8, size: usize) {
    if !from.is_null() {
        // SAFETY: the caller's bytes.
        shadow().write(to, unsafe { std::slice::from_raw_parts(from, size) });
    }
}

/// A kernel has written a range of device memory: what was known of it is over.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_forget(at: usize, size: usize) {
    shadow().forget(at, size);
}

/// PyTorch's allocator tells its profiler whenever a block is handed out or comes back. What was known of that block is
/// over. The call goes on to PyTorch's own function.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C" fn report_memory_usage(
    block: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: u16,
) {
    const CUDA: u16 = 1;
    // The low byte is the kind of device, the high byte its number.
    if device & 0xff == CUDA {
        shadow().forget(block as usize, usize::try_from(size.unsigned_abs()).unwrap_or(0));
    }
    let next = torchs_own();
    if !next.is_null() {
        type Report = unsafe extern "C" fn(*mut c_void, i64, usize, usize, u16);
        // SAFETY: the symbol of that name in libc10, which has this signature: its mangled name says so.
        unsafe { std::mem::transmute::<*mut c_void, Report>(next)(block, size, allocated, reserved, device) };
    }
}

/// The function of that name in PyTorch's library, which is loaded where its caller is.
fn torchs_own() -> *mut c_void {
    const NOW_IF_LOADED: i32 = 2 | 4;
    static OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    unsafe extern "C" {
        fn dlopen(name: *const std::ffi::c_char, flags: i32) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
    }
    let known = OWN.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: nothing is loaded that is not there; the names end in a zero.
    let found = unsafe {
        let library = dlopen(c"libc10.so".as_ptr(), NOW_IF_LOADED);
        if library.is_null() {
            return std::ptr::null_mut();
        }
        dlsym(library, c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE".as_ptr())
    };
    OWN.store(found, Ordering::Release);
    found
}
