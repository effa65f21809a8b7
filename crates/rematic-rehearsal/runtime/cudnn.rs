//! cuDNN: convolutions, attention, recurrent layers and norms that are not computed.
//!
//! NVIDIA's own library cannot run here: each of its parts carries a CUDA runtime of its own, which talks to the driver in ways
//! that are not documented and wants the driver to prove that it is NVIDIA's. So its functions are answered here. PyTorch's code
//! around them is the real one, and so is what it allocates: results, what is kept for backward, and what the frontend of cuDNN
//! (a part of PyTorch's build) lays out in the workspace of attention. What only the library knows is how much its kernels
//! want beside that; where it is asked, the answer is nothing (recurrent layers: an assumption), and `used` lets the script's
//! watcher say so.

mod backend;
mod convolutions;
mod recurrent;
mod refused;
mod tensors;

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::put;
use super::status::{OK, Status};
use super::streams::{handle, makes, nothing};

type Handle = *mut c_void;

/// `CUDNN_STATUS_BAD_PARAM`, `CUDNN_STATUS_NOT_SUPPORTED`.
const BAD_PARAM: Status = 2000;
const NOT_SUPPORTED: Status = 3000;

/// What cuDNN was used for. The numbers are known to `hook/rematic_rehearsal/cudnn.py`.
#[derive(Clone, Copy)]
pub(super) enum Use {
    Convolution = 0,
    Attention = 1,
    Recurrent = 2,
    BatchNorm = 3,
    Other = 4,
}

static LISTENER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static USED: AtomicU32 = AtomicU32::new(0);

/// Tells the listener of the first use of each kind.
fn used(what: Use) {
    let bit = 1 << what as u32;
    if USED.load(Ordering::Relaxed) & bit != 0 || USED.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() {
        // SAFETY: only `rematic_listen_to_cudnn` stores here, and it takes a function of this type.
        let listener = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(listener) };
        listener(what as c_int);
    }
}

/// Registers who is told what cuDNN is used for; null for nobody.
#[unsafe(no_mangle)]
pub extern "C" fn rematic_listen_to_cudnn(listener: *mut c_void) {
    LISTENER.store(listener, Ordering::Release);
}

/// A handle is the place of its stream. PyTorch keeps handles for as long as it lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(place: *mut Handle) -> Status {
    let handle: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    // SAFETY: the caller's variable.
    unsafe { put(place, std::ptr::from_ref(handle).cast_mut().cast()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetStream(handle: Handle, stream: Handle) -> Status {
    // SAFETY: null, or a handle of `cudnnCreate`, which is never freed.
    match unsafe { handle.cast::<AtomicUsize>().as_ref() } {
        Some(place) => place.store(stream as usize, Ordering::Relaxed),
        None => return BAD_PARAM,
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetStream(handle: Handle, stream: *mut Handle) -> Status {
    // SAFETY: null, or a handle of `cudnnCreate`, which is never freed; the caller's variable.
    unsafe {
        let Some(place) = handle.cast::<AtomicUsize>().as_ref() else { return BAD_PARAM };
        put(stream, place.load(Ordering::Relaxed) as Handle);
    }
    OK
}

/// What went wrong, for PyTorch's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetLastErrorString(text: *mut c_char, room: usize) {
    // SAFETY: the caller's text of that size.
    unsafe { super::device::say(text, room, "not there in a rehearsal without a GPU") };
}

/// Bytes of an element of `cudnnDataType_t`.
fn element(kind: c_int) -> usize {
    const DOUBLE: c_int = 1;
    const HALF: c_int = 2;
    const BFLOAT16: c_int = 9;
    const INT64: c_int = 10;
    match kind {
        DOUBLE | INT64 => 8,
        HALF | BFLOAT16 => 2,
        // FLOAT and INT32.
        0 | 4 => 4,
        _ => 1,
    }
}

nothing! {
    cudnnDestroy cudnnPoolingForward cudnnSetActivationDescriptor cudnnSetPooling2dDescriptor
    cudnnSetSpatialTransformerNdDescriptor cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward
    cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v9
    cudnnDestroyActivationDescriptor cudnnDestroyCTCLossDescriptor cudnnDestroySpatialTransformerDescriptor
}
makes! {
    cudnnCreateActivationDescriptor();
    cudnnCreateCTCLossDescriptor();
    cudnnCreatePoolingDescriptor();
    cudnnCreateSpatialTransformerDescriptor();
}
