//! The recorded requests, run through an allocator again.

use rematic_allocator::{
    Allocation, Allocator, AllocatorError, Device, EventKind, LARGEST_SMALL_BLOCK, PoolId, PoolOptions, SMALL_SEGMENT,
    Settings,
};
use rematic_trace::Bytes;
use serde::Serialize;

use crate::requests::{Act, Before, Requests};
use crate::trials::Start;

/// More than any device has.
const UNLIMITED: u64 = 1 << 50;
/// After so many requests the free blocks are counted.
const PACE: usize = 256;
/// What a request takes beside the search among free blocks, in the same unit: free blocks that are moved in memory.
const PER_REQUEST: u64 = 64;

/// Whether the recorded settings lead to the recorded segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rerun {
    /// Whether every call of the driver came again, in the same order and with the same size.
    pub reproduced: bool,
    /// Calls of the driver in the record.
    pub driver_calls: usize,
    /// How many came again before the first that differs.
    pub same: usize,
    /// The most that was reserved then.
    pub reserved_bytes: Bytes,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions<'a> {
    pub(crate) settings: &'a Settings,
    /// What the device has; `None` for no limit.
    pub(crate) capacity: Option<u64>,
    pub(crate) start: Start,
    /// Whether segments go back where they did in the record, also where the program did not ask for it.
    pub(crate) release_as_recorded: bool,
}

/// How it ended.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// The most that was reserved.
    pub(crate) reserved: u64,
    /// Whether every request was met, the failed one of the record too.
    pub(crate) served: bool,
    /// Whether a request before that was not met.
    pub(crate) failed_before: bool,
    /// Calls of the driver.
    pub(crate) driver: Vec<(EventKind, u64)>,
    /// What it took, in free blocks that were moved.
    pub(crate) work: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// It would take too long.
    TooLong,
    /// The allocator itself cannot go on.
    Allocator,
}

impl From<AllocatorError> for Stopped {
    fn from(_: AllocatorError) -> Self {
        Stopped::Allocator
    }
}

struct Runner<'a> {
    allocator: Allocator,
    handles: Vec<Allocation>,
    pools: Vec<PoolId>,
    conditions: Conditions<'a>,
}

/// Runs all requests, unless it takes more than `budget`.
pub(crate) fn run(requests: &Requests, conditions: Conditions<'_>, budget: u64) -> Result<Ran, Stopped> {
    let device = Device::with_memory(conditions.capacity.unwrap_or(UNLIMITED));
    let mut allocator = Allocator::new(conditions.settings.clone(), device);
    let pools = (0..requests.pools).map(|_| allocator.create_pool(PoolOptions::default())).collect();
    let handles = vec![Allocation::NOTHING; requests.keys];
    let mut runner = Runner { allocator, handles, pools, conditions };
    let mut ran = Ran { reserved: 0, served: true, failed_before: false, driver: Vec::new(), work: 0 };
    if runner.begin(requests)?.is_none() {
        (ran.served, ran.failed_before) = (false, true);
        return Ok(ran);
    }
    runner.allocator.reset_peaks();
    runner.allocator.record_events();
    for (index, act) in requests.acts.iter().enumerate() {
        let last = index + 1 == requests.acts.len();
        if !runner.act(act)? {
            match act {
                Act::Fail { .. } if !last => {}
                _ => {
                    ran.served = false;
                    ran.failed_before = !matches!(act, Act::Fail { .. });
                    break;
                }
            }
        }
        if index % PACE == 0 || last {
            runner.pace(&mut ran, budget)?;
        }
    }
    runner.pace(&mut ran, budget)?;
    ran.reserved = runner.allocator.counters().reserved.peak;
    Ok(ran)
}

