//! Free blocks in the order in which they are tried.

use crate::block::BlockId;

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

/// A page that gets larger than this becomes two.
const MOST: usize = 64;

/// Free blocks by size and address: sorted pages, one behind the other. Most steps have tens to hundreds of free blocks, all in one page,
/// and moving them is faster than following the nodes of a tree; where there are thousands, only those of a page move.
///
/// Only the first page may be empty, and only if it is the only one.
#[derive(Clone, Debug)]
pub(crate) struct FreeBlocks {
    pages: Vec<Vec<Free>>,
}

/// Where a free block stands, or would.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    page: usize,
    at: usize,
}

impl FreeBlocks {
    pub(crate) fn new() -> Self {
        FreeBlocks { pages: vec![Vec::new()] }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.iter().map(Vec::len).sum()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Free> {
        self.pages.iter().flatten()
    }

    #[inline]
    pub(crate) fn get(&self, place: Place) -> Option<&Free> {
        self.pages.get(place.page)?.get(place.at)
    }

    /// The place behind one.
    pub(crate) fn next(&self, Place { page, at }: Place) -> Place {
        let is_last = page + 1 == self.pages.len() || at + 1 < self.pages[page].len();
        if is_last { Place { page, at: at + 1 } } else { Place { page: page + 1, at: 0 } }
    }

    /// The first for which that is not so. It is so for some, and for none behind them.
    #[inline]
    fn first_that_is_not(&self, before: impl Fn(&Free) -> bool) -> Place {
        let last = self.pages.len() - 1;
        let page = self.pages[..last].partition_point(|page| page.last().is_some_and(&before));
        Place { page, at: self.pages[page].partition_point(before) }
    }

    /// The smallest with at least this size.
    #[inline]
    pub(crate) fn fitting(&self, size: u64) -> Place {
        self.first_that_is_not(|free| free.size < size)
    }

    #[inline]
    fn place(&self, rank: u128) -> Place {
        self.first_that_is_not(|other| other.rank() < rank)
    }

    pub(crate) fn insert(&mut self, free: Free) {
        let Place { page, at } = self.place(free.rank());
        let blocks = &mut self.pages[page];
        blocks.insert(at, free);
        if blocks.len() > MOST {
            let behind = blocks.split_off(MOST / 2);
            self.pages.insert(page + 1, behind);
        }
    }

    pub(crate) fn remove(&mut self, size: u64, address: u64) {
        let place = self.place(rank(size, address));
        if self.get(place).is_some_and(|free| free.address == address && free.size == size) {
            self.remove_at(place);
        }
    }

    pub(crate) fn remove_at(&mut self, Place { page, at }: Place) {
        self.pages[page].remove(at);
        if self.pages[page].is_empty() && self.pages.len() > 1 {
            self.pages.remove(page);
        }
    }

    /// Puts what is left of the block at a place back. It is smaller, so only those between the two places move.
    pub(crate) fn shrink(&mut self, place: Place, left: Free) {
        let Place { page, at } = place;
        let before = page.checked_sub(1).and_then(|before| self.pages[before].last());
        if before.is_some_and(|before| before.rank() > left.rank()) {
            self.remove_at(place);
            return self.insert(left);
        }
        let blocks = &mut self.pages[page];
        let to = blocks[..at].partition_point(|other| other.rank() < left.rank());
        blocks[to..=at].rotate_right(1);
        blocks[to] = left;
    }

    /// Puts a block in the stead of one that it has taken in. It is larger, so only those between the two places move.
    pub(crate) fn grow(&mut self, (size, address): (u64, u64), grown: Free) {
        let place = self.place(rank(size, address));
        let Place { page, at } = place;
        let behind = self.pages.get(page + 1).and_then(|behind| behind.first());
        if behind.is_some_and(|behind| behind.rank() < grown.rank()) {
            self.remove_at(place);
            return self.insert(grown);
        }
        let blocks = &mut self.pages[page];
        let to = at + blocks[at..].partition_point(|other| other.rank() < grown.rank());
        if to > at {
            blocks[at..to].rotate_left(1);
            blocks[to - 1] = grown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Block, Blocks};

    /// The blocks in order, as a list that is sorted after every change says.
    #[test]
    fn thousands_stay_in_order() {
        let block = Blocks::default().insert(Block::new(0, 512, 0, 0));
        let (mut free, mut sorted) = (FreeBlocks::new(), Vec::new());
        let mut dice = 1_u64;
        for round in 0..20_000_u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = usize::try_from(dice >> 33).unwrap();
            let size = 512 * (1 + (dice >> 40) % 1000);
            match (dice >> 60, sorted.len()) {
                (_, 0) | (0..8, _) => {
                    free.insert(Free { size, address: round << 20, block });
                    sorted.push((size, round << 20));
                }
                (8..12, many) => {
                    let (size, address) = sorted.remove(pick % many);
                    free.remove(size, address);
                }
                (12..14, many) => {
                    let (before, address) = sorted.remove(pick % many);
                    let grown = (before + size, address);
                    free.grow((before, address), Free { size: grown.0, address, block });
                    sorted.push(grown);
                }
                (_, many) => {
                    let (before, address) = sorted.remove(pick % many);
                    let place = free.place(rank(before, address));
                    let left = (before.min(size), address + (before - before.min(size)));
                    free.shrink(place, Free { size: left.0, address: left.1, block });
                    sorted.push(left);
                }
            }
            sorted.sort_unstable();
            if round % 100 == 0 {
                assert!(free.iter().map(|free| (free.size, free.address)).eq(sorted.iter().copied()), "{round}");
                let place = free.fitting(size);
                let first = sorted.iter().position(|one| one.0 >= size);
                assert_eq!(free.get(place).map(|free| free.address), first.map(|at| sorted[at].1));
                let behind = first.and_then(|at| sorted.get(at + 1)).map(|one| one.1);
                assert_eq!(first.and_then(|_| free.get(free.next(place))).map(|free| free.address), behind);
            }
        }
        assert!(sorted.len() > 4 * MOST && free.len() == sorted.len());
    }
}
