//! Expandable segments: addresses for all of the device, and memory behind as many of them as are needed.

use crate::allocator::{Allocator, Request};
use crate::block::{Block, BlockId, Blocks, SegmentId};
use crate::error::AllocatorError;
use crate::events::EventKind;
use crate::rounding::SMALL_SEGMENT;

/// An expandable segment: a range of addresses, mapped in pieces of one size.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    address: u64,
    piece: u64,
}

impl Allocator {
    /// A block of at least the requested size at the end of what is mapped, or where memory is missing; `None` if there
    /// is no memory for it.
    pub(crate) fn expand(&mut self, request: &Request) -> Result<Option<BlockId>, AllocatorError> {
        let Some(mut candidate) = self.expandable_block(request)? else { return Ok(None) };
        if !self.blocks[candidate].mapped {
            let size = self.blocks[candidate].size.min(request.size);
            if !self.map_block(candidate, size)? {
                return Ok(None);
            }
        }
        while self.blocks[candidate].size < request.size {
            let next = self.blocks[candidate].next;
            let missing = request.size - self.blocks[candidate].size;
            let size = self.blocks[next].size.min(missing);
            if !self.map_block(next, size)? {
                return Ok(None);
            }
            candidate = next;
        }
        let (size, address) = (self.blocks[candidate].size, self.blocks[candidate].address);
        self.pools[request.pool as usize].lane_mut(request.stream).free.remove(size, address);
        Ok(Some(candidate))
    }

    /// The lowest address with room for the request, in memory that is free or not mapped; a new segment if there is
    /// none.
    fn expandable_block(&mut self, request: &Request) -> Result<Option<BlockId>, AllocatorError> {
        let lane = self.pools[request.pool as usize].lane_mut(request.stream);
        for &(_, id) in &lane.unmapped {
            let before = self.blocks[id].prev;
            let first = if self.blocks.get(before).is_some_and(Block::is_free) { before } else { id };
            if has_room(&self.blocks, first, request.size) {
                return Ok(Some(first));
            }
        }
        self.new_segment(request)
    }

    fn new_segment(&mut self, request: &Request) -> Result<Option<BlockId>, AllocatorError> {
        let piece = match self.pools[request.pool as usize].is_small {
            true => SMALL_SEGMENT,
            false => self.settings.large_segment_size,
        };
        let exhausted = AllocatorError::Exhausted { segments: self.segments.len() as u64 };
        let size = self.segment_reserve().checked_next_multiple_of(piece).ok_or(exhausted.clone())?;
        let number = u32::try_from(self.segments.len()).map_err(|_| exhausted.clone())?;
        let address = self.driver.reserve(size).ok_or(exhausted)?;
        if size < request.size {
            return Ok(None);
        }
        self.segments.push(Segment { address, piece });
        let mut block = Block::new(address, size, request.stream, request.pool);
        block.mapped = false;
        block.expandable = Some(SegmentId(number));
        let id = self.blocks.insert(block);
        self.pools[request.pool as usize].lane_mut(request.stream).insert_unmapped(address, id);
        Ok(Some(id))
    }

    /// Maps the first bytes of a block, rounded up to whole pieces, and merges them with their neighbours. Whether
    /// there was memory for it.
    fn map_block(&mut self, id: BlockId, size: u64) -> Result<bool, AllocatorError> {
        let Some(segment) = self.blocks[id].expandable else { return Ok(false) };
        let piece = self.segments[segment.0 as usize].piece;
        let mapped = size.next_multiple_of(piece);
        if !self.driver.take(mapped) {
            return Ok(false);
        }
        let (address, stream, pool) = (self.blocks[id].address, self.blocks[id].stream, self.blocks[id].pool);
        self.pools[pool as usize].lane_mut(stream).remove_unmapped(address);
        self.blocks[id].mapped = true;
        if mapped < self.blocks[id].size {
            let mut rest = Block::new(address + mapped, self.blocks[id].size - mapped, stream, pool);
            rest.mapped = false;
            rest.expandable = Some(segment);
            self.pools[pool as usize].lane_mut(stream).insert_unmapped(address + mapped, {
                let rest = self.blocks.insert(rest);
                let after = self.blocks[id].next;
                self.blocks.splice(rest, id, after);
                rest
            });
            self.blocks[id].size = mapped;
        }
        self.merge_and_free(id);
        self.counters.reserved.increase(mapped);
        self.record(EventKind::SegmentMap, address, mapped, stream, pool);
        Ok(true)
    }

    /// The whole pieces of a free block go back to the driver.
    pub(crate) fn unmap_block(&mut self, id: BlockId) -> Result<(), AllocatorError> {
        let Some(segment) = self.blocks[id].expandable else { return Ok(()) };
        let Segment { address: base, piece } = self.segments[segment.0 as usize];
        let Block { address, size, stream, pool, prev, .. } = self.blocks[id];
        let first = base + (address - base).next_multiple_of(piece);
        let end = base + (address + size - base) / piece * piece;
        if first >= end {
            return Ok(());
        }
        let unmapped = end - first;
        self.driver.give_back(unmapped);
        self.pools[pool as usize].lane_mut(stream).free.remove(size, address);
        if first > address {
            let before = self.free_piece(address, first - address, id);
            self.blocks.splice(before, prev, id);
            let (lane, free) = self.as_free(before);
            lane.free.insert(free);
        }
        if address + size > end {
            let after = self.free_piece(end, address + size - end, id);
            let next = self.blocks[id].next;
            self.blocks.splice(after, id, next);
            let (lane, free) = self.as_free(after);
            lane.free.insert(free);
        }
        let block = &mut self.blocks[id];
        (block.address, block.size, block.mapped) = (first, unmapped, false);
        self.merge(id, self.blocks[id].prev);
        self.merge(id, self.blocks[id].next);
        let address = self.blocks[id].address;
        self.pools[pool as usize].lane_mut(stream).insert_unmapped(address, id);
        self.counters.reserved.decrease(unmapped);
        self.uncount_driver_call(pool)?;
        self.record(EventKind::SegmentUnmap, first, unmapped, stream, pool);
        Ok(())
    }

    /// A part of a block that stays mapped.
    fn free_piece(&mut self, address: u64, size: u64, of: BlockId) -> BlockId {
        let mut piece = Block::new(address, size, self.blocks[of].stream, self.blocks[of].pool);
        piece.expandable = self.blocks[of].expandable;
        self.blocks.insert(piece)
    }

    /// A segment without any memory behind it gives its addresses back.
    pub(crate) fn release_segment(&mut self, id: BlockId) {
        let Block { address, stream, pool, mapped, .. } = self.blocks[id];
        if !mapped {
            self.pools[pool as usize].lane_mut(stream).remove_unmapped(address);
            self.blocks.remove(id);
        }
    }
}

/// Whether free blocks follow each other for so many bytes.
fn has_room(blocks: &Blocks, first: BlockId, size: u64) -> bool {
    let (mut room, mut id) = (0, first);
    while room < size
        && let Some(block) = blocks.get(id).filter(|block| block.is_free())
    {
        room += block.size;
        id = block.next;
    }
    room >= size
}
