//! Convolutions by the functions that came before the backend: PyTorch takes them where it is told to
//! (`TORCH_CUDNN_V8_API_DISABLED`). One way, which needs no workspace.

use std::ffi::{c_float, c_int, c_void};

use super::super::put;
use super::super::status::{OK, Status};
use super::super::streams::{handle, makes, nothing};
use super::{Handle, Use, used};

/// `cudnnConvolutionFwdAlgoPerf_t`, and the same for the two backwards.
#[repr(C)]
pub struct Way {
    algorithm: c_int,
    status: Status,
    milliseconds: c_float,
    workspace: usize,
    deterministic: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// The implicit product of matrices, which forward and both backwards have under this number.
const ALGORITHM: c_int = 1;

/// # Safety
/// The caller's variable, and room for one way.
unsafe fn one(found: *mut c_int, ways: *mut Way) -> Status {
    used(Use::Convolution);
    let way = Way {
        algorithm: ALGORITHM,
        status: OK,
        milliseconds: 1.0,
        workspace: 0,
        deterministic: 1,
        math: 0,
        reserved: [0; 3],
    };
    // SAFETY: by the contract above.
    unsafe {
        put(found, 1);
        put(ways, way);
    }
    OK
}

macro_rules! algorithms {
    ($($get:ident $find:ident $workspace:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            _handle: Handle, _a: Handle, _b: Handle, _convolution: Handle, _c: Handle, _asked: c_int, found: *mut c_int,
            ways: *mut Way,
        ) -> Status {
            // SAFETY: as the caller promises.
            unsafe { one(found, ways) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $find(
            _handle: Handle, _a: Handle, _at_a: *const c_void, _b: Handle, _at_b: *const c_void, _convolution: Handle,
            _c: Handle, _at_c: *mut c_void, _asked: c_int, found: *mut c_int, ways: *mut Way,
        ) -> Status {
            // SAFETY: as the caller promises.
            unsafe { one(found, ways) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $workspace(
            _handle: Handle, _a: Handle, _b: Handle, _convolution: Handle, _c: Handle, _algorithm: c_int, bytes: *mut usize,
        ) -> Status {
            // SAFETY: the caller's variable.
            unsafe { put(bytes, 0) };
            OK
        }
    )*};
}
algorithms! {
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnFindConvolutionForwardAlgorithmEx cudnnGetConvolutionForwardWorkspaceSize
    cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnFindConvolutionBackwardDataAlgorithmEx cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnGetConvolutionBackwardFilterWorkspaceSize
}

makes! {
    cudnnCreateConvolutionDescriptor();
}
nothing! {
    cudnnDestroyConvolutionDescriptor cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType
    cudnnSetConvolutionNdDescriptor cudnnConvolutionForward cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward
}
