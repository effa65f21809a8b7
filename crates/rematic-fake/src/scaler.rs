//! `torch.amp.GradScaler`, statement by statement: what keeps gradients of float16 from vanishing.

use rematic_trace::{Category, Dtype, Layout};

use crate::kernel::{Kernel, Out};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The look at all gradients, which also divides them.
const UNSCALE: &str = "_amp_foreach_non_finite_check_and_unscale_.default";

/// The scaler between two steps. Both numbers are made when the first loss is scaled.
pub(crate) struct Scaler {
    scale: Tensor,
    growth_tracker: Tensor,
}

/// What a fused optimizer is told, which divides by the scale itself.
pub(crate) struct Scaling {
    pub(crate) grad_scale: Tensor,
    pub(crate) found_inf: Tensor,
}

/// What was found of a step's gradients, until `scaler.update()`.
pub(crate) struct Checked {
    found_inf: Tensor,
    /// For a fused optimizer alone.
    pub(crate) scaling: Option<Scaling>,
}

impl Scaler {
    pub(crate) fn new(tape: &Tape) -> Self {
        let number = |dtype: Dtype| tape.tensor_before_step(dtype, &[], Category::Activation);
        Scaler { scale: number(Dtype::F32), growth_tracker: number(Dtype::I32) }
    }

    /// `scaler.scale(loss)`.
    pub(crate) fn scaled(&self, loss: &Tensor) -> Tensor {
        loss.mul(&self.scale)
    }

    /// What `scaler.step(optimizer)` does before the optimizer steps: gradients are looked at, and divided by the scale unless the
    /// optimizer does that itself.
    pub(crate) fn check(&self, gradients: &[Tensor], is_fused: bool) -> Checked {
        let tape = self.scale.tape();
        let inverse = if is_fused { full(tape) } else { self.inverse() };
        let zero = full(tape);
        // Of both, the device that has the gradients is given a copy.
        let found_inf = zero.as_type(Dtype::F32);
        let copied = inverse.as_type(Dtype::F32);
        let changed: Vec<&Tensor> = gradients.iter().chain([&found_inf]).collect();
        let inputs: Vec<&Tensor> = changed.iter().copied().chain([&copied]).collect();
        tape.launch(Kernel::new(UNSCALE, &inputs, vec![]).mutating(&changed));
        drop(copied);
        drop(inverse);
        drop(zero);
        if !is_fused {
            // `found_inf.item()`, by which it is decided whether the optimizer steps.
            tape.launch(Kernel::new("_local_scalar_dense.default", &[&found_inf], vec![]));
            return Checked { found_inf, scaling: None };
        }
        // The sum over devices, which begins with the number 0; and the product with what was asked for, 1.
        let total = found_inf.map("add.Tensor");
        let scaling = Scaling { grad_scale: self.scale.map("mul.Tensor"), found_inf: total };
        Checked { found_inf, scaling: Some(scaling) }
    }

    /// `scale.double().reciprocal().float()`.
    fn inverse(&self) -> Tensor {
        let reciprocal = {
            let wide = self.scale.as_type(Dtype::F64);
            wide.map("reciprocal.default")
        };
        reciprocal.as_type(Dtype::F32)
    }

    /// `scaler.update()`.
    #[expect(clippy::needless_pass_by_value, reason = "it is forgotten then")]
    pub(crate) fn update(&self, checked: Checked) {
        let changed = [&self.scale, &self.growth_tracker];
        let inputs = [&self.scale, &self.growth_tracker, &checked.found_inf];
        let outputs = vec![Out::View(&self.scale, self.scale.layout().clone())];
        let kernel = Kernel::new("_amp_update_scale_.default", &inputs, outputs).mutating(&changed);
        drop(self.scale.tape().launch(kernel));
    }
}

/// `torch.full((), number)`.
fn full(tape: &Tape) -> Tensor {
    let layout = Layout::contiguous(Dtype::F32, &[]);
    tape.launch_one(Kernel::new("full.default", &[], vec![Out::New(layout)]))
}

impl Tensor {
    /// A copy in another type, which is not differentiated.
    fn as_type(&self, dtype: Dtype) -> Tensor {
        let layout = Layout { dtype, ..self.layout().clone() };
        self.tape().launch_one(Kernel::new("_to_copy.default", &[self], vec![Out::New(layout)]))
    }
}
