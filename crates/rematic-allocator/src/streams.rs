//! Blocks that other streams use: they stay active after they are given back, until those streams are done.

use std::collections::VecDeque;

use crate::allocator::{Allocation, Allocator};
use crate::block::BlockId;
use crate::device::Completion;
use crate::error::AllocatorError;
use crate::private::PoolId;

/// Events of one stream, in the order in which they were recorded.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    stream: u64,
    blocks: VecDeque<BlockId>,
    /// How many from the front are over.
    done: usize,
}

impl Allocator {
    /// Another stream uses a block: after it is given back it stays active until that stream is done with what it has
    /// to do by then.
    ///
    /// # Errors
    ///
    /// If the allocation is not in use.
    pub fn record_stream(&mut self, allocation: Allocation, stream: u64) -> Result<(), AllocatorError> {
        let Some(id) = self.in_use(allocation)? else { return Ok(()) };
        if self.blocks[id].stream != stream {
            self.blocks[id].used_elsewhere = true;
            let uses = self.uses.entry(id).or_default();
            if !uses.contains(&stream) {
                uses.push(stream);
            }
        }
        Ok(())
    }

    /// All that a stream has to do is over. Blocks that wait for it become free with the next request.
    pub fn synchronize(&mut self, stream: u64) {
        for queue in self.queues.iter_mut().filter(|queue| queue.stream == stream) {
            queue.done = queue.blocks.len();
        }
    }

    /// All that any stream has to do is over.
    pub fn synchronize_all(&mut self) {
        for queue in &mut self.queues {
            queue.done = queue.blocks.len();
        }
    }

    /// Puts an event for a block behind the work of every stream that used it.
    pub(crate) fn wait_for_streams(&mut self, id: BlockId) {
        let over = usize::from(self.device.completion == Completion::AtOnce);
        for stream in self.uses.remove(&id).unwrap_or_default() {
            let at = self.queues.iter().position(|queue| queue.stream == stream).unwrap_or_else(|| {
                self.queues.push(Queue { stream, blocks: VecDeque::new(), done: 0 });
                self.queues.len() - 1
            });
            self.queues[at].blocks.push_back(id);
            self.queues[at].done += over;
            self.blocks[id].events += 1;
        }
        self.blocks[id].used_elsewhere = false;
    }

    /// Frees the blocks whose streams are done.
    pub(crate) fn process_events(&mut self) {
        if self.queues.is_empty() {
            return;
        }
        let mut queues = std::mem::take(&mut self.queues);
        for queue in &mut queues {
            for id in queue.blocks.drain(..queue.done) {
                self.blocks[id].events -= 1;
                if self.blocks[id].events == 0 {
                    self.free_block(id);
                }
            }
            queue.done = 0;
        }
        queues.retain(|queue| !queue.blocks.is_empty());
        self.queues = queues;
    }

    /// Waits for the streams that blocks wait for; with a pool, only for blocks of that pool.
    pub(crate) fn synchronize_and_free(&mut self, of: Option<PoolId>) {
        let mut queues = std::mem::take(&mut self.queues);
        for queue in &mut queues {
            let mut kept = VecDeque::new();
            let mut done = 0;
            for (place, id) in queue.blocks.drain(..).enumerate() {
                if of.is_some() && self.pools[self.blocks[id].pool as usize].owner != of {
                    done += usize::from(place < queue.done);
                    kept.push_back(id);
                    continue;
                }
                self.blocks[id].events -= 1;
                if self.blocks[id].events == 0 {
                    self.free_block(id);
                }
            }
            (queue.blocks, queue.done) = (kept, done);
        }
        queues.retain(|queue| !queue.blocks.is_empty());
        self.queues = queues;
    }
}
