//! Norms that PyTorch's own kernels compute. Those of cuDNN are other operators, and only the library knows what they take.

use rematic_trace::{Dtype, Layout};

use super::Use::{Give, Output, Outputs, Take};
use super::images::{Format, Images, Taken};
use super::{Call, Use, bytes, product, reduction};

/// Statistics are numbers of 32 bits.
const STATISTIC: u64 = 4;

/// Layer and RMS norm read an input without gaps (`layer_norm_cuda` in `layer_norm_kernel.cu`).
pub(super) fn layer(call: &Call<'_>, uses: &mut Vec<Use>) {
    let mut taken = Taken::new(uses);
    if let Some(copy) = taken.copy_of(call.input(0)) {
        taken.make(Outputs);
        taken.give(copy);
    }
}

/// Their backward copies the input, and then the gradient (`layer_norm_backward_cuda`). Of many narrow rows thread blocks add up some
/// each, into rows that are added up in turn, and become the gradients that were made in vain (`LaunchGammaBetaBackwardCUDAKernel`).
pub(super) fn layer_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input), Some(statistics)) = (call.input(0), call.input(1), call.input(2)) else { return };
    let rows = statistics.elements().max(1);
    let width = input.elements() / rows;
    let is_whole = |layout: &&Layout| layout.elements() == input.elements();
    let first = usize::from(call.outputs.first().is_some_and(is_whole) && rows > 1);
    let sums: Vec<usize> = (first..call.outputs.len()).collect();
    let parts = parts(call, rows, width).filter(|_| !sums.is_empty());
    let copies = [input, gradient].into_iter().filter(|layout| !layout.is_contiguous()).count();
    if parts.is_none() && copies == 0 {
        return;
    }
    let mut taken = Taken::new(uses);
    let input_copy = taken.copy_of(Some(input));
    let Some(parts) = parts else {
        taken.make(Outputs);
        let copy = taken.copy_of(Some(gradient));
        taken.give_all(input_copy.into_iter().chain(copy));
        return;
    };
    (0..first).for_each(|index| taken.make(Output(index)));
    let part = Layout::contiguous(input.dtype, &[parts, width]);
    let early: Vec<usize> = sums.iter().map(|_| taken.take(product([width, input.dtype.size()]))).collect();
    let copy = taken.copy_of(Some(gradient));
    let partial: Vec<usize> = sums.iter().map(|_| taken.take(bytes(&part))).collect();
    for (index, early) in sums.into_iter().zip(early) {
        taken.make(Output(index));
        taken.extend(reduction::rows(call, &part));
        taken.give(early);
    }
    taken.give_all(input_copy.into_iter().chain(copy).chain(partial));
}

/// How many rows of sums the thread blocks write, if there are several for a column.
fn parts(call: &Call<'_>, rows: u64, width: u64) -> Option<u64> {
    const MANY: u64 = 64 * 1024;
    const COLUMNS: u64 = 32;
    const ROWS: u64 = 32;
    const MOST: u64 = 32 * 1024;
    let is_narrow = width / COLUMNS < u64::from(call.architecture.processors) / 2;
    (rows > MANY && width > 0 && is_narrow).then(|| rows.div_ceil(ROWS).min(MOST / width.div_ceil(COLUMNS)))
}

/// Samples times channels, and samples times groups, of a group norm.
fn extents(input: &Layout, statistics: &Layout) -> Option<(u64, u64)> {
    let &[samples, channels, ..] = &input.shape[..] else { return None };
    Some((product([samples, channels]), statistics.elements()))
}

/// A copy of what does not lie in the format that it suggests, statistics in 32 bits where the input has fewer, and the factor and
/// addend of each channel (`GroupNormKernelImplInternal` in `group_norm_kernel.cu`).
pub(super) fn group(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(mean)) = (call.input(0), call.outputs.get(1)) else { return };
    let Some((channels, groups)) = extents(input, mean) else { return };
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let mut blocks: Vec<usize> = copied(&mut taken, input, own_format(input)).into_iter().collect();
    let is_scaled = call.inputs.len() > 1;
    let has_rows = input.shape.iter().skip(2).any(|extent| *extent > 1);
    let has_statistics = input.dtype.size() < STATISTIC;
    for (count, is_taken) in [(groups, has_statistics), (channels, is_scaled || !has_rows)] {
        if is_taken {
            blocks.extend([0, 1].map(|_| taken.take(product([count, STATISTIC]))));
        }
    }
    taken.give_all(blocks);
}

