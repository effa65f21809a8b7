//! Fused attention.

use rematic_trace::{Dtype, Layout};

use super::{Call, Use, bytes, product, round_up};

/// Batch, heads, queries, width of a head.
fn extents(layout: &Layout) -> Option<[u64; 4]> {
    <[u64; 4]>::try_from(&layout.shape[..]).ok()
}

/// Whether PyTorch takes cuDNN's attention where a trace has flash or memory-efficient attention: it prefers it on a Hopper and a
/// data-center Blackwell (`check_prefer_cudnn_attention` in `sdp_utils.cpp`), if the kernel takes such heads
/// (`can_use_cudnn_attention`). Weights are dropped by sixteenths only, and a trace does not say how many are.
fn is_cudnns(call: &Call<'_>, first: usize, drops: bool) -> bool {
    const MOST: u64 = 65_535;
    if !call.architecture.cudnn || !(90..110).contains(&call.architecture.capability) || drops {
        return false;
    }
    let layout = |index: usize| call.input(first + index).and_then(|layout| Some((extents(layout)?, layout.dtype)));
    let (Some((query, dtype)), Some((key, _)), Some((value, _))) = (layout(0), layout(1), layout(2)) else {
        return false;
    };
    let [batch, heads, _, width] = query;
    let widths = (width, value[3]);
    let trains = (width <= 128 && value[3] <= 128) || matches!(widths, (192, 128) | (256, 256));
    matches!(dtype, Dtype::F16 | Dtype::Bf16)
        && batch <= MOST
        && heads <= MOST
        && key[2] != 1
        && width.is_multiple_of(8)
        && value[3].is_multiple_of(8)
        && trains
}

/// Seed and offset of the generator come first; the kernel is given no memory besides.
fn cudnn(uses: &mut Vec<Use>) {
    uses.extend([Use::Output(2), Use::Output(3), Use::Outputs]);
}

/// The gradient of queries in 32 bits and a sum per query, in one workspace that cuDNN's frontend lays out
/// (`SDPABackwardNode`). What the kernel itself may want beside that only cuDNN knows.
fn cudnn_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some([batch, heads, queries, width]) = call.input(1).and_then(extents) else { return };
    let workspace = product([batch, heads, queries, width.saturating_add(1), 4]);
    uses.extend([Use::Outputs, Use::Take(workspace), Use::Give(0)]);
}

/// Flash attention splits keys among thread blocks where there are too few queries to fill the card
/// (`set_params_splitkv` in `flash_api.cpp`); each split has its own sums, of which the last kernel makes one.
pub(super) fn flash(call: &Call<'_>, uses: &mut Vec<Use>) {
    if is_cudnns(call, 0, call.random) {
        return cudnn(uses);
    }
    if call.random {
        // Weights are dropped by the place of a block, so keys are not split; the generator's state.
        uses.extend([Use::Outputs, Use::Take(16), Use::Give(0)]);
        return;
    }
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

/// Whether heads lie beside each other in the rows of a sequence, as flash attention reads them.
fn is_by_row(layout: &Layout) -> bool {
    let (Some([batch, heads, rows, width]), &[by_batch, by_head, by_row, 1]) = (extents(layout), &layout.strides[..])
    else {
        return layout.shape.last() == Some(&1);
    };
    let fits = |extent: u64, stride: u64, expected: u64| extent == 1 || stride == expected;
    fits(heads, by_head, width)
        && fits(rows, by_row, product([heads, width]))
        && fits(batch, by_batch, product([rows, heads, width]))
}

/// The output and its gradient as they must lie, sums per query, the gradient of queries in 32 bits, and where several heads
/// share keys, the gradients of each head's own (`_flash_attention_backward`, `mha_bwd` in `flash_api.cpp`).
pub(super) fn flash_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    if is_cudnns(call, 1, call.drops_in_flash) {
        return cudnn_backward(call, uses);
    }
    let layouts = (call.input(1).and_then(extents), call.input(2).and_then(extents), call.input(1));
    let (Some([batch, heads, queries, width]), Some(key), Some(query)) = layouts else { return };
    let copied = |index: usize| call.input(index).filter(|layout| !is_by_row(layout)).map(bytes);
    let copies: Vec<u64> = [0, 4].into_iter().filter_map(copied).collect();
    uses.extend(copies.iter().map(|&copy| Use::Take(copy)));
    let rows = product([batch, heads, round_up(queries, 128)]);
    let wide = round_up(width, if width <= 128 { 32 } else { 64 });
    uses.extend([Use::Outputs, Use::Take(product([rows, 4])), Use::Take(product([rows, wide, 4]))]);
    let mut taken = copies.len() + 2;
    if key[1] != heads {
        let own = product([batch, key[2], heads, width, query.dtype.size()]);
        uses.extend([Use::Take(own), Use::Take(own)]);
        taken += 2;
    }
    uses.extend((0..taken).map(Use::Give));
}

