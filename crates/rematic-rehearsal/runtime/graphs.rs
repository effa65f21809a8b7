//! CUDA graphs: what is captured does nothing, and so does its launch. PyTorch's allocator does all that it does otherwise.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use super::put;
use super::status::{OK, Status};
use super::streams::{handle, makes, nothing};

type Handle = *mut c_void;

/// Streams that are being captured, with the capture's number.
static CAPTURES: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

/// The number of the capture that a stream is in.
pub fn capturing(stream: Handle) -> Option<u64> {
    let captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    captures.iter().find(|(captured, _)| *captured == stream as usize).map(|(_, id)| *id)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCapture(stream: Handle, _mode: c_int) -> Status {
    let id = handle() as u64;
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner).push((stream as usize, id));
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCaptureToGraph(stream: Handle) -> Status {
    cudaStreamBeginCapture(stream, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamEndCapture(stream: Handle, graph: *mut Handle) -> Status {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner).retain(|(captured, _)| *captured != stream as usize);
    // SAFETY: the caller's variable.
    unsafe { put(graph, handle()) };
    OK
}

makes! {
    cudaGraphInstantiate(Handle, u64);
    cudaGraphInstantiateWithFlags(Handle, u64);
    cudaGraphCreate(c_uint);
    cudaUserObjectCreate(*mut c_void);
    cudaGraphAddNode(Handle);
    cudaGraphConditionalHandleCreate(Handle);
}
nothing! {
    cudaGraphLaunch cudaGraphDestroy cudaGraphExecDestroy cudaGraphRetainUserObject cudaUserObjectRelease
    cudaThreadExchangeStreamCaptureMode cudaStreamUpdateCaptureDependencies cudaGraphDebugDotPrint cudaGraphUpload
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGraphGetNodes(_graph: Handle, _nodes: *mut Handle, count: *mut usize) -> Status {
    // An empty graph would make PyTorch warn: there is one node.
    // SAFETY: the caller's variable.
    unsafe { put(count, 1) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGraphNodeGetDependencies(
    _node: Handle,
    _dependencies: *mut Handle,
    _edges: *mut c_void,
    count: *mut usize,
) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(count, 0) };
    OK
}
