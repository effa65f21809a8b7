//! The feed-forward networks of T5.

use super::{Norm, T5Config};
use crate::models::causal_lm::Activation;
use crate::nn::{Dropout, Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// `T5LayerFF`.
pub(super) struct LayerFeedForward {
    scope: Scope,
    dense: Dense,
    layer_norm: Norm,
    dropout: Dropout,
}

impl LayerFeedForward {
    pub(super) fn new(parent: &Scope, name: &str, config: &T5Config) -> Self {
        let scope = parent.child(name, "T5LayerFF");
        let dense = Dense::new(&scope, config);
        let layer_norm = Norm::new(&scope, "layer_norm", config.hidden, config.group);
        let dropout = Dropout::new(&scope, "dropout", config.dropout);
        LayerFeedForward { scope, dense, layer_norm, dropout }
    }

    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut forwarded = self.layer_norm.forward(input);
            forwarded = self.dense.forward(&forwarded);
            let kept = self.dropout.forward(&forwarded);
            input.add(&kept)
        })
    }
}

/// One projection up, or two of which one goes through the activation.
struct Dense {
    scope: Scope,
    up: Linear,
    linear: Option<Linear>,
    wo: Linear,
    dropout: Dropout,
    act: Scope,
    activation: Activation,
    group: Option<TensorParallel>,
}

impl Dense {
    fn new(parent: &Scope, config: &T5Config) -> Self {
        let class = if config.gated { "T5DenseGatedActDense" } else { "T5DenseActDense" };
        let scope = parent.child("DenseReluDense", class);
        let wide = config.share(config.intermediate);
        let up = |name| Linear::new(&scope, name, config.hidden, wide, false);
        let (up, linear) = if config.gated { (up("wi_0"), Some(up("wi_1"))) } else { (up("wi"), None) };
        let wo = Linear::new(&scope, "wo", wide, config.hidden, false);
        let dropout = Dropout::new(&scope, "dropout", config.dropout);
        let act = scope.child("act", config.activation.class());
        let (activation, group) = (config.activation, config.group);
        Dense { scope, up, linear, wo, dropout, act, activation, group }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = self.up.columns(input, self.group);
            hidden = self.activation.forward(&self.act, &hidden);
            // Both factors are variables of their own.
            let _factors = self.linear.as_ref().map(|linear| {
                let (gate, other) = (hidden.clone(), linear.columns(input, self.group));
                hidden = gate.mul(&other);
                (gate, other)
            });
            hidden = self.dropout.forward(&hidden);
            // Autocast leaves the weight as it is, and transformers brings the input to its type.
            hidden = hidden.to(self.wo.weight().dtype());
            hidden = self.wo.rows(&hidden, self.group);
            hidden
        })
    }
}