/// Copies of input and gradient, two sums for each channel, and coefficients (`GroupNormBackwardKernelImplInternal`).
pub(super) fn group_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input), Some(mean)) = (call.input(0), call.input(1), call.input(2)) else { return };
    let Some((channels, groups)) = extents(input, mean) else { return };
    let (sums, coefficients) = (product([channels, STATISTIC]), product([groups, STATISTIC]));
    let has_rows = input.shape.iter().skip(2).any(|extent| *extent > 1);
    let format = own_format(input);
    let mut taken = Taken::new(uses);
    let copies: Vec<usize> =
        [input, gradient].into_iter().filter_map(|layout| copied(&mut taken, layout, format)).collect();
    taken.make(Outputs);
    let [first, second, third, fourth] = [sums, sums, coefficients, coefficients].map(|bytes| taken.take(bytes));
    let is_scaled = call.inputs.len() > 4;
    if has_rows && is_scaled && format == Format::ChannelsFirst {
        let factors = taken.take(sums);
        [fourth, third, factors].into_iter().for_each(|number| taken.give(number));
    } else {
        taken.give_all([third, fourth]);
    }
    taken.give_all(copies.into_iter().chain([first, second]));
}

/// The format that the strides of images suggest.
fn own_format(layout: &Layout) -> Format {
    Images::new(layout).filter(|_| layout.shape.len() > 3).map_or(Format::ChannelsFirst, |images| images.format())
}

/// A copy of what does not lie in a format.
fn copied(taken: &mut Taken<'_>, layout: &Layout, format: Format) -> Option<usize> {
    match Images::new(layout).filter(|_| layout.shape.len() > 3) {
        Some(images) => taken.copy(&images, format),
        None => taken.copy_of(Some(layout)),
    }
}

/// What thread blocks have of mean and variance, where channels lie beside each other
/// (`batch_norm_stats_channels_last_cuda_template` in `Normalization.cuh`), or where images have gaps (`batch_norm_mean_var`).
pub(super) fn batch(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    let Some(&channels) = input.shape.get(1) else { return };
    if !has_channels_last(input) {
        let inside = if input.is_contiguous() { Vec::new() } else { reduction::variance_of_channels(call, input) };
        if !inside.is_empty() {
            uses.push(Outputs);
            uses.extend(inside);
        }
    } else if let Some((staging, semaphores)) = staging(input.elements() / channels.max(1), channels, 4) {
        uses.extend([Outputs, Take(staging), Take(semaphores), Give(0), Give(1)]);
    }
}

/// Two sums for each channel, where channels lie beside each other, and what thread blocks have of them
/// (`batch_norm_backward_reduce_cuda_channels_last_template` in `Normalization.cuh`).
pub(super) fn batch_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input)) = (call.input(0), call.input(1)) else { return };
    if !has_channels_last(input) {
        of_planes(uses, [input, gradient]);
        return;
    }
    let Some(&channels) = input.shape.get(1) else { return };
    let sums = product([channels, STATISTIC]);
    uses.extend([Take(sums), Take(sums), Output(1), Output(2)]);
    let rows = input.elements() / channels.max(1);
    if let Some((staging, semaphores)) = staging(rows, channels, 2).filter(|_| has_channels_last(gradient)) {
        uses.extend([Take(staging), Take(semaphores), Give(0), Give(1), Outputs, Give(2), Give(3)]);
    } else {
        uses.extend([Outputs, Give(0), Give(1)]);
    }
}

/// Input and gradient with all places of an image as one dimension, copied where they do not lie so
/// (`batch_norm_backward_cuda_template`).
fn of_planes(uses: &mut Vec<Use>, read: [&Layout; 2]) {
    let mut taken = Taken::new(uses);
    let copies: Vec<usize> =
        read.into_iter().filter(|layout| !has_planes(layout)).map(|layout| taken.take(bytes(layout))).collect();
    if !copies.is_empty() {
        taken.make(Outputs);
        taken.give_all(copies);
    }
}

/// Whether the places of an image are a view with one dimension.
fn has_planes(layout: &Layout) -> bool {
    let places = layout.shape.iter().zip(&layout.strides).skip(2).filter(|(extent, _)| **extent != 1);
    let places: Vec<(&u64, &u64)> = places.collect();
    places.windows(2).all(|pair| *pair[0].1 == product([*pair[1].0, *pair[1].1]))
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
