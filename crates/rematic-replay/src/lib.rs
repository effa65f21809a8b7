//! Memory over one training step.
//!
//! [`Timeline::replay`] walks a [`StepTrace`](rematic_trace::StepTrace) once and says how many bytes are in use after
//! every operator, in total and per [`Category`](rematic_trace::Category), where the peak is, and what each module
//! looks like before, at the highest point of and after its forward and its backward.
//!
//! A storage is in use from its birth, or from the start of the step, until it has no ordinary reference **and** no
//! operator that saved it for autograd holds it any more; but not while its bytes are released. The [`Ledger`] is that
//! rule and nothing else.
//!
//! A [`Schedule`] is a step, plain or under a plan, as a stream of [`Action`]s; an [`Observer`] reads it once and
//! answers one question: the [`Highest`] point, a [`Recording`] of all lives, a [`Timeline`], what the caching
//! allocator has [`Reserved`].
//!
//! ```
//! use rematic_replay::{Allocator, Timeline};
//! use rematic_trace::{Bytes, Category, Dtype, Event, Flags, Layout, OpRecord, Phase, StepTrace, Tensor};
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
//!
//! let timeline = Timeline::replay(&trace, Allocator::Cuda);
//! assert_eq!(timeline.totals(), [Bytes(1024)]);
//! assert_eq!(timeline.peak().snapshot[Category::Activation], Bytes(512));
//! assert_eq!(timeline.alive_at_peak(&trace, 2)[1].saved_by, [relu]);
//! assert_eq!(timeline.end().total(), Bytes(512));
//! ```

mod action;
mod allocator;
mod clock;
mod course;
mod history;
pub mod holder;
mod host;
mod ledger;
mod liveness;
mod module;
mod peak;
mod recording;
mod region;
mod release;
mod reserved;
mod resident;
mod run;
mod schedule;
mod scratch;
mod snapshot;
mod timeline;
mod window;

pub use action::{Action, BufferId, Observer, Ran};
pub use allocator::{Allocator, CUDA_BLOCK};
pub use clock::Clock;
pub use course::Course;
pub use host::Host;
pub use ledger::Ledger;
pub use liveness::{Readings, unread};
pub use module::{ModuleMemory, Pass};
pub use peak::{Highest, Moment, Peak};
pub use recording::{Life, Recording};
pub use region::{Region, RegionId, Regions};
pub use reserved::{Request, Reserved};
pub use resident::Resident;
pub use run::{Chain, chains, long_chains, tiles};
pub use schedule::{Checkpoint, LEAST_OFFLOADED, Moves, Schedule, births, moved};
pub use scratch::{Architecture, Scratch, Use};
pub use snapshot::Snapshot;
pub use timeline::Timeline;
