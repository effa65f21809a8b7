//! Sums and the like along dimensions (`setReduceConfig` in `Reduce.cuh`).
//!
//! Where few outputs have many inputs each, several thread blocks work on one output, and write what they have so far to
//! memory, with a semaphore for each group of outputs.

use rematic_trace::{Dtype, Layout};

use super::{Call, Use, bytes, product};

const WARP: u64 = 32;
const THREADS: u64 = 512;
const FEWEST_VALUES: u64 = 16;
const MOST_VALUES: u64 = 256;
/// Values that a thread reads or writes at once.
const VECTOR: u64 = 4;
/// Bytes of a number with its place, and of what a variance is made of.
const PAIR: u64 = 16;
const VARIANCE: u64 = 16;
/// Threads that a multiprocessor runs at once, by compute capability.
fn threads_per_processor(capability: u32) -> u64 {
    match capability {
        75 => 1024,
        86 | 87 | 89 | 120 | 121 => 1536,
        _ => 2048,
    }
}
/// Numbers are added up in 32 bits, or in what they have if that is more.
fn accumulator(layout: &Layout) -> u64 {
    layout.dtype.size().max(4)
}

/// Sums, means, norms. What has fewer bits than a result of whole numbers is made as wide first.
pub(super) fn reduce(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(output)) = (call.input(0), call.outputs.first()) else { return };
    if output.dtype == Dtype::I64 && input.dtype != Dtype::I64 {
        let wide = as_dense(input, output.dtype);
        let inside = staging(call, &wide, accumulator(&wide));
        let taken = inside.iter().filter(|each| matches!(each, Use::Take(_))).count();
        uses.extend([Use::Outputs, Use::Take(bytes(&wide))]);
        uses.extend(inside);
        uses.push(Use::Give(taken));
        return;
    }
    outputs_first(staging(call, input, accumulator(input)), uses);
}

/// A copy in another type, which lies as the original does if that has no gaps.
fn as_dense(layout: &Layout, dtype: Dtype) -> Layout {
    if layout.is_dense() { Layout { dtype, ..layout.clone() } } else { Layout::contiguous(dtype, &layout.shape) }
}

/// The largest or smallest, and whether any is or all are, in the type of the elements.
pub(super) fn extreme(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0) {
        outputs_first(staging(call, input, input.dtype.size()), uses);
    }
}

/// Both the largest and the smallest.
pub(super) fn extremes(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0) {
        outputs_first(staging(call, input, 2 * input.dtype.size()), uses);
    }
}

/// Mean, sum of squares and counts (`WelfordData`).
pub(super) fn variance(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0).filter(|input| input.dtype.size() <= 4) {
        outputs_first(staging(call, input, VARIANCE), uses);
    }
}

/// The largest or smallest with its place: a pair of both.
pub(super) fn place(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    if call.outputs.first().is_some_and(|output| output.shape.is_empty()) {
        of_all(call, input, PAIR, uses);
    } else {
        outputs_first(staging(call, input, PAIR), uses);
    }
}

/// The largest or smallest of all (`max_all_kernel_impl`).
pub(super) fn extreme_of_all(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0) {
        of_all(call, input, input.dtype.size(), uses);
    }
}

/// What lies with gaps or the other way is copied first.
fn of_all(call: &Call<'_>, input: &Layout, accumulator: u64, uses: &mut Vec<Use>) {
    let inside = staging(call, &Layout::contiguous(input.dtype, &input.shape), accumulator);
    if input.is_contiguous() {
        outputs_first(inside, uses);
        return;
    }
    let taken = inside.iter().filter(|each| matches!(each, Use::Take(_))).count();
    uses.extend([Use::Outputs, Use::Take(bytes(input))]);
    uses.extend(inside);
    uses.push(Use::Give(taken));
}

fn outputs_first(staging: Vec<Use>, uses: &mut Vec<Use>) {
    if !staging.is_empty() {
        uses.push(Use::Outputs);
        uses.extend(staging);
    }
}

/// What thread blocks have so far, and semaphores, where an input of that layout becomes the output.
pub(super) fn staging(call: &Call<'_>, input: &Layout, accumulator: u64) -> Vec<Use> {
    let Some(output) = call.outputs.first() else { return Vec::new() };
    let Some(kept) = kept(&input.shape, &output.shape) else { return Vec::new() };
    Reduction { input, kept, accumulator, result: output.dtype.size() }.uses(call)
}

/// The same for the sum of rows.
pub(super) fn rows(call: &Call<'_>, input: &Layout) -> Vec<Use> {
    Reduction { input, kept: vec![false, true], accumulator: accumulator(input), result: input.dtype.size() }.uses(call)
}

/// The same for the variance of each channel of images.
pub(super) fn variance_of_channels(call: &Call<'_>, input: &Layout) -> Vec<Use> {
    let kept = (0..input.shape.len()).map(|dim| dim == 1).collect();
    Reduction { input, kept, accumulator: VARIANCE, result: input.dtype.size() }.uses(call)
}

