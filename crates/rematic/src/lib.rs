//! Plans the memory of deep-learning training.
pub use rematic_trace as trace;
