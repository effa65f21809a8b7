//! Fake tensors: trace one training step of a model from its shapes alone.
//!
//! A [`Tensor`] has a layout and a storage but no data. Operators on it are recorded on a [`Tape`]; autograd saves what
//! PyTorch's eager autograd saves, and backward emits PyTorch's operators in PyTorch's order. A reference to a tensor
//! is a Rust value: dropping it is what ends its life in Python, so a model is written like its Python original.
//!
//! ```
//! use rematic_fake::{Dtype, Optimizer, Step, Tape, nn};
//!
//! let tape = Tape::new("two layers");
//! let root = nn::Scope::root(&tape, "Mlp", Dtype::F32);
//! let up = nn::Linear::new(&root, "up", 64, 256, true);
//! let down = nn::Linear::new(&root, "down", 256, 64, true);
//! let batch = tape.input(Dtype::F32, &[32, 64]);
//!
//! let trace = Step::new(&tape, Optimizer::Adam)
//!     .run(|| root.call(&[&batch], || down.forward(&up.forward(&batch).relu())), |output| output.sum())
//!     .unwrap();
//! assert_eq!(trace.ops().items()[1].phase, rematic_trace::Phase::Forward);
//! ```

mod autocast;
mod autograd;
mod error;
mod kernel;
pub mod models;
pub mod nn;
mod ops;
mod optimizer;
mod parallel;
mod scaler;
mod step;
mod tape;
mod tensor;
mod training;

pub use error::FakeError;
pub use nn::Lora;
pub use ops::{ArangeOverload, Attention, AttentionKernel};
pub use optimizer::Optimizer;
pub use rematic_trace::Dtype;
pub use step::Step;
pub use tape::Tape;
pub use tensor::Tensor;
