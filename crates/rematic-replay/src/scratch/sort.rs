//! What sorting, picking the largest, and CUB's functions take (`Sort.cu`, `TensorTopK.cu`, `cub.cuh`).

use rematic_trace::Layout;

use super::Use::{Give, Outputs, Take};
use super::{Call, Use, bytes, product, round_up};

/// A scan of up to some millions of elements, about: it grows with them by a few bytes a thousand.
pub(super) const SCAN: u64 = 1279;
/// So few are sorted by one thread block.
const ONE_BLOCK: u64 = 2304;
/// Bits of a key that one pass sorts by, and the counters that it has for them.
const BITS: u64 = 8;
const COUNTERS: u64 = 1 << BITS;
const ALIGNMENT: u64 = 256;
const INDEX: u64 = 8;

/// Bytes for a radix sort of so many keys and values of 64 bits, keys below a bound (`DeviceRadixSort::SortPairs`).
pub(super) fn temporary(capability: u32, count: u64, bound: u64) -> u64 {
    if count <= ONE_BLOCK {
        return 1;
    }
    let passes = u64::from(bound.max(1).ilog2() + 1).div_ceil(BITS);
    radix(count, INDEX, passes, per_block(capability, INDEX).unwrap_or(1))
}

/// Counters of each pass, those of each thread block, and between passes a copy of keys and values.
fn radix(count: u64, key: u64, passes: u64, per_block: u64) -> u64 {
    let aligned = |size: u64| round_up(product([count, size]), ALIGNMENT);
    let copies = if passes > 1 { aligned(key).saturating_add(aligned(INDEX)) } else { 0 };
    let counters = product([passes, COUNTERS, 8]).saturating_add(product([count.div_ceil(per_block), COUNTERS, 4]));
    // One more aligned part with a counter of blocks, and what aligning the first may take.
    copies.saturating_add(counters).saturating_add(ALIGNMENT + ALIGNMENT - 1)
}

/// How many keys of a size a thread block sorts, with values of 64 bits (CUB's `policy_hub`). Before Hopper, keys of fewer than 32
/// bits are sorted another way, which depends on how many thread blocks run at once.
fn per_block(capability: u32, key: u64) -> Option<u64> {
    Some(match (capability, key) {
        (..80, 4 | 8) => 2816,
        (80..90, 8) => 3840,
        (80..90, 4) => 3072,
        (90.., 8) => 4608,
        (90.., 4) => 5376,
        (90.., 2) => 5632,
        (90.., 1) => 3456,
        _ => return None,
    })
}

/// The same for the numbers of segments, which are sorted by after the keys.
fn per_block_of_segments(capability: u32) -> u64 {
    match capability {
        ..80 => 2816,
        80..90 => 3840,
        _ => 5760,
    }
}

/// So many elements are sorted by a kernel that needs nothing but their places.
const SMALL: u64 = 4096;
/// So many rows are sorted one after the other; fewer are sorted as one list, by value and then by row.
const MANY_ROWS: u64 = 128;

/// Rows along the last dimension: a trace does not say along which. Places first, then what CUB takes.
pub(super) fn sort(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    let Some((rows, length)) = rows(input) else { return };
    if length <= SMALL {
        uses.extend([Outputs, Take(product([length, INDEX])), Give(0)]);
        return;
    }
    let (count, key, capability) = (input.elements(), input.dtype.size(), call.architecture.capability);
    if rows >= MANY_ROWS {
        let aligned = |size: u64| round_up(product([count, size]), ALIGNMENT);
        let temporary = aligned(key).saturating_add(aligned(INDEX)).saturating_add(ALIGNMENT - 1);
        uses.extend([Outputs, Take(product([count, INDEX])), Take(temporary), Give(0), Give(1)]);
        return;
    }
    let Some(per_block) = per_block(capability, key) else { return };
    let by_value = radix(count, key, key, per_block);
    if rows == 1 {
        uses.extend([Outputs, Take(product([count, INDEX])), Take(by_value), Give(0), Give(1)]);
        return;
    }
    let pairs = product([count, INDEX]);
    let passes = u64::from((rows - 1).max(1).ilog2() + 1).div_ceil(BITS);
    let by_row = radix(count, INDEX, passes, per_block_of_segments(capability));
    uses.extend([Outputs, Take(pairs), Take(pairs), Take(bytes(input)), Take(by_value), Give(0), Give(1)]);
    uses.extend([Take(by_row), Give(0), Give(3), Give(4)]);
}

