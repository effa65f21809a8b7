//! Operators that are made of several: what lies between the parts.

use rematic_trace::Layout;

use super::Use::{Give, Output, Outputs, Take};
use super::images::Taken;
use super::{Call, Use, bytes, reduction};

/// The mask comes first (`dropout_cuda` in `Dropout.cu`).
pub(super) fn dropout(_: &Call<'_>, uses: &mut Vec<Use>) {
    uses.extend([Output(1), Outputs]);
}

/// A copy of what is not contiguous (`host_softmax` in `SoftMax.cu`).
pub(super) fn softmax(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0).filter(|input| !input.is_contiguous()) {
        uses.extend([Outputs, Take(bytes(input)), Give(0)]);
    }
}

/// The product of output and gradient, and copies of both if they are not contiguous (`softmax_backward_cuda_out` in `SoftMax.cu`).
pub(super) fn softmax_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(gradient) = call.input(0) else { return };
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let product = taken.take(bytes(gradient));
    let copies = [0, 1].map(|index| taken.copy_of(call.input(index)));
    taken.give_all([product].into_iter().chain(copies.into_iter().flatten()));
}

/// Copies of gradient and output (`host_softmax_backward` in `SoftMax.cu`).
pub(super) fn log_softmax_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let mut read = call.inputs.iter().take(2);
    if read.all(|layout| layout.is_contiguous()) {
        return;
    }
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let copies = [0, 1].map(|index| taken.copy_of(call.input(index)));
    taken.give_all(copies.into_iter().flatten());
}

/// What softmax makes of rows in which nothing is allowed: whether each number is minus infinity, whether all of a row are, and
/// the zero that is put there (`_safe_softmax` in `SoftMax.cpp`).
pub(super) fn safe_softmax(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    let count = input.elements();
    let rows = count / input.shape.last().copied().unwrap_or(1).max(1);
    uses.extend([Outputs, Take(count), Take(rows), Take(input.dtype.size()), Give(0), Give(1), Give(2)]);
}

/// What each element adds to the loss, if that is added up (`mse_loss_out`, `smooth_l1_loss_out` in `Loss.cpp`).
pub(super) fn summed_loss(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = summed(call) else { return };
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let elements = taken.take(bytes(input));
    taken.extend(reduction::staging(call, input, input.dtype.size().max(4)));
    taken.give(elements);
}

/// The same before the result is made: once (`huber_loss`), and twice (`binary_cross_entropy_with_logits`).
pub(super) fn loss_then_sum(call: &Call<'_>, uses: &mut Vec<Use>) {
    before_the_sum(call, 1, uses);
}

pub(super) fn two_losses_then_sum(call: &Call<'_>, uses: &mut Vec<Use>) {
    before_the_sum(call, 2, uses);
}

fn before_the_sum(call: &Call<'_>, count: usize, uses: &mut Vec<Use>) {
    let Some(input) = summed(call) else { return };
    let mut taken = Taken::new(uses);
    let elements: Vec<usize> = (0..count).map(|_| taken.take(bytes(input))).collect();
    taken.make(Outputs);
    taken.extend(reduction::staging(call, input, input.dtype.size().max(4)));
    taken.give_all(elements);
}

/// The input of a loss that becomes one number.
fn summed<'a>(call: &'a Call<'_>) -> Option<&'a Layout> {
    call.outputs.first().filter(|output| output.shape.is_empty()).and(call.input(0))
}

/// One dimension after the other, each into memory of its own (`roll_common`). A trace does not say over how many: windows of images
/// are moved along all dimensions but the first and the last.
pub(super) fn roll(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    let steps = input.shape.len().saturating_sub(3);
    let mut taken = Taken::new(uses);
    let between: Vec<usize> = (0..steps).map(|_| taken.take(bytes(input))).collect();
    if !between.is_empty() {
        taken.make(Outputs);
        taken.give_all(between);
    }
}

/// The largest of each row, whether it is infinite, and the exponentials (`logsumexp_out_impl` in `ReduceOps.cpp`).
pub(super) fn log_sum_exp(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(output)) = (call.input(0), call.outputs.first()) else { return };
    let (largest, rows) = (bytes(output), output.elements());
    uses.extend([Take(largest), Take(largest), Take(rows), Give(0), Give(1), Take(bytes(input)), Outputs]);
    uses.extend([Give(0), Give(3)]);
}

/// The norm of each of many tensors: where the parts of each begin, and the sum of each part of 65,536
/// (`foreach_tensor_norm_cuda` in `ForeachReduceOp.cu`).
pub(super) fn norms(call: &Call<'_>, uses: &mut Vec<Use>) {
    const PART: u64 = 65_536;
    let parts = call.inputs.iter().fold(0, |all: u64, each| all.saturating_add(each.elements().div_ceil(PART)));
    let begins = (call.inputs.len() as u64 + 1) * 8;
    uses.extend([Take(begins), Take(parts.saturating_mul(4)), Outputs, Give(0), Give(1)]);
}
