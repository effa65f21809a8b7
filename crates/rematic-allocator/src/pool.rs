//! Free blocks of one pool, per stream, in the order in which they are tried.

use crate::block::BlockId;
use crate::private::PoolId;

/// A free block by what it is chosen for: its size, then its address.
///
/// Torch breaks ties by the order in which segments were made and then by address; as addresses here only grow, the
/// address says both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) block: BlockId,
}

/// What free blocks are ordered by, as one number: comparing it takes no branch, of which a search would guess half
/// wrong.
#[inline]
fn rank(size: u64, address: u64) -> u128 {
    u128::from(size) << u64::BITS | u128::from(address)
}

impl Free {
    #[inline]
    fn rank(&self) -> u128 {
        rank(self.size, self.address)
    }
}

/// The free blocks of a stream in a pool.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) stream: u64,
    /// By size and address. A sorted vector: a step has tens to hundreds of free blocks, and moving them is faster than
    /// following the nodes of a tree.
    pub(crate) free: Vec<Free>,
    /// Addresses of expandable segments without memory behind them, by address.
    pub(crate) unmapped: Vec<(u64, BlockId)>,
}

impl Lane {
    /// The place of the smallest free block with at least this size.
    #[inline]
    pub(crate) fn fitting(&self, size: u64) -> usize {
        self.free.partition_point(|free| free.size < size)
    }

    /// The place at which a block stands, or would.
    #[inline]
    fn place(&self, size: u64, address: u64) -> usize {
        self.free.partition_point(|other| other.rank() < rank(size, address))
    }

    pub(crate) fn insert(&mut self, free: Free) {
        let at = self.place(free.size, free.address);
        self.free.insert(at, free);
    }

    pub(crate) fn remove(&mut self, size: u64, address: u64) {
        let at = self.place(size, address);
        if self.free.get(at).is_some_and(|free| free.address == address && free.size == size) {
            self.free.remove(at);
        }
    }

    /// Puts what is left of the block at a place back. It is smaller, so only those between the two places move.
    pub(crate) fn shrink(&mut self, at: usize, left: Free) {
        let to = self.free[..at].partition_point(|other| other.rank() < left.rank());
        self.free[to..=at].rotate_right(1);
        self.free[to] = left;
    }

    /// Puts a block in the stead of one that it has taken in. It is larger, so only those between the two places move.
    pub(crate) fn grow(&mut self, (size, address): (u64, u64), grown: Free) {
        let at = self.place(size, address);
        let to = at + self.free[at..].partition_point(|other| other.rank() < grown.rank());
        if to > at {
            self.free[at..to].rotate_left(1);
            self.free[to - 1] = grown;
        }
    }

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
                self.lanes.insert(at, Lane { stream, free: Vec::new(), unmapped: Vec::new() });
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
        self.lanes.iter().flat_map(|lane| &lane.free)
    }
}
