//! Adding to picked rows.

use rematic_trace::Dtype;

use super::Use::{Give, Take};
use super::{Call, Use, bytes, product, sort};

/// Adding to picked rows sorts them first, so that sums have a fixed order (`index_put_with_sort_kernel` in `Indexing.cu`).
/// Without adding, nothing is taken; a dispatch mode sees no difference, but autograd always adds.
pub(super) fn add(call: &Call<'_>, uses: &mut Vec<Use>) {
    if call.backward {
        sorted(call, true, uses);
    }
}

/// The gradient of indexing, which knows that its indices are within bounds (`index_backward`).
pub(super) fn add_unchecked(call: &Call<'_>, uses: &mut Vec<Use>) {
    if call.backward {
        uses.push(Use::Outputs);
        sorted(call, false, uses);
    }
}

fn sorted(call: &Call<'_>, checked: bool, uses: &mut Vec<Use>) {
    let [table, indices @ .., values] = &call.inputs[..] else { return };
    if indices.is_empty() || indices.iter().any(|index| index.dtype != Dtype::I64) {
        return;
    }
    let count = indices.iter().map(|index| index.elements()).max().unwrap_or(0);
    let list = product([count, 8]);
    for (position, _) in indices.iter().enumerate() {
        if checked {
            // The least and the largest index, compared with the bounds.
            uses.extend([Take(8), Take(8), Take(1), Give(0), Take(1), Give(0), Give(3), Give(2)]);
        }
        uses.extend([Take(list), Take(list), Give(1)]);
        if position > 0 {
            // Added to those of the dimension before.
            uses.push(Give(0));
        }
    }
    let copied = !values.is_contiguous();
    if copied {
        uses.push(Take(bytes(values)));
    }
    let rows = table.shape.iter().take(indices.len()).fold(1, |rows: u64, extent| rows.saturating_mul(*extent));
    let sorting = sort::temporary(call.architecture.capability, count, rows);
    uses.extend([Take(list), Take(list), Take(list), Take(sorting), Give(0), Give(1), Give(2), Give(3)]);
    let copies = usize::from(copied);
    uses.extend((0..copies).map(|back| Give(4 + back)));
    // The first list of rows is what all others were added to.
    uses.push(Give(4 + copies + if checked { 6 } else { 2 } * (indices.len() - 1)));
}
