//! What happens inside, in the words of torch's memory history.

use crate::private::PoolId;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A block was handed out. The size is the one that was asked for.
    Alloc,
    /// A block was given back. The size is the one that was asked for.
    FreeRequested,
    /// A block that was given back can be used again: no other stream uses it any more.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// A segment went back to the driver.
    SegmentFree,
    /// The driver mapped memory into an expandable segment.
    SegmentMap,
    /// Memory of an expandable segment went back to the driver.
    SegmentUnmap,
    /// A request could not be met. The address is what is free on the device, the size the rounded request.
    OutOfMemory,
}

impl EventKind {
    /// The name in torch's memory history.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Alloc => "alloc",
            EventKind::FreeRequested => "free_requested",
            EventKind::FreeCompleted => "free_completed",
            EventKind::SegmentAlloc => "segment_alloc",
            EventKind::SegmentFree => "segment_free",
            EventKind::SegmentMap => "segment_map",
            EventKind::SegmentUnmap => "segment_unmap",
            EventKind::OutOfMemory => "oom",
        }
    }
}

/// One thing that happened, as torch's memory history has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub address: u64,
    /// To how many bytes.
    pub size: u64,
    /// The stream of the block or segment.
    pub stream: u64,
    /// The private pool that it belongs to.
    pub pool: Option<PoolId>,
}
