//! Models.
mod seed_transformer;
pub use seed_transformer::*;
