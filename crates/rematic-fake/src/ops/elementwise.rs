use rematic_trace::{Dtype, Layout};

use super::factors::Factors;
use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

/// The layout of an elementwise result: broadcast extents, and dimensions in memory in the order in which the inputs
/// have them (the first input that can tell decides), as PyTorch's TensorIterator allocates it.
pub(super) fn elementwise_layout(dtype: Dtype, inputs: &[&Layout]) -> Option<Layout> {
    let rank = inputs.iter().map(|input| input.shape.len()).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    for input in inputs {
        let offset = rank - input.shape.len();
        for (extent, &own) in shape[offset..].iter_mut().zip(&input.shape) {
            if *extent == 1 {
                *extent = own;
            } else if own != 1 && own != *extent {
                return None;
            }
        }
    }
    let stride = |input: &Layout, dim: usize| {
        let offset = rank - input.shape.len();
        if dim < offset || input.shape[dim - offset] == 1 && shape[dim] != 1 { 0 } else { input.strides[dim - offset] }
    };
    // Whether dimension `inner` must lie outside dimension `outer`; `None` if no input can tell.
    let out_of_order = |inner: usize, outer: usize| {
        for input in inputs {
            let (a, b) = (stride(input, inner), stride(input, outer));
            if a == 0 || b == 0 {
                continue;
            }
            if a != b {
                return Some(a > b);
            }
            if shape[inner] > shape[outer] {
                return Some(true);
            }
        }
        None
    };
    // Innermost dimension first.
    let mut order: Vec<usize> = (0..rank).rev().collect();
    for start in 1..rank {
        let mut outer = start;
        for inner in (0..start).rev() {
            match out_of_order(order[inner], order[outer]) {
                Some(true) => {
                    order.swap(inner, outer);
                    outer = inner;
                }
                Some(false) => break,
                None => {}
            }
        }
    }
    let mut strides = vec![0; rank];
    let mut step: u64 = 1;
    for dim in order {
        strides[dim] = step;
        step = step.saturating_mul(shape[dim].max(1));
    }
    Some(Layout { dtype, shape, strides })
}

/// PyTorch's type promotion among the floating types that models use.
pub(super) fn promoted(left: Dtype, right: Dtype) -> Dtype {
    match (left.is_float(), right.is_float()) {
        (true, false) => left,
        (false, true) => right,
        _ if left == right => left,
        (true, true) if left.size() == right.size() => Dtype::F32,
        _ if left.size() >= right.size() => left,
        _ => right,
    }
}

impl Tensor {
    pub(super) fn elementwise(&self, name: &'static str, others: &[&Tensor], dtype: Dtype) -> Out<'static> {
        let mut layouts = vec![self.layout()];
        layouts.extend(others.iter().map(|tensor| tensor.layout()));
        Out::New(elementwise_layout(dtype, &layouts).unwrap_or_else(|| {
            self.tape().fail(FakeError::Shape {
                op: name,
                expected: "the operands must broadcast",
                found: layouts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
            });
            self.layout().clone()
        }))
    }

    /// The type of what is computed of two tensors: a single number does not count beside others of its kind.
    fn promoted_with(&self, other: &Tensor) -> Dtype {
        let (own, its) = (self.dtype(), other.dtype());
        match (self.shape().is_empty(), other.shape().is_empty()) {
            (true, false) if own.is_float() == its.is_float() => its,
            (false, true) if own.is_float() == its.is_float() => own,
            _ => promoted(own, its),
        }
    }

    /// An elementwise kernel of one tensor, not differentiated.
    pub(crate) fn map(&self, name: &'static str) -> Tensor {
        let out = self.elementwise(name, &[], self.dtype());
        self.tape().launch_one(Kernel::new(name, &[self], vec![out]))
    }

    /// An elementwise kernel of two tensors, not differentiated.
    pub(crate) fn zip(&self, name: &'static str, other: &Tensor) -> Tensor {
        let out = self.elementwise(name, &[other], self.promoted_with(other));
        self.tape().launch_one(Kernel::new(name, &[self, other], vec![out]))
    }

    /// An elementwise comparison of two tensors.
    pub(crate) fn compare(&self, name: &'static str, other: &Tensor) -> Tensor {
        let out = self.elementwise(name, &[other], Dtype::Bool);
        self.tape().launch_one(Kernel::new(name, &[self, other], vec![out]))
    }

    fn unary(
        &self,
        name: &'static str,
        saves: Vec<Slot<'_>>,
        backward: impl FnOnce(&Gradients<'_>) -> Tensor + 'static,
    ) -> Tensor {
        let out = self.elementwise(name, &[], self.dtype());
        let kernel = Kernel::new(name, &[self], vec![out]);
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(backward(gradients))]);
        self.tape().launch_differentiable(kernel, Derivative { inputs: &[self], saves, backward }).swap_remove(0)
    }

