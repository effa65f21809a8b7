//! Memory that is reserved and not in use: how much, in what pieces, and which blocks keep it.

use rematic_trace::Bytes;
use serde::Serialize;

use crate::moment::Sources;
use crate::placement::{Placement, Range};

/// How many of the worst segments are named, and of each how many blocks.
const SEGMENTS: usize = 10;
const BLOCKS: usize = 3;

/// A block that keeps a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinningBlock {
    /// Its bytes.
    pub bytes: Bytes,
    /// The line that asked for it.
    pub line: String,
}

/// A segment that is partly empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedSegment {
    /// Its bytes.
    pub bytes: Bytes,
    /// What of it is not in use.
    pub free_bytes: Bytes,
    /// How many blocks are in use.
    pub live: usize,
    /// The largest of them.
    pub blocks: Vec<PinningBlock>,
}

/// What is reserved and not in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fragmentation {
    /// All of it.
    pub free_bytes: Bytes,
    /// The largest piece.
    pub largest_free_bytes: Bytes,
    /// How many pieces.
    pub pieces: usize,
    /// What blocks have beyond their requests: rounding, and rests too small to be split off.
    pub rounding_bytes: Bytes,
    /// Free bytes of segments without any block in use.
    pub empty_segments_bytes: Bytes,
    /// How many segments are partly empty.
    pub partly_empty: usize,
    /// The worst of those.
    pub pinned: Vec<PinnedSegment>,
}

/// A segment with what is free in it.
struct Usage {
    address: u64,
    range: Range,
    free: u64,
    live: usize,
}

impl Fragmentation {
    pub(crate) fn new(placement: &Placement, sources: &mut Sources<'_>) -> Self {
        let mut pieces = 0;
        let mut largest = 0;
        let mut partly = Vec::new();
        let mut empty = 0u64;
        for (address, range) in placement.joined() {
            let mut usage = Usage { address, range, free: 0, live: 0 };
            let mut piece = |bytes: u64| {
                pieces += usize::from(bytes > 0);
                largest = largest.max(bytes);
                usage.free = usage.free.saturating_add(bytes);
            };
            let mut from = address;
            let end = address.saturating_add(range.size);
            for (start, live) in placement.live.range(address..end.max(address)) {
                piece(start.saturating_sub(from));
                from = from.max(start.saturating_add(live.size));
                usage.live += 1;
            }
            piece(end.saturating_sub(from));
            if usage.live == 0 {
                empty = empty.saturating_add(usage.free);
            } else if usage.free > 0 {
                partly.push(usage);
            }
        }
        // Equal ones stay in the order of their addresses.
        partly.sort_by_key(|usage| std::cmp::Reverse(usage.free));
        let totals = placement.totals;
        Fragmentation {
            free_bytes: Bytes(totals.reserved.saturating_sub(totals.active)),
            largest_free_bytes: Bytes(largest),
            pieces,
            rounding_bytes: Bytes(totals.active.saturating_sub(totals.requested)),
            empty_segments_bytes: Bytes(empty),
            partly_empty: partly.len(),
            pinned: partly.iter().take(SEGMENTS).map(|usage| usage.pinned(placement, sources)).collect(),
        }
    }
}

impl Usage {
    fn pinned(&self, placement: &Placement, sources: &mut Sources<'_>) -> PinnedSegment {
        let end = self.address.saturating_add(self.range.size).max(self.address);
        let mut blocks: Vec<_> = placement.live.range(self.address..end).map(|(_, live)| live).collect();
        blocks.sort_by_key(|live| std::cmp::Reverse(live.size));
        let block = |live: &&_| {
            let live: &crate::placement::Live = live;
            PinningBlock { bytes: Bytes(live.size), line: sources.of(live).line }
        };
        PinnedSegment {
            bytes: Bytes(self.range.size),
            free_bytes: Bytes(self.free),
            live: self.live,
            blocks: blocks.iter().take(BLOCKS).map(block).collect(),
        }
    }
}
