//! Mixtures of experts.

use super::feed_forward::Mlp;
use super::router::{Router, Routes};
use super::{DecoderConfig, Family, whole_sequence};
use crate::ArangeOverload;
use crate::models::causal_lm::Activation;
use crate::nn::{Linear, Scope, own};
use crate::ops::Wait;
use crate::parallel::{Spread, TensorParallel};
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
    /// Groups of experts, of which a token goes to so many only.
    pub(in crate::models) groups: Option<(u64, u64)>,
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
    /// Whether all layers have experts.
    pub(in crate::models) fn is_everywhere(&self, layers: u64) -> bool {
        self.step == 1 && self.dense.iter().all(|layer| *layer >= layers)
    }

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
    returns_shares: bool,
    group: Option<TensorParallel>,
}

/// DeepSeek's: tokens go through some of many experts, and all of them through the shared ones.
pub(super) struct SharedMoe {
    scope: Scope,
    experts: Experts,
    gate: Router,
    shared_experts: Mlp,
    group: Option<TensorParallel>,
}

impl SharedMoe {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let class = if config.family == Family::DeepseekV2 { "Moe" } else { "MoE" };
        let scope = parent.child("mlp", &format!("{}{class}", config.family.prefix()));
        let experts = Experts::new(&scope, config, sizes);
        let gate = Router::new(&scope, config, sizes);
        let shared_experts = Mlp::shared(&scope, "shared_experts", config, sizes.shared.unwrap_or(sizes.width));
        SharedMoe { scope, experts, gate, shared_experts, group: config.group }
    }

    pub(super) fn forward(&self, input: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        let output = self.scope.call(&[input], || {
            let Routes { logits: _logits, weights, places } = self.gate.forward(input);
            let tokens = input.view(&[input.size(0).saturating_mul(input.size(1)), input.size(2)]);
            let output = self.experts.forward(&tokens, &places, &weights).view(input.shape());
            let shared = self.shared_experts.forward(input);
            output.add(&shared)
        });
        own_part_of_sum(output, self.group)
    }
}

impl SparseMoeBlock {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let class = if config.family == Family::GptOss { "MLP" } else { "SparseMoeBlock" };
        let scope = parent.child("mlp", &format!("{}{class}", config.family.prefix()));
        let (gate, experts);
        if config.family == Family::Qwen3Moe {
            experts = Experts::new(&scope, config, sizes);
            gate = Router::new(&scope, config, sizes);
        } else {
            gate = Router::new(&scope, config, sizes);
            experts = Experts::new(&scope, config, sizes);
        }
        let shared = sizes.shared.map(|width| {
            let mlp = Mlp::shared(&scope, "shared_expert", config, width);
            let gate = match config.group {
                None => Linear::new(&scope, "shared_expert_gate", config.hidden, 1, false),
                Some(group) => Linear::spread(&scope, "shared_expert_gate", [config.hidden, 1], Spread::Summand(group)),
            };
            (mlp, gate)
        });
        let returns_shares = config.family == Family::GptOss;
        SparseMoeBlock { scope, gate, experts, shared, returns_shares, group: config.group }
    }

    /// What the experts make of the tokens; and their shares, if they are returned too.
    pub(super) fn forward(&self, input: &Tensor) -> (Tensor, Option<Tensor>) {
        let input = &whole_sequence(input, self.group);
        let mut returned = self.scope.call(&[input], || {
            let shape = input.shape();
            let tokens = input.view(&[input.size(0).saturating_mul(input.size(1)), input.size(2)]);
            let shared = self.shared.as_ref().map(|(mlp, _)| mlp.forward(&tokens));
            // The logits are a variable of their own, which nobody looks at.
            let Routes { logits: _logits, weights, places } = self.gate.forward(&tokens);
            let mut output = self.experts.forward(&tokens, &places, &weights);
            let weighted = self.shared.as_ref().zip(shared).map(|((_, gate), shared)| {
                let share = {
                    // Of what every rank has.
                    let logits = gate.forward_columns(&tokens, self.group);
                    logits.sigmoid()
                };
                share.mul(&shared)
            });
            if let Some(shared) = &weighted {
                output = output.add(shared);
            }
            let shares = self.returns_shares.then(|| weights.clone());
            [output.reshape(shape)].into_iter().chain(shares).collect::<Vec<Tensor>>()
        });
        let shares = (returned.len() > 1).then(|| returned.swap_remove(1));
        (own_part_of_sum(returned.swap_remove(0), self.group), shares)
    }
}

/// What a block gives a rank: its part of the sequence of the sum of what all ranks have made.
fn own_part_of_sum(summand: Tensor, group: Option<TensorParallel>) -> Tensor {
    let Some(group) = group else { return summand };
    let part = {
        let summand = summand.distributed();
        summand.scatter_sequence(group, Wait::AtOnce)
    };
    part.local()
}