    /// `self + other`.
    #[must_use]
    pub fn add(&self, other: &Tensor) -> Tensor {
        let out = self.elementwise("add.Tensor", &[other], self.promoted_with(other));
        let kernel = Kernel::new("add.Tensor", &[self, other], vec![out]);
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            gradients.wanted.iter().map(|wanted| wanted.then(|| gradient.clone())).collect()
        });
        let derivative = Derivative { inputs: &[self, other], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `self - other`.
    #[must_use]
    pub fn sub(&self, other: &Tensor) -> Tensor {
        let out = self.elementwise("sub.Tensor", &[other], self.promoted_with(other));
        let kernel = Kernel::new("sub.Tensor", &[self, other], vec![out]);
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let gradient = gradients.output();
            let for_other = gradients.wanted[1].then(|| gradient.map("neg.default"));
            vec![gradients.wanted[0].then(|| gradient.clone()), for_other]
        });
        let derivative = Derivative { inputs: &[self, other], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `self + number`.
    #[must_use]
    pub fn add_scalar(&self) -> Tensor {
        self.unary("add.Tensor", vec![], |gradients| gradients.output().clone())
    }

    /// `self * other`.
    #[must_use]
    pub fn mul(&self, other: &Tensor) -> Tensor {
        let out = self.elementwise("mul.Tensor", &[other], self.promoted_with(other));
        let kernel = Kernel::new("mul.Tensor", &[self, other], vec![out]);
        let (factors, saves) = Factors::new(self, other);
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let scaled = |factor: &Tensor| gradients.output().zip("mul.Tensor", factor);
            let for_other = factors.left_for_right(gradients).map(scaled);
            let for_self = factors.right_for_left(gradients).map(scaled);
            vec![for_self, for_other]
        });
        let derivative = Derivative { inputs: &[self, other], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `self / other`.
    pub(crate) fn div(&self, other: &Tensor) -> Tensor {
        let out = self.elementwise("div.Tensor", &[other], self.promoted_with(other));
        let kernel = Kernel::new("div.Tensor", &[self, other], vec![out]);
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let [dividend, divisor] = gradients.saved else { return vec![] };
            let gradient = gradients.output();
            let for_other = gradients.wanted[1].then(|| {
                // One expression there: what it needs goes at its end.
                let quotient = dividend.zip("div.Tensor", divisor);
                let slope = quotient.zip("div.Tensor", divisor);
                let negated = gradient.map("neg.default");
                negated.zip("mul.Tensor", &slope)
            });
            vec![gradients.wanted[0].then(|| gradient.zip("div.Tensor", divisor)), for_other]
        });
        let derivative =
            Derivative { inputs: &[self, other], saves: vec![Slot::Input(self), Slot::Input(other)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `e ** self`.
    pub(crate) fn exp(&self) -> Tensor {
        let this = &self.raised();
        this.unary("exp.default", vec![Slot::Output(0)], |gradients| {
            gradients.output().zip("mul.Tensor", &gradients.saved[0])
        })
    }

    /// `self * number`.
    #[must_use]
    pub fn mul_scalar(&self) -> Tensor {
        self.unary("mul.Tensor", vec![], |gradients| gradients.output().map("mul.Tensor"))
    }

    /// `self / number`.
    #[must_use]
    pub fn div_scalar(&self) -> Tensor {
        self.unary("div.Tensor", vec![], |gradients| gradients.output().map("div.Tensor"))
    }

    /// `self ** number`.
    #[must_use]
    pub fn pow_scalar(&self) -> Tensor {
        let this = &self.raised();
        this.unary("pow.Tensor_Scalar", vec![Slot::Input(this)], |gradients| {
            let power = gradients.saved[0].map("pow.Tensor_Scalar");
            let scaled = power.map("mul.Scalar");
            gradients.output().zip("mul.Tensor", &scaled)
        })
    }

    /// `1 / sqrt(self)`.
    #[must_use]
    pub fn rsqrt(&self) -> Tensor {
        let this = &self.raised();
        this.unary("rsqrt.default", vec![Slot::Output(0)], |gradients| {
            let cubed = gradients.saved[0].map("pow.Tensor_Scalar");
            let halved = gradients.output().map("mul.Scalar");
            halved.zip("mul.Tensor", &cubed)
        })
    }

    /// `tanh(self)`.
    #[must_use]
    pub fn tanh(&self) -> Tensor {
        self.unary("tanh.default", vec![Slot::Output(0)], |gradients| {
            gradients.output().zip("tanh_backward.default", &gradients.saved[0])
        })
    }

    /// `1 / (1 + exp(-self))`.
    pub(crate) fn sigmoid(&self) -> Tensor {
        self.unary("sigmoid.default", vec![Slot::Output(0)], |gradients| {
            gradients.output().zip("sigmoid_backward.default", &gradients.saved[0])
        })
    }

    /// The exact or tanh-approximated GELU.
    #[must_use]
    pub fn gelu(&self) -> Tensor {
        self.unary("gelu.default", vec![Slot::Input(self)], |gradients| {
            gradients.output().zip("gelu_backward.default", &gradients.saved[0])
        })
    }

    /// `self * sigmoid(self)`.
    #[must_use]
    pub fn silu(&self) -> Tensor {
        self.unary("silu.default", vec![Slot::Input(self)], |gradients| {
            gradients.output().zip("silu_backward.default", &gradients.saved[0])
        })
    }

    /// `max(self, 0)`.
    #[must_use]
    pub fn relu(&self) -> Tensor {
        self.unary("relu.default", vec![Slot::Output(0)], |gradients| {
            gradients.output().zip("threshold_backward.default", &gradients.saved[0])
        })
    }

    /// `self.relu_()`: in the memory of `self`, which nothing may have saved.
    #[must_use]
    pub fn relu_in_place(self) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| {
            vec![Some(gradients.output().zip("threshold_backward.default", &gradients.saved[0]))]
        });
        let outputs = vec![Out::View(&self, self.layout().clone())];
        let kernel = Kernel::new("relu_.default", &[&self], outputs).mutating(&[&self]);
        let derivative = Derivative { inputs: &[&self], saves: vec![Slot::Output(0)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `-self`.
    #[must_use]
    pub fn neg(&self) -> Tensor {
        self.unary("neg.default", vec![], |gradients| gradients.output().map("neg.default"))
    }

    /// The cosine of a tensor without gradient.
    #[must_use]
    pub fn cos(&self) -> Tensor {
        self.map("cos.default")
    }

    /// The sine of a tensor without gradient.
    #[must_use]
    pub fn sin(&self) -> Tensor {
        self.map("sin.default")
    }

    /// The same values in another type; the tensor itself if it has it already.
    #[must_use]
    pub fn to(&self, dtype: Dtype) -> Tensor {
        if dtype == self.dtype() {
            return self.clone();
        }
        // A copy of nothing lies as it does.
        let is_empty = self.layout().elements() == 0;
        let same = || Out::New(Layout { dtype, ..self.layout().clone() });
        let out = if is_empty { same() } else { self.elementwise("_to_copy.default", &[], dtype) };
        let own = self.dtype();
        let backward = Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().to(own))]);
        let kernel = Kernel::new("_to_copy.default", &[self], vec![out]);
        self.tape()
            .launch_differentiable(kernel, Derivative { inputs: &[self], saves: vec![], backward })
            .swap_remove(0)
    }

    /// Zeroes a share of the elements at random. Without `probability` it is the tensor itself.
    #[must_use]
    pub fn dropout(&self, probability: f64) -> Tensor {
        if probability <= 0.0 {
            return self.clone();
        }
        let out = self.elementwise("native_dropout.default", &[], self.dtype());
        let mask = self.elementwise("native_dropout.default", &[], Dtype::Bool);
        let kernel = Kernel::new("native_dropout.default", &[self], vec![out, mask]).random();
        let backward = Box::new(|gradients: &Gradients<'_>| {
            vec![Some(gradients.output().zip("native_dropout_backward.default", &gradients.saved[0]))]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Auxiliary(1)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// A number where `mask` is true.
    pub(crate) fn masked(&self, mask: &Tensor) -> Tensor {
        let out = self.elementwise("masked_fill.Scalar", &[mask], self.dtype());
        let kernel = Kernel::new("masked_fill.Scalar", &[self, mask], vec![out]);
        let backward = Box::new(|gradients: &Gradients<'_>| {
            vec![Some(gradients.output().zip("masked_fill.Scalar", &gradients.saved[0]))]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(mask)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The tensor where `condition` is true, a number elsewhere.
    pub(crate) fn where_true(&self, condition: &Tensor) -> Tensor {
        let number = |tape: &crate::Tape, dtype| {
            let layout = Layout::contiguous(dtype, &[]);
            tape.launch_one(Kernel::new("scalar_tensor.default", &[], vec![Out::New(layout)]))
        };
        let other = number(self.tape(), self.dtype());
        let out = condition.elementwise("where.self", &[self], self.dtype());
        let kernel = Kernel::new("where.self", &[condition, self, &other], vec![out]);
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let (gradient, condition) = (gradients.output(), &gradients.saved[0]);
            let zero = number(gradients.tape, gradient.dtype());
            let out = condition.elementwise("where.self", &[gradient], gradient.dtype());
            vec![Some(gradients.tape.launch_one(Kernel::new("where.self", &[condition, gradient, &zero], vec![out])))]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(condition)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Keeps every element at most at a number; and at least at another, if it is `both`.
    pub(crate) fn clamp(&self, both: bool) -> Tensor {
        self.unary("clamp.default", vec![Slot::Input(self)], move |gradients| {
            let (gradient, input) = (gradients.output(), &gradients.saved[0]);
            let zero = {
                let layout = Layout::contiguous(gradient.dtype(), &[]);
                gradients.tape.launch_one(Kernel::new("scalar_tensor.default", &[], vec![Out::New(layout)]))
            };
            let within = input.map_to(if both { "gt.Scalar" } else { "lt.Scalar" }, Dtype::Bool);
            if both {
                let below = input.map_to("lt.Scalar", Dtype::Bool);
                within.change("logical_and_.default", &[&below]);
                return gradient.where_or(&within, &zero);
            }
            gradient.where_or(&within, &zero)
        })
    }

    /// The tensor where a condition is true, another elsewhere; not differentiated.
    fn where_or(&self, condition: &Tensor, other: &Tensor) -> Tensor {
        let out = condition.elementwise("where.self", &[self], self.dtype());
        self.tape().launch_one(Kernel::new("where.self", &[condition, self, other], vec![out]))
    }

    /// Keeps every element between two numbers that are tensors.
    pub(crate) fn clamp_between(&self, least: &Tensor, most: &Tensor) -> Tensor {
        let out = self.elementwise("clamp.Tensor", &[], self.dtype());
        let kernel = Kernel::new("clamp.Tensor", &[self, least, most], vec![out]);
        let saves = vec![Slot::Input(self), Slot::Input(least), Slot::Input(most)];
        let derivative = Derivative { inputs: &[self], saves, backward: Box::new(clamp_gradient) };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// A kernel that changes the tensor in place and returns it, not differentiated.
    pub(crate) fn change(&self, name: &'static str, others: &[&Tensor]) {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
        let outputs = vec![Out::View(self, self.layout().clone())];
        drop(self.tape().launch(Kernel::new(name, &inputs, outputs).mutating(&[self])));
    }

    /// Adds into `self`, as a gradient that exists already takes another one.
    pub(crate) fn add_in_place(&self, other: &Tensor) -> Tensor {
        let outputs = vec![Out::View(self, self.layout().clone())];
        self.tape().launch_one(Kernel::new("add_.Tensor", &[self, other], outputs).mutating(&[self]))
    }

    /// A tensor of ones of the same layout: the seed of backward.
    pub(crate) fn ones_like(&self) -> Tensor {
        self.map("ones_like.default")
    }
}

/// `clamp_backward`: half of the gradient where an element is at a bound.
fn clamp_gradient(gradients: &Gradients<'_>) -> Vec<Option<Tensor>> {
    let [input, least, most] = gradients.saved else { return vec![] };
    let gradient = gradients.output();
    let proper = least.compare("lt.Tensor", most);
    // One expression there: what it needs goes at its end.
    let at_bound = {
        let low = input.compare("eq.Tensor", least);
        let high = input.compare("eq.Tensor", most);
        let either = low.compare("logical_or.default", &high);
        either.compare("logical_and.default", &proper)
    };
    let outside = {
        let low = input.compare("lt.Tensor", least);
        let high = input.compare("gt.Tensor", most);
        low.compare("logical_or.default", &high)
    };
    let halved = gradient.map("div.Scalar");
    let chosen = {
        let out = Out::New(halved.layout().clone());
        gradients.tape.launch_one(Kernel::new("where.self", &[&at_bound, &halved, gradient], vec![out]))
    };
    vec![Some(chosen.zip("masked_fill.Scalar", &outside))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { dtype: Dtype::F32, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    #[test]
    fn the_first_operand_decides_the_order_of_dimensions() {
        let heads = strided(&[2, 8, 512, 32], &[131_072, 32, 256, 1]);
        let plain = strided(&[2, 8, 512, 32], &[131_072, 16_384, 32, 1]);
        assert_eq!(elementwise_layout(Dtype::F32, &[&heads, &plain]).unwrap().strides, heads.strides);
        assert_eq!(elementwise_layout(Dtype::F32, &[&plain, &heads]).unwrap().strides, plain.strides);
    }

    #[test]
    fn gaps_close_and_order_stays() {
        let half = strided(&[2, 4, 512, 16], &[65_536, 32, 128, 1]);
        assert_eq!(elementwise_layout(Dtype::F32, &[&half]).unwrap().strides, [32_768, 16, 64, 1]);
    }

    #[test]
    fn expanded_inputs_become_dense() {
        let expanded = strided(&[2, 512, 256], &[512, 1, 0]);
        assert_eq!(elementwise_layout(Dtype::F32, &[&expanded]).unwrap().strides, [131_072, 256, 1]);
        let scalar = strided(&[4, 8], &[0, 0]);
        assert_eq!(elementwise_layout(Dtype::F32, &[&scalar]).unwrap().strides, [8, 1]);
    }

    #[test]
    fn operands_that_do_not_broadcast_have_no_layout() {
        assert_eq!(elementwise_layout(Dtype::F32, &[&strided(&[3], &[1]), &strided(&[4], &[1])]), None);
    }
}
