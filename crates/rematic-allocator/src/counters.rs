//! What `torch.cuda.memory_stats` counts.

/// A quantity now, and at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// At its highest since the start or the last [`Counters::reset_peaks`].
    pub peak: u64,
}

impl Counter {
    #[inline]
    pub(crate) fn increase(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn decrease(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
    }
}

/// The allocator's counters, by the names of `torch.cuda.memory_stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes asked for, of blocks that are active.
    pub requested: Counter,
    /// Bytes of blocks that are handed out, with what rounding and unsplit tails add.
    pub allocated: Counter,
    /// The same, and blocks that other streams still use after they were given back.
    pub active: Counter,
    /// Bytes that the driver gave.
    pub reserved: Counter,
    /// Segments that the driver gave; expandable ones are not counted.
    pub segments: Counter,
    /// How often the cache was emptied to meet a request.
    pub retries: u64,
    /// Requests that were not met.
    pub out_of_memory: u64,
    /// Requests that `throw_on_cudamalloc_oom` refused.
    pub rejections: u64,
}

impl Counters {
    /// Peaks begin anew at what is current.
    pub fn reset_peaks(&mut self) {
        for counter in
            [&mut self.requested, &mut self.allocated, &mut self.active, &mut self.reserved, &mut self.segments]
        {
            counter.peak = counter.current;
        }
    }
}
