//! The norms of decoders: of plain operators, in fp32, each in the order in which its Python class has it.

use rematic_trace::Dtype;

use crate::nn::{RmsNorm, Scope};
use crate::parallel::{Spread, TensorParallel};
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

/// What a norm works on where several ranks share the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dealt {
    /// One rank has the model.
    Alone,
    /// A part of the sequence (`SequenceParallel`), for what is dealt out too.
    Part(TensorParallel),
    /// A part of the sequence or of the heads, for what is the rank's own (`use_local_output`).
    PartOfOwn(TensorParallel),
    /// What all ranks have, and make the same of (torchtitan's `NoParallel`).
    Replicated,
}

impl Dealt {
    /// A norm before attention or the feed-forward network.
    pub(super) fn before(group: Option<TensorParallel>) -> Self {
        group.map_or(Dealt::Alone, Dealt::Part)
    }

    /// A norm whose result is the rank's own.
    pub(super) fn own(group: Option<TensorParallel>) -> Self {
        group.map_or(Dealt::Alone, Dealt::PartOfOwn)
    }

    fn spread(self) -> Spread {
        match self {
            Dealt::Alone | Dealt::Replicated => Spread::Own,
            Dealt::Part(group) | Dealt::PartOfOwn(group) => Spread::Summand(group),
        }
    }
}

/// A norm over the last dimension.
pub(super) struct Norm(Form, Dealt);

enum Form {
    Plain(RmsNorm),
    Own { scope: Scope, weight: Tensor, kind: NormKind },
}

impl Norm {
    /// With a weight of this shape; `class` is the Python class.
    pub(super) fn new(
        parent: &Scope,
        name: &str,
        (kind, class): (NormKind, &str),
        shape: &[u64],
        dealt: Dealt,
    ) -> Self {
        if let (NormKind::Plain, [width]) = (kind, shape) {
            return Norm(Form::Plain(RmsNorm::with(parent, name, class, *width, dealt.spread())), dealt);
        }
        let scope = parent.child(name, class);
        let weight = scope.parameter_of("weight", shape, dealt.spread());
        Norm(Form::Own { scope, weight, kind }, dealt)
    }

    /// Runs the norm.
    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        match self.1 {
            Dealt::Alone => self.normed(input),
            Dealt::Part(_) => self.normed(&input.distributed()),
            Dealt::PartOfOwn(_) | Dealt::Replicated => {
                let output = self.normed(&input.distributed());
                output.local()
            }
        }
    }

    fn normed(&self, input: &Tensor) -> Tensor {
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
