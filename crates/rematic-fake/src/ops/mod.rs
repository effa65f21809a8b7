//! The operators: for each, the layout of its result, what autograd saves for it, and its backward.
//!
//! Names, argument order and the order of the backward's own operators are PyTorch's.

mod attention;
mod chunked;
mod complex;
mod convolution;
mod elementwise;
mod embedding;
mod factors;
mod loss;
mod matmul;
mod norm;
mod redistribute;
mod reduce;
mod routing;
mod view;
mod vocabulary;

pub use attention::{Attention, AttentionKernel};
pub(crate) use chunked::{Chunked, LogitScale};
pub(crate) use redistribute::{Cut, Wait};
pub use reduce::ArangeOverload;
