use rematic_trace::Bytes;

/// The unit that CUDA's caching allocator rounds requests up to (`kMinBlockSize` in PyTorch's `CUDACachingAllocator`).
pub const CUDA_BLOCK: Bytes = Bytes(512);

/// Whose bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allocator {
    /// CUDA's caching allocator: every storage takes a multiple of [`CUDA_BLOCK`]. Segments and fragmentation are not
    /// modelled: these are the bytes that PyTorch calls *allocated*, not those that it calls *reserved*.
    Cuda,
    /// Host memory: every storage takes what it asks for.
    Cpu,
}

impl Allocator {
    /// The bytes that a storage of the requested size takes.
    #[must_use]
    pub fn footprint(self, requested: Bytes) -> Bytes {
        match self {
            Allocator::Cuda => requested.round_up_to(CUDA_BLOCK),
            Allocator::Cpu => requested,
        }
    }

    /// How it counts, as the end of a sentence.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Allocator::Cuda => "blocks of 512 bytes, as CUDA's caching allocator hands them out",
            Allocator::Cpu => "bytes as they are asked for, as on the CPU",
        }
    }
}
