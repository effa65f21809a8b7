//! How large a block and a segment become for a request.

/// Every block is a multiple of this many bytes.
pub const SMALLEST_BLOCK: u64 = 512;
/// The largest block of the pool for small ones.
pub const LARGEST_SMALL_BLOCK: u64 = 1 << 20;
/// What the driver is asked for when a small block is missing.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Blocks below this share a segment of `large_segment_size_mb`.
pub const LARGE_SEGMENT_BELOW: u64 = 10 << 20;
/// Segments of their own are multiples of this many bytes.
pub const SEGMENT_MULTIPLE: u64 = 2 << 20;
/// A request of so many bytes is refused before anything is looked at.
pub const EXABYTE: u64 = 1 << 60;

/// From 1 MiB to 64 GiB, one for every power of two.
const INTERVALS: usize = 16;
const FIRST_INTERVAL: u32 = LARGEST_SMALL_BLOCK.ilog2();

/// `roundup_power2_divisions`: into how many steps the space between two powers of two is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Divisions([u64; INTERVALS]);

impl Divisions {
    /// The number of steps for every power of two from 1 MiB on; 0 where sizes are multiples of 512.
    #[must_use]
    pub fn by_interval(&self) -> &[u64; 16] {
        &self.0
    }

    pub(crate) fn fill(&mut self, from: usize, to: usize, divisions: u64) {
        self.0[from.min(INTERVALS)..to.min(INTERVALS)].fill(divisions);
    }

    /// The interval of a boundary in MiB.
    pub(crate) fn interval(boundary: u64) -> usize {
        (boundary.max(1).ilog2() as usize).min(INTERVALS - 1)
    }

    pub(crate) const ALL: usize = INTERVALS;

    fn of(&self, size: u64) -> u64 {
        let interval = size.max(1).ilog2().saturating_sub(FIRST_INTERVAL) as usize;
        self.0[interval.min(INTERVALS - 1)]
    }

    /// The size of the block for a request below [`EXABYTE`].
    #[must_use]
    pub fn round(&self, requested: u64) -> u64 {
        if requested < SMALLEST_BLOCK {
            return SMALLEST_BLOCK;
        }
        let divisions = self.of(requested);
        if divisions > 1 && requested > SMALLEST_BLOCK.saturating_mul(divisions) {
            next_division(requested, divisions)
        } else {
            requested.next_multiple_of(SMALLEST_BLOCK)
        }
    }
}

/// The smallest step at or above a size; steps divide the space above its power of two evenly.
fn next_division(size: u64, divisions: u64) -> u64 {
    let step = (1 << size.ilog2()) >> divisions.ilog2();
    if size.is_power_of_two() { size } else { size.next_multiple_of(step) }
}

/// What the driver is asked for when there is no block of this size.
#[must_use]
pub fn segment_size(block: u64, large_segment: u64) -> u64 {
    if block <= LARGEST_SMALL_BLOCK {
        SMALL_SEGMENT
    } else if block < LARGE_SEGMENT_BELOW {
        large_segment
    } else {
        block.next_multiple_of(SEGMENT_MULTIPLE)
    }
}
