//! Fused attention.

use rematic_trace::{Dtype, Layout};

use super::{Call, Use, bytes, product, round_up};

/// Batch, heads, queries, width of a head.
fn extents(layout: &Layout) -> Option<[u64; 4]> {
    <[u64; 4]>::try_from(&layout.shape[..]).ok()
}

/// Flash attention splits keys among thread blocks where there are too few queries to fill the card
/// (`set_params_splitkv` in `flash_api.cpp`); each split has its own sums, of which the last kernel makes one.
pub(super) fn flash(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(query), Some(key)) = (call.input(0).and_then(extents), call.input(1).and_then(extents)) else { return };
    let [batch, heads, queries, width] = query;
    let block = if width <= 64 {
        256
    } else if width <= 128 {
        128
    } else {
        64
    };
    let key_blocks = key[2].div_ceil(block);
    let query_blocks = queries.div_ceil(64);
    let splits = splits(product([batch, heads, query_blocks]), u64::from(call.architecture.processors) * 2, key_blocks);
    if splits <= 1 {
        return;
    }
    let rows = product([splits, batch, heads, queries]);
    let (sums, outputs) = (product([rows, 4]), product([rows, round_up(width, 32), 4]));
    uses.extend([Use::Outputs, Use::Take(sums), Use::Take(outputs), Use::Give(1), Use::Give(0)]);
}

/// How many parts of the keys fill the card best (`num_splits_heuristic`).
fn splits(blocks: u64, processors: u64, key_blocks: u64) -> u64 {
    const MOST: u64 = 128;
    if blocks as f64 >= 0.8 * processors as f64 {
        return 1;
    }
    let most = MOST.min(processors).min(key_blocks);
    let is_eligible = |splits: u64| splits == 1 || key_blocks.div_ceil(splits) != key_blocks.div_ceil(splits - 1);
    let efficiency = |splits: u64| {
        let waves = blocks as f64 * splits as f64 / processors as f64;
        waves / waves.ceil()
    };
    let best = (1..=most).filter(|&splits| is_eligible(splits)).map(efficiency).fold(0.0, f64::max);
    (1..=most).find(|&splits| is_eligible(splits) && efficiency(splits) >= 0.85 * best).unwrap_or(1)
}

/// Sums per query, the gradient of queries in 32 bits, and where several heads share keys, the gradients of each head's own
/// (`mha_bwd` in `flash_api.cpp`).
pub(super) fn flash_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let layouts = (call.input(1).and_then(extents), call.input(2).and_then(extents), call.input(1));
    let (Some([batch, heads, queries, width]), Some(key), Some(query)) = layouts else { return };
    let rows = product([batch, heads, round_up(queries, 128)]);
    let wide = round_up(width, if width <= 128 { 32 } else { 64 });
    uses.extend([Use::Outputs, Use::Take(product([rows, 4])), Use::Take(product([rows, wide, 4]))]);
    if key[1] == heads {
        uses.extend([Use::Give(0), Use::Give(1)]);
    } else {
        let own = product([batch, key[2], heads, width, query.dtype.size()]);
        uses.extend([Use::Take(own), Use::Take(own), Use::Give(0), Use::Give(1), Use::Give(2), Use::Give(3)]);
    }
}

/// The sum of each query's output times its gradient, and the gradient of queries as parts of the keys add to it
/// (`_efficient_attention_backward` in `attention_backward.cu`).
pub(super) fn efficient_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(query) = call.input(1) else { return };
    let Some([batch, heads, queries, width]) = extents(query) else { return };
    /// Queries and columns that a thread block has at a time, and what stands before them: a lock and a counter.
    const BLOCK: u64 = 64;
    const HEAD: u64 = 16;
    let blocks = product([queries.div_ceil(BLOCK), width.div_ceil(BLOCK)]);
    let workspace = product([batch, heads, blocks, HEAD + BLOCK * BLOCK * 4]);
    let sums = product([batch, heads, queries, 4]);
    uses.push(Use::Outputs);
    if query.dtype == Dtype::F32 {
        uses.extend([Use::Take(bytes(query)), Use::Take(sums), Use::Take(sums), Use::Give(1), Use::Give(2)]);
        uses.extend([Use::Take(workspace), Use::Give(1), Use::Give(0)]);
    } else {
        uses.extend([Use::Take(sums), Use::Take(workspace), Use::Give(1), Use::Give(0)]);
    }
}
