//! Which experts tokens go to.

use rematic_trace::Dtype;

use super::{DecoderConfig, ExpertsConfig, Family};
use crate::nn::{Outputs, Scope};
use crate::tensor::Tensor;

/// Where tokens go.
pub(super) struct Routes {
    pub(super) logits: Tensor,
    pub(super) weights: Tensor,
    pub(super) places: Tensor,
}

impl Outputs for Routes {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.logits.clone(), self.weights.clone(), self.places.clone()]
    }
}

/// Says which experts a token goes to, and with which weights.
pub(super) struct Router {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
    chosen: u64,
    normalized: bool,
    family: Family,
}

impl Router {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let family = config.family;
        let name = if family == Family::GptOss { "router" } else { "gate" };
        let scope = parent.child(name, &format!("{}TopKRouter", family.prefix()));
        let weight = scope.parameter("weight", &[sizes.count, config.hidden]);
        let bias = (family == Family::GptOss).then(|| scope.parameter("bias", &[sizes.count]));
        Router { scope, weight, bias, chosen: sizes.chosen, normalized: sizes.normalized, family }
    }

    pub(super) fn forward(&self, tokens: &Tensor) -> Routes {
        self.scope.call(&[tokens], || match self.family {
            Family::GptOss => self.of_logits(tokens),
            _ => self.of_shares(tokens),
        })
    }

    /// The experts with the highest logits, which share a token by them.
    fn of_logits(&self, tokens: &Tensor) -> Routes {
        let logits = tokens.linear(&self.weight, self.bias.as_ref());
        let (highest, places) = logits.top(self.chosen);
        let weights = highest.softmax_last();
        Routes { logits, weights, places }
    }

    /// The experts with the largest shares.
    fn of_shares(&self, tokens: &Tensor) -> Routes {
        let tokens = tokens.reshape(tokens.shape());
        let logits = tokens.linear(&self.weight, None);
        let is_mixtral = self.family == Family::Mixtral;
        let shares = if is_mixtral {
            let single = logits.to(Dtype::F32);
            single.softmax_last()
        } else {
            logits.softmax_in_single()
        };
        let (mut weights, places) = shares.top(self.chosen);
        if self.normalized {
            let sum = weights.sum_dim(-1, true);
            weights = weights.divided_in_place(&sum);
        }
        if !is_mixtral {
            weights = weights.to(logits.dtype());
        }
        Routes { logits, weights, places }
    }
}
