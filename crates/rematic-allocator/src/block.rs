//! Blocks: the pieces of a segment, chained by their place in it.

/// A block's place in the table of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// Stands for no block at either end of a segment.
    pub(crate) const NONE: BlockId = BlockId(u32::MAX);

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == BlockId::NONE
    }
}

/// The segment of a block that was mapped and can be unmapped page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentId(pub(crate) u32);

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    /// The pool's place in the table of pools.
    pub(crate) pool: u32,
    pub(crate) prev: BlockId,
    pub(crate) next: BlockId,
    pub(crate) expandable: Option<SegmentId>,
    /// How often the block was handed out: an old handle on it is known by that.
    pub(crate) generation: u32,
    pub(crate) allocated: bool,
    /// Whether there is memory behind the addresses; always, but in expandable segments.
    pub(crate) mapped: bool,
    /// Whether `record_stream` named another stream since it was handed out.
    pub(crate) used_elsewhere: bool,
    /// Events of other streams that are not over.
    pub(crate) events: u32,
    /// The pool's count of searches when the block became free: its age is the searches since.
    pub(crate) free_since: u64,
}

impl Block {
    #[inline]
    pub(crate) fn new(address: u64, size: u64, stream: u64, pool: u32) -> Self {
        Block {
            address,
            size,
            requested: 0,
            stream,
            pool,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            expandable: None,
            generation: 0,
            allocated: false,
            mapped: true,
            used_elsewhere: false,
            events: 0,
            free_since: 0,
        }
    }

    pub(crate) fn is_split(&self) -> bool {
        !self.prev.is_none() || !self.next.is_none()
    }

    /// Whether it can be given to somebody, or merged.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        !self.allocated && self.events == 0 && !self.used_elsewhere
    }
}

/// All blocks; places of dead ones are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    dead: Vec<BlockId>,
}

impl Blocks {
    /// Whether so many more can be numbered.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.dead.len() >= more || self.blocks.len() + more < u32::MAX as usize
    }

    #[inline]
    pub(crate) fn insert(&mut self, mut block: Block) -> BlockId {
        if let Some(id) = self.dead.pop() {
            block.generation = self[id].generation;
            self[id] = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
        self.blocks.push(block);
        id
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        self[id].allocated = false;
        self.dead.push(id);
    }

    /// Puts a block between two neighbours, either of which may be none.
    #[inline]
    pub(crate) fn splice(&mut self, id: BlockId, before: BlockId, after: BlockId) {
        self[id].prev = before;
        self[id].next = after;
        if !before.is_none() {
            self[before].next = id;
        }
        if !after.is_none() {
            self[after].prev = id;
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize)
    }

    /// Blocks that are handed out, or that other streams use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| !block.is_free())
    }

    /// Blocks at which a segment begins, or memory after a gap.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Block> {
        let dead: std::collections::HashSet<BlockId> = self.dead.iter().copied().collect();
        self.blocks.iter().enumerate().filter_map(move |(index, block)| {
            let id = BlockId(u32::try_from(index).unwrap_or(u32::MAX));
            let continues = !block.prev.is_none() && self[block.prev].mapped;
            (block.mapped && !continues && !dead.contains(&id)).then_some(block)
        })
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}
