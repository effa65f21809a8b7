use rematic_trace::Layout;

use super::factors::Factors;
use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out};
use crate::tensor::Tensor;

/// Whether a matrix lies column by column.
fn is_column_major(layout: &Layout) -> bool {
    layout.strides[0] == 1 && layout.strides[1] == layout.shape[0]
}

/// The gradient of the left factor, in the layout of the left factor.
fn left_gradient(gradient: &Tensor, right: &Tensor, left: &Layout) -> Tensor {
    if is_column_major(left) {
        let flipped = gradient.t();
        right.matmul_kernel(&flipped).t()
    } else {
        let flipped = right.t();
        gradient.matmul_kernel(&flipped)
    }
}

/// The gradient of the right factor, in the layout of the right factor.
fn right_gradient(gradient: &Tensor, left: &Tensor, right: &Layout) -> Tensor {
    if is_column_major(right) {
        let flipped = gradient.t();
        flipped.matmul_kernel(left).t()
    } else {
        let flipped = left.t();
        flipped.matmul_kernel(gradient)
    }
}

impl Tensor {
    fn product_layout(&self, op: &'static str, other: &Tensor) -> Layout {
        let ([.., rows, inner], [.., other_inner, columns]) = (self.shape(), other.shape()) else {
            self.tape().fail(mismatch(op, self, other));
            return self.layout().clone();
        };
        let batch = &self.shape()[..self.shape().len() - 2];
        if inner != other_inner || batch != &other.shape()[..other.shape().len() - 2] {
            self.tape().fail(mismatch(op, self, other));
        }
        let mut shape = batch.to_vec();
        shape.extend([rows, columns]);
        Layout::contiguous(self.dtype(), &shape)
    }

    pub(super) fn matmul_kernel(&self, other: &Tensor) -> Tensor {
        let out = Out::New(self.product_layout("mm.default", other));
        self.tape().launch_one(Kernel::new("mm.default", &[self, other], vec![out]))
    }

    /// The product of two matrices.
    #[must_use]
    pub fn mm(&self, other: &Tensor) -> Tensor {
        // Autocast looks at the last argument first, here and below.
        let other = &other.lowered();
        let this = &self.lowered();
        this.differentiable_mm(other)
    }

    fn differentiable_mm(&self, other: &Tensor) -> Tensor {
        let out = Out::New(self.product_layout("mm.default", other));
        let (factors, saves) = Factors::new(self, other);
        let (left, right) = (self.layout().clone(), other.layout().clone());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            let for_right = factors.left_for_right(gradients).map(|saved| right_gradient(gradient, saved, &right));
            let for_left = factors.right_for_left(gradients).map(|saved| left_gradient(gradient, saved, &left));
            vec![for_left, for_right]
        });
        let kernel = Kernel::new("mm.default", &[self, other], vec![out]);
        let derivative = Derivative { inputs: &[self, other], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `bias + left @ right`.
    #[must_use]
    pub fn addmm(bias: &Tensor, left: &Tensor, right: &Tensor) -> Tensor {
        let right = &right.lowered();
        let left = &left.lowered();
        let bias = &bias.lowered();
        Tensor::addmm_kernel(bias, bias, left, right)
    }

    /// A summand of `bias + left @ right`, of which every one of so many ranks has one: of the bias, an equal share.
    fn addmm_summand(bias: &Tensor, left: &Tensor, right: &Tensor) -> Tensor {
        let share = bias.tape().no_grad(|| bias.map("div.Tensor"));
        Tensor::addmm_kernel(bias, &share, left, right)
    }

    /// `added + left @ right`; the gradient is that of the bias.
    fn addmm_kernel(bias: &Tensor, added: &Tensor, left: &Tensor, right: &Tensor) -> Tensor {
        let out = Out::New(left.product_layout("addmm.default", right));
        let (factors, saves) = Factors::new(left, right);
        let (left_layout, right_layout) = (left.layout().clone(), right.layout().clone());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            let for_left = factors.right_for_left(gradients).map(|saved| left_gradient(gradient, saved, &left_layout));
            let for_right =
                factors.left_for_right(gradients).map(|saved| right_gradient(gradient, saved, &right_layout));
            let for_bias = gradients.wanted[0].then(|| gradient.clone());
            vec![for_bias, for_left, for_right]
        });
        let kernel = Kernel::new("addmm.default", &[added, left, right], vec![out]);
        let derivative = Derivative { inputs: &[bias, left, right], saves, backward };
        left.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The product of two stacks of matrices.
    #[must_use]
    pub fn bmm(&self, other: &Tensor) -> Tensor {
        let other = &other.lowered();
        let this = &self.lowered();
        this.differentiable_bmm(other)
    }

    fn differentiable_bmm(&self, other: &Tensor) -> Tensor {
        let out = Out::New(self.product_layout("bmm.default", other));
        let (factors, saves) = Factors::new(self, other);
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            let product = |left: &Tensor, right: &Tensor| {
                let out = Out::New(left.product_layout("bmm.default", right));
                left.tape().launch_one(Kernel::new("bmm.default", &[left, right], vec![out]))
            };
            let for_right = factors.left_for_right(gradients).map(|left| {
                let flipped = left.transpose(1, 2);
                product(&flipped, gradient)
            });
            let for_left = factors.right_for_left(gradients).map(|right| {
                let flipped = right.transpose(1, 2);
                product(gradient, &flipped)
            });
            vec![for_left, for_right]
        });
        let kernel = Kernel::new("bmm.default", &[self, other], vec![out]);
        let derivative = Derivative { inputs: &[self, other], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `self @ weight.T + bias` for a tensor of any rank, as `torch.nn.functional.linear` runs it on CUDA.
    #[must_use]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let bias = bias.map(Tensor::lowered);
        let weight = &weight.lowered();
        let this = &self.lowered();
        this.linear_kernels(weight, bias.as_ref(), Tensor::addmm)
    }

    /// A summand of [`Tensor::linear`], of which every rank has one.
    pub(crate) fn linear_summand(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        self.linear_kernels(weight, bias, Tensor::addmm_summand)
    }

    fn linear_kernels(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        addmm: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let Some((&features, leading)) = self.shape().split_last() else {
            self.tape().fail(mismatch("linear", self, weight));
            return self.clone();
        };
        let rows = leading.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent));
        let mut shape = leading.to_vec();
        shape.push(weight.size(0));
        let flat = shape.len() == 2;
        match bias {
            Some(bias) if flat => addmm(bias, self, &weight.t()),
            Some(bias) => {
                let folded = self.reshape(&[rows, features]);
                let flipped = weight.t();
                addmm(bias, &folded, &flipped).unsafe_view(&shape)
            }
            None if flat => {
                let flipped = weight.t();
                self.mm(&flipped)
            }
            None => {
                let flipped = weight.t();
                let folded = self.reshape(&[rows, features]);
                folded.mm(&flipped).unsafe_view(&shape)
            }
        }
    }
}

fn mismatch(op: &'static str, left: &Tensor, right: &Tensor) -> FakeError {
    FakeError::Shape {
        op,
        expected: "the inner extents of the factors must be equal",
        found: format!("{} and {}", left.layout(), right.layout()),
    }
}
