//! Memory that goes back to the driver: on request, when memory runs out, and as garbage.

use crate::allocator::{Allocator, Request};
use crate::block::BlockId;
use crate::error::AllocatorError;
use crate::events::EventKind;
use crate::private::PoolId;

/// The place of the default pool for large blocks, the only one whose garbage is collected.
const LARGE: usize = 1;

impl Allocator {
    /// `torch.cuda.empty_cache`: what is free in whole goes back to the driver.
    ///
    /// # Errors
    ///
    /// Where torch itself fails.
    pub fn empty_cache(&mut self) -> Result<(), AllocatorError> {
        self.release_cached()
    }

    /// What is free in a private pool without holders goes back to the driver.
    ///
    /// # Errors
    ///
    /// Where torch itself fails.
    pub fn empty_pool(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        if self.releasable.contains(id) {
            self.synchronize_and_free(Some(id));
            self.release_private(id)?;
        }
        Ok(())
    }

    /// Everything that is free in whole, of the default pools and of private pools without holders.
    pub(crate) fn release_cached(&mut self) -> Result<(), AllocatorError> {
        self.synchronize_and_free(None);
        self.release_pool_blocks(1)?;
        self.release_pool_blocks(0)?;
        for id in self.releasable.iter().collect::<Vec<_>>() {
            self.release_private(id)?;
        }
        Ok(())
    }

    fn release_private(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        let Some(small) = self.private_pool(id).map(|pool| pool.small) else { return Ok(()) };
        self.release_pool_blocks(small)?;
        self.release_pool_blocks(small + 1)?;
        if self.private_pool(id).is_some_and(|pool| pool.driver_calls == 0) {
            if self.blocks.in_use().any(|block| self.owner(block.pool) == Some(id)) {
                return Err(AllocatorError::PoolImbalance(id));
            }
            self.forget(id);
        }
        Ok(())
    }

    fn release_pool_blocks(&mut self, pool: u32) -> Result<(), AllocatorError> {
        let free = self.pools[pool as usize].free().map(|free| free.block);
        let (mapped, whole): (Vec<BlockId>, Vec<BlockId>) = free.partition(|&id| self.blocks[id].expandable.is_some());
        for id in whole {
            if !self.blocks[id].is_split() {
                self.release_block(id)?;
            }
        }
        for id in mapped {
            self.unmap_block(id)?;
            if !self.blocks[id].is_split() {
                self.release_segment(id);
            }
        }
        Ok(())
    }

    /// A segment that is one free block goes back to the driver.
    fn release_block(&mut self, id: BlockId) -> Result<(), AllocatorError> {
        let block = &self.blocks[id];
        let (address, size, stream, pool) = (block.address, block.size, block.stream, block.pool);
        self.record(EventKind::SegmentFree, address, size, stream, pool);
        self.driver.give_back(size);
        self.uncount_driver_call(pool)?;
        self.counters.segments.decrease(1);
        self.counters.reserved.decrease(size);
        self.pools[pool as usize].lane_mut(stream).free.remove(size, address);
        self.blocks.remove(id);
        Ok(())
    }

    /// With `max_split_size_mb`: oversize blocks of the stream go back, one that is large enough or the largest ones
    /// until they are enough together. Whether they were.
    pub(crate) fn release_oversize(&mut self, request: &Request) -> Result<bool, AllocatorError> {
        let Some(oversize) = self.settings.max_split_size else { return Ok(false) };
        let wanted = request.size.max(oversize);
        let pool = &mut self.pools[request.pool as usize];
        let lane = pool.lane(request.stream);
        let free = &pool.lanes[lane].free;
        let smaller = free.iter().rev().skip_while(|free| free.size >= wanted);
        let candidates: Vec<BlockId> = smaller.map(|free| free.block).collect();
        if let Some(&fitting) = free.get(free.fitting(wanted))
            && self.blocks[fitting.block].expandable.is_none()
        {
            self.release_block(fitting.block)?;
            return Ok(true);
        }
        let mut released = 0;
        for id in candidates {
            let size = self.blocks[id].size;
            if released >= wanted || size < oversize {
                break;
            }
            if self.blocks[id].expandable.is_none() {
                released += size;
                self.release_block(id)?;
            }
        }
        Ok(released >= wanted)
    }

    /// With `garbage_collection_threshold`: segments that were free for longer than the average go back, until the rest
    /// is below the threshold.
    pub(crate) fn collect_garbage(&mut self) -> Result<(), AllocatorError> {
        let Some(threshold) = self.garbage_above() else { return Ok(()) };
        let reserved = self.counters.reserved.current;
        if reserved <= threshold {
            return Ok(());
        }
        let target = reserved - threshold;
        let whole: Vec<BlockId> =
            self.pools[LARGE].free().map(|free| free.block).filter(|&id| !self.blocks[id].is_split()).collect();
        let mut age: u64 = whole.iter().map(|&id| self.age(id)).sum();
        let mut count = whole.len() as u64;
        let mut left: Vec<BlockId> = whole.into_iter().filter(|&id| self.blocks[id].expandable.is_none()).collect();
        let (mut reclaimed, mut freed) = (0, true);
        while reclaimed < target && freed && count > 0 {
            #[expect(clippy::cast_precision_loss, reason = "torch compares ages as doubles")]
            let average = age as f64 / count as f64;
            freed = false;
            let mut young = Vec::with_capacity(left.len());
            for id in left {
                let old = self.age(id);
                #[expect(clippy::cast_precision_loss, reason = "torch compares ages as doubles")]
                if (old as f64) < average {
                    young.push(id);
                    continue;
                }
                freed = true;
                reclaimed += self.blocks[id].size;
                age -= old;
                count -= 1;
                self.release_block(id)?;
            }
            left = young;
        }
        Ok(())
    }

    /// How often a block was looked for in its pool since this one became free.
    fn age(&self, id: BlockId) -> u64 {
        self.pools[LARGE].searches - self.blocks[id].free_since
    }
}
