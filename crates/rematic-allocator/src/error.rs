use crate::private::PoolId;

/// Why a request was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The driver has no more, even after everything that could be released was.
    Device,
    /// `per_process_memory_fraction` allows so many bytes.
    Fraction(u64),
    /// `throw_on_cudamalloc_oom` refused, as there would be more reserved than the device has, without trying to
    /// release.
    Rejected,
    /// An expandable segment is so large at most, and a block cannot span two.
    SegmentReserve(u64),
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shortage::Device => write!(f, "The device is too small; lower the peak or take a larger one."),
            Shortage::Fraction(bytes) => {
                write!(f, "per_process_memory_fraction allows {bytes} bytes; raise it, or lower the peak.")
            }
            Shortage::Rejected => write!(
                f,
                "throw_on_cudamalloc_oom refuses before anything is released; turn it off, or lower the peak."
            ),
            Shortage::SegmentReserve(bytes) => write!(
                f,
                "An expandable segment has {bytes} bytes at most; raise expandable_segments_reserve, or leave it out."
            ),
        }
    }
}

/// A request that ran out of memory, with the numbers that torch's message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Out of memory: {requested} bytes were asked for, {wanted} were wanted from the driver, which has {device_free} of \
     {device_total} bytes free. {allocated} bytes are allocated, {reserved} reserved. {shortage}"
)]
pub struct OutOfMemory {
    /// The bytes that were asked for.
    pub requested: u64,
    /// What the driver was asked for.
    pub wanted: u64,
    /// The stream that asked.
    pub stream: u64,
    /// The bytes of blocks that are handed out.
    pub allocated: u64,
    /// The bytes that the driver gave.
    pub reserved: u64,
    /// What the device has left.
    pub device_free: u64,
    /// The device's memory.
    pub device_total: u64,
    /// What was in the way.
    pub shortage: Shortage,
}

/// What can go wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// There is no memory for a request. The allocator can be used further.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// More was asked for than torch accepts at all.
    #[error("{0} bytes were asked for. Torch refuses 1 EiB (1152921504606846976 bytes) and more; ask for less.")]
    Exabyte(u64),
    /// The handle is not one of a block that is handed out now.
    #[error("This allocation is not in use: it was freed before, or another allocator made it. Free each one once.")]
    NotInUse,
    /// There is no such pool, or it is gone.
    #[error("There is no private pool {0}. Make one with create_pool, and use it until it is released.")]
    UnknownPool(PoolId),
    /// Allocations go to this pool.
    #[error("Allocations go to private pool {0}. End that first.")]
    Routed(PoolId),
    /// Allocations do not go to this pool.
    #[error("Allocations do not go to private pool {0}. Begin before you end.")]
    NotRouted(PoolId),
    /// Addresses or block numbers are used up, after more segments than any device could have.
    #[error("All addresses are used up, after {segments} segments. Begin with a new allocator.")]
    Exhausted {
        /// Segments that were made so far.
        segments: u64,
    },
    /// Torch counts the pieces of a pool wrongly here, and fails later.
    #[error(
        "Private pool {0} of expandable segments gave back as many pieces as it took while blocks of it are in use. \
         Torch 2.15 then forgets the pool, and crashes when they are freed. Free them before the pool goes, or turn \
         expandable_segments off."
    )]
    PoolImbalance(PoolId),
}
