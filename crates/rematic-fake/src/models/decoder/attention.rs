//! Self-attention of decoders.

use super::norm::{Dealt, Norm};
use super::rotary::Rotation;
use super::{DecoderConfig, Family, Keywords, whole_sequence};
use crate::models::causal_lm;
use crate::nn::{Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

pub(super) struct SelfAttention {
    scope: Scope,
    projections: Projections,
    o_proj: Linear,
    norms: Option<(Norm, Norm)>,
    order: Order,
    rotation: Rotation,
    head_dim: u64,
    heads: u64,
    key_heads: u64,
    attention: Attention,
    scores: Scores,
    group: Option<TensorParallel>,
    /// Whether every rank has all heads, and shares the projections only.
    gathers: bool,
}

/// What computes attention.
enum Scores {
    /// A kernel of PyTorch's.
    Kernel,
    /// Plain operators, with soft-capping or without.
    Plain { capped: bool },
    /// Plain operators, with a score of its own for each head.
    Sinks(Tensor),
}

enum Projections {
    /// Of queries, keys and values.
    Separate(Box<[Linear; 3]>),
    Fused {
        qkv_proj: Linear,
    },
}

/// When heads are split, normalized and transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// All of it for queries, then keys, then values.
    EachInTurn,
    /// Norms of all heads together, before they are split.
    NormsFirst,
    /// Norms between splitting and transposing.
    NormsBetween,
    /// Norms at the end.
    NormsLast,
}

/// What attention gives: the result, and the weights where plain operators compute it.
pub(super) struct Attended {
    pub(super) output: Tensor,
    pub(super) weights: Option<Tensor>,
}

