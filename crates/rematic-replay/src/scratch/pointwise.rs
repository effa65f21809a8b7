//! Operators that are made of several: what lies between the parts.

use super::Use::{Give, Output, Outputs, Take};
use super::{Call, Use, bytes, reduction};

/// The mask comes first (`dropout_cuda` in `Dropout.cu`).
pub(super) fn dropout(_: &Call<'_>, uses: &mut Vec<Use>) {
    uses.extend([Output(1), Outputs]);
}

/// The product of output and gradient (`softmax_backward_cuda_out` in `SoftMax.cu`).
pub(super) fn softmax_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(gradient) = call.input(0) else { return };
    uses.extend([Outputs, Take(bytes(gradient)), Give(0)]);
}

/// What softmax makes of rows in which nothing is allowed: whether each number is minus infinity, whether all of a row are, and
/// the zero that is put there (`_safe_softmax` in `SoftMax.cpp`).
pub(super) fn safe_softmax(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0) else { return };
    let count = input.elements();
    let rows = count / input.shape.last().copied().unwrap_or(1).max(1);
    uses.extend([Outputs, Take(count), Take(rows), Take(input.dtype.size()), Give(0), Give(1), Give(2)]);
}

/// Squares, if they are added up (`mse_loss_out` in `Loss.cpp`).
pub(super) fn square_loss(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(output)) = (call.input(0), call.outputs.first()) else { return };
    if !output.shape.is_empty() {
        return;
    }
    uses.extend([Outputs, Take(bytes(input))]);
    let inside = reduction::staging(call, input, input.dtype.size().max(4));
    let steps = inside.iter().filter(|each| matches!(each, Use::Take(_))).count();
    uses.extend(inside);
    uses.push(Give(steps));
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
