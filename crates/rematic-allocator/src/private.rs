//! Private pools: `torch.cuda.MemPool` and the pools of CUDA graphs.

use crate::allocator::Allocator;
use crate::error::AllocatorError;
use crate::pool::Pool;
use crate::rounding::LARGEST_SMALL_BLOCK;

/// A private pool. In a process whose pools are all `torch.cuda.MemPool`, torch's id of pool `n` is `(0, n)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

impl PoolId {
    /// The place in the table of private pools; ids begin with 1.
    fn index(self) -> usize {
        (self.0 as usize).wrapping_sub(1)
    }
}

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How a private pool differs from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PoolOptions {
    /// Its free blocks may serve requests outside of it that would run out of memory.
    pub use_on_oom: bool,
    /// Its blocks are whole segments.
    pub no_split: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct PrivatePool {
    pub(crate) no_split: bool,
    /// Who holds it: its object, and each time that allocations were routed to it.
    pub(crate) uses: u32,
    /// What it took from the driver and has not given back.
    pub(crate) driver_calls: u32,
    /// The place of its small pool in the table of pools; the large one follows.
    pub(crate) small: u32,
}

impl Allocator {
    /// A new private pool, which has one holder.
    pub fn create_pool(&mut self, options: PoolOptions) -> PoolId {
        let id = PoolId(u32::try_from(self.private.len() + 1).unwrap_or(u32::MAX));
        let small = u32::try_from(self.pools.len()).unwrap_or(u32::MAX);
        self.pools.push(Pool::new(true, Some(id)));
        self.pools.push(Pool::new(false, Some(id)));
        self.private.push(Some(PrivatePool { no_split: options.no_split, uses: 1, driver_calls: 0, small }));
        if options.use_on_oom {
            self.spare.insert(id);
        }
        id
    }

    /// From now on requests go to this pool, which has one holder more. The last that began goes first.
    ///
    /// # Errors
    ///
    /// If there is no such pool, or requests go to it already.
    pub fn begin_pool(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        if self.routes.contains(&id) {
            return Err(AllocatorError::Routed(id));
        }
        let pool = self.live(id)?;
        pool.uses = pool.uses.saturating_add(1);
        self.routes.push(id);
        Ok(())
    }

    /// Requests do not go to this pool any more. Its holders stay: see [`Allocator::release_pool`].
    ///
    /// # Errors
    ///
    /// If they did not.
    pub fn end_pool(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        let at = self.routes.iter().position(|&other| other == id).ok_or(AllocatorError::NotRouted(id))?;
        self.routes.remove(at);
        Ok(())
    }

    /// A holder of the pool goes. Without any, its free memory goes back to the driver when the cache is emptied.
    ///
    /// # Errors
    ///
    /// If there is no such pool, or it was the last and requests go to it.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        let is_routed = self.routes.contains(&id);
        let pool = self.live(id)?;
        if is_routed && pool.uses == 1 {
            return Err(AllocatorError::Routed(id));
        }
        pool.uses -= 1;
        if pool.uses == 0 {
            self.releasable.insert(id);
        }
        Ok(())
    }

    /// The pool's object goes, as when the last reference to a `torch.cuda.MemPool` does: a holder goes, and what is
    /// free in it goes back to the driver if it was the last.
    ///
    /// # Errors
    ///
    /// If there is no such pool, or requests go to it and nothing else holds it.
    pub fn drop_pool(&mut self, id: PoolId) -> Result<(), AllocatorError> {
        self.release_pool(id)?;
        self.spare.remove(id);
        self.empty_pool(id)
    }

    /// A pool that has holders.
    fn live(&mut self, id: PoolId) -> Result<&mut PrivatePool, AllocatorError> {
        let pool = self.private.get_mut(id.index()).and_then(Option::as_mut);
        pool.filter(|pool| pool.uses > 0).ok_or(AllocatorError::UnknownPool(id))
    }

    /// The place in the table of pools of the pool for a block of this size.
    pub(crate) fn pool_for(&self, size: u64) -> u32 {
        let large = u32::from(size > LARGEST_SMALL_BLOCK);
        let private = self.routes.last().and_then(|&id| self.private_pool(id));
        private.map_or(0, |pool| pool.small) + large
    }

    pub(crate) fn private_pool(&self, id: PoolId) -> Option<&PrivatePool> {
        self.private.get(id.index()).and_then(Option::as_ref)
    }

    /// The private pool that a pool belongs to.
    pub(crate) fn owner(&self, pool: u32) -> Option<PoolId> {
        self.pools[pool as usize].owner
    }

    pub(crate) fn count_driver_call(&mut self, pool: u32) {
        if let Some((_, private)) = self.owning(pool) {
            private.driver_calls = private.driver_calls.saturating_add(1);
        }
    }

    /// A piece of a pool went back to the driver.
    pub(crate) fn uncount_driver_call(&mut self, pool: u32) -> Result<(), AllocatorError> {
        if let Some((id, private)) = self.owning(pool) {
            private.driver_calls = private.driver_calls.checked_sub(1).ok_or(AllocatorError::PoolImbalance(id))?;
        }
        Ok(())
    }

    fn owning(&mut self, pool: u32) -> Option<(PoolId, &mut PrivatePool)> {
        let id = self.owner(pool)?;
        Some((id, self.private.get_mut(id.index())?.as_mut()?))
    }

    /// Forgets a pool that has neither holders nor memory.
    pub(crate) fn forget(&mut self, id: PoolId) {
        if let Some(pool) = self.private.get_mut(id.index()) {
            *pool = None;
        }
        self.releasable.remove(id);
    }
}