/// The experts, whose weights lie in one tensor.
struct Experts {
    scope: Scope,
    gate_up_proj: Matrices,
    down_proj: Matrices,
    gate: Gate,
    count: u64,
    group: Option<TensorParallel>,
}

/// What is between the two products.
enum Gate {
    /// One half through the activation, times the other.
    Halves { act_fn: Scope, activation: Activation },
    /// Neighbours, kept within bounds.
    Clamped,
}

/// A matrix for each expert, and a bias.
struct Matrices {
    weight: Tensor,
    bias: Option<Tensor>,
    /// Whether they are the other way round than those of linear layers.
    transposed: bool,
}

impl Matrices {
    fn new(scope: &Scope, name: &str, [count, inputs, outputs]: [u64; 3], transposed: bool) -> Self {
        let shape = if transposed { [count, inputs, outputs] } else { [count, outputs, inputs] };
        let weight = scope.parameter(name, &shape);
        let bias = transposed.then(|| scope.parameter(&format!("{name}_bias"), &[count, outputs]));
        Matrices { weight, bias, transposed }
    }

    /// The biases of rows that go to these experts.
    fn biases(&self, experts: &Tensor) -> Option<Tensor> {
        self.bias.as_ref().map(|bias| bias.rows_at(experts))
    }

    /// As the rank computes with them.
    fn own(&self, group: Option<TensorParallel>) -> Matrices {
        let weight = own(&self.weight, group);
        let bias = self.bias.as_ref().map(|bias| own(bias, group));
        Matrices { weight, bias, transposed: self.transposed }
    }

    /// Matrices for summands: of the biases an equal share.
    fn for_summands(self, group: Option<TensorParallel>) -> Matrices {
        match (group, &self.bias) {
            (Some(_), Some(bias)) => Matrices { bias: Some(bias.equal_share()), ..self },
            _ => self,
        }
    }

    /// Groups of rows, each times the matrix of its expert.
    fn forward(&self, rows: &Tensor, ends: &Tensor, biases: Option<&Tensor>) -> Tensor {
        let product = if self.transposed {
            rows.grouped_mm(&self.weight, ends)
        } else {
            let flipped = self.weight.transpose(-2, -1);
            rows.grouped_mm(&flipped, ends)
        };
        match biases {
            Some(biases) => product.added_in_place(biases),
            None => product,
        }
    }
}

impl Gate {
    fn forward(&self, both: &Tensor) -> Tensor {
        match self {
            Gate::Halves { act_fn, activation } => {
                let [gate, up] = both.split_into::<2>(-1);
                let activated = activation.forward(act_fn, &gate);
                activated.mul(&up)
            }
            Gate::Clamped => {
                let (mut gate, mut up) = (both.every_second(0), both.every_second(1));
                gate = gate.clamp(false);
                up = up.clamp(true);
                let gated = {
                    let share = {
                        let scaled = gate.mul_scalar();
                        scaled.sigmoid()
                    };
                    gate.mul(&share)
                };
                let shifted = up.add_scalar();
                shifted.mul(&gated)
            }
        }
    }
}

impl Experts {
    fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let scope = parent.child("experts", &format!("{}Experts", config.family.prefix()));
        let (count, hidden, width) = (sizes.count, config.hidden, config.share(sizes.width));
        let transposed = config.family == Family::GptOss;
        let gate_up_proj = Matrices::new(&scope, "gate_up_proj", [count, hidden, width.saturating_mul(2)], transposed);
        let down_proj = Matrices::new(&scope, "down_proj", [count, width, hidden], transposed);
        let gate = if transposed {
            Gate::Clamped
        } else {
            Gate::Halves { act_fn: scope.child("act_fn", config.activation.class()), activation: config.activation }
        };
        Experts { scope, gate_up_proj, down_proj, gate, count, group: config.group }
    }

    /// `grouped_mm_experts_forward`: the rows of all tokens, sorted by expert, in one product. Its shapes are the same however
    /// tokens are spread.
    fn forward(&self, tokens: &Tensor, places: &Tensor, weights: &Tensor) -> Tensor {
        let tokens = &if self.group.is_some() { tokens.local() } else { tokens.clone() };
        let (up, down) = (self.gate_up_proj.own(self.group), self.down_proj.own(self.group));
        let down = down.for_summands(self.group);
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
            let mut biases = up.biases(&sorted);
            let mut output = up.forward(&selected, &ends, biases.as_ref());
            output = self.gate.forward(&output);
            biases = down.biases(&sorted);
            output = down.forward(&output, &ends, biases.as_ref());
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
