//! Kernels, which do nothing, and what the launching code asks about them.

use std::ffi::{c_int, c_uint, c_void};

use super::card::card;
use super::memory::{PAGE, memory};
use super::put;
use super::status::{OK, Status};
use super::streams::{handle, makes, nothing};

type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3(c_uint, c_uint, c_uint);

#[repr(C)]
pub struct FunctionAttributes {
    sizes: [usize; 3],
    max_threads_per_block: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    max_dynamic_shared: c_int,
    rest: [c_int; 24],
}

/// Threads of a block, registers of a thread and blocks on a multiprocessor of a kernel nobody has compiled for a real
/// card. Kernels of PyTorch mostly have these; a few size their scratch by them.
pub const THREADS: c_int = 1024;
pub const REGISTERS: c_int = 32;
pub const BLOCKS: c_int = 2;
pub const SHARED: c_int = 48 << 10;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFuncGetAttributes(place: *mut FunctionAttributes, _function: *const c_void) -> Status {
    let version = card().capability;
    let attributes = FunctionAttributes {
        sizes: [0; 3],
        max_threads_per_block: THREADS,
        registers: REGISTERS,
        ptx_version: version,
        binary_version: version,
        cache_mode: 0,
        max_dynamic_shared: SHARED,
        rest: [0; 24],
    };
    // SAFETY: the caller's variable; the layout is that of CUDA 13.
    unsafe { put(place, attributes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(blocks, BLOCKS) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(blocks, BLOCKS) };
    OK
}

nothing! {
    cudaLaunchKernel cudaLaunchCooperativeKernel cudaLaunchKernelExC __cudaLaunchKernel cudaFuncSetAttribute
    cudaFuncSetCacheConfig cudaKernelSetAttributeForDevice cudaLibraryUnload cudaLibraryGetManaged
    __cudaPushCallConfiguration __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction
    __cudaRegisterVar __cudaRegisterManagedVar
}
makes! {
    cudaLibraryLoadData();
    cudaLibraryLoadFromFile();
    cudaLibraryGetKernel();
    cudaLibraryGetUnifiedFunction();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaGetKernel(kernel: *mut Handle, function: *const c_void) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(kernel, function.cast_mut()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut Handle,
) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        put(grid, Dim3(1, 1, 1));
        put(block, Dim3(1, 1, 1));
        put(shared, 0);
        put(stream, std::ptr::null_mut());
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut Handle {
    super::streams::handle().cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaLibraryGetKernelCount(count: *mut c_uint, _library: Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(count, 0) };
    OK
}

/// One address for all variables of kernels: they are written and not read.
fn symbol() -> Handle {
    static SYMBOL: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SYMBOL.get_or_init(|| memory().addresses(PAGE).unwrap_or(0)) as Handle
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetSymbolAddress(place: *mut Handle, _symbol: *const c_void) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(place, symbol()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaLibraryGetGlobal(place: *mut Handle, size: *mut usize) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        put(place, symbol());
        put(size, PAGE);
    }
    OK
}
