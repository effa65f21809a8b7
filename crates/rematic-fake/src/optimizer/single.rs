//! Optimizers that step for one parameter after the other, statement by statement like their Python originals: `torch.optim.Muon`
//! and `Adafactor`, Lion as `lion-pytorch` has it, and the 8-bit AdamW of bitsandbytes. Variables of their loops outlive an
//! iteration, as in Python.

use rematic_trace::{Category, Dtype, Layout};

use super::{Optimizer, on_host};
use crate::kernel::{Kernel, Out};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// How often Muon's Newton-Schulz iteration runs.
const ITERATIONS: usize = 5;
/// bitsandbytes quantizes in blocks of so many elements, each with a scale.
const BLOCK: u64 = 256;
/// It keeps the state of parameters with fewer elements in fp32.
const LEAST_QUANTIZED: u64 = 4096;
/// The name of its kernels, which torch sees as one operator each.
const EIGHT_BIT: &str = "optimizer_update_8bit_blockwise.default";
const THIRTY_TWO_BIT: &str = "optimizer_update_32bit.default";

/// What an optimizer keeps for a parameter.
pub(super) fn state_of(tape: &Tape, optimizer: Optimizer, parameter: &Tensor) -> Vec<Tensor> {
    let kept = |dtype: Dtype, shape: &[u64]| tape.tensor_before_step(dtype, shape, Category::Optimizer);
    let (dtype, shape) = (parameter.dtype(), parameter.shape());
    match optimizer {
        Optimizer::Adafactor => match *shape {
            [ref outer @ .., rows, columns] => {
                vec![kept(dtype, &[outer, &[rows, 1]].concat()), kept(dtype, &[outer, &[1, columns]].concat())]
            }
            _ => vec![kept(dtype, shape)],
        },
        Optimizer::AdamW8bit => {
            let elements = shape.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent));
            if elements < LEAST_QUANTIZED {
                return vec![kept(Dtype::F32, shape), kept(Dtype::F32, shape)];
            }
            let blocks = elements.div_ceil(BLOCK);
            let states = [kept(Dtype::U8, shape), kept(Dtype::U8, shape)];
            states.into_iter().chain([kept(Dtype::F32, &[blocks]), kept(Dtype::F32, &[blocks])]).collect()
        }
        _ => vec![kept(dtype, shape)],
    }
}

/// Lion, and the 8-bit AdamW: nothing of one parameter reaches the next.
pub(super) fn step_each(
    tape: &Tape,
    optimizer: Optimizer,
    parameters: &[(Tensor, Tensor, &[Tensor])],
    tables: &[Tensor],
) {
    for (parameter, gradient, states) in parameters {
        match (optimizer, *states) {
            (Optimizer::Lion, [mean]) => lion(parameter, gradient, mean),
            (_, states) => {
                let name = if states.len() > 2 { EIGHT_BIT } else { THIRTY_TWO_BIT };
                let changed: Vec<&Tensor> = std::iter::once(parameter).chain(states).collect();
                let tables = tables.iter().filter(|_| name == EIGHT_BIT);
                let inputs: Vec<&Tensor> =
                    std::iter::once(gradient).chain(changed.iter().copied()).chain(tables).collect();
                tape.launch(Kernel::new(name, &inputs, vec![]).mutating(&changed));
            }
        }
    }
}

fn lion(parameter: &Tensor, gradient: &Tensor, mean: &Tensor) {
    parameter.detach().change("mul_.Tensor", &[]);
    let update = {
        let copy = mean.map("clone.default");
        copy.change("mul_.Tensor", &[]);
        copy.zip("add.Tensor", gradient)
    };
    update.change("sgn_.default", &[]);
    parameter.change("add_.Tensor", &[&update]);
    mean.change("mul_.Tensor", &[]);
    mean.change("add_.Tensor", &[gradient]);
}

/// `_single_tensor_muon`.
pub(super) fn muon(parameters: &[(Tensor, Tensor, &[Tensor])]) {
    let mut held = None;
    for (parameter, gradient, states) in parameters {
        let [momentum] = *states else { continue };
        momentum.change("lerp_.Scalar", &[gradient]);
        let mut update = gradient.zip("lerp.Scalar", momentum);
        drop(held.replace(update.clone()));
        update = orthogonalized(&update, gradient);
        drop(held.replace(update.clone()));
        parameter.change("mul_.Tensor", &[]);
        parameter.change("add_.Tensor", &[&update]);
    }
}

/// `_zeropower_via_newtonschulz`.
fn orthogonalized(update: &Tensor, gradient: &Tensor) -> Tensor {
    let is_tall = gradient.size(0) > gradient.size(1);
    let mut matrix = update.copied_to(Dtype::Bf16);
    if is_tall {
        matrix = matrix.flipped();
    }
    {
        let norm = {
            let norm = matrix.vector_norm(None);
            norm.map("clamp.default")
        };
        matrix.change("div_.Tensor", &[&norm]);
    }
    let (mut held_gram, mut held_update) = (None, None);
    for _ in 0..ITERATIONS {
        let gram = {
            let flipped = matrix.flipped();
            matrix.matrix_product(&flipped)
        };
        drop(held_gram.replace(gram.clone()));
        let gram_update = gram.added_product(&gram, &gram);
        drop(held_update.replace(gram_update.clone()));
        matrix = matrix.added_product(&gram_update, &matrix);
    }
    if is_tall {
        matrix = matrix.flipped();
    }
    matrix
}

