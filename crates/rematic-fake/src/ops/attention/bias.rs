//! What is added to the scores of attention.

use rematic_trace::{Dtype, Layout};

use crate::kernel::{Kernel, Out};
use crate::ops::elementwise::elementwise_layout;
use crate::tensor::Tensor;

/// The memory-efficient kernel reads the rows of a bias in steps of this many elements.
const BIAS_ALIGNMENT: u64 = 8;
/// It fills the rows of a bias's gradient up to so many elements.
pub(super) const BIAS_GRADIENT_ALIGNMENT: u64 = 16;

pub(super) fn causal_bias(query: &Tensor, keys: u64) -> Tensor {
    let square = Layout::contiguous(Dtype::Bool, &[query.size(2), keys]);
    let lower = {
        let ones = query.tape().launch_one(Kernel::new("ones.default", &[], vec![Out::New(square)]));
        ones.map("tril.default")
    };
    lower.as_bias(query.dtype())
}

impl Tensor {
    /// The numbers to add to the scores: 0 where the mask is true, minus infinity elsewhere.
    pub(super) fn as_bias(&self, dtype: Dtype) -> Tensor {
        let number = || {
            let layout = Layout::contiguous(dtype, &[]);
            self.tape().launch_one(Kernel::new("scalar_tensor.default", &[], vec![Out::New(layout)]))
        };
        let (zero, infinity) = (number(), number());
        let layout = elementwise_layout(dtype, &[self.layout()]).unwrap_or_else(|| self.layout().clone());
        self.tape().launch_one(Kernel::new("where.self", &[self, &zero, &infinity], vec![Out::New(layout)]))
    }

    /// As [`Self::as_bias`], as transformers makes it of the least number of a type: 0 is a tensor, the other a number.
    pub(crate) fn as_numbers(&self, dtype: Dtype) -> Tensor {
        let number = |name| {
            let layout = Layout::contiguous(dtype, &[]);
            self.tape().launch_one(Kernel::new(name, &[], vec![Out::New(layout)]))
        };
        let (zero, least) = (number("zeros.default"), number("scalar_tensor.default"));
        let layout = elementwise_layout(dtype, &[self.layout()]).unwrap_or_else(|| self.layout().clone());
        self.tape().launch_one(Kernel::new("where.self", &[self, &zero, &least], vec![Out::New(layout)]))
    }

    /// The bias with its rows aligned, padded if need be, and expanded over the heads.
    pub(super) fn aligned_bias(self, query: &Tensor, key: &Tensor) -> Tensor {
        let (keys, strides) = (self.size(-1), &self.layout().strides);
        let aligned = strides
            .split_last()
            .is_none_or(|(last, outer)| *last == 1 && outer.iter().all(|stride| stride.is_multiple_of(BIAS_ALIGNMENT)));
        let shape = [query.size(0), query.size(1), query.size(2), key.size(2)];
        if aligned {
            return self.expand(&shape);
        }
        let rows = {
            let padded = self.padded_width(BIAS_ALIGNMENT - keys % BIAS_ALIGNMENT);
            padded.slice(-1, 0, keys)
        };
        rows.expand(&shape)
    }
}
