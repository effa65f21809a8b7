//! The gradient of an embedding (`EmbeddingBackwardKernel.cu`).

use super::Use::{Give, Outputs, Take};
use super::{Call, Use, product};

/// So many indices are added up by one simple kernel; more are sorted first.
const SIMPLE: u64 = 3072;
/// Rows of gradients that one thread adds up.
const ROWS_PER_THREAD: u64 = 10;
const INDEX: u64 = 8;
/// What the sort and the scans of CUB take for themselves, about: it differs by a few KiB with the card.
const SCAN: u64 = 1279;
fn sort(indices: u64) -> u64 {
    product([2, indices, INDEX]).saturating_add(8 * 1024)
}

pub(super) fn backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(indices), Some(output)) = (call.input(0), call.input(1), call.outputs.first()) else {
        return;
    };
    let count = indices.elements();
    if count <= SIMPLE {
        return;
    }
    let list = product([count, INDEX]);
    let width = gradient.shape.last().copied().unwrap_or(1);
    let vocabulary = output.shape.first().copied().unwrap_or(1);
    let parts = (count / ROWS_PER_THREAD).saturating_add(count.min(vocabulary));
    let sums = product([parts, width, 4]);
    // Sorted indices, where they came from; then segments of equal ones, cut into parts, and a sum for each part.
    uses.extend([Take(list), Take(list), Take(list), Take(sort(count)), Give(0), Give(1), Outputs]);
    uses.extend([Take(list), Take(INDEX), Take(list), Take(SCAN), Give(0), Give(1)]);
    uses.extend([Take(list), Take(list), Take(SCAN), Give(0), Take(INDEX), Take(product([parts, INDEX])), Take(sums)]);
    uses.extend([Give(0), Give(1), Give(2), Give(4), Give(5), Give(8), Give(9), Give(12), Give(13)]);
}