/// `_single_tensor_adafactor`.
pub(super) fn adafactor(tape: &Tape, parameters: &[(Tensor, Tensor, &[Tensor])]) {
    let (mut held_rows, mut held_columns, mut held_squares) = (None, None, None);
    // `var_estimate` and `update` are one tensor, but not at the same time.
    let (mut held_estimate, mut held_update) = (None, None);
    for (parameter, gradient, states) in parameters {
        on_host(tape, "add_.Tensor", 1);
        on_host(tape, "_local_scalar_dense.default", 1);
        read(parameter.vector_norm(None));
        let estimate = match *states {
            [rows, columns] => {
                let last = gradient.shape().len().saturating_sub(1);
                let mean = mean_square(gradient, last);
                drop(held_rows.replace(mean.clone()));
                rows.change("lerp_.Scalar", &[&mean]);
                let mean = mean_square(gradient, last.saturating_sub(1));
                drop(held_columns.replace(mean.clone()));
                columns.change("lerp_.Scalar", &[&mean]);
                let estimate = rows.matrix_product(columns);
                drop(held_estimate.replace(estimate.clone()));
                let mean = rows.mean_of_rows();
                mean.change("clamp_.default", &[]);
                estimate.change("div_.Tensor", &[&mean]);
                estimate
            }
            [variance] => {
                let squares = gradient.zip("mul.Tensor", gradient);
                drop(held_squares.replace(squares.clone()));
                variance.change("lerp_.Scalar", &[&squares]);
                let estimate = variance.map("clone.default");
                drop(held_estimate.replace(estimate.clone()));
                estimate
            }
            _ => continue,
        };
        estimate.change("clamp_.default", &[]);
        estimate.change("rsqrt_.default", &[]);
        drop(held_update.replace(estimate.clone()));
        estimate.change("mul_.Tensor", &[gradient]);
        read(estimate.vector_norm(None));
        parameter.change("add_.Tensor", &[&estimate]);
    }
}

/// The mean of squares along a dimension.
fn mean_square(gradient: &Tensor, dim: usize) -> Tensor {
    let norm = gradient.vector_norm(Some(dim));
    norm.change("pow_.Scalar", &[]);
    norm.change("div_.Tensor", &[]);
    norm
}

/// `number.item()`: the host waits for it.
#[expect(clippy::needless_pass_by_value, reason = "it goes when it was read")]
fn read(number: Tensor) {
    let kernel = Kernel::new("_local_scalar_dense.default", &[&number], vec![]);
    number.tape().launch(kernel);
}

impl Tensor {
    /// The norm along a dimension, which stays with extent 1; of all without one.
    fn vector_norm(&self, dim: Option<usize>) -> Tensor {
        let shape = dim.map_or_else(Vec::new, |dim| self.reduced_shape(&[dim], true));
        let layout = Layout::contiguous(self.dtype(), &shape);
        self.tape().launch_one(Kernel::new("linalg_vector_norm.default", &[self], vec![Out::New(layout)]))
    }

    /// The mean along the last dimension but one, which stays with extent 1.
    fn mean_of_rows(&self) -> Tensor {
        let rows = self.shape().len().saturating_sub(2);
        let layout = Layout::contiguous(self.dtype(), &self.reduced_shape(&[rows], true));
        self.tape().launch_one(Kernel::new("mean.dim", &[self], vec![Out::New(layout)]))
    }

    /// A copy in another type, or in its own.
    fn copied_to(&self, dtype: Dtype) -> Tensor {
        let layout = Layout { dtype, ..self.layout().clone() };
        self.tape().launch_one(Kernel::new("_to_copy.default", &[self], vec![Out::New(layout)]))
    }

    /// `matrix.T`.
    fn flipped(&self) -> Tensor {
        let layout = self.layout();
        let turned = |list: &[u64]| list.iter().rev().copied().collect();
        let flipped = Layout { dtype: layout.dtype, shape: turned(&layout.shape), strides: turned(&layout.strides) };
        self.tape().launch_one(Kernel::view("permute.default", self, vec![Out::View(self, flipped)]))
    }

    fn matrix_product(&self, other: &Tensor) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), &[self.size(0), other.size(1)]);
        self.tape().launch_one(Kernel::new("mm.default", &[self, other], vec![Out::New(layout)]))
    }

    /// `torch.addmm(self, left, right)`.
    fn added_product(&self, left: &Tensor, right: &Tensor) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), &[left.size(0), right.size(1)]);
        self.tape().launch_one(Kernel::new("addmm.default", &[self, left, right], vec![Out::New(layout)]))
    }
}