/// The same where the channels of images are left.
pub(super) fn channels(call: &Call<'_>, input: &Layout) -> Vec<Use> {
    let kept = (0..input.shape.len()).map(|dim| dim == 1).collect();
    Reduction { input, kept, accumulator: accumulator(input), result: input.dtype.size() }.uses(call)
}

struct Reduction<'a> {
    input: &'a Layout,
    /// Which dimensions stay.
    kept: Vec<bool>,
    /// The bytes of a number while it is added to, and those of a result.
    accumulator: u64,
    result: u64,
}

impl Reduction<'_> {
    fn uses(&self, call: &Call<'_>) -> Vec<Use> {
        let threads = u64::from(call.architecture.processors) * threads_per_processor(call.architecture.capability);
        let staging = |input: &Layout, kept: &[bool]| -> Option<[Use; 4]> {
            let (staging, semaphores) = Shape::keeping(input, kept)?.staging(self.accumulator, threads)?;
            Some([Use::Take(staging), Use::Take(semaphores), Use::Give(0), Use::Give(1)])
        };
        if is_in_reach(self.input) {
            return staging(self.input, &self.kept).into_iter().flatten().collect();
        }
        self.in_parts(staging)
    }

    /// Addresses in a kernel have 32 bits, so what is larger is added up part by part. Between the parts numbers are kept as wide as
    /// they are added (`AccumulationBuffer`).
    fn in_parts(&self, staging: impl Fn(&Layout, &[bool]) -> Option<[Use; 4]>) -> Vec<Use> {
        let (whole, kept) = self.joined();
        let results = whole
            .shape
            .iter()
            .zip(&kept)
            .filter(|(_, kept)| **kept)
            .fold(1, |all, (extent, _)| product([all, *extent]));
        let is_kept = self.accumulator > self.result;
        let mut uses: Vec<Use> = Vec::new();
        uses.extend(is_kept.then(|| Use::Take(product([results, self.accumulator]))));
        let mut since = 0;
        for part in parts(whole) {
            if let Some(inside) = staging(&part, &kept) {
                uses.extend(inside);
                since += 2;
            }
        }
        uses.extend(is_kept.then_some(Use::Give(since)));
        uses
    }

    /// With dimensions that lie as one as one: those that go first, then those that stay, each from the innermost out
    /// (`reorder_dimensions` and `coalesce_dimensions` in `TensorIterator.cpp`). The innermost is the last here.
    fn joined(&self) -> (Layout, Vec<bool>) {
        let dims = self.input.shape.iter().zip(&self.input.strides).zip(&self.kept);
        let mut dims: Vec<(bool, u64, u64)> = dims
            .filter(|((extent, _), _)| **extent != 1)
            .map(|((extent, stride), kept)| (*kept, *stride, *extent))
            .collect();
        dims.sort_by_key(|(kept, stride, _)| (*kept, *stride));
        let mut joined: Vec<(bool, u64, u64)> = Vec::new();
        for (kept, stride, extent) in dims {
            match joined.last_mut() {
                Some((before, inner, size)) if *before == kept && product([*inner, *size]) == stride => {
                    *size = product([*size, extent]);
                }
                _ => joined.push((kept, stride, extent)),
            }
        }
        let layout = Layout {
            dtype: self.input.dtype,
            shape: joined.iter().rev().map(|(_, _, extent)| *extent).collect(),
            strides: joined.iter().rev().map(|(_, stride, _)| *stride).collect(),
        };
        (layout, joined.iter().rev().map(|(kept, _, _)| *kept).collect())
    }
}

/// Whether 32 bits are enough to number the elements and to say where they are (`can_use_32bit_indexing`).
fn is_in_reach(layout: &Layout) -> bool {
    const REACH: u64 = i32::MAX as u64;
    let steps = layout.shape.iter().zip(&layout.strides);
    let last =
        steps.fold(0, |all: u64, (extent, stride)| all.saturating_add(product([extent.saturating_sub(1), *stride])));
    layout.elements() <= REACH && product([last, layout.dtype.size()]) < REACH
}

/// The parts, in order: what is too large is halved along the dimension that reaches farthest (`SplitUntil32Bit`). Of a file that says
/// it is larger than any tensor, there are no more than some.
fn parts(whole: Layout) -> Vec<Layout> {
    const MOST: usize = 4096;
    let (mut left, mut parts) = (vec![whole], Vec::new());
    while let Some(mut part) = left.pop() {
        let reach = |dim: &usize| product([part.shape[*dim].saturating_sub(1), part.strides[*dim]]);
        let farthest = (0..part.shape.len()).max_by_key(reach).filter(|dim| part.shape[*dim] > 1);
        let Some(dim) = farthest.filter(|_| !is_in_reach(&part) && left.len() + parts.len() < MOST) else {
            parts.push(part);
            continue;
        };
        let mut first = part.clone();
        first.shape[dim] /= 2;
        part.shape[dim] -= first.shape[dim];
        left.extend([part, first]);
    }
    parts
}

