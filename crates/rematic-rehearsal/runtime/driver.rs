//! The driver, `libcuda.so.1`: what PyTorch, Triton and Inductor look for by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::card::card;
use super::device::{VERSION, attribute, cudaGetDevice, cudaGetDeviceCount, say};
use super::graphs::capturing;
use super::kernels;
use super::memory::memory;
use super::put;
use super::status::{NOT_SUPPORTED, OK, Status, cudaGetErrorName, cudaGetErrorString};
use super::streams::{handle, makes, nothing};
use super::virtual_memory::{
    cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemGetAllocationGranularity, cuMemMap, cuMemRelease,
    cuMemSetAccess, cuMemUnmap,
};

type Handle = *mut c_void;

/// The one context. Nothing reads through it.
const CONTEXT: usize = 0x8888;

/// Functions and their names, without the version that some have at their end.
macro_rules! named {
    ($($function:ident)*) => {
        [$((stringify!($function).trim_end_matches("_v2"), $function as *const c_void)),*]
    };
}

/// A function of the driver by name; of what is not known, one that says so.
///
/// # Safety
/// `name` is null or a text that ends in a zero.
pub unsafe fn function(name: *const c_char) -> *const c_void {
    let known = named! {
        cuInit cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSetLimit cuCtxSynchronize cuFuncSetAttribute
        cuFuncSetCacheConfig cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuModuleUnload cuLinkAddData_v2
        cuLinkDestroy cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuPointerGetAttributes cuMemsetD32Async
        cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuStreamSynchronize cuEventRecord cuDevicePrimaryCtxRelease_v2
        cuStreamWriteValue32_v2 cuFuncLoad cuModuleGetLoadingMode cuModuleLoad cuModuleLoadData cuModuleLoadDataEx
        cuModuleGetFunction cuStreamCreate cuEventCreate cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName
        cuDeviceTotalMem_v2 cuDeviceGetUuid cuDeviceGetAttribute cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRetain
        cuCtxGetCurrent cuStreamGetCtx cuCtxGetDevice cuCtxGetLimit cuGetErrorString cuGetErrorName cuFuncGetAttribute
        cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveClusters cuPointerGetAttribute
        cuMemGetAddressRange_v2 cuStreamIsCapturing cuLinkCreate_v2 cuLinkComplete cuMemAddressReserve cuMemAddressFree
        cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAllocationGranularity
    };
    // SAFETY: by the contract above.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    let name = name.to_str().unwrap_or("").trim_end_matches("_v2");
    known.iter().find(|(known, _)| *known == name).map_or(not_supported as *const c_void, |(_, function)| *function)
}

extern "C" fn not_supported() -> Status {
    NOT_SUPPORTED
}

nothing! {
    cuInit cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxSetLimit cuCtxSynchronize cuFuncSetAttribute cuFuncSetCacheConfig
    cuLaunchKernel cuLaunchKernelEx cuLaunchKernelExHandle cuLaunchCooperativeKernel cuModuleUnload cuLinkAddData_v2
    cuLinkDestroy cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuPointerGetAttributes cuMemsetD32Async
    cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuStreamSynchronize cuEventRecord cuDevicePrimaryCtxRelease_v2
    cuStreamWriteValue32_v2 cuFuncLoad cuModuleGetLoadingMode
}
makes! {
    cuModuleLoad();
    cuModuleLoadData();
    cuModuleLoadDataEx();
    cuModuleGetFunction();
    cuStreamCreate(c_uint);
    cuEventCreate(c_uint);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(version, VERSION) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { cudaGetDeviceCount(count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(device, number) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(text: *mut c_char, room: c_int, _device: c_int) -> Status {
    // SAFETY: the caller's text of that size.
    unsafe { say(text, room.max(0) as usize, &card().name) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(bytes, card().total) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(uuid, [device.wrapping_add(1) as u8; 16]) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, asked: c_int, _device: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(value, attribute(card(), asked)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(_device: c_int, flags: *mut c_uint, active: *mut c_int) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        put(flags, 0);
        put(active, 1);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, _device: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { cuCtxGetCurrent(context) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(context, CONTEXT as Handle) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { cuCtxGetCurrent(context) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(_stream: Handle, context: *mut Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { cuCtxGetCurrent(context) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { cudaGetDevice(device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, _limit: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(value, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(status: Status, text: *mut *const c_char) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(text, cudaGetErrorString(status)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: Status, text: *mut *const c_char) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(text, cudaGetErrorName(status)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, asked: c_int, _function: Handle) -> Status {
    const MAX_THREADS: c_int = 0;
    const REGISTERS: c_int = 4;
    let answer = match asked {
        MAX_THREADS => kernels::THREADS,
        REGISTERS => kernels::REGISTERS,
        // Sizes of shared and local memory: nothing spills.
        _ => 0,
    };
    // SAFETY: the caller's variable.
    unsafe { put(value, answer) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(blocks, kernels::BLOCKS) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(clusters: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(clusters, 1) };
    OK
}

/// The address of a pointer to the device is itself; of what else there is, four bytes are sure to be there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, asked: c_int, pointer: usize) -> Status {
    const MEMORY_KIND: c_int = 2;
    const DEVICE_POINTER: c_int = 3;
    const DEVICE_MEMORY: c_uint = 2;
    // SAFETY: the caller's variable, of the size that the attribute has.
    unsafe {
        match asked {
            DEVICE_POINTER => put(value.cast::<usize>(), pointer),
            MEMORY_KIND => put(value.cast::<c_uint>(), DEVICE_MEMORY),
            _ => put(value.cast::<c_uint>(), 0),
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut usize, size: *mut usize, pointer: usize) -> Status {
    let (start, bytes, _) = memory().block(pointer).unwrap_or((pointer, 0, 0));
    // SAFETY: the caller's variables.
    unsafe {
        put(base, start);
        put(size, bytes);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, answer: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(answer, c_int::from(capturing(stream).is_some())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkCreate_v2(_n: c_uint, _o: *mut c_void, _v: *mut c_void, state: *mut Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(state, handle()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkComplete(_state: Handle, image: *mut *const u8, size: *mut usize) -> Status {
    static IMAGE: [u8; 1] = [0];
    // SAFETY: the caller's variables.
    unsafe {
        put(image, IMAGE.as_ptr());
        put(size, IMAGE.len());
    }
    OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_not_there_say_so_instead_of_succeeding() {
        let found = |name: &CStr| {
            // SAFETY: a text that ends in a zero.
            unsafe { function(name.as_ptr()) }
        };
        assert_eq!(found(c"cuMemCreate"), cuMemCreate as *const c_void);
        assert_eq!(found(c"cuMemGetAddressRange"), cuMemGetAddressRange_v2 as *const c_void);
        assert_eq!(found(c"cuMemGetAddressRange_v2"), cuMemGetAddressRange_v2 as *const c_void);
        for name in [c"cuMulticastCreate", c"cuMemExportToShareableHandle", c""] {
            assert_eq!(found(name), not_supported as *const c_void);
        }
        assert_eq!(not_supported(), NOT_SUPPORTED);
    }
}
