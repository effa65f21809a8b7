//! What the Hugging Face models for causal language modelling share.

use rematic_trace::Dtype;

use crate::nn::Scope;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Tape};

/// An activation function as `ACT2FN` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Silu,
    Gelu,
    GeluNew,
    GeluTanh,
    Relu,
}

impl Activation {
    pub(super) const NAMES: [(&'static str, Activation); 6] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluNew),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ];

    pub(super) fn class(self) -> &'static str {
        match self {
            Activation::Silu => "SiLUActivation",
            Activation::Gelu => "GELUActivation",
            Activation::GeluNew => "NewGELUActivation",
            Activation::GeluTanh => "GELUTanh",
            Activation::Relu => "ReLU",
        }
    }

    pub(super) fn forward(self, scope: &Scope, input: &Tensor) -> Tensor {
        scope.call(&[input], || match self {
            Activation::Silu => input.silu(),
            Activation::Gelu | Activation::GeluTanh => input.gelu(),
            Activation::GeluNew => gelu_new(input),
            Activation::Relu => input.relu(),
        })
    }
}

/// `0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3)))`; every inner result goes as soon as it is used.
fn gelu_new(input: &Tensor) -> Tensor {
    let half = input.mul_scalar();
    let factor = {
        let tanh = {
            let scaled = {
                let sum = {
                    let cubic = {
                        let cube = input.pow_scalar();
                        cube.mul_scalar()
                    };
                    input.add(&cubic)
                };
                sum.mul_scalar()
            };
            scaled.tanh()
        };
        tanh.add_scalar()
    };
    half.mul(&factor)
}

/// `arange(seq) + past`, as a row.
pub(super) fn position_ids(tape: &Tape, seq: u64) -> Tensor {
    let shifted = {
        let positions = Tensor::arange(tape, seq, ArangeOverload::End);
        positions.add_scalar()
    };
    shifted.unsqueeze(0)
}

/// What building the causal mask leaves to see when no mask is needed: the positions, expanded over the batch unless
/// they have its extent already.
pub(super) fn skip_causal_mask(positions: &Tensor, batch: u64) {
    if positions.size(0) != batch {
        drop(positions.expand(&[batch, positions.size(1)]));
    }
}

/// `ForCausalLMLoss`: cross-entropy in fp32 of every position against the next token.
pub(super) fn causal_lm_loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    let mut logits = logits.to(Dtype::F32);
    let padded = labels.pad_last(1);
    let mut targets = {
        let shifted = padded.slice(-1, 1, padded.size(-1));
        shifted.contiguous()
    };
    let rows = logits.size(0).saturating_mul(logits.size(1));
    logits = logits.view(&[rows, logits.size(-1)]);
    targets = targets.view(&[rows]);
    logits.cross_entropy(&targets)
}

/// The last hidden states through the output layer, and the loss.
pub(super) fn lm_outputs(hidden: &Tensor, lm_head: &crate::nn::Linear, labels: &Tensor) -> Vec<Tensor> {
    let hidden = hidden.alias();
    let logits = lm_head.forward(&hidden);
    let loss = causal_lm_loss(&logits, labels);
    vec![loss, logits]
}
