//! Passes over steps: from the step of a model on one device to that of one rank of several.
//!
//! A pass takes a [`StepTrace`](rematic_trace::StepTrace) and gives another; whatever counts bytes or time afterwards need not
//! know of it. Each has a file.

mod even;
mod fsdp2;

pub use even::{EvenShards, even_shards};
pub use fsdp2::{Fsdp2, Fsdp2Error, fsdp2, layers};
