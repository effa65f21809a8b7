//! Mixtures of experts.

use rematic_trace::Dtype;

use super::feed_forward::Mlp;
use super::{DecoderConfig, Family};
use crate::ArangeOverload;
use crate::models::causal_lm::Activation;
use crate::nn::{Linear, Outputs, Scope};
use crate::tensor::Tensor;

/// Sizes and switches of the experts.
#[derive(Clone, Debug)]
pub(in crate::models) struct ExpertsConfig {
    /// Experts of a layer.
    pub(in crate::models) count: u64,
    /// Experts that a token goes to.
    pub(in crate::models) chosen: u64,
    /// Width of one.
    pub(in crate::models) width: u64,
    /// Width of the one that all tokens go through, if there is one.
    pub(in crate::models) shared: Option<u64>,
    /// Whether the weights of a token's experts are made to add up to 1.
    pub(in crate::models) normalized: bool,
    /// Layers without experts.
    pub(in crate::models) dense: Vec<u64>,
    /// The last of every so many layers has experts.
    pub(in crate::models) step: u64,
}

impl ExpertsConfig {
    /// Whether a layer has experts.
    pub(super) fn has(&self, layer: u64) -> bool {
        !self.dense.contains(&layer) && (layer + 1).is_multiple_of(self.step)
    }
}

/// Tokens that go through some of many experts.
pub(super) struct SparseMoeBlock {
    scope: Scope,
    gate: Router,
    experts: Experts,
    shared: Option<(Mlp, Linear)>,
}

impl SparseMoeBlock {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let scope = parent.child("mlp", &format!("{}SparseMoeBlock", config.family.prefix()));
        let (gate, experts);
        if config.family == Family::Qwen3Moe {
            experts = Experts::new(&scope, config, sizes);
            gate = Router::new(&scope, config, sizes);
        } else {
            gate = Router::new(&scope, config, sizes);
            experts = Experts::new(&scope, config, sizes);
        }
        let shared = sizes.shared.map(|width| {
            let mlp = Mlp::new(&scope, "shared_expert", config, width);
            (mlp, Linear::new(&scope, "shared_expert_gate", config.hidden, 1, false))
        });
        SparseMoeBlock { scope, gate, experts, shared }
    }

    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let shape = input.shape();
            let tokens = input.view(&[input.size(0).saturating_mul(input.size(1)), input.size(2)]);
            let shared = self.shared.as_ref().map(|(mlp, _)| mlp.forward(&tokens));
            // The logits are a variable of their own, which nobody looks at.
            let Routes { logits: _logits, weights, places } = self.gate.forward(&tokens);
            let mut output = self.experts.forward(&tokens, &places, &weights);
            let weighted = self.shared.as_ref().zip(shared).map(|((_, gate), shared)| {
                let share = {
                    let logits = gate.forward(&tokens);
                    logits.sigmoid()
                };
                share.mul(&shared)
            });
            if let Some(shared) = &weighted {
                output = output.add(shared);
            }
            output.reshape(shape)
        })
    }
}

/// Where tokens go.
struct Routes {
    logits: Tensor,
    weights: Tensor,
    places: Tensor,
}

impl Outputs for Routes {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.logits.clone(), self.weights.clone(), self.places.clone()]
    }
}

/// Says which experts a token goes to, and with which weights.
struct Router {
    scope: Scope,
    weight: Tensor,
    chosen: u64,
    normalized: bool,
    family: Family,
}

impl Router {
    fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let scope = parent.child("gate", &format!("{}TopKRouter", config.family.prefix()));
        let weight = scope.parameter("weight", &[sizes.count, config.hidden]);
        Router { scope, weight, chosen: sizes.chosen, normalized: sizes.normalized, family: config.family }
    }

    fn forward(&self, tokens: &Tensor) -> Routes {
        self.scope.call(&[tokens], || {
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
        })
    }
}

/// The experts, whose weights lie in one tensor.
struct Experts {
    scope: Scope,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    act_fn: Scope,
    activation: Activation,
    count: u64,
}

impl Experts {
    fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let scope = parent.child("experts", &format!("{}Experts", config.family.prefix()));
        let (count, hidden, width) = (sizes.count, config.hidden, sizes.width);
        Experts {
            gate_up_proj: scope.parameter("gate_up_proj", &[count, width.saturating_mul(2), hidden]),
            down_proj: scope.parameter("down_proj", &[count, hidden, width]),
            act_fn: scope.child("act_fn", config.activation.class()),
            activation: config.activation,
            count,
            scope,
        }
    }

    /// `grouped_mm_experts_forward`: the rows of all tokens, sorted by expert, in one product. Its shapes are the same however
    /// tokens are spread.
    fn forward(&self, tokens: &Tensor, places: &Tensor, weights: &Tensor) -> Tensor {
        self.scope.call(&[tokens, places, weights], || {
            let (count, chosen, width) = (tokens.size(0), places.size(-1), tokens.size(-1));
            let rows = count.saturating_mul(chosen);
            let weights = weights.reshape(&[rows]);
            let experts = places.reshape(&[rows]);
            let (sorted, order) = experts.sorted();
            let selected = {
                let origins = order.map("floor_divide.default");
                tokens.rows_at(&origins)
            };
            let sorted_weights = weights.rows_at(&order);
            let (_numbers, _each, ends) = sorted.offsets(self.count);
            let product = |rows: &Tensor, matrices: &Tensor| {
                let flipped = matrices.transpose(-2, -1);
                rows.grouped_mm(&flipped, &ends)
            };
            let mut output = product(&selected, &self.gate_up_proj);
            output = {
                let [gate, up] = output.split_into::<2>(-1);
                let activated = self.activation.forward(&self.act_fn, &gate);
                activated.mul(&up)
            };
            output = product(&output, &self.down_proj);
            let mut weighted = {
                let column = sorted_weights.unsqueeze(-1);
                output.mul(&column)
            };
            let back = order.map("empty_like.default");
            {
                let numbers = Tensor::arange(tokens.tape(), rows, ArangeOverload::End);
                back.put_at(&order, &numbers);
            }
            weighted = weighted.rows_at(&back);
            let sum = {
                let by_token = weighted.view(&[count, chosen, width]);
                by_token.sum_dim(1, false)
            };
            sum.to(tokens.dtype())
        })
    }
}
