//! NVML, `libnvidia-ml.so.1`: what PyTorch and monitors ask of it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::card::card;
use super::device::{VERSION, say};
use super::memory::memory;
use super::put;
use super::status::{OK, Status};
use super::streams::nothing;

type Handle = *mut c_void;

/// `NVML_ERROR_NOT_SUPPORTED` and `NVML_ERROR_INVALID_ARGUMENT`.
const NOT_SUPPORTED: Status = 3;
const INVALID_ARGUMENT: Status = 2;

nothing! { nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown }

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(count, card().count as c_uint) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) -> Status {
    if index >= card().count as c_uint {
        return INVALID_ARGUMENT;
    }
    // A handle is the number of the device, counted from 1.
    // SAFETY: the caller's variable.
    unsafe { put(device, (index as usize + 1) as Handle) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(_bus: *const c_char, device: *mut Handle) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(device, 1 as Handle) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_device: Handle, text: *mut c_char, room: c_uint) -> Status {
    // SAFETY: the caller's text of that size.
    unsafe { say(text, room as usize, &card().name) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Handle, text: *mut c_char, room: c_uint) -> Status {
    let byte = format!("{:02x}", device as usize & 0xff);
    let part = |bytes: usize| byte.repeat(bytes);
    let uuid = format!("GPU-{}-{}-{}-{}-{}", part(4), part(2), part(2), part(2), part(6));
    // SAFETY: the caller's text of that size.
    unsafe { say(text, room as usize, &uuid) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, info: *mut [u64; 3]) -> Status {
    let card = card();
    let used = card.context + memory().used((device as usize).saturating_sub(1));
    // SAFETY: the caller's variable: total, free and used.
    unsafe { put(info, [card.total as u64, card.total.saturating_sub(used) as u64, used as u64]) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _device: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        put(major, card().capability / 10);
        put(minor, card().capability % 10);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(_device: Handle, rates: *mut [c_uint; 2]) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(rates, [0, 0]) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    _device: Handle,
    count: *mut c_uint,
    _i: *mut c_void,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(count, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(version, VERSION) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) -> Status {
    // SAFETY: the caller's text of that size.
    unsafe { say(text, room as usize, "595.00") };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_status: Status) -> *const c_char {
    c"not there in a rehearsal without a GPU".as_ptr()
}

macro_rules! not_supported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            NOT_SUPPORTED
        }
    )*};
}
not_supported! {
    nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage nvmlDeviceGetClockInfo
}
