//! A dress rehearsal of a training script on a GPU that is not there.
//!
//! The script runs unchanged, on PyTorch's own CUDA build, with a CUDA runtime that hands out addresses and runs no kernel
//! (`runtime/`, a library of its own, in Rust), and with a few files of Python that watch it (`hook/`). Both are carried inside of
//! this crate, and written to a private directory for one run.

mod error;
mod interruption;
mod record;
mod run;
mod stage;

#[cfg(test)]
#[path = "../runtime/lib.rs"]
mod runtime;

pub use error::RehearsalError;
pub use record::{
    Assumption, Counters, Line, OutOfMemory, Reads, ReadsAt, Record, Refused, Resident, Snapshot, Uncaught,
};
pub use run::{Card, Rehearsal, Run};
