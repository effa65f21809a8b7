//! Products of matrices.

use rematic_trace::Layout;

use super::{Call, Use, bytes};

/// cuBLAS gets a workspace for each call (`getChosenWorkspaceSize` in `CUDABlas.cpp`): two chunks of 4 MiB and eight of 16
/// KiB, and 32 MiB since Hopper.
fn workspace(capability: u32) -> u64 {
    if capability >= 90 { 32 << 20 } else { 2 * (4096 << 10) + 8 * (16 << 10) }
}

/// cuBLASLt's (`_getWorkspaceSize`), which adds a bias in the same kernel.
const WITH_BIAS: u64 = 1 << 20;

pub(super) fn product(call: &Call<'_>, uses: &mut Vec<Use>) {
    multiply(call, 0, workspace(call.architecture.capability), uses);
}

pub(super) fn with_bias(call: &Call<'_>, uses: &mut Vec<Use>) {
    // The bias is one row for all (`addmm_out_cuda_impl`); another addend is copied to the output first.
    let bias = call.input(0).is_some_and(|bias| bias.shape.len() == 1 && bias.strides == [1]);
    let bytes = if bias { WITH_BIAS } else { workspace(call.architecture.capability) };
    multiply(call, 1, bytes, uses);
}

fn multiply(call: &Call<'_>, first: usize, workspace: u64, uses: &mut Vec<Use>) {
    uses.push(Use::Outputs);
    let operands = call.inputs.iter().skip(first).take(2);
    let copies: Vec<u64> = operands.filter(|layout| must_be_copied(layout)).map(|layout| bytes(layout)).collect();
    uses.extend(copies.iter().map(|&copy| Use::Take(copy)));
    uses.push(Use::Take(workspace));
    uses.push(Use::Give(0));
    uses.extend((0..copies.len()).map(|copy| Use::Give(copy + 1)));
}

/// Whether cuBLAS cannot read a matrix as it lies (`prepare_matrix_for_cublas`): one of its two last strides is 1, and the
/// other one leaves room.
fn must_be_copied(layout: &Layout) -> bool {
    let &[.., rows, columns] = &layout.shape[..] else { return false };
    let &[.., down, right] = &layout.strides[..] else { return false };
    let by_column = down == 1 && right >= rows.max(1);
    let by_row = right == 1 && down >= columns.max(1);
    !(by_column || by_row || layout.is_dense())
}
