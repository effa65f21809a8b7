//! The gradient of an embedding (`EmbeddingBackwardKernel.cu`).

use rematic_trace::Dtype;

use super::Use::{Give, Outputs, Take};
use super::{Call, Use, bytes, product, sort};

/// So many indices are added up by one simple kernel; more are sorted first.
const SIMPLE: u64 = 3072;
/// Rows of gradients that one thread adds up.
const ROWS_PER_THREAD: u64 = 10;
const INDEX: u64 = 8;
/// Columns that a thread block has.
const COLUMNS_PER_BLOCK: u64 = 1024;
/// Thread blocks that fill a multiprocessor here.
const BLOCKS_PER_PROCESSOR: u64 = 4;

/// Indices that do not lie in one row are copied (`embedding_symint` in `Embedding.cpp`).
pub(super) fn forward(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(indices) = call.input(1).filter(|indices| !indices.is_contiguous()) {
        uses.extend([Take(bytes(indices)), Outputs, Give(0)]);
    }
}

pub(super) fn backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(indices), Some(output)) = (call.input(0), call.input(1), call.outputs.first()) else {
        return;
    };
    let count = indices.elements();
    let copies = usize::from(!indices.is_contiguous());
    uses.extend((0..copies).map(|_| Take(bytes(indices))));
    if count <= SIMPLE {
        uses.push(Outputs);
        uses.extend((0..copies).map(Give));
        return;
    }
    let width = gradient.shape.last().copied().unwrap_or(1);
    let vocabulary = output.shape.first().copied().unwrap_or(1);
    let segments = count.min(vocabulary);
    let parts = (count / ROWS_PER_THREAD).saturating_add(segments);
    let (all, some) = (product([count, INDEX]), product([segments, INDEX]));
    // Sorted indices, where they came from; then segments of equal ones, cut into parts.
    let sorting = sort::temporary(call.architecture.capability, count, vocabulary);
    uses.extend([Take(all), Take(all), Take(all), Take(sorting), Give(0), Give(1), Outputs]);
    uses.extend([Take(all), Take(INDEX), Take(all), Take(sort::SCAN), Give(0), Give(1)]);
    uses.extend([Take(some), Take(some), Take(sort::SCAN), Give(0), Take(INDEX), Take(product([parts, INDEX]))]);
    let blocks = product([segments, width.div_ceil(COLUMNS_PER_BLOCK)]);
    let processors = u64::from(call.architecture.processors);
    let few = blocks < BLOCKS_PER_PROCESSOR * processors && parts > product([BLOCKS_PER_PROCESSOR, blocks]);
    let mut more = 1;
    if !few {
        uses.push(Take(product([parts, width, 4])));
    } else {
        // Few segments of many parts: the segment of each part; a sum for each segment, where the output has fewer bits.
        uses.push(Take(product([parts, INDEX])));
        if matches!(gradient.dtype, Dtype::F16 | Dtype::Bf16) {
            uses.push(Take(product([segments, width, 4])));
            more = 2;
        }
    }
    uses.extend((0..more).map(Give));
    uses.extend([0, 1, 3, 4, 7, 8, 11, 12].map(|back| Give(more + back)));
    uses.extend((0..copies).map(|copy| Give(more + 13 + copy)));
}
