//! Norms that PyTorch's own kernels compute. Those of cuDNN are other operators, and only the library knows what they take.

use rematic_trace::{Dtype, Layout};

use super::Use::{Give, Output, Outputs, Take};
use super::{Call, Use, bytes, product};

/// Statistics are numbers of 32 bits.
const STATISTIC: u64 = 4;

/// A copy of what is not contiguous.
fn copy(layout: Option<&Layout>) -> Option<Use> {
    layout.filter(|layout| !layout.is_contiguous()).map(|layout| Take(bytes(layout)))
}

/// Layer and RMS norm read an input without gaps (`layer_norm_cuda` in `layer_norm_kernel.cu`).
pub(super) fn layer(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(copy) = copy(call.input(0)) {
        uses.extend([copy, Outputs, Give(0)]);
    }
}

/// Their backward, the input and then the gradient (`layer_norm_backward_cuda`).
pub(super) fn layer_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    match (copy(call.input(1)), copy(call.input(0))) {
        (Some(input), Some(gradient)) => uses.extend([input, Outputs, gradient, Give(0), Give(1)]),
        (Some(input), None) => uses.extend([input, Outputs, Give(0)]),
        (None, Some(gradient)) => uses.extend([Outputs, gradient, Give(0)]),
        (None, None) => {}
    }
}

/// Samples times channels, and samples times groups, of a group norm.
fn extents(input: &Layout, statistics: &Layout) -> Option<(u64, u64)> {
    let &[samples, channels, ..] = &input.shape[..] else { return None };
    Some((product([samples, channels]), statistics.elements()))
}

/// Statistics in 32 bits where the input has fewer, and the factor and addend of each channel
/// (`GroupNormKernelImplInternal` in `group_norm_kernel.cu`).
pub(super) fn group(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(mean)) = (call.input(0), call.outputs.get(1)) else { return };
    let Some((channels, groups)) = extents(input, mean) else { return };
    uses.push(Outputs);
    let mut taken = 0;
    let mut take = |uses: &mut Vec<Use>, count: u64| {
        uses.extend([Take(product([count, STATISTIC])), Take(product([count, STATISTIC]))]);
        taken += 2;
    };
    if input.dtype.size() < STATISTIC {
        take(uses, groups);
    }
    let is_scaled = call.inputs.len() > 1;
    let has_rows = input.shape.iter().skip(2).any(|extent| *extent > 1);
    if is_scaled || !has_rows {
        take(uses, channels);
    }
    uses.extend((0..taken).map(Give));
}

/// Two sums for each channel, and coefficients (`GroupNormBackwardKernelImplInternal`).
pub(super) fn group_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(mean)) = (call.input(1), call.input(2)) else { return };
    let Some((channels, groups)) = extents(input, mean) else { return };
    let (sums, coefficients) = (product([channels, STATISTIC]), product([groups, STATISTIC]));
    let has_rows = input.shape.iter().skip(2).any(|extent| *extent > 1);
    uses.extend([Outputs, Take(sums), Take(sums), Take(coefficients), Take(coefficients)]);
    let is_scaled = call.inputs.len() > 4;
    if has_rows && is_scaled {
        uses.extend([Take(sums), Give(1), Give(2), Give(0), Give(3), Give(4)]);
    } else {
        uses.extend([Give(0), Give(1), Give(2), Give(3)]);
    }
}

/// What thread blocks have of mean and variance, where channels lie beside each other
/// (`batch_norm_stats_channels_last_cuda_template` in `Normalization.cuh`).
pub(super) fn batch(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0).filter(|input| has_channels_last(input)) else { return };
    let Some(&channels) = input.shape.get(1) else { return };
    if let Some((staging, semaphores)) = staging(input.elements() / channels.max(1), channels, 4) {
        uses.extend([Outputs, Take(staging), Take(semaphores), Give(0), Give(1)]);
    }
}

/// Two sums for each channel, where channels lie beside each other, and what thread blocks have of them
/// (`batch_norm_backward_reduce_cuda_channels_last_template` in `Normalization.cuh`).
pub(super) fn batch_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(1).filter(|input| has_channels_last(input)) else { return };
    let Some(&channels) = input.shape.get(1) else { return };
    let sums = product([channels, STATISTIC]);
    uses.extend([Take(sums), Take(sums), Output(1), Output(2)]);
    let rows = input.elements() / channels.max(1);
    if let Some((staging, semaphores)) = staging(rows, channels, 2) {
        uses.extend([Take(staging), Take(semaphores), Give(0), Give(1), Outputs, Give(2), Give(3)]);
    } else {
        uses.extend([Outputs, Give(0), Give(1)]);
    }
}

/// Whether channels lie beside each other; with one place a sample, they do both ways.
fn has_channels_last(layout: &Layout) -> bool {
    let &[_, channels, ref places @ ..] = &layout.shape[..] else { return false };
    let &[by_sample, by_channel, ..] = &layout.strides[..] else { return false };
    let count = places.iter().fold(1, |all: u64, extent| all.saturating_mul(*extent));
    let is_float = matches!(layout.dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16);
    is_float && layout.is_dense() && by_channel == 1 && channels > 1 && by_sample == product([channels, count])
}

/// Bytes for the sums of several thread blocks, and for their semaphores, where rows are long enough for several
/// (`flexible_launch_configs`).
fn staging(rows: u64, channels: u64, sums: u64) -> Option<(u64, u64)> {
    const THREADS: u64 = 512;
    const TILE: u64 = 32;
    const PER_THREAD: u64 = 16;
    const MOST_BLOCKS: u64 = 128;
    const FEWEST_BLOCKS: u64 = 8;
    let power = |size: u64| 1u64 << size.max(1).ilog2();
    let mut width = power(channels).min(TILE);
    let height = power(rows.div_ceil(PER_THREAD)).min(THREADS / width);
    if width * height != THREADS {
        width = power(channels).min(THREADS / height);
    }
    let blocks = rows.div_ceil(height * PER_THREAD).min(MOST_BLOCKS);
    let bytes = product([sums, channels, blocks, STATISTIC]);
    (blocks >= FEWEST_BLOCKS).then(|| (bytes, product([channels.div_ceil(width), 4])))
}
