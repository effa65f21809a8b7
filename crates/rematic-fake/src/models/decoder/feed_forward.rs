//! The feed-forward networks of decoders.

use super::experts::{SharedMoe, SparseMoeBlock};
use super::{DecoderConfig, Family, whole_sequence};
use crate::models::causal_lm::Activation;
use crate::nn::{Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// What a layer has behind its attention.
pub(super) enum FeedForward {
    Gated(Mlp),
    Fused(FusedMlp),
    Experts(Box<SparseMoeBlock>),
    Shared(Box<SharedMoe>),
}

impl FeedForward {
    pub(super) fn new(parent: &Scope, index: u64, config: &DecoderConfig) -> Self {
        match &config.experts {
            Some(experts) if experts.has(index) && config.latent.is_some() => {
                FeedForward::Shared(Box::new(SharedMoe::new(parent, config, experts)))
            }
            Some(experts) if experts.has(index) => {
                FeedForward::Experts(Box::new(SparseMoeBlock::new(parent, config, experts)))
            }
            _ if config.family == Family::Phi3 => FeedForward::Fused(FusedMlp::new(parent, config)),
            _ => FeedForward::Gated(Mlp::new(parent, "mlp", config, config.intermediate)),
        }
    }

    /// The same, with the shares of the experts, where the module returns them too.
    pub(super) fn forward_with_shares(&self, input: &Tensor) -> (Tensor, Option<Tensor>) {
        match self {
            FeedForward::Experts(block) => block.forward(input),
            _ => (self.forward(input), None),
        }
    }

    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        match self {
            FeedForward::Gated(mlp) => mlp.forward(input),
            FeedForward::Fused(mlp) => mlp.forward(input),
            FeedForward::Experts(block) => block.forward(input).0,
            FeedForward::Shared(block) => block.forward(input),
        }
    }
}

/// Two projections up, one of them through the activation, and one down.
pub(super) struct Mlp {
    scope: Scope,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act_fn: Scope,
    activation: Activation,
    group: Option<TensorParallel>,
    /// Whether it is a part of a block that gathers the sequence, and gives summands.
    inner: bool,
}

impl Mlp {
    /// One that all tokens of a block of experts go through.
    pub(super) fn shared(parent: &Scope, name: &str, config: &DecoderConfig, wide: u64) -> Self {
        Mlp { inner: true, ..Mlp::new(parent, name, config, wide) }
    }

    pub(super) fn new(parent: &Scope, name: &str, config: &DecoderConfig, wide: u64) -> Self {
        let scope = parent.child(name, &format!("{}MLP", config.family.prefix()));
        let (hidden, wide, bias) = (config.hidden, config.share(wide), config.mlp_bias);
        Mlp {
            gate_proj: Linear::new(&scope, "gate_proj", hidden, wide, bias),
            up_proj: Linear::new(&scope, "up_proj", hidden, wide, bias),
            down_proj: Linear::new(&scope, "down_proj", wide, hidden, bias),
            act_fn: scope.child("act_fn", config.activation.class()),
            activation: config.activation,
            group: config.group,
            inner: false,
            scope,
        }
    }

    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        let input = &if self.inner { input.clone() } else { whole_sequence(input, self.group) };
        self.scope.call(&[input], || {
            let product = {
                let activated = {
                    let gate = self.gate_proj.forward_columns(input, self.group);
                    self.activation.forward(&self.act_fn, &gate)
                };
                let up = self.up_proj.forward_columns(input, self.group);
                activated.mul(&up)
            };
            match self.group {
                Some(_) if self.inner => self.down_proj.forward_summand(&product),
                group => self.down_proj.forward_rows(&product, group),
            }
        })
    }
}

/// Phi-3's: both projections up are one.
pub(super) struct FusedMlp {
    scope: Scope,
    gate_up_proj: Linear,
    down_proj: Linear,
    activation_fn: Scope,
    activation: Activation,
    group: Option<TensorParallel>,
}

impl FusedMlp {
    fn new(parent: &Scope, config: &DecoderConfig) -> Self {
        let scope = parent.child("mlp", &format!("{}MLP", config.family.prefix()));
        let (hidden, wide) = (config.hidden, config.intermediate);
        FusedMlp {
            gate_up_proj: Linear::new(&scope, "gate_up_proj", hidden, config.share(wide.saturating_mul(2)), false),
            down_proj: Linear::new(&scope, "down_proj", config.share(wide), hidden, false),
            activation_fn: scope.child("activation_fn", config.activation.class()),
            activation: config.activation,
            group: config.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        self.scope.call(&[input], || {
            let [gate, mut up] = {
                let both = self.gate_up_proj.forward_columns_gathered(input, self.group);
                both.split_into::<2>(-1)
            };
            up = {
                let activated = self.activation.forward(&self.activation_fn, &gate);
                up.mul(&activated)
            };
            self.down_proj.forward_rows_of_all(&up, self.group)
        })
    }
}
