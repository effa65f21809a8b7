//! A dress rehearsal of a training script on a GPU that is not there: the CUDA runtime that it runs on, and the Python that
//! watches it.

#[cfg(test)]
#[path = "../runtime/lib.rs"]
mod runtime;

/// The runtime as a shared library, for Linux only: elsewhere there is none.
#[cfg(rehearsal)]
pub const RUNTIME: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/librehearsal.so")));
/// The runtime as a shared library, for Linux only: elsewhere there is none.
#[cfg(not(rehearsal))]
pub const RUNTIME: Option<&[u8]> = None;