impl Runner<'_> {
    /// Takes over the events, and counts what was done.
    fn pace(&mut self, ran: &mut Ran, budget: u64) -> Result<(), Stopped> {
        ran.work = ran.work.saturating_add(PACE as u64 * (PER_REQUEST + self.allocator.free_blocks() as u64));
        let calls = self.allocator.take_events().into_iter().filter(|event| is_call(event.kind));
        ran.driver.extend(calls.map(|event| (event.kind, event.size)));
        if ran.work > budget { Err(Stopped::TooLong) } else { Ok(()) }
    }

    /// What one act does; false if there was no memory for it.
    fn act(&mut self, act: &Act) -> Result<bool, Stopped> {
        match *act {
            Act::Alloc { key, size, stream, pool } => {
                let found = self.alloc(size, stream, pool)?;
                self.handles[key] = found.unwrap_or(Allocation::NOTHING);
                return Ok(found.is_some());
            }
            Act::Free { key } => self.allocator.free(std::mem::replace(&mut self.handles[key], Allocation::NOTHING))?,
            Act::Release { asked } if asked || self.conditions.release_as_recorded => self.allocator.empty_cache()?,
            Act::Release { .. } => {}
            Act::Fail { size, stream, pool } => match self.alloc(size, stream, pool)? {
                Some(found) => self.allocator.free(found)?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn alloc(&mut self, size: u64, stream: u64, pool: usize) -> Result<Option<Allocation>, Stopped> {
        let pool = pool.checked_sub(1).and_then(|pool| self.pools.get(pool)).copied();
        if let Some(pool) = pool {
            self.allocator.begin_pool(pool)?;
        }
        let found = self.allocator.alloc(size, stream);
        if let Some(pool) = pool {
            self.allocator.end_pool(pool)?;
        }
        match found {
            Ok(found) => Ok(Some(found)),
            Err(AllocatorError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes what was there before the record begins; `None` if there is no memory for it.
    fn begin(&mut self, requests: &Requests) -> Result<Option<()>, Stopped> {
        match self.conditions.start {
            Start::Empty | Start::Packed => {
                for Before { key, size, stream, pool, .. } in &requests.before {
                    let Some(found) = self.alloc(*size, *stream, *pool)? else { return Ok(None) };
                    self.handles[*key] = found;
                }
            }
            Start::AsRecorded => return self.begin_as_recorded(requests),
        }
        Ok(Some(()))
    }

    /// The same segments with the same blocks. Each segment is taken whole and given back; then its blocks and what is
    /// free between them are the only requests that fit anywhere, so that they come to lie as they lay.
    fn begin_as_recorded(&mut self, requests: &Requests) -> Result<Option<()>, Stopped> {
        let mut fillers = Vec::new();
        let mut blocks = requests.before.iter().peekable();
        for (address, range) in &requests.segments {
            let end = address.saturating_add(range.size);
            while blocks.next_if(|block| block.address < *address).is_some() {}
            let pool = blocks.peek().filter(|block| block.address < end).map_or(0, |block| block.pool);
            if !range.expandable {
                let Some(whole) = self.alloc(whole(range.size), range.stream, pool)? else { return Ok(None) };
                self.allocator.free(whole)?;
            }
            let mut from = *address;
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                if block.address > from {
                    fillers.extend(self.alloc(block.address - from, range.stream, pool)?);
                }
                let Some(found) = self.alloc(block.size, block.stream, block.pool)? else { return Ok(None) };
                self.handles[block.key] = found;
                from = block.address.saturating_add(block.size);
            }
            if end > from {
                fillers.extend(self.fill(end - from, range.stream, pool)?);
            }
        }
        for filler in fillers {
            self.allocator.free(filler)?;
        }
        Ok(Some(()))
    }

    /// Takes the rest of a segment.
    fn fill(&mut self, size: u64, stream: u64, pool: usize) -> Result<Vec<Allocation>, Stopped> {
        let mut pieces = Vec::new();
        let mut left = size;
        // A segment for small blocks has up to two requests' worth.
        while left > 0 {
            let piece = if size <= SMALL_SEGMENT { left.min(LARGEST_SMALL_BLOCK) } else { left };
            pieces.extend(self.alloc(piece, stream, pool)?);
            left -= piece;
        }
        Ok(pieces)
    }
}

/// The request that makes a segment of this size.
fn whole(size: u64) -> u64 {
    if size == SMALL_SEGMENT { LARGEST_SMALL_BLOCK } else { size }
}

fn is_call(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Alloc | EventKind::FreeRequested | EventKind::FreeCompleted)
}

impl Rerun {
    pub(crate) fn new(requests: &Requests, ran: &Ran) -> Self {
        let same = requests.driver.iter().zip(&ran.driver).take_while(|(one, other)| one == other).count();
        let driver_calls = requests.driver.len();
        Rerun {
            reproduced: same == driver_calls && ran.driver.len() == driver_calls,
            driver_calls,
            same,
            reserved_bytes: Bytes(ran.reserved),
        }
    }
}
