//! Modules: named scopes with parameters, and the usual layers.

mod adapter;
mod convolution;
mod dealt;
mod layers;
mod scope;

pub use adapter::Lora;
pub(crate) use convolution::PatchConvolution;
pub(crate) use dealt::{own, replicated};
pub use layers::{Conv1d, Dropout, Embedding, LayerNorm, Linear, RmsNorm};
pub use scope::{Outputs, Scope};