impl SelfAttention {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, kernel: AttentionKernel) -> Self {
        let family = config.family;
        let scope = parent.child("self_attn", &format!("{}Attention", family.prefix()));
        let gathers = config.gathers_heads();
        let own = |heads| if gathers { heads } else { config.share(heads) };
        let (heads, key_heads) = (own(config.heads), own(config.key_heads));
        let scores = match family {
            Family::Gemma2 => Scores::Plain { capped: config.attention_softcap },
            Family::GptOss => Scores::Sinks(scope.parameter("sinks", &[heads])),
            _ => Scores::Kernel,
        };
        let (queries, keys) = (heads.saturating_mul(config.head_dim), key_heads.saturating_mul(config.head_dim));
        let cut = |extent| if gathers { config.share(extent) } else { extent };
        let linear = |name, inputs, outputs, bias| Linear::new(&scope, name, inputs, outputs, bias);
        let output = || linear("o_proj", cut(queries), config.hidden, config.output_bias);
        let (projections, o_proj) = if family == Family::Phi3 {
            let o_proj = output();
            let all = queries.saturating_add(keys.saturating_mul(2));
            (Projections::Fused { qkv_proj: linear("qkv_proj", config.hidden, cut(all), config.qkv_bias) }, o_proj)
        } else {
            let separate = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]
                .map(|(name, outputs)| linear(name, config.hidden, cut(outputs), config.qkv_bias));
            (Projections::Separate(Box::new(separate)), output())
        };
        let dealt = match config.group {
            Some(_) if family == Family::Olmo2 => Dealt::Replicated,
            group => Dealt::own(group),
        };
        let norm = |name, shape: &[u64]| Norm::new(&scope, name, (family.norm(), &family.norm_class()), shape, dealt);
        let of_heads = |q: &[u64], k: &[u64]| Some((norm("q_norm", q), norm("k_norm", k)));
        let width = config.head_dim;
        let (order, norms) = match family {
            Family::Qwen3 | Family::Qwen3Moe => (Order::EachInTurn, of_heads(&[width], &[width])),
            Family::Gemma3 => (Order::NormsLast, of_heads(&[width], &[width])),
            Family::Olmo2 => (Order::NormsFirst, of_heads(&[queries], &[keys])),
            Family::Cohere => {
                let norms = config.qk_norm.then(|| of_heads(&[heads, width], &[key_heads, width]));
                (Order::NormsBetween, norms.flatten())
            }
            _ => (Order::EachInTurn, None),
        };
        SelfAttention {
            projections,
            o_proj,
            norms,
            order,
            rotation: family.rotation(),
            head_dim: config.head_dim,
            heads,
            key_heads,
            attention: Attention { kernel, dropout: config.attention_dropout, ..Attention::default() },
            scores,
            group: config.group,
            gathers,
            scope,
        }
    }

    /// Called with keyword arguments only.
    pub(super) fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Attended {
        let input = &whole_sequence(input, self.group);
        let mut arguments = vec![input];
        arguments.extend(keywords.tensors());
        let mut kept = None;
        let output = self.scope.call_with(&[], &arguments, || {
            // Read before all else where several ranks share them.
            let sinks = match &self.scores {
                Scores::Sinks(sinks) if self.group.is_some() => Some(sinks.local()),
                _ => None,
            };
            let (batch, seq) = (input.size(0), input.size(1));
            // What all three are views of is a variable of its own.
            let (_projected, [mut queries, mut keys, values]) = self.split(input);
            (queries, keys) = self.rotation.apply(&queries, &keys, keywords.rotary);
            let (how, mask, three) = (self.attention, keywords.mask, [&queries, &keys, &values]);
            let (mut output, weights) = match &self.scores {
                Scores::Kernel => (causal_lm::attend(how, &queries, &keys, &values, mask), None),
                Scores::Plain { capped } => {
                    let (output, weights) = causal_lm::attend_eagerly(how, three, mask, *capped);
                    (output, Some(weights))
                }
                Scores::Sinks(given) => {
                    let (output, weights) =
                        causal_lm::attend_with_sinks(how, three, mask, sinks.as_ref().unwrap_or(given));
                    (output, Some(weights))
                }
            };
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)]);
            output = if self.gathers {
                self.o_proj.forward_rows_of_all(&output, self.group)
            } else {
                self.o_proj.forward_rows(&output, self.group)
            };
            kept = weights.clone();
            [output].into_iter().chain(weights).collect::<Vec<Tensor>>()
        });
        let output = output.into_iter().next().unwrap_or_else(|| input.clone());
        Attended { output, weights: kept }
    }

    fn project(&self, projection: &Linear, input: &Tensor) -> Tensor {
        if self.gathers {
            projection.forward_columns_gathered(input, self.group)
        } else {
            projection.forward_columns(input, self.group)
        }
    }

    /// Heads of queries, keys and values: `[batch, heads, positions, width]`; and what they are parts of, if they are.
    fn split(&self, input: &Tensor) -> (Option<Tensor>, [Tensor; 3]) {
        let (batch, seq) = (input.size(0), input.size(1));
        // Takes what it splits: that goes at once.
        let split = |flat: Tensor, heads: u64| flat.view(&[batch, seq, heads, self.head_dim]);
        let counts = [self.heads, self.key_heads, self.key_heads];
        let (q_proj, k_proj, v_proj) = match &self.projections {
            Projections::Separate(each) => (&each[0], &each[1], &each[2]),
            Projections::Fused { qkv_proj } => {
                let projected = self.project(qkv_proj, input);
                let ends = [self.heads, self.heads + self.key_heads, self.heads + 2 * self.key_heads];
                let starts = [0, ends[0], ends[1]];
                let part =
                    |index: usize| projected.slice(-1, starts[index] * self.head_dim, ends[index] * self.head_dim);
                let [queries, keys, values] = [part(0), part(1), part(2)];
                let heads = [(queries, 0), (keys, 1), (values, 2)]
                    .map(|(flat, index)| split(flat, counts[index]).transpose(1, 2));
                return (Some(projected), heads);
            }
        };
        let norm = |first: bool| self.norms.as_ref().map(|(query, key)| if first { query } else { key });
        let project = |projection: &Linear| self.project(projection, input);
        let normed = |tensor: Tensor, first: bool| match norm(first) {
            Some(norm) => norm.forward(&tensor),
            None => tensor,
        };
        let three = match self.order {
            Order::EachInTurn => {
                let queries = normed(split(project(q_proj), counts[0]), true).transpose(1, 2);
                let keys = normed(split(project(k_proj), counts[1]), false).transpose(1, 2);
                [queries, keys, split(project(v_proj), counts[2]).transpose(1, 2)]
            }
            Order::NormsFirst => {
                let queries = normed(project(q_proj), true);
                let keys = normed(project(k_proj), false);
                let values = project(v_proj);
                [(queries, 0), (keys, 1), (values, 2)].map(|(flat, index)| split(flat, counts[index]).transpose(1, 2))
            }
            Order::NormsBetween => {
                let [queries, keys, values] = [(q_proj, 0), (k_proj, 1), (v_proj, 2)]
                    .map(|(projection, index)| split(project(projection), counts[index]));
                let (queries, keys) = (normed(queries, true), normed(keys, false));
                [queries, keys, values].map(|heads| heads.transpose(1, 2))
            }
            Order::NormsLast => {
                let [queries, keys, values] = [(q_proj, 0), (k_proj, 1), (v_proj, 2)]
                    .map(|(projection, index)| split(project(projection), counts[index]).transpose(1, 2));
                [normed(queries, true), normed(keys, false), values]
            }
        };
        (None, three)
    }
}