/// A reduction as the kernel sees it.
struct Shape {
    outputs: u64,
    inputs_per_output: u64,
    /// Whether the elements that lie next to each other are added up.
    along_fastest: bool,
    /// Whether all is one run of elements.
    is_flat: bool,
    /// How many outputs a thread can have at once.
    vector: u64,
}

impl Shape {
    /// By which dimensions stay.
    fn keeping(input: &Layout, kept: &[bool]) -> Option<Self> {
        let stay = input.shape.iter().zip(kept).filter(|(_, kept)| **kept);
        let (elements, outputs) = (input.elements(), stay.fold(1, |all: u64, (extent, _)| all.saturating_mul(*extent)));
        if elements == 0 || outputs == 0 || elements % outputs != 0 {
            return None;
        }
        let dims = || input.shape.iter().zip(&input.strides).zip(kept).filter(|((extent, _), _)| **extent > 1);
        let fastest = |keeps: bool| dims().filter(|(_, kept)| **kept == keeps).map(|((_, stride), _)| *stride).min();
        let (reduced, left) = (fastest(false), fastest(true));
        let along_fastest = match (reduced, left) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(reduced), Some(left)) => reduced < left,
        };
        let is_flat = outputs == 1 && input.is_contiguous();
        // The innermost dimension that is kept must be a multiple of what a thread takes, and all others must lie so.
        let row = dims().filter(|((_, stride), kept)| **kept && Some(**stride) == left).map(|((extent, _), _)| *extent);
        let strides = dims().map(|((_, stride), _)| *stride).filter(|stride| *stride != 1);
        let vector = row.chain(strides).fold(VECTOR, largest_divisor);
        let vector = if left == Some(1) && !along_fastest { vector } else { 1 };
        Some(Shape { outputs, inputs_per_output: elements / outputs, along_fastest, is_flat, vector })
    }

    /// The bytes for what the thread blocks have so far, and those of their semaphores.
    fn staging(&self, accumulator: u64, threads: u64) -> Option<(u64, u64)> {
        let (mut across, down) = if self.along_fastest {
            (self.inputs_per_output, self.outputs)
        } else {
            (self.outputs, self.inputs_per_output)
        };
        if self.along_fastest && self.is_flat && across > 128 {
            across /= VECTOR;
        } else if !self.along_fastest {
            across /= self.vector;
        }
        let (width, height) = block(across, down, THREADS / self.vector);
        let mut step = if self.along_fastest { width } else { 1 };
        let mut outputs_per_block = if self.along_fastest { 1 } else { width };
        let values = |step: u64| self.inputs_per_output.div_ceil(step);
        let splits = values(step) >= (height * 16).min(MOST_VALUES);
        if splits {
            step *= height;
        } else {
            outputs_per_block *= height;
        }
        let target = threads / (width * height);
        let grid = (self.outputs / self.vector).div_ceil(outputs_per_block);
        if !splits || values(step) < MOST_VALUES || grid > target {
            return None;
        }
        let filled = target.div_ceil(grid).min(values(step).div_ceil(FEWEST_VALUES));
        let blocks = filled.max(values(step).div_ceil(MOST_VALUES));
        if blocks <= 1 {
            return None;
        }
        // Lanes that work on one output add up among themselves first.
        let lanes = if self.along_fastest { 1 } else { width * self.vector };
        Some((product([accumulator, self.outputs, blocks, lanes]), product([4, grid])))
    }
}

/// Which dimensions stay: those of the output, in order; the first ones go where it could be either.
fn kept(input: &[u64], output: &[u64]) -> Option<Vec<bool>> {
    if input.len() == output.len() {
        return Some(input.iter().zip(output).map(|(before, after)| before == after).collect());
    }
    let mut left = output.iter().rev().peekable();
    let mut kept: Vec<bool> = input.iter().rev().map(|extent| left.next_if(|size| *size == extent).is_some()).collect();
    kept.reverse();
    left.peek().is_none().then_some(kept)
}

/// Threads across and down a block (`set_block_dimension`).
fn block(across: u64, down: u64, most: u64) -> (u64, u64) {
    let power = |size: u64| if size < most { last_power(size) } else { most };
    let (across, down) = (power(across), power(down));
    let width = across.min(WARP);
    let height = down.min(most / width);
    (across.min(most / height), height)
}

fn last_power(size: u64) -> u64 {
    1 << size.max(1).ilog2()
}

/// The largest power of two up to a vector's length that divides a size.
fn largest_divisor(mut vector: u64, size: u64) -> u64 {
    while vector > 1 && !size.is_multiple_of(vector) {
        vector /= 2;
    }
    vector
}
