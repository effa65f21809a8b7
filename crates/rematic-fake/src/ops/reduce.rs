use rematic_trace::{Dtype, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out};
use crate::tensor::Tensor;

impl Tensor {
    pub(crate) fn reduced_shape(&self, dims: &[usize], keep: bool) -> Vec<u64> {
        let extents = self.shape().iter().enumerate();
        extents
            .filter(|(dim, _)| keep || !dims.contains(dim))
            .map(|(dim, &extent)| if dims.contains(&dim) { 1 } else { extent })
            .collect()
    }

    /// The sum of all elements.
    #[must_use]
    pub fn sum(&self) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), &[]);
        let shape = self.shape().to_vec();
        let backward = Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().expand(&shape))]);
        let kernel = Kernel::new("sum.default", &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The mean over the last dimension, which stays with extent 1.
    #[must_use]
    pub fn mean_last(&self) -> Tensor {
        let last = self.shape().len().saturating_sub(1);
        let layout = Layout::contiguous(self.dtype(), &self.reduced_shape(&[last], true));
        let shape = self.shape().to_vec();
        let backward =
            Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().expand(&shape).map("div.Scalar"))]);
        let kernel = Kernel::new("mean.dim", &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The sum over one dimension, which stays with extent 1 or goes.
    pub(crate) fn sum_dim(&self, dim: isize, keep: bool) -> Tensor {
        let axis = self.axis(dim);
        // Autocast asks for single precision.
        let is_raised = self.tape().autocast_dtype().is_some() && matches!(self.dtype(), Dtype::Bf16 | Dtype::F16);
        let dtype = if is_raised { Dtype::F32 } else { self.dtype() };
        let layout = Layout::contiguous(dtype, &self.reduced_shape(&[axis], keep));
        let shape = self.shape().to_vec();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            vec![Some(if keep { gradient.expand(&shape) } else { gradient.unsqueeze(dim).expand(&shape) })]
        });
        let kernel = Kernel::new("sum.dim_IntList", &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Undoes broadcasting: sums the dimensions that `shape` does not have or has with extent 1. Not differentiated.
    /// Takes the tensor, because it goes as soon as it is summed.
    pub(crate) fn sum_to(self, shape: &[u64]) -> Tensor {
        if shape.is_empty() {
            let layout = Layout::contiguous(self.dtype(), &[]);
            return self.tape().launch_one(Kernel::new("sum.default", &[&self], vec![Out::New(layout)]));
        }
        let leading = self.shape().len().saturating_sub(shape.len());
        let dims: Vec<usize> = (0..self.shape().len())
            .filter(|&dim| dim < leading || shape[dim - leading] == 1 && self.shape()[dim] != 1)
            .collect();
        let mut total = self;
        if !dims.is_empty() {
            let layout = Layout::contiguous(total.dtype(), &total.reduced_shape(&dims, true));
            total = total.tape().launch_one(Kernel::new("sum.dim_IntList", &[&total], vec![Out::New(layout)]));
        }
        if leading > 0 {
            total = total.view(shape);
        }
        total
    }

    /// A single one of another type.
    pub(crate) fn new_ones(&self, dtype: Dtype) -> Tensor {
        let layout = Layout::contiguous(dtype, &[]);
        self.tape().launch_one(Kernel::new("new_ones.default", &[self], vec![Out::New(layout)]))
    }

    /// Numbers from 0 to `end`, as 64-bit integers. `overload` is `default` for `arange(end)` and `start` for
    /// `arange(0, end)`.
    #[must_use]
    pub fn arange(tape: &crate::Tape, end: u64, overload: ArangeOverload) -> Tensor {
        let name = match overload {
            ArangeOverload::End => "arange.default",
            ArangeOverload::StartEnd => "arange.start",
        };
        let layout = Layout::contiguous(Dtype::I64, &[end]);
        tape.launch_one(Kernel::new(name, &[], vec![Out::New(layout)]))
    }
}

/// Which of PyTorch's spellings of `arange` a model uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArangeOverload {
    /// `arange(end)`.
    End,
    /// `arange(0, end)`.
    StartEnd,
}
