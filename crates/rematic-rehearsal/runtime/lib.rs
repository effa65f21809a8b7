//! A CUDA runtime with no GPU behind it.
//!
//! PyTorch's own CUDA build runs on it as it is: its operators, autograd, streams and its caching allocator. Allocations
//! hand out addresses and no memory; kernels do nothing. So the sizes and the order of allocations are real. Values are
//! not, except those that were copied to the device and are copied back unchanged (`shadow`).
//!
//! The library is preloaded, so that its functions come before those of `libcudart` and `libcublas`, and it stands in for
//! `libcuda.so.1` and `libnvidia-ml.so.1`, which come with a driver. Names and signatures are those of CUDA 13.
//!
//! # Why `unsafe`
//! Every function here is called from C, with pointers of which CUDA's interface says who owns them and how long they are.
//! Exporting a name (`no_mangle`) is unsafe because it can collide with another one: that is the purpose. Pointers are
//! written through `put`, which skips null; bytes are copied where a copy was asked for, between ranges that the
//! caller promises; nothing else is read or written.
#![allow(unsafe_code)]
// C's names, and C's numbers: an `int` that counts devices is never negative.
#![allow(non_snake_case, clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]
// Who calls, and with what, is CUDA's documentation.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref, clippy::too_many_arguments, missing_docs)]
// What C calls is public, wherever it stands.
#![allow(unreachable_pub)]

mod allocation;
mod blas;
mod card;
mod copies;
mod cudnn;
mod device;
mod driver;
mod events;
mod graphs;
mod kernels;
mod management;
mod memory;
mod reads;
mod shadow;
mod status;
mod streams;
mod virtual_memory;

/// Writes an answer where the caller wants it.
///
/// # Safety
/// `place` is null or points to a `T` that may be written.
unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and by the contract above.
        unsafe { place.write_unaligned(value) };
    }
}
