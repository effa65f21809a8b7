//! What CUB takes to sort and to scan (`cub.cuh`), for keys and values of 64 bits.

use super::{product, round_up};

/// A scan of up to some millions of elements, about: it grows with them by a few bytes a thousand.
pub(super) const SCAN: u64 = 1279;
/// So few are sorted by one thread block.
const ONE_BLOCK: u64 = 2304;
/// Bits of a key that one pass sorts by, and the counters that it has for them.
const BITS: u64 = 8;
const COUNTERS: u64 = 1 << BITS;
const ALIGNMENT: u64 = 256;

/// Bytes for a radix sort of so many keys below a bound (`DeviceRadixSort::SortPairs`): counters of each pass, those of each
/// thread block, and between passes a copy of keys and values.
pub(super) fn temporary(capability: u32, count: u64, bound: u64) -> u64 {
    if count <= ONE_BLOCK {
        return 1;
    }
    let per_block = if capability >= 90 { 4608 } else { 3840 };
    let passes = u64::from(bound.max(1).ilog2() + 1).div_ceil(BITS);
    let copies = if passes > 1 { product([2, round_up(product([count, 8]), ALIGNMENT)]) } else { 0 };
    let counters = product([passes, COUNTERS, 8]).saturating_add(product([count.div_ceil(per_block), COUNTERS, 4]));
    // One more aligned part with a counter of blocks, and what aligning the first may take.
    copies.saturating_add(counters).saturating_add(ALIGNMENT + ALIGNMENT - 1)
}
