//! Modules: named scopes with parameters, and the usual layers.

mod adapter;
mod layers;
mod scope;

pub use adapter::Lora;
pub use layers::{Conv1d, Dropout, Embedding, LayerNorm, Linear, RmsNorm};
pub use scope::{Outputs, Scope};