fn rows(input: &Layout) -> Option<(u64, u64)> {
    let length = input.shape.last().copied().filter(|length| *length > 0)?;
    Some((input.elements() / length, length))
}

/// The same along the dimension of which the output has less; the last one where it has as much.
fn along(input: &Layout, output: &Layout) -> Option<(u64, u64)> {
    let picked = input.shape.iter().zip(&output.shape).find(|(before, after)| before != after);
    let length = picked.map(|(before, _)| before).or(input.shape.last()).copied().filter(|length| *length > 0)?;
    Some((input.elements() / length, length))
}

/// Running sums: what has another type or has gaps is copied, and one row alone is cut among thread blocks, which wait for each other
/// (`cumsum_cuda_kernel` in `ScanKernels.cpp`, `DeviceScan`).
pub(super) fn running(call: &Call<'_>, uses: &mut Vec<Use>) {
    // As 20 lengths were measured.
    const TILE: u64 = 672;
    const STATE: u64 = 12;
    const PADDING: u64 = 64;
    let (Some(input), Some(output)) = (call.input(0), call.outputs.first()) else { return };
    let count = input.elements();
    let is_one_row = input.shape.contains(&count) && count > 1;
    let is_copied = input.dtype != output.dtype || !input.is_contiguous();
    if !is_one_row && !is_copied {
        return;
    }
    let tiles = count.div_ceil(TILE).saturating_add(PADDING);
    let scan = round_up(product([tiles, STATE]), ALIGNMENT).saturating_add(ALIGNMENT - 1);
    uses.push(Outputs);
    uses.extend(is_copied.then(|| Take(bytes(output))));
    uses.extend(is_one_row.then_some([Take(scan), Give(0)]).into_iter().flatten());
    uses.extend(is_copied.then_some(Give(usize::from(is_one_row))));
}

/// Long rows are cut among thread blocks, which count digits (`mbtopk::launch` in `TensorTopK.cu`).
pub(super) fn top(call: &Call<'_>, uses: &mut Vec<Use>) {
    const THREADS: u64 = 256;
    /// Thread blocks that a multiprocessor has registers for.
    const BLOCKS_PER_PROCESSOR: u64 = 6;
    const FEWEST: u64 = 4;
    const MOST: u64 = 64;
    let Some(input) = call.input(0) else { return };
    let along = call.outputs.first().and_then(|output| along(input, output));
    let Some((rows, length)) = along.filter(|&(rows, length)| is_cut(rows, length)) else { return };
    let threads = product([u64::from(call.architecture.processors), BLOCKS_PER_PROCESSOR, THREADS]).max(1);
    let per_thread = product([rows, length]).div_ceil(threads).clamp(FEWEST, MOST);
    let blocks = product([rows, length.div_ceil(per_thread * THREADS)]);
    let digits = product([blocks, COUNTERS, 2]);
    uses.extend([Outputs, Take(product([rows, input.dtype.size()]))]);
    uses.extend([rows, rows].map(|count| Take(product([count, INDEX]))));
    uses.extend([Take(digits), Take(product([rows, COUNTERS, 4])), Take(product([blocks, 4]))]);
    uses.extend([Take(product([blocks, 4])), Take(SCAN), Give(0), Take(SCAN), Give(0)]);
    uses.extend((2..9).map(Give));
}

/// `should_use_multiblock`.
fn is_cut(rows: u64, length: u64) -> bool {
    let least = match rows {
        ..=20 => 20_000,
        21..=40 => 10_000,
        41..=80 => 8_000,
        81..200 => 5_000,
        200..800 => 3_000,
        800..=4_000 => 800,
        4_001..=65_535 => 400,
        _ => return false,
    };
    length >= least
}
