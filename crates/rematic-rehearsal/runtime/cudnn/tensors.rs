//! Descriptions of tensors and filters, and norms.

use std::ffi::{c_int, c_void};

use super::super::put;
use super::super::status::{OK, Status};
use super::super::streams::nothing;
use super::{BAD_PARAM, Handle, Use, used};

/// What `cudnnTensorDescriptor_t` and `cudnnFilterDescriptor_t` point to.
#[derive(Default)]
pub struct Layout {
    kind: c_int,
    format: c_int,
    sizes: Vec<c_int>,
    strides: Vec<c_int>,
}

impl Layout {
    /// Describes a dense tensor.
    pub(super) fn dense(&mut self, kind: c_int, sizes: &[c_int]) {
        self.kind = kind;
        self.sizes = sizes.to_vec();
        self.strides = (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product()).collect();
    }
}

/// # Safety
/// `from` is null or points to so many numbers.
pub(super) unsafe fn numbers(from: *const c_int, count: c_int) -> Vec<c_int> {
    match usize::try_from(count) {
        // SAFETY: by the contract above.
        Ok(count) if !from.is_null() && count > 0 => unsafe { std::slice::from_raw_parts(from, count) }.to_vec(),
        _ => Vec::new(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateTensorDescriptor(place: *mut *mut Layout) -> Status {
    // SAFETY: the caller's variable; the destroying function takes it back.
    unsafe { put(place, Box::into_raw(Box::default())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateFilterDescriptor(place: *mut *mut Layout) -> Status {
    // SAFETY: as above.
    unsafe { cudnnCreateTensorDescriptor(place) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroyTensorDescriptor(layout: *mut Layout) -> Status {
    if !layout.is_null() {
        // SAFETY: the caller has it from the creating function, and does not use it again.
        drop(unsafe { Box::from_raw(layout) });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroyFilterDescriptor(layout: *mut Layout) -> Status {
    // SAFETY: as above.
    unsafe { cudnnDestroyTensorDescriptor(layout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    layout: *mut Layout,
    kind: c_int,
    count: c_int,
    sizes: *const c_int,
    strides: *const c_int,
) -> Status {
    // SAFETY: null, or a description of the caller's making, and arrays of so many numbers.
    unsafe {
        let Some(layout) = layout.as_mut() else { return BAD_PARAM };
        (layout.kind, layout.sizes, layout.strides) = (kind, numbers(sizes, count), numbers(strides, count));
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    layout: *mut Layout,
    kind: c_int,
    format: c_int,
    count: c_int,
    sizes: *const c_int,
) -> Status {
    // SAFETY: null, or a description of the caller's making, and an array of so many numbers.
    unsafe {
        let Some(layout) = layout.as_mut() else { return BAD_PARAM };
        layout.dense(kind, &numbers(sizes, count));
        layout.format = format;
    }
    OK
}

/// # Safety
/// `place` has room for as many numbers, or is null.
unsafe fn told(place: *mut c_int, numbers: &[c_int], room: c_int) {
    if !place.is_null() {
        for (index, number) in numbers.iter().take(usize::try_from(room).unwrap_or(0)).enumerate() {
            // SAFETY: by the contract above.
            unsafe { put(place.add(index), *number) };
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetTensorNdDescriptor(
    layout: *const Layout,
    room: c_int,
    kind: *mut c_int,
    count: *mut c_int,
    sizes: *mut c_int,
    strides: *mut c_int,
) -> Status {
    // SAFETY: null, or a description of the caller's making; its variables, and arrays with so much room.
    unsafe {
        let Some(layout) = layout.as_ref() else { return BAD_PARAM };
        put(kind, layout.kind);
        put(count, layout.sizes.len() as c_int);
        told(sizes, &layout.sizes, room);
        told(strides, &layout.strides, room);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetFilterNdDescriptor(
    layout: *const Layout,
    room: c_int,
    kind: *mut c_int,
    format: *mut c_int,
    count: *mut c_int,
    sizes: *mut c_int,
) -> Status {
    // SAFETY: null, or a description of the caller's making; its variables, and an array with so much room.
    unsafe {
        let Some(layout) = layout.as_ref() else { return BAD_PARAM };
        put(format, layout.format);
        cudnnGetTensorNdDescriptor(layout, room, kind, count, sizes, std::ptr::null_mut())
    }
}

// Norms: what the library keeps for backward, and its workspaces, are not known.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: Handle,
    _mode: c_int,
    _operations: c_int,
    _activation: Handle,
    _x: *const c_void,
    bytes: *mut usize,
) -> Status {
    used(Use::BatchNorm);
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: Handle,
    _mode: c_int,
    _operations: c_int,
    _x: Handle,
    _z: Handle,
    _y: Handle,
    _scale: Handle,
    _activation: Handle,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: Handle,
    _mode: c_int,
    _operations: c_int,
    _x: Handle,
    _y: Handle,
    _dy: Handle,
    _dz: Handle,
    _dx: Handle,
    _scale: Handle,
    _activation: Handle,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize(
    _handle: Handle,
    _scores: Handle,
    _gradients: Handle,
    _labels: *const c_int,
    _label_lengths: *const c_int,
    _input_lengths: *const c_int,
    _algorithm: c_int,
    _description: Handle,
    bytes: *mut usize,
) -> Status {
    used(Use::Other);
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize_v8(
    _handle: Handle,
    _algorithm: c_int,
    _description: Handle,
    _scores: Handle,
    _gradients: Handle,
    bytes: *mut usize,
) -> Status {
    used(Use::Other);
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

nothing! {
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference cudnnBatchNormalizationForwardTrainingEx
    cudnnCTCLoss cudnnCTCLoss_v8
}
