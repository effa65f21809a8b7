use std::collections::HashMap;

use crate::block::{Block, BlockId, Blocks};
use crate::counters::Counters;
use crate::device::{Device, Driver};
use crate::error::{AllocatorError, OutOfMemory, Shortage};
use crate::events::{Event, EventKind};
use crate::expandable::Segment;
use crate::free::{Free, Place};
use crate::order::PoolSet;
use crate::pool::{Lane, Pool};
use crate::private::{PoolId, PrivatePool};
use crate::rounding::{EXABYTE, LARGEST_SMALL_BLOCK, SMALLEST_BLOCK, segment_size};
use crate::settings::Settings;
use crate::streams::Queue;

/// A block that was handed out, until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    block: BlockId,
    generation: u32,
}

impl Allocation {
    /// What a request for nothing gets: no memory, and nothing to free.
    pub const NOTHING: Allocation = Allocation { block: BlockId::NONE, generation: 0 };
}

/// A request on its way to a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The bytes that were asked for.
    pub(crate) requested: u64,
    /// The same, rounded.
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// The pool's place in the table of pools.
    pub(crate) pool: u32,
    /// Whether memory is mapped into expandable segments.
    pub(crate) expandable: bool,
}

/// A block for a request.
#[derive(Clone, Copy, Debug)]
struct Found {
    block: BlockId,
    /// Where it stands among the free ones: the lane, and the place there. None for a new one.
    place: Option<(usize, Place)>,
}

/// PyTorch's CUDA caching allocator for one device.
#[derive(Clone, Debug)]
pub struct Allocator {
    pub(crate) settings: Settings,
    pub(crate) device: Device,
    pub(crate) driver: Driver,
    pub(crate) blocks: Blocks,
    /// Small and large by turns: the default ones, then those of the private pools.
    pub(crate) pools: Vec<Pool>,
    pub(crate) private: Vec<Option<PrivatePool>>,
    /// Private pools without holders.
    pub(crate) releasable: PoolSet,
    /// Private pools whose blocks may be used when memory runs out.
    pub(crate) spare: PoolSet,
    /// Where requests go, the last first.
    pub(crate) routes: Vec<PoolId>,
    pub(crate) segments: Vec<Segment>,
    /// Streams that use a block besides its own.
    pub(crate) uses: HashMap<BlockId, Vec<u64>>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) counters: Counters,
    /// What `per_process_memory_fraction` allows.
    allowed: Option<u64>,
    events: Option<Vec<Event>>,
}

impl Allocator {
    /// An allocator that has nothing yet, and records no events.
    #[must_use]
    pub fn new(settings: Settings, device: Device) -> Self {
        Allocator {
            allowed: settings.allowed_bytes(device.total),
            driver: Driver::new(&device),
            settings,
            device,
            blocks: Blocks::default(),
            pools: vec![Pool::new(true, None), Pool::new(false, None)],
            private: Vec::new(),
            releasable: PoolSet::default(),
            spare: PoolSet::default(),
            routes: Vec::new(),
            segments: Vec::new(),
            uses: HashMap::new(),
            queues: Vec::new(),
            counters: Counters::default(),
            events: None,
        }
    }

    /// From now on events are kept, until they are taken.
    pub fn record_events(&mut self) {
        self.events.get_or_insert_default();
    }

    /// The events since they were last taken; none if they are not recorded.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What is in use and reserved.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Peaks begin anew at what is current.
    pub fn reset_peaks(&mut self) {
        self.counters.reset_peaks();
    }

