//! Where blocks lay at every moment of the record.
//!
//! Events have addresses, so that nothing has to be guessed about where a block was. What they lack is the size of a
//! block, which is larger than the request: it is rounded up, and what is left of a free range is not split off where
//! it would be too small. The free range in which a block was placed is known, and so is the rule.

use std::collections::BTreeMap;

use rematic_allocator::{EXABYTE, LARGEST_SMALL_BLOCK, Settings};

use crate::snapshot::{Action, BlockState, DeviceRecord, Event};
use crate::stack::StackId;

/// A block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    /// Given back, and other streams still use it.
    pub(crate) pending: bool,
    /// The event that made it; none if it was there before the record.
    pub(crate) born: Option<usize>,
    pub(crate) stack: StackId,
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
}

/// Memory of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
    pub(crate) expandable: bool,
}

/// Bytes in use at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requested: u64,
    pub(crate) allocated: u64,
    pub(crate) active: u64,
    pub(crate) reserved: u64,
}

/// All memory at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    pub(crate) live: BTreeMap<u64, Live>,
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) totals: Totals,
    /// Events that do not fit what is known.
    pub(crate) misfits: usize,
}

impl Placement {
    /// At the end of the record, as the segments say.
    pub(crate) fn at_end(record: &DeviceRecord) -> Self {
        let mut placement = Placement::default();
        for segment in &record.segments {
            let (stream, pool) = (segment.stream, segment.pool);
            let range = Range { size: segment.size, stream, pool, expandable: segment.is_expandable };
            placement.add_range(segment.address, range);
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                let pending = block.state == BlockState::PendingFree;
                let (size, requested) = (block.size, block.requested);
                let live = Live { size, requested, pending, born: None, stack: block.stack, stream, pool };
                placement.add(block.address, live);
            }
        }
        placement
    }

    /// Before the record: its end without its events, from the last to the first.
    pub(crate) fn at_start(record: &DeviceRecord, settings: &Settings) -> Self {
        let mut placement = Placement::at_end(record);
        for event in record.events.iter().rev() {
            placement.undo(event, settings);
        }
        placement.add_tails(settings);
        // From here on misfits are counted in the order of time.
        placement.misfits = 0;
        placement
    }

    /// Gives blocks whose size was taken as the rounded request what is too small to have been split off.
    fn add_tails(&mut self, settings: &Settings) {
        let blocks: Vec<(u64, Live)> = self.live.iter().map(|(address, live)| (*address, *live)).collect();
        for (address, live) in blocks {
            let size = self.with_tail(address, live.size, settings);
            if size != live.size {
                self.add(address, Live { size, ..live });
            }
        }
    }

    fn undo(&mut self, event: &Event, settings: &Settings) {
        match event.action {
            Action::Alloc => drop(self.remove(event.address)),
            Action::FreeCompleted => {
                let size = rounded(event.size, settings);
                self.add(event.address, Live { size, pending: true, ..Live::of(event, None) });
            }
            Action::FreeRequested => match self.remove(event.address) {
                Some(live) => self.add(event.address, Live { pending: false, ..live }),
                None => {
                    let size = rounded(event.size, settings);
                    self.add(event.address, Live { size, ..Live::of(event, None) });
                }
            },
            Action::SegmentAlloc | Action::SegmentMap => self.remove_range(event.address, event.size),
            Action::SegmentFree | Action::SegmentUnmap => self.add_range(event.address, Range::of(event)),
            Action::Snapshot | Action::OutOfMemory | Action::Other => {}
        }
    }

    /// What an event changes.
    pub(crate) fn apply(&mut self, index: usize, event: &Event, settings: &Settings) {
        match event.action {
            Action::Alloc => {
                let size = self.with_tail(event.address, rounded(event.size, settings), settings);
                self.misfits += usize::from(self.live.contains_key(&event.address));
                self.add(event.address, Live { size, ..Live::of(event, Some(index)) });
            }
            Action::FreeRequested => match self.remove(event.address) {
                Some(live) => self.add(event.address, Live { pending: true, ..live }),
                None => self.misfits += 1,
            },
            Action::FreeCompleted => self.misfits += usize::from(self.remove(event.address).is_none()),
            Action::SegmentAlloc | Action::SegmentMap => self.add_range(event.address, Range::of(event)),
            Action::SegmentFree | Action::SegmentUnmap => self.remove_range(event.address, event.size),
            Action::Snapshot | Action::OutOfMemory | Action::Other => {}
        }
    }

    /// The size of a block that is cut from the free range at its address: with the rest of that range, where the rest
    /// would be too small or the block is one that is never split.
    fn with_tail(&self, address: u64, size: u64, settings: &Settings) -> u64 {
        let Some((start, range)) = self.ranges.range(..=address).next_back() else { return size };
        if range.expandable || size <= LARGEST_SMALL_BLOCK {
            return size;
        }
        let end = start.saturating_add(range.size);
        let next = self.live.range(address.saturating_add(1)..).next().map_or(end, |(next, _)| end.min(*next));
        let room = next.saturating_sub(address);
        let whole = settings.max_split_size.is_some_and(|oversize| size >= oversize);
        if room > size && (whole || room - size <= LARGEST_SMALL_BLOCK) { room } else { size }
    }

    fn add(&mut self, address: u64, live: Live) {
        self.remove(address);
        let totals = &mut self.totals;
        totals.requested = totals.requested.saturating_add(live.requested);
        totals.active = totals.active.saturating_add(live.size);
        if !live.pending {
            totals.allocated = totals.allocated.saturating_add(live.size);
        }
        self.live.insert(address, live);
    }

    fn remove(&mut self, address: u64) -> Option<Live> {
        let live = self.live.remove(&address)?;
        let totals = &mut self.totals;
        totals.requested = totals.requested.saturating_sub(live.requested);
        totals.active = totals.active.saturating_sub(live.size);
        if !live.pending {
            totals.allocated = totals.allocated.saturating_sub(live.size);
        }
        Some(live)
    }

    fn add_range(&mut self, address: u64, range: Range) {
        if let Some(old) = self.ranges.insert(address, range) {
            self.misfits += 1;
            self.totals.reserved = self.totals.reserved.saturating_sub(old.size);
        }
        self.totals.reserved = self.totals.reserved.saturating_add(range.size);
    }

    /// Takes memory away. Expandable segments are mapped and unmapped in pieces that need not be the same.
    fn remove_range(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let first = self.ranges.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let touched: Vec<(u64, Range)> = self
            .ranges
            .range(first..end.max(first.saturating_add(1)))
            .filter(|(start, range)| start.saturating_add(range.size) > address && **start < end)
            .map(|(start, range)| (*start, *range))
            .collect();
        self.misfits += usize::from(touched.is_empty());
        for (start, range) in touched {
            self.ranges.remove(&start);
            self.totals.reserved = self.totals.reserved.saturating_sub(range.size);
            let after = start.saturating_add(range.size);
            for (from, to) in [(start, address), (end, after)] {
                if from < to {
                    self.add_range(from, Range { size: to - from, ..range });
                }
            }
        }
    }

    /// Ranges by address, those that follow each other in an expandable segment as one.
    pub(crate) fn joined(&self) -> Vec<(u64, Range)> {
        let mut joined: Vec<(u64, Range)> = Vec::new();
        for (address, range) in &self.ranges {
            match joined.last_mut() {
                Some((start, last))
                    if last.expandable
                        && start.saturating_add(last.size) == *address
                        && (last.stream, last.pool, true) == (range.stream, range.pool, range.expandable) =>
                {
                    last.size = last.size.saturating_add(range.size);
                }
                _ => joined.push((*address, *range)),
            }
        }
        joined
    }
}

impl Live {
    fn of(event: &Event, born: Option<usize>) -> Self {
        let stack = if born.is_some() { event.stack } else { StackId::NONE };
        let Event { size: requested, stream, pool, .. } = *event;
        Live { size: requested, requested, pending: false, born, stack, stream, pool }
    }
}

impl Range {
    fn of(event: &Event) -> Self {
        let expandable = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
        Range { size: event.size, stream: event.stream, pool: event.pool, expandable }
    }
}

/// The bytes of a block for a request.
fn rounded(requested: u64, settings: &Settings) -> u64 {
    settings.divisions.round(requested.min(EXABYTE - 1))
}
