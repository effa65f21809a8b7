//! What sends tokens to experts: choosing, sorting, gathering rows, and products of groups of rows with one matrix each.

use rematic_trace::{Dtype, Layout};

use super::factors::Factors;
use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

impl Tensor {
    /// The largest `count` of the last dimension, and where they are.
    pub(crate) fn top(&self, count: u64) -> (Tensor, Tensor) {
        self.top_for(count, None)
    }

    /// The same on several ranks, each of which has a summand of the gradient.
    pub(crate) fn top_for(&self, count: u64, group: Option<TensorParallel>) -> (Tensor, Tensor) {
        let mut shape = self.shape().to_vec();
        if let Some(extent) = shape.last_mut() {
            *extent = count;
        }
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let zeros = gradients.output().new_zeros(own);
            vec![Some(zeros.with_values_at(&gradients.saved[0], &gradients.output().summed_up(group)))]
        });
        let layouts = [self.dtype(), Dtype::I64].map(|dtype| Out::New(Layout::contiguous(dtype, &shape)));
        let kernel = Kernel::new("topk.default", &[self], layouts.into());
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Auxiliary(1)], backward };
        let mut outputs = self.tape().launch_differentiable(kernel, derivative);
        let places = outputs.swap_remove(1);
        (outputs.swap_remove(0), places)
    }

    /// The largest of the last dimension, which stays with extent 1 or goes.
    pub(crate) fn max_last(&self, keep: bool) -> Tensor {
        let last = self.shape().len().saturating_sub(1);
        let shape = self.reduced_shape(&[last], keep);
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let (gradient, places) = (gradients.output(), &gradients.saved[0]);
            if keep {
                return vec![Some(gradient.new_zeros(own).with_values_at(places, gradient))];
            }
            let gradient = gradient.unsqueeze(-1);
            let places = places.unsqueeze(-1);
            vec![Some(gradient.new_zeros(own).with_values_at(&places, &gradient))]
        });
        let layouts = [self.dtype(), Dtype::I64].map(|dtype| Out::New(Layout::contiguous(dtype, &shape)));
        let kernel = Kernel::new("max.dim", &[self], layouts.into());
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Auxiliary(1)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `self += other`.
    pub(crate) fn added_in_place(self, other: &Tensor) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            gradients.wanted.iter().map(|wanted| wanted.then(|| gradient.clone())).collect()
        });
        let outputs = vec![Out::View(&self, self.layout().clone())];
        let kernel = Kernel::new("add_.Tensor", &[&self, other], outputs).mutating(&[&self]);
        let derivative = Derivative { inputs: &[&self, other], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    fn with_values_at(self, places: &Tensor, values: &Tensor) -> Tensor {
        let out = Out::New(self.layout().clone());
        self.tape().launch_one(Kernel::new("scatter.src", &[&self, places, values], vec![out]))
    }

    /// Zeros of this layout, on the device of `self`.
    pub(crate) fn new_zeros(&self, layout: Layout) -> Tensor {
        self.tape().launch_one(Kernel::new("new_zeros.default", &[self], vec![Out::New(layout)]))
    }

    /// `self /= other`. What it was is copied for backward, which needs it.
    pub(crate) fn divided_in_place(self, other: &Tensor) -> Tensor {
        let before = self.map("clone.default");
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let [divisor, dividend] = gradients.saved else { return vec![] };
            let gradient = gradients.output();
            // One expression there: what it needs goes at its end.
            let for_other = {
                let quotient = dividend.zip("div.Tensor", divisor);
                let slope = quotient.zip("div.Tensor", divisor);
                let negated = gradient.map("neg.default");
                negated.zip("mul.Tensor", &slope)
            };
            vec![Some(gradient.zip("div.Tensor", divisor)), Some(for_other)]
        });
        let outputs = vec![Out::View(&self, self.layout().clone())];
        let kernel = Kernel::new("div_.Tensor", &[&self, other], outputs).mutating(&[&self]);
        let saves = vec![Slot::Input(other), Slot::Input(&before)];
        let derivative = Derivative { inputs: &[&self, other], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Sorted, and where each came from; of whole numbers.
    pub(crate) fn sorted(&self) -> (Tensor, Tensor) {
        let layouts = [self.dtype(), Dtype::I64].map(|dtype| Out::New(Layout::contiguous(dtype, self.shape())));
        let mut outputs = self.tape().launch(Kernel::new("sort.default", &[self], layouts.into()));
        let places = outputs.swap_remove(1);
        (outputs.swap_remove(0), places)
    }

    /// How many rows each of `experts` gets, added up: where the rows of the next one begin.
    pub(crate) fn offsets(&self, experts: u64) -> (Tensor, Tensor, Tensor) {
        let numbers = self.to(Dtype::I32);
        let counts = || vec![Out::New(Layout::contiguous(Dtype::I32, &[experts]))];
        let each = self.tape().launch_one(Kernel::new("histc.default", &[&numbers], counts()));
        let ends = self.tape().launch_one(Kernel::new("cumsum.default", &[&each], counts()));
        (numbers, each, ends)
    }

    /// The rows at these places.
    pub(crate) fn rows_at(&self, places: &Tensor) -> Tensor {
        let mut shape = places.shape().to_vec();
        shape.extend(self.shape().iter().skip(1));
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let (gradient, places) = (gradients.output(), &gradients.saved[0]);
            let zeros = gradient.new_zeros(own.clone());
            let kernel = Kernel::new("index_put.default", &[&zeros, places, gradient], vec![Out::New(own)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let kernel =
            Kernel::new("index.Tensor", &[self, places], vec![Out::New(Layout::contiguous(self.dtype(), &shape))]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(places)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The vectors at these places of the first and the second dimension.
    pub(crate) fn at_two(&self, first: &Tensor, second: &Tensor) -> Tensor {
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let [first, second] = gradients.saved else { return vec![] };
            let gradient = gradients.output();
            let zeros = gradient.new_zeros(own.clone());
            let kernel = Kernel::new("index_put.default", &[&zeros, first, second, gradient], vec![Out::New(own)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let mut shape = first.shape().to_vec();
        shape.extend(self.shape().iter().skip(2));
        let out = Out::New(Layout::contiguous(self.dtype(), &shape));
        let kernel = Kernel::new("index.Tensor", &[self, first, second], vec![out]);
        let saves = vec![Slot::Input(first), Slot::Input(second)];
        self.tape().launch_differentiable(kernel, Derivative { inputs: &[self], saves, backward }).swap_remove(0)
    }

    /// Writes values at these places, of a tensor without gradient.
    pub(crate) fn put_at(&self, places: &Tensor, values: &Tensor) {
        let outputs = vec![Out::View(self, self.layout().clone())];
        let kernel = Kernel::new("index_put_.default", &[self, places, values], outputs).mutating(&[self]);
        drop(self.tape().launch_one(kernel));
    }

    /// Groups of rows, which end at `ends`, each times a matrix of its own.
    pub(crate) fn grouped_mm(&self, matrices: &Tensor, ends: &Tensor) -> Tensor {
        let ([rows, inner], [_, other_inner, columns]) = (self.shape(), matrices.shape()) else {
            self.tape().fail(mismatch(self, matrices));
            return self.clone();
        };
        if inner != other_inner {
            self.tape().fail(mismatch(self, matrices));
        }
        let (factors, mut saves) = Factors::new(self, matrices);
        saves.push(Slot::Input(ends));
        let out = padded(self.dtype(), &[*rows, *columns]);
        let own = [matrices.shape()[0], *columns, *inner];
        let is_flipped = matrices.layout().strides.get(1) == Some(&1);
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            let Some(ends) = gradients.saved.last() else { return vec![] };
            let product = |left: &Tensor, right: &Tensor, shape: &[u64]| {
                let outputs = vec![padded(left.dtype(), shape)];
                left.tape().launch_one(Kernel::new(NAME, &[left, right, ends], outputs))
            };
            let for_matrices = factors.left_for_right(gradients).map(|rows| {
                if !is_flipped {
                    let flipped = rows.transpose(-2, -1);
                    return product(&flipped, gradient, &[own[0], own[2], own[1]]);
                }
                let transposed = {
                    let flipped = gradient.transpose(-2, -1);
                    product(&flipped, rows, &own)
                };
                transposed.transpose(-2, -1)
            });
            let for_rows = factors.right_for_left(gradients).map(|matrices| {
                let flipped = matrices.transpose(-2, -1);
                product(gradient, &flipped, &[gradient.size(0), own[2]])
            });
            vec![for_rows, for_matrices]
        });
        let kernel = Kernel::new(NAME, &[self, matrices, ends], vec![out]);
        let derivative = Derivative { inputs: &[self, matrices], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }
}

const NAME: &str = "_grouped_mm.default";

/// The kernel aligns its rows to this many bytes (`create_grouped_gemm_output_tensor`).
const ROW_ALIGNMENT: u64 = 16;

fn padded(dtype: Dtype, shape: &[u64]) -> Out<'static> {
    Out::aligned(dtype, shape, ROW_ALIGNMENT / dtype.size().max(1))
}

fn mismatch(rows: &Tensor, matrices: &Tensor) -> FakeError {
    FakeError::Shape {
        op: NAME,
        expected: "rows and matrices must have equal inner extents",
        found: format!("{} and {}", rows.layout(), matrices.layout()),
    }
}
