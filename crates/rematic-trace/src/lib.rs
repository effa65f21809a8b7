//! The trace of one training step, as one rank runs it.
//!
//! A [`StepTrace`] says everything that later stages need to know about one step of training in steady state
//! (optimizer state exists): the module tree, every storage with its size, every operator with its inputs and
//! outputs, what autograd saves for which operator, and the exact order in which references come and go.
//!
//! Two facts about the death of a storage are kept apart, because a checkpointing plan changes one and not the other:
//!
//! - [`Event::Drop`]: its last *ordinary* reference (a variable, a module's input or output) goes;
//! - [`Event::Unsave`]: the backward of the operator that saved it is over, so autograd lets go of it.
//!
//! The storage dies with the later of the two. In between its bytes may go and come back while the references stay
//! ([`Event::Release`], [`Event::Restore`]), as FSDP does with gathered parameters.
//!
//! ```
//! use rematic_trace::{Category, Dtype, Event, Flags, Layout, OpRecord, Phase, StepTrace, Tensor};
//!
//! let mut trace = StepTrace::new("one relu");
//! let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[4, 8]));
//! let input = Tensor { storage: trace.storage_before_step(128, Category::Other), layout };
//! let output = Tensor { storage: trace.next_storage(), layout };
//! let relu = trace.run(OpRecord {
//!     name: "relu.default",
//!     phase: Phase::Forward,
//!     call: None,
//!     differentiates: None,
//!     flags: Flags::default(),
//!     mutates: &[],
//!     inputs: &[input],
//!     outputs: &[output],
//!     saves: &[output],
//!     births: &[(128, Category::Activation)],
//! });
//! trace.push(Event::Drop(output.storage));
//! trace.push(Event::Unsave(relu));
//! trace.validate().unwrap();
//! ```

mod calls;
mod collective;
mod decision;
mod error;
mod event;
mod file;
mod id;
mod layout;
mod lists;
mod mesh;
mod module;
mod op;
mod option;
mod origin;
mod place;
mod storage;
mod table;
mod trace;
mod units;
mod validate;
mod verdict;

pub use collective::{Collective, CollectiveKind};
pub use decision::Decision;
pub use error::{Fault, FileAction, FileError, InvalidTrace};
pub use event::Event;
pub use file::{FORMAT, FORMAT_VERSION};
pub use id::{CallId, CollectiveId, LayoutId, ModuleId, NameId, OpId, StorageId, StreamId};
pub use layout::{Dtype, Layout, ShapeTooLarge};
pub use lists::Lists;
pub use module::{Call, Module, Parameter};
pub use op::{Flags, Op, Phase, Tensor};
pub use option::{Opt, Set, speak_python};
pub use origin::{CardKind, DeviceKind, Origin};
pub use place::{Axis, Place};
pub use storage::{Category, Pool, Storage};
pub use table::{Id, Table};
pub use trace::{OpRecord, StepTrace, any_layer, short};
pub use units::{Bytes, Flops, Millis, ParseBytesError};
pub use verdict::Verdict;
