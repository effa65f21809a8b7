//! Free blocks of one pool, per stream, in the order in which they are tried.

use crate::block::BlockId;
use crate::free::{Free, FreeBlocks};
use crate::private::PoolId;

/// The free blocks of a stream in a pool.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) stream: u64,
    pub(crate) free: FreeBlocks,
    /// Addresses of expandable segments without memory behind them, by address.
    pub(crate) unmapped: Vec<(u64, BlockId)>,
}

impl Lane {
    pub(crate) fn insert_unmapped(&mut self, address: u64, block: BlockId) {
        let at = self.unmapped.partition_point(|&(other, _)| other < address);
        self.unmapped.insert(at, (address, block));
    }

    pub(crate) fn remove_unmapped(&mut self, address: u64) {
        if let Ok(at) = self.unmapped.binary_search_by_key(&address, |&(other, _)| other) {
            self.unmapped.remove(at);
        }
    }
}

/// A pool of small or of large blocks.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) is_small: bool,
    /// The private pool that it belongs to.
    pub(crate) owner: Option<PoolId>,
    /// By stream.
    pub(crate) lanes: Vec<Lane>,
    /// How often a block was looked for, counted while garbage is collected.
    pub(crate) searches: u64,
}

impl Pool {
    pub(crate) fn new(is_small: bool, owner: Option<PoolId>) -> Self {
        Pool { is_small, owner, lanes: Vec::new(), searches: 0 }
    }

    /// The place of a stream's blocks; there is one from now on.
    #[inline]
    pub(crate) fn lane(&mut self, stream: u64) -> usize {
        match self.lanes.iter().position(|lane| lane.stream >= stream) {
            Some(at) if self.lanes[at].stream == stream => at,
            found => {
                let at = found.unwrap_or(self.lanes.len());
                self.lanes.insert(at, Lane { stream, free: FreeBlocks::new(), unmapped: Vec::new() });
                at
            }
        }
    }

    #[inline]
    pub(crate) fn lane_mut(&mut self, stream: u64) -> &mut Lane {
        let at = self.lane(stream);
        &mut self.lanes[at]
    }

    /// All free blocks, in the order of torch's set.
    pub(crate) fn free(&self) -> impl DoubleEndedIterator<Item = &Free> {
        self.lanes.iter().flat_map(|lane| lane.free.iter())
    }
}
