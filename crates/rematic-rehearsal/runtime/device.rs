//! The devices: how many, what they are, and which one a thread uses.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

use super::card::{Card, card};
use super::put;
use super::status::{INVALID_DEVICE, OK, Status, ended};
use super::streams::nothing;

/// CUDA 13.2.
pub const VERSION: c_int = 13_020;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The device of this thread.
pub fn current() -> usize {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

fn exists(device: c_int) -> Option<usize> {
    usize::try_from(device).ok().filter(|_| device < card().count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(count, card().count) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(device, c_int::try_from(current()).unwrap_or(0)) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaSetDevice(device: c_int) -> Status {
    let Some(device) = exists(device) else { return ended(INVALID_DEVICE) };
    let _ = CURRENT.try_with(|current| current.set(device));
    OK
}

nothing! {
    cudaDeviceEnablePeerAccess cudaDeviceSetLimit cudaDeviceReset cudaSetDeviceFlags
    cudaDeviceSetCacheConfig cudaInitDevice
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceCanAccessPeer(can: *mut c_int, _one: c_int, _other: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(can, 1) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(version, VERSION) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaRuntimeGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(version, VERSION) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) -> Status {
    // SAFETY: the caller's text of that size.
    unsafe { say(text, room.max(0) as usize, &format!("0000:{:02x}:00.0", device.wrapping_add(1) & 0xff)) };
    OK
}

/// Writes a text of C, cut to the room there is.
///
/// # Safety
/// `place` is null or has room for `room` bytes.
pub unsafe fn say(place: *mut c_char, room: usize, text: &str) {
    if place.is_null() || room == 0 {
        return;
    }
    let bytes = text.as_bytes();
    let size = bytes.len().min(room - 1);
    // SAFETY: at most `room` bytes are written.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), size);
        place.add(size).write(0);
    }
}

/// `cudaDeviceProp` of CUDA 13. Fields that stay zero are counted, not named.
#[repr(C)]
pub struct Properties {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_mask: c_uint,
    total_memory: usize,
    shared_per_block: usize,
    registers_per_block: c_int,
    warp: c_int,
    pitch: usize,
    threads_per_block: c_int,
    block: [c_int; 3],
    grid: [c_int; 3],
    constant_memory: usize,
    major: c_int,
    minor: c_int,
    texture_alignment: usize,
    texture_pitch: usize,
    processors: c_int,
    integrated: c_int,
    maps_host_memory: c_int,
    textures: [c_int; 39],
    surface_alignment: usize,
    concurrent_kernels: c_int,
    ecc: c_int,
    pci: [c_int; 3],
    tcc: c_int,
    copy_engines: c_int,
    unified_addressing: c_int,
    bus_width: c_int,
    l2: c_int,
    persisting_l2: c_int,
    threads_per_processor: c_int,
    stream_priorities: c_int,
    caches: [c_int; 2],
    shared_per_processor: usize,
    registers_per_processor: c_int,
    managed_memory: c_int,
    boards: [c_int; 2],
    host_atomics: c_int,
    pageable: c_int,
    concurrent_managed: c_int,
    preemption: c_int,
    host_pointers: c_int,
    cooperative_launch: c_int,
    shared_per_block_optin: usize,
    page_tables: [c_int; 2],
    blocks_per_processor: c_int,
    window: c_int,
    reserved_shared: usize,
    rest: [c_int; 76],
}

/// What `cudaGetDeviceProperties` writes: 1008 bytes in CUDA 13.
const _: () = assert!(std::mem::size_of::<Properties>() == 1008);

impl Properties {
    fn new(card: &Card, device: usize) -> Properties {
        let chip = card.chip();
        // SAFETY: all fields are integers, for which zero is a value.
        let mut properties: Properties = unsafe { std::mem::zeroed() };
        let name = card.name.as_bytes();
        let length = name.len().min(properties.name.len() - 1);
        properties.name[..length].copy_from_slice(&name[..length]);
        properties.uuid = [device.wrapping_add(1) as u8; 16];
        properties.total_memory = card.total;
        (properties.major, properties.minor) = (card.capability / 10, card.capability % 10);
        properties.processors = card.processors;
        (properties.warp, properties.threads_per_block) = (32, 1024);
        (properties.block, properties.grid) = ([1024, 1024, 64], [c_int::MAX, 65_535, 65_535]);
        properties.threads_per_processor = chip.threads_per_processor;
        properties.blocks_per_processor = chip.blocks_per_processor;
        properties.shared_per_block = 48 << 10;
        properties.shared_per_block_optin = chip.shared_per_block as usize;
        properties.shared_per_processor = chip.shared_per_processor as usize;
        (properties.registers_per_block, properties.registers_per_processor) = (65_536, 65_536);
        (properties.constant_memory, properties.texture_alignment) = (65_536, 512);
        (properties.l2, properties.bus_width) = (chip.l2_bytes, 5120);
        (properties.maps_host_memory, properties.managed_memory) = (1, 1);
        (properties.unified_addressing, properties.concurrent_kernels, properties.cooperative_launch) = (1, 1, 1);
        (properties.copy_engines, properties.stream_priorities) = (3, 1);
        properties.pci = [device.wrapping_add(1) as c_int, 0, 0];
        properties
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceProperties(place: *mut Properties, device: c_int) -> Status {
    let Some(device) = exists(device) else { return ended(INVALID_DEVICE) };
    // SAFETY: the caller's variable; the layout is that of CUDA 13.
    unsafe { put(place, Properties::new(card(), device)) };
    OK
}

/// `cudaDevAttr…` by number; the driver's have the same numbers.
pub fn attribute(card: &Card, attribute: c_int) -> c_int {
    let chip = card.chip();
    match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        8 => 48 << 10,
        10 => 32,
        12 | 82 => 65_536,
        16 => card.processors,
        38 => chip.l2_bytes,
        39 => chip.threads_per_processor,
        75 => card.capability / 10,
        76 => card.capability % 10,
        81 => chip.shared_per_processor,
        97 => chip.shared_per_block,
        106 => chip.blocks_per_processor,
        _ => 1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, asked: c_int, _device: c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(value, attribute(card(), asked)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    place: *mut *const c_void,
    _version: c_uint,
    _flags: u64,
    status: *mut c_int,
) -> Status {
    // SAFETY: the caller's name, which ends in a zero, and its variables.
    unsafe {
        put(place, super::driver::function(name));
        put(status, 0);
    }
    OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_lie_where_cuda_13_has_them() {
        let properties = Properties::new(card(), 3);
        assert_eq!(std::mem::offset_of!(Properties, total_memory), 288);
        assert_eq!(std::mem::offset_of!(Properties, major), 360);
        assert_eq!(std::mem::offset_of!(Properties, processors), 384);
        assert_eq!(std::mem::offset_of!(Properties, shared_per_block_optin), 672);
        assert_eq!(std::mem::offset_of!(Properties, reserved_shared), 696);
        assert_eq!((properties.major, properties.pci[0]), (9, 4));
    }

    #[test]
    fn a_device_that_does_not_exist_is_refused() {
        assert_eq!(cudaSetDevice(card().count), INVALID_DEVICE);
        assert_eq!(cudaSetDevice(-1), INVALID_DEVICE);
        assert_eq!(cudaSetDevice(0), OK);
    }
}
