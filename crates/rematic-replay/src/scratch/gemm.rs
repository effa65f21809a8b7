//! Products of matrices (`Blas.cpp`).

use rematic_trace::{Dtype, Layout};

use super::{Call, Use, bytes};

/// cuBLAS gets a workspace for each call (`getChosenWorkspaceSize` in `CUDABlas.cpp`): two chunks of 4 MiB and eight of 16
/// KiB, and 32 MiB since Hopper.
fn workspace(capability: u32) -> u64 {
    if capability >= 90 { 32 << 20 } else { 2 * (4096 << 10) + 8 * (16 << 10) }
}

/// cuBLASLt's (`_getWorkspaceSize`), which adds to the product in the same kernel.
const WITH_ADDEND: u64 = 1 << 20;

pub(super) fn product(call: &Call<'_>, uses: &mut Vec<Use>) {
    multiply(call, 0, workspace(call.architecture.capability), uses);
}

/// `baddbmm`: the addend is copied to the output first.
pub(super) fn with_matrices(call: &Call<'_>, uses: &mut Vec<Use>) {
    multiply(call, 1, workspace(call.architecture.capability), uses);
}

/// `addmm`: cuBLASLt where the addend is one row for all, or the type has 16 bits (`addmm_out_cuda_impl`).
pub(super) fn with_bias(call: &Call<'_>, uses: &mut Vec<Use>) {
    let by_lt = call.input(0).is_some_and(|addend| {
        let is_row = addend.shape.len() == 1 && addend.strides == [1];
        is_row || matches!(addend.dtype, Dtype::F16 | Dtype::Bf16)
    });
    multiply(call, 1, if by_lt { WITH_ADDEND } else { workspace(call.architecture.capability) }, uses);
}

/// Results lie by rows and cuBLAS writes columns, so it gets the second operand first.
fn multiply(call: &Call<'_>, first: usize, workspace: u64, uses: &mut Vec<Use>) {
    uses.push(Use::Outputs);
    let mut copies = 0;
    for operand in [first + 1, first] {
        if let Some(layout) = call.input(operand).filter(|layout| must_be_copied(layout)) {
            uses.push(Use::Take(bytes(layout)));
            copies += 1;
        }
    }
    uses.push(Use::Take(workspace));
    uses.extend((0..=copies).map(Use::Give));
}

/// Whether cuBLAS cannot read a matrix as it lies (`prepare_matrix_for_cublas`): one of its two last strides is 1, and the
/// other one leaves room.
fn must_be_copied(layout: &Layout) -> bool {
    let &[.., rows, columns] = &layout.shape[..] else { return false };
    let &[.., down, right] = &layout.strides[..] else { return false };
    let by_column = down == 1 && right >= rows.max(1);
    let by_row = right == 1 && down >= columns.max(1);
    // A matrix that is dense is one of the two, but for extents of 1; of several matrices only contiguous ones are.
    let dense = if layout.shape.len() == 2 { layout.is_dense() } else { layout.is_contiguous() && down * right != 0 };
    !(by_column || by_row || dense)
}
