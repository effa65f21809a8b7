//! The norms of decoders: of plain operators, in fp32, each in the order in which its Python class has it.

use rematic_trace::Dtype;

use crate::nn::{RmsNorm, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// Which norm a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormKind {
    /// Llama's: the weight is applied in the type of the input.
    Plain,
    /// Gemma's: one more than the weight, in fp32.
    Shifted,
    /// OLMo's: the weight is applied in fp32.
    Wide,
    /// Cohere's: the mean is taken off first.
    Centred,
}

/// A norm over the last dimension.
pub(super) struct Norm(Form);

enum Form {
    Plain(RmsNorm),
    Own { scope: Scope, weight: Tensor, kind: NormKind },
}

impl Norm {
    /// With a weight of this shape, on all ranks the same; `class` is the Python class.
    pub(super) fn new(
        parent: &Scope,
        name: &str,
        (kind, class): (NormKind, &str),
        shape: &[u64],
        group: Option<TensorParallel>,
    ) -> Self {
        if let (NormKind::Plain, [width]) = (kind, shape) {
            return Norm(Form::Plain(RmsNorm::with(parent, name, class, *width, group)));
        }
        let scope = parent.child(name, class);
        let weight = scope.parameter("weight", shape);
        Norm(Form::Own { scope, weight, kind })
    }

    /// Runs the norm on the rank's part.
    pub(super) fn forward_part(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        match &self.0 {
            Form::Plain(norm) => norm.forward_part(input, group),
            Form::Own { .. } => self.forward(input),
        }
    }

    /// Runs the norm on the rank's heads.
    pub(super) fn forward_heads(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        match &self.0 {
            Form::Plain(norm) => norm.forward_heads(input, group),
            Form::Own { .. } => self.forward(input),
        }
    }

    /// Runs the norm.
    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        match &self.0 {
            Form::Plain(norm) => norm.forward(input),
            Form::Own { scope, weight, kind } => scope.call(&[input], || match kind {
                NormKind::Plain | NormKind::Wide => wide(input, weight),
                NormKind::Shifted => shifted(input, weight),
                NormKind::Centred => centred(input, weight),
            }),
        }
    }
}

/// `rsqrt(variance + eps)`.
fn reciprocal_root(variance: &Tensor) -> Tensor {
    let raised = variance.add_scalar();
    raised.rsqrt()
}

fn mean_square(values: &Tensor) -> Tensor {
    let squares = values.pow_scalar();
    squares.mean_last()
}

fn wide(input: &Tensor, weight: &Tensor) -> Tensor {
    let mut hidden = input.to(Dtype::F32);
    let variance = mean_square(&hidden);
    hidden = {
        let scale = reciprocal_root(&variance);
        hidden.mul(&scale)
    };
    let weighted = weight.mul(&hidden);
    weighted.to(input.dtype())
}

fn shifted(input: &Tensor, weight: &Tensor) -> Tensor {
    let mut output = {
        let single = input.to(Dtype::F32);
        let scale = {
            let raised = {
                let variance = mean_square(&single);
                variance.add_scalar()
            };
            raised.rsqrt()
        };
        single.mul(&scale)
    };
    output = {
        let factor = {
            let single = weight.to(Dtype::F32);
            single.add_scalar()
        };
        output.mul(&factor)
    };
    output.to(input.dtype())
}

fn centred(input: &Tensor, weight: &Tensor) -> Tensor {
    let mut hidden = input.to(Dtype::F32);
    let mean = hidden.mean_last();
    let variance = {
        let squares = {
            let distance = hidden.sub(&mean);
            distance.pow_scalar()
        };
        squares.mean_last()
    };
    hidden = {
        let distance = hidden.sub(&mean);
        let scale = reciprocal_root(&variance);
        distance.mul(&scale)
    };
    hidden = {
        let single = weight.to(Dtype::F32);
        single.mul(&hidden)
    };
    hidden.to(input.dtype())
}
