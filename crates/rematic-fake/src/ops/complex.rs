//! Complex numbers, which rotary embeddings may be computed with.

use rematic_trace::{Dtype, Layout};

use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

impl Tensor {
    /// Numbers of length 1 with these angles; without gradient.
    pub(crate) fn polar(&self) -> Tensor {
        let ones = self.ones_like();
        let layout = Layout { dtype: Dtype::C64, ..Layout::contiguous(Dtype::C64, self.shape()) };
        self.tape().launch_one(Kernel::new("polar.default", &[&ones, self], vec![Out::New(layout)]))
    }

    /// Pairs of the last dimension as complex numbers.
    pub(crate) fn as_complex(&self) -> Tensor {
        let mut layout = self.layout().clone();
        let (pair, step) = (layout.shape.pop(), layout.strides.pop());
        let fits = pair == Some(2) && step == Some(1) && layout.strides.iter().all(|stride| stride.is_multiple_of(2));
        if !fits {
            self.tape().fail(FakeError::Shape {
                op: "view_as_complex.default",
                expected: "pairs must lie side by side, an even number of elements apart",
                found: self.layout().to_string(),
            });
            return self.clone();
        }
        layout.dtype = Dtype::C64;
        layout.strides.iter_mut().for_each(|stride| *stride /= 2);
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().as_real())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        let kernel = Kernel::view("view_as_complex.default", self, vec![Out::View(self, layout)]);
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Complex numbers as pairs.
    pub(crate) fn as_real(&self) -> Tensor {
        let mut layout = self.layout().clone();
        layout.dtype = Dtype::F32;
        layout.strides.iter_mut().for_each(|stride| *stride = stride.saturating_mul(2));
        layout.shape.push(2);
        layout.strides.push(1);
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let dense = gradients.output().contiguous();
            vec![Some(dense.as_complex())]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        let kernel = Kernel::view("view_as_real.default", self, vec![Out::View(self, layout)]);
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Complex numbers times others that have no gradient.
    pub(crate) fn turned_by(&self, other: &Tensor) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let other = &gradients.saved[0];
            let conjugate = {
                let view = Kernel::view("_conj.default", other, vec![Out::View(other, other.layout().clone())]);
                gradients.tape.launch_one(view).map("clone.default")
            };
            vec![Some(gradients.output().zip("mul.Tensor", &conjugate))]
        });
        let out = self.elementwise("mul.Tensor", &[other], Dtype::C64);
        let kernel = Kernel::new("mul.Tensor", &[self, other], vec![out]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(other)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }
}
