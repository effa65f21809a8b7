//! PyTorch 2.15's CUDA caching allocator as a state machine.
//!
//! Torch does not ask the driver for every tensor. It takes segments, cuts blocks out of them, and keeps what is freed
//! for later. How much memory a step takes from the device is therefore more than the bytes of its tensors, and depends
//! on the order of requests and on `PYTORCH_CUDA_ALLOC_CONF`. An [`Allocator`] does what torch's does, to the byte and
//! in the same order of calls to the driver, without a device.
//!
//! ```
//! use rematic_allocator::{Allocator, Device, Settings};
//!
//! let settings: Settings = "max_split_size_mb:128".parse()?;
//! let mut allocator = Allocator::new(settings, Device::with_memory(80 << 30));
//! let stream = 0;
//!
//! let weight = allocator.alloc(3_000_000, stream)?;
//! assert_eq!(allocator.counters().allocated.current, 3_000_320); // a multiple of 512
//! assert_eq!(allocator.counters().reserved.current, 20 << 20); // one segment, for others too
//!
//! allocator.free(weight)?;
//! assert_eq!(allocator.counters().reserved.current, 20 << 20); // kept
//! allocator.empty_cache()?;
//! assert_eq!(allocator.counters().reserved.current, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does is compared with torch's allocator on a device that is not there, event by event
//! (`tests/allocator` of the repository).
//!
//! Not modelled: captures of CUDA graphs (their pools are), pools with an allocator of their own, memory of the host,
//! `backend:cudaMallocAsync`, several threads at once. Blocks that several streams are done with become free in the
//! order of a hash table of torch's; here in the order in which the streams came, which changes the order of
//! `free_completed` events and nothing else.

mod allocator;
mod block;
mod counters;
mod device;
mod error;
mod events;
mod expandable;
mod free;
mod map;
mod order;
mod pool;
mod private;
mod release;
mod rounding;
mod settings;
mod streams;

pub use allocator::{Allocation, Allocator};
pub use counters::{Counter, Counters};
pub use device::{Completion, Device};
pub use error::{AllocatorError, OutOfMemory, Shortage};
pub use events::{Event, EventKind};
pub use map::{BlockState, BlockView, SegmentView};
pub use private::{PoolId, PoolOptions};
pub use rounding::{
    Divisions, EXABYTE, LARGE_SEGMENT_BELOW, LARGEST_SMALL_BLOCK, SEGMENT_MULTIPLE, SMALL_SEGMENT, SMALLEST_BLOCK,
    segment_size,
};
pub use settings::{Ignored, Reserve, Settings, SettingsError};
