//! Sums and the like along dimensions (`setReduceConfig` in `Reduce.cuh`).
//!
//! Where few outputs have many inputs each, several thread blocks work on one output, and write what they have so far to
//! memory, with a semaphore for each group of outputs.

use rematic_trace::Layout;

use super::{Call, Use, product};

const WARP: u64 = 32;
const THREADS: u64 = 512;
const FEWEST_VALUES: u64 = 16;
const MOST_VALUES: u64 = 256;
/// Values that a thread reads or writes at once.
const VECTOR: u64 = 4;
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

/// Sums, means, norms.
pub(super) fn reduce(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(staging) = call.input(0).and_then(|input| staging(call, input, accumulator(input))) {
        uses.push(Use::Outputs);
        uses.extend(staging);
    }
}

/// The largest or smallest, in the type of the elements.
pub(super) fn extreme(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(staging) = call.input(0).and_then(|input| staging(call, input, input.dtype.size())) {
        uses.push(Use::Outputs);
        uses.extend(staging);
    }
}

/// The largest or smallest with its place: a pair of both.
pub(super) fn place(call: &Call<'_>, uses: &mut Vec<Use>) {
    const PAIR: u64 = 16;
    if let Some(staging) = call.input(0).and_then(|input| staging(call, input, PAIR)) {
        uses.push(Use::Outputs);
        uses.extend(staging);
    }
}

/// What thread blocks have so far, and semaphores, where an input of that layout becomes the output.
pub(super) fn staging(call: &Call<'_>, input: &Layout, accumulator: u64) -> Option<[Use; 4]> {
    let shape = Shape::new(input, call.outputs.first()?)?;
    let threads = u64::from(call.architecture.processors) * threads_per_processor(call.architecture.capability);
    let (staging, semaphores) = shape.staging(accumulator, threads)?;
    Some([Use::Take(staging), Use::Take(semaphores), Use::Give(0), Use::Give(1)])
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
    fn new(input: &Layout, output: &Layout) -> Option<Self> {
        let (elements, outputs) = (input.elements(), output.elements());
        if elements == 0 || outputs == 0 || elements % outputs != 0 {
            return None;
        }
        let kept = kept(&input.shape, &output.shape)?;
        let dims = || input.shape.iter().zip(&input.strides).zip(&kept).filter(|((extent, _), _)| **extent > 1);
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
