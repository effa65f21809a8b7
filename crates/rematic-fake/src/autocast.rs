//! `torch.autocast` on CUDA: which operators compute in half precision, which in single, and what is cast for that.
//!
//! The lists are those of `ATen/autocast_mode.h`. Casts are operators of their own, which autograd differentiates. A weight is
//! cast once in a block, and its copy lives until the block is left.

use rematic_trace::Dtype;

use crate::tape::Tape;
use crate::tensor::Tensor;

/// A block in which autocast is on.
pub(crate) struct Autocast {
    dtype: Dtype,
    /// Weights that were cast, with their copies.
    copies: Vec<(Tensor, Tensor)>,
}

impl Tape {
    /// Runs `body` as in `with torch.autocast("cuda", dtype)`; without a type, as it is.
    pub(crate) fn autocast<R>(&self, dtype: Option<Dtype>, body: impl FnOnce() -> R) -> R {
        let block = dtype.map(|dtype| Autocast { dtype, copies: Vec::new() });
        let outer = self.with(|state| std::mem::replace(&mut state.autocast, block));
        let result = body();
        let left = self.with(|state| std::mem::replace(&mut state.autocast, outer));
        // Dropped here, where the tape is not borrowed.
        drop(left);
        result
    }

    /// Runs `body` without autocast, as the inside of an operator that autocast has seen already. Copies of weights stay.
    pub(crate) fn inside_operator<R>(&self, body: impl FnOnce() -> R) -> R {
        let block = self.with(|state| state.autocast.take());
        let result = body();
        self.with(|state| state.autocast = block);
        result
    }

    pub(crate) fn autocast_dtype(&self) -> Option<Dtype> {
        self.state().autocast.as_ref().map(|block| block.dtype)
    }
}

impl Tensor {
    /// An argument of an operator that autocast runs in half precision.
    pub(crate) fn lowered(&self) -> Tensor {
        match self.tape().autocast_dtype() {
            Some(dtype) if self.is_castable() && self.dtype() != dtype => self.cast_once(dtype),
            _ => self.clone(),
        }
    }

    /// An argument of an operator that autocast runs in single precision.
    pub(crate) fn raised(&self) -> Tensor {
        match self.tape().autocast_dtype() {
            Some(_) if self.is_castable() => self.to(Dtype::F32),
            _ => self.clone(),
        }
    }

    fn is_castable(&self) -> bool {
        self.dtype().is_float() && self.dtype() != Dtype::F64
    }

    /// Weights, which are leaves in single precision, are cast once in a block.
    fn cast_once(&self, dtype: Dtype) -> Tensor {
        if !(self.is_leaf() && self.dtype() == Dtype::F32) {
            return self.to(dtype);
        }
        let known = self.tape().state().autocast.as_ref().and_then(|block| {
            block.copies.iter().find(|(weight, _)| weight.storage() == self.storage()).map(|(_, copy)| copy.clone())
        });
        known.unwrap_or_else(|| {
            let copy = self.to(dtype);
            let kept = (self.clone(), copy.clone());
            self.tape().with(|state| {
                if let Some(block) = &mut state.autocast {
                    block.copies.push(kept);
                }
            });
            copy
        })
    }
}