/// What the kernel cannot keep in registers until it is whole: outputs in 32 bits (`_efficient_attention_forward` in
/// `attention.cu`).
pub(super) fn efficient(call: &Call<'_>, uses: &mut Vec<Use>) {
    if is_cudnns(call, 0, call.drops) {
        return cudnn(uses);
    }
    let (Some(query), Some(value)) = (call.input(0).and_then(extents), call.input(2)) else { return };
    let Some([_, _, _, width]) = extents(value) else { return };
    // Seed and offset of the generator: read on the host where weights are dropped, empty on the device where not.
    if call.drops {
        uses.extend([Use::OnHost(2), Use::OnHost(3), Use::Outputs]);
    } else {
        uses.extend([Use::Output(2), Use::Output(3), Use::Outputs]);
    }
    if width > WIDEST_IN_REGISTERS && value.dtype != Dtype::F32 {
        let [batch, heads, queries, _] = query;
        uses.extend([Use::Take(product([batch, heads, queries, width, 4])), Use::Give(0)]);
    }
}

/// The widest heads whose outputs stay in registers.
const WIDEST_IN_REGISTERS: u64 = 128;

/// The sum of each query's output times its gradient, the gradient of queries as parts of the keys add to it, and where several
/// heads share keys, the gradients of each head's own (`_efficient_attention_backward` in `attention_backward.cu`).
pub(super) fn efficient_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    if is_cudnns(call, 1, call.drops) {
        return cudnn_backward(call, uses);
    }
    let (Some(query), Some(key)) = (call.input(1), call.input(2).and_then(extents)) else { return };
    let Some([batch, heads, queries, width]) = extents(query) else { return };
    let workspace = efficient_workspace(call, query.dtype, [batch, heads, queries, width], key[2]);
    let sums = product([batch, heads, queries, 4]);
    uses.push(Use::Outputs);
    let shared = if key[1] == heads { 0 } else { 2 };
    let own = product([batch, heads, key[2], width, query.dtype.size()]);
    uses.extend((0..shared).map(|_| Use::Take(own)));
    if query.dtype == Dtype::F32 {
        uses.extend([Use::Take(bytes(query)), Use::Take(sums)]);
        if heads > 1 && queries > 1 {
            // Sums lie by query, and must lie by head.
            uses.extend([Use::Take(sums), Use::Give(1), Use::Give(2)]);
        } else {
            uses.push(Use::Give(1));
        }
        uses.extend([Use::Take(workspace), Use::Give(1), Use::Give(0)]);
    } else {
        uses.extend([Use::Take(sums), Use::Take(workspace), Use::Give(1), Use::Give(0)]);
    }
    let taken = if query.dtype != Dtype::F32 {
        2
    } else if heads > 1 && queries > 1 {
        4
    } else {
        3
    };
    uses.extend((0..shared).map(|back| Use::Give(taken + back)));
}

/// How the kernel that a card picks cuts queries and columns (`dispatch_cutlassB` in `cutlassB.h`): the first whose shared memory a
/// thread block can have.
struct Tile {
    rows: u64,
    columns: u64,
    /// Whether the gradients of keys and values stay in registers until they are whole.
    in_registers: bool,
}

impl Tile {
    fn of(call: &Call<'_>, is_half: bool, width: u64) -> Self {
        let tile = |rows, columns, in_registers| Tile { rows, columns, in_registers };
        let capability = call.architecture.capability;
        let is_small = !matches!(capability, 80..86 | 90..120);
        // Where weights are dropped, the generator's state lies on the host.
        let drops = call.drops || call.inputs.iter().all(|input| input.dtype != Dtype::I64);
        match (is_half, width) {
            (_, ..=64) => tile(64, 64, true),
            (false, _) => tile(if is_small { 64 } else { 128 }, 64, true),
            (true, ..=WIDEST_IN_REGISTERS) => match capability {
                ..80 => tile(128, 64, true),
                86..90 if width <= 96 && !drops => tile(128, 64, true),
                _ if is_small => tile(64, 64, false),
                _ => tile(128, 128, true),
            },
            (true, _) => tile(128, 64, false),
        }
    }
}

/// `workspace_size` of `kernel_backward.h`: queries and columns are cut into blocks, each with a lock and a counter.
fn efficient_workspace(call: &Call<'_>, dtype: Dtype, [batch, heads, queries, width]: [u64; 4], keys: u64) -> u64 {
    const HEAD: u64 = 16;
    /// Enough thread blocks; with fewer heads than that, keys are split among several.
    const PARALLEL: u64 = 200;
    let Tile { rows, columns, in_registers } = Tile::of(call, dtype != Dtype::F32, width);
    let blocks = product([queries.div_ceil(rows), width.div_ceil(columns)]);
    let mut each = product([blocks, HEAD + rows * columns * 4]);
    if !in_registers {
        // The gradients of keys and values of each part, in 32 bits.
        let splits = (PARALLEL / product([batch, heads]).max(1)).clamp(1, keys.div_ceil(columns).max(1));
        each = each.saturating_add(product([splits, 2, columns, round_up(width, rows), 4]));
    }
    product([batch, heads, each])
}
