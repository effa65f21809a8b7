//! A view of the segments with their blocks, as `torch.cuda.memory_snapshot` has it.

use crate::allocator::Allocator;
use crate::block::Block;
use crate::private::PoolId;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// It is handed out.
    Allocated,
    /// It was given back, and other streams still use it.
    PendingFree,
    /// It is free.
    Free,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes that were asked for, of a block that is not free.
    pub requested: u64,
    /// What it is used for.
    pub state: BlockState,
}

/// Memory in one piece that the driver gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The stream whose blocks it has.
    pub stream: u64,
    /// Whether it has the blocks up to 1 MiB.
    pub is_small: bool,
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// The private pool that it belongs to.
    pub pool: Option<PoolId>,
    /// Its blocks, in order of their addresses.
    pub blocks: Vec<BlockView>,
}

impl Allocator {
    /// All segments by address; of an expandable one, each range that is mapped.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut segments: Vec<SegmentView> = self.blocks.heads().map(|head| self.segment_at(head)).collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// How many blocks are free. The time of a request grows with them.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.pools.iter().flat_map(|pool| &pool.lanes).map(|lane| lane.free.len()).sum()
    }

    fn segment_at(&self, head: &Block) -> SegmentView {
        let mut blocks = vec![view(head)];
        let mut next = head.next;
        while let Some(block) = self.blocks.get(next).filter(|block| block.mapped) {
            blocks.push(view(block));
            next = block.next;
        }
        SegmentView {
            address: head.address,
            size: blocks.iter().map(|block| block.size).sum(),
            stream: head.stream,
            is_small: self.pools[head.pool as usize].is_small,
            is_expandable: head.expandable.is_some(),
            pool: self.owner(head.pool),
            blocks,
        }
    }
}

fn view(block: &Block) -> BlockView {
    let state = match (block.allocated, block.is_free()) {
        (true, _) => BlockState::Allocated,
        (false, false) => BlockState::PendingFree,
        (false, true) => BlockState::Free,
    };
    let requested = if state == BlockState::Free { 0 } else { block.requested };
    BlockView { address: block.address, size: block.size, requested, state }
}