    /// The settings that it runs under.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory for a tensor of so many bytes on a stream.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn alloc(&mut self, requested: u64, stream: u64) -> Result<Allocation, AllocatorError> {
        if requested == 0 {
            return Ok(Allocation::NOTHING);
        }
        if requested >= EXABYTE {
            return Err(AllocatorError::Exabyte(requested));
        }
        if !self.blocks.has_room(4) {
            return Err(AllocatorError::Exhausted { segments: self.segments.len() as u64 });
        }
        self.process_events();
        let size = self.settings.divisions.round(requested);
        let pool = self.pool_for(size);
        let mut request = Request { requested, size, stream, pool, expandable: self.settings.expandable_segments };
        let found = match self.find_free(&request) {
            Some(found) => found,
            None => self.make_block(&mut request)?,
        };
        Ok(self.hand_out(found, &request))
    }

    /// Gives memory back. It is free for others at once, or when all streams are done with it.
    ///
    /// # Errors
    ///
    /// If the allocation is not in use.
    pub fn free(&mut self, allocation: Allocation) -> Result<(), AllocatorError> {
        let Some(id) = self.in_use(allocation)? else { return Ok(()) };
        let block = &mut self.blocks[id];
        block.allocated = false;
        let Block { address, size, requested, stream, pool, used_elsewhere, .. } = *block;
        self.counters.allocated.decrease(size);
        self.record(EventKind::FreeRequested, address, requested, stream, pool);
        if used_elsewhere {
            self.wait_for_streams(id);
        } else {
            self.free_block(id);
        }
        Ok(())
    }

    /// Where an allocation lies, and the size of its block; 0 and 0 for a request of nothing.
    ///
    /// # Errors
    ///
    /// If the allocation is not in use.
    pub fn place(&self, allocation: Allocation) -> Result<(u64, u64), AllocatorError> {
        let id = self.in_use(allocation)?;
        Ok(id.map_or((0, 0), |id| (self.blocks[id].address, self.blocks[id].size)))
    }

    /// The block of an allocation; none for a request of nothing.
    pub(crate) fn in_use(&self, allocation: Allocation) -> Result<Option<BlockId>, AllocatorError> {
        if allocation == Allocation::NOTHING {
            return Ok(None);
        }
        match self.blocks.get(allocation.block) {
            Some(block) if block.allocated && block.generation == allocation.generation => Ok(Some(allocation.block)),
            _ => Err(AllocatorError::NotInUse),
        }
    }

    /// The free block that fits best.
    fn find_free(&mut self, request: &Request) -> Option<Found> {
        let collects = self.collects_garbage();
        let pool = &mut self.pools[request.pool as usize];
        pool.searches += u64::from(collects);
        let lane = pool.lane(request.stream);
        let free = &pool.lanes[lane].free;
        let mut at = free.fitting(request.size);
        let is_expandable = |at: Place| free.get(at).is_some_and(|free| self.blocks[free.block].expandable.is_some());
        if is_expandable(at) {
            if request.expandable {
                // The block at the end of what is mapped counts as large as it could become, so that it is not cut into
                // pieces while others fit.
                let reach = |at: Place| -> Option<u64> {
                    let block = &self.blocks[free.get(at)?.block];
                    let next = self.blocks.get(block.next).filter(|next| !next.mapped);
                    Some(block.size + next.map_or(0, |next| next.size))
                };
                while is_expandable(at) && reach(free.next(at)).is_some_and(|next| Some(next) < reach(at)) {
                    at = free.next(at);
                }
            } else {
                at = free.next(at);
                while is_expandable(at) {
                    at = free.next(at);
                }
            }
        }
        let found = *free.get(at)?;
        if let Some(oversize) = self.settings.max_split_size {
            let limit = request.size.saturating_add(self.settings.max_non_split_rounding);
            if (request.size < oversize && found.size >= oversize) || (request.size >= oversize && found.size >= limit)
            {
                return None;
            }
        }
        Some(Found { block: found.block, place: Some((lane, at)) })
    }

    /// A block of new memory, after as much is released as it takes.
    fn make_block(&mut self, request: &mut Request) -> Result<Found, AllocatorError> {
        self.collect_garbage()?;
        if let Some(block) = self.ask_driver(request)? {
            return Ok(Found { block, place: None });
        }
        if let Some(found) = self.find_in_spare_pool(request) {
            return Ok(found);
        }
        if self.release_oversize(request)?
            && let Some(block) = self.ask_driver(request)?
        {
            return Ok(Found { block, place: None });
        }
        self.release_cached()?;
        self.counters.retries += 1;
        match self.ask_driver(request)? {
            Some(block) => Ok(Found { block, place: None }),
            None => Err(self.run_out(request).into()),
        }
    }

    /// A new segment, or more of an expandable one.
    fn ask_driver(&mut self, request: &Request) -> Result<Option<BlockId>, AllocatorError> {
        let size = segment_size(request.size, self.settings.large_segment_size);
        let reserved = self.counters.reserved.current.saturating_add(size);
        if self.allowed.is_some_and(|allowed| reserved > allowed) {
            return Ok(None);
        }
        if self.settings.throw_on_oom && reserved > self.device.total {
            self.counters.rejections += 1;
            return Err(self.out_of_memory(request, Shortage::Rejected).into());
        }
        if request.expandable {
            let found = self.expand(request)?;
            if found.is_some() {
                self.count_driver_call(request.pool);
            }
            return Ok(found);
        }
        let Some(address) = self.driver.malloc(size) else { return Ok(None) };
        self.count_driver_call(request.pool);
        self.counters.segments.increase(1);
        self.counters.reserved.increase(size);
        self.record(EventKind::SegmentAlloc, address, size, request.stream, request.pool);
        Ok(Some(self.blocks.insert(Block::new(address, size, request.stream, request.pool))))
    }

    /// A free block of a private pool that may be used when memory runs out.
    fn find_in_spare_pool(&mut self, request: &mut Request) -> Option<Found> {
        if self.owner(request.pool).is_some() {
            return None;
        }
        let large = u32::from(request.size > LARGEST_SMALL_BLOCK);
        for id in self.spare.iter().collect::<Vec<_>>() {
            let Some(pool) = self.private_pool(id).map(|pool| pool.small + large) else { continue };
            let elsewhere = Request { pool, expandable: false, ..*request };
            if let Some(found) = self.find_free(&elsewhere) {
                *request = elsewhere;
                return Some(found);
            }
        }
        None
    }

    /// Cuts off what is not needed, and hands the rest out.
    fn hand_out(&mut self, found: Found, request: &Request) -> Allocation {
        let id = if self.should_split(found.block, request) {
            self.split(found, request)
        } else {
            if let Some((lane, at)) = found.place {
                self.pools[request.pool as usize].lanes[lane].free.remove_at(at);
            }
            found.block
        };
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = request.requested;
        block.generation = block.generation.wrapping_add(1);
        let Block { address, size, stream, pool, generation, .. } = *block;
        self.counters.allocated.increase(size);
        self.counters.active.increase(size);
        self.counters.requested.increase(request.requested);
        self.record(EventKind::Alloc, address, request.requested, stream, pool);
        Allocation { block: id, generation }
    }

    /// A new block at the front of a free one, which keeps the rest.
    fn split(&mut self, found: Found, request: &Request) -> BlockId {
        let Block { address, prev, expandable, .. } = self.blocks[found.block];
        let mut block = Block::new(address, request.size, request.stream, request.pool);
        block.expandable = expandable;
        let id = self.blocks.insert(block);
        self.blocks.splice(id, prev, found.block);
        let pool = &mut self.pools[request.pool as usize];
        let rest = &mut self.blocks[found.block];
        rest.address += request.size;
        rest.size -= request.size;
        rest.free_since = pool.searches;
        let free = Free { size: rest.size, address: rest.address, block: found.block };
        match found.place {
            Some((lane, at)) => pool.lanes[lane].free.shrink(at, free),
            None => pool.lane_mut(request.stream).free.insert(free),
        }
        id
    }

    fn should_split(&self, id: BlockId, request: &Request) -> bool {
        let block = &self.blocks[id];
        let pool = &self.pools[block.pool as usize];
        if self.owner(block.pool).and_then(|id| self.private_pool(id)).is_some_and(|pool| pool.no_split) {
            return false;
        }
        let rest = block.size - request.size;
        if pool.is_small || request.expandable {
            rest >= SMALLEST_BLOCK
        } else {
            rest > LARGEST_SMALL_BLOCK && self.settings.max_split_size.is_none_or(|oversize| request.size < oversize)
        }
    }

    /// Merges a block that nobody uses with its free neighbours, and puts it among the free ones.
    pub(crate) fn free_block(&mut self, id: BlockId) {
        let Block { address, size, requested, stream, pool, .. } = self.blocks[id];
        self.record(EventKind::FreeCompleted, address, requested, stream, pool);
        self.merge_and_free(id);
        self.counters.active.decrease(size);
        self.counters.requested.decrease(requested);
    }

    /// Puts a mapped block among the free ones of its pool, with its free neighbours.
    pub(crate) fn merge_and_free(&mut self, id: BlockId) {
        let before = self.merge(id, self.blocks[id].prev);
        let after = self.merge(id, self.blocks[id].next);
        let (lane, free) = self.as_free(id);
        match (before, after) {
            (None, None) => lane.free.insert(free),
            (Some(one), None) | (None, Some(one)) => lane.free.grow(one, free),
            (Some((size, address)), Some(other)) => {
                lane.free.remove(size, address);
                lane.free.grow(other, free);
            }
        }
    }

    /// What a block is among the free ones from now on, and where.
    pub(crate) fn as_free(&mut self, id: BlockId) -> (&mut Lane, Free) {
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool as usize];
        block.free_since = pool.searches;
        (pool.lane_mut(block.stream), Free { size: block.size, address: block.address, block: id })
    }

    /// Takes a free neighbour in, if both are mapped or neither is. Says its size and address, by which a mapped one
    /// still stands among the free ones.
    pub(crate) fn merge(&mut self, id: BlockId, neighbour: BlockId) -> Option<(u64, u64)> {
        let other = self.blocks.get(neighbour)?;
        if !other.is_free() || other.mapped != self.blocks[id].mapped {
            return None;
        }
        let Block { address, size, stream, pool, prev, next, mapped, .. } = *other;
        if self.blocks[id].prev == neighbour {
            self.blocks[id].address = address;
            let after = self.blocks[id].next;
            self.blocks.splice(id, prev, after);
        } else {
            let before = self.blocks[id].prev;
            self.blocks.splice(id, before, next);
        }
        self.blocks[id].size += size;
        if !mapped {
            self.pools[pool as usize].lane_mut(stream).remove_unmapped(address);
        }
        self.blocks.remove(neighbour);
        Some((size, address))
    }

    fn run_out(&mut self, request: &Request) -> OutOfMemory {
        let free = self.driver.free();
        self.record(EventKind::OutOfMemory, free, request.size, request.stream, request.pool);
        self.counters.out_of_memory += 1;
        self.out_of_memory(request, self.shortage(request))
    }

    fn out_of_memory(&self, request: &Request, shortage: Shortage) -> OutOfMemory {
        OutOfMemory {
            requested: request.requested,
            wanted: segment_size(request.size, self.settings.large_segment_size),
            stream: request.stream,
            allocated: self.counters.allocated.current,
            reserved: self.counters.reserved.current,
            device_free: self.driver.free(),
            device_total: self.device.total,
            shortage,
        }
    }

    fn shortage(&self, request: &Request) -> Shortage {
        let wanted = segment_size(request.size, self.settings.large_segment_size);
        match self.allowed {
            Some(allowed) if self.counters.reserved.current.saturating_add(wanted) > allowed => {
                Shortage::Fraction(allowed)
            }
            _ if request.expandable && request.size > self.segment_reserve() => {
                Shortage::SegmentReserve(self.segment_reserve())
            }
            _ => Shortage::Device,
        }
    }

    /// The addresses of an expandable segment.
    pub(crate) fn segment_reserve(&self) -> u64 {
        self.settings.segment_reserve(self.device.total)
    }

    fn collects_garbage(&self) -> bool {
        self.allowed.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Above so many reserved bytes garbage is collected.
    pub(crate) fn garbage_above(&self) -> Option<u64> {
        let allowed = self.allowed.filter(|_| self.collects_garbage())?;
        Some(crate::settings::fraction_of(self.settings.garbage_collection_threshold, allowed))
    }

    pub(crate) fn record(&mut self, kind: EventKind, address: u64, size: u64, stream: u64, pool: u32) {
        if self.events.is_some() {
            let pool = self.owner(pool);
            if let Some(events) = &mut self.events {
                events.push(Event { kind, address, size, stream, pool });
            }
        }
    }
}
