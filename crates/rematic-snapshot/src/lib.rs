//! PyTorch's memory snapshots: what `torch.cuda.memory._dump_snapshot` wrote, read on any machine and never executed.
//!
//! A [`Snapshot`] is what the file says. A [`Story`] is what it means: what was in memory when the run failed or was at
//! its peak, by source line; what was lost to fragmentation, and to which blocks; and whether other settings of the
//! allocator would have helped, by running the recorded requests through [`rematic_allocator::Allocator`] again.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rematic_snapshot::{Snapshot, Story};
//!
//! let path = Path::new("snapshot.pickle");
//! let snapshot = Snapshot::read(path)?;
//! let story = Story::new(&snapshot, snapshot.device(path, None)?);
//! println!("{} in use", story.moment.allocated_bytes);
//! # Ok::<(), rematic_snapshot::SnapshotError>(())
//! ```

mod content;
mod error;
mod field;
mod fragments;
mod map;
mod moment;
mod pickle;
mod placement;
mod requests;
mod rerun;
mod snapshot;
mod stack;
mod story;
mod trials;

pub use error::{ContentError, SnapshotError};
pub use fragments::{Fragmentation, PinnedSegment, PinningBlock};
pub use map::{MapBlock, MapSegment};
pub use moment::{Failure, Group, ModuleBytes, Moment, MomentKind, PartBytes};
pub use pickle::{PickleError, is_pickle};
pub use rerun::Rerun;
pub use snapshot::{Action, Block, BlockState, DeviceRecord, Event, Recorded, Segment, Snapshot};
pub use stack::{Frame, Part, Source, StackId, Stacks};
pub use story::{Point, Record, Story};
pub use trials::{Outcome, Start, Trial};
