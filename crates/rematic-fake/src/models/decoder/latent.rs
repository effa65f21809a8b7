//! Attention on latent vectors (MLA): keys and values are made of one narrow vector a position, and only a part of a head turns.

use super::norm::{Dealt, Norm, NormKind};
use super::rotary::Rotation;
use super::{DecoderConfig, Keywords, own_sequence};
use crate::models::causal_lm;
use crate::nn::{Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// Widths of latent attention.
#[derive(Clone, Debug)]
pub(in crate::models) struct LatentConfig {
    /// Of the vector that queries are made of; without it they are made of the hidden states.
    pub(in crate::models) query_rank: Option<u64>,
    /// Of the vector that keys and values are made of.
    pub(in crate::models) rank: u64,
    /// Of the part of a head that does not turn.
    pub(in crate::models) still: u64,
    /// Of the part that does, which all heads have in common in the keys.
    pub(in crate::models) turning: u64,
    /// Of a head of values.
    pub(in crate::models) value: u64,
    pub(in crate::models) rotation: LatentRotation,
}

/// How the turning parts are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum LatentRotation {
    /// As complex numbers.
    Complex,
    /// Neighbours against each other, which are taken apart by it.
    Interleaved,
    /// The two halves against each other.
    Halves,
}

pub(super) struct LatentAttention {
    scope: Scope,
    queries: Queries,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: Norm,
    kv_b_proj: Linear,
    o_proj: Linear,
    heads: u64,
    widths: LatentConfig,
    attention: Attention,
    /// The ranks that share the rest of the model: each computes all of the attention.
    group: Option<TensorParallel>,
}

enum Queries {
    Direct(Linear),
    Latent(Box<(Linear, Norm, Linear)>),
}

impl Queries {
    fn forward(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        match self {
            Queries::Direct(q_proj) => q_proj.forward_columns(input, group),
            Queries::Latent(parts) => {
                let (q_a_proj, q_a_layernorm, q_b_proj) = &**parts;
                let normed = {
                    let narrow = q_a_proj.forward_columns(input, group);
                    q_a_layernorm.forward(&narrow)
                };
                q_b_proj.replicated(&normed, group)
            }
        }
    }
}

impl LatentAttention {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, widths: &LatentConfig, kernel: AttentionKernel) -> Self {
        let family = config.family;
        let scope = parent.child("self_attn", &format!("{}Attention", family.prefix()));
        let linear = |name, inputs, outputs, bias| Linear::new(&scope, name, inputs, outputs, bias);
        let class = family.norm_class();
        let dealt = if config.group.is_some() { Dealt::Replicated } else { Dealt::Alone };
        let norm = |name, width| Norm::new(&scope, name, (NormKind::Plain, &class), &[width], dealt);
        let (hidden, bias) = (config.hidden, config.qkv_bias);
        let of_heads = |width: u64| config.heads.saturating_mul(width);
        let all_queries = of_heads(widths.still.saturating_add(widths.turning));
        let queries = match widths.query_rank {
            None => Queries::Direct(linear("q_proj", hidden, all_queries, false)),
            Some(rank) => {
                let q_a_proj = linear("q_a_proj", hidden, rank, bias);
                let q_a_layernorm = norm("q_a_layernorm", rank);
                Queries::Latent(Box::new((q_a_proj, q_a_layernorm, linear("q_b_proj", rank, all_queries, false))))
            }
        };
        let narrow = widths.rank.saturating_add(widths.turning);
        let kv_a_proj_with_mqa = linear("kv_a_proj_with_mqa", hidden, narrow, bias);
        let kv_a_layernorm = norm("kv_a_layernorm", widths.rank);
        let both = of_heads(widths.still.saturating_add(widths.value));
        let kv_b_proj = linear("kv_b_proj", widths.rank, both, false);
        let o_proj = linear("o_proj", of_heads(widths.value), hidden, bias);
        let attention =
            Attention { kernel, dropout: config.attention_dropout, value_offset: widths.still, ..Attention::default() };
        LatentAttention {
            scope,
            queries,
            kv_a_proj_with_mqa,
            kv_a_layernorm,
            kv_b_proj,
            o_proj,
            heads: config.heads,
            widths: widths.clone(),
            attention,
            group: config.group,
        }
    }

    /// Called with keyword arguments only.
    pub(super) fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Tensor {
        let input = &self.group.map_or_else(|| input.clone(), |group| input.gather_sequence_for_all(group));
        let mut arguments = vec![input];
        arguments.extend(keywords.tensors());
        let LatentConfig { rank, still, turning, value, .. } = self.widths;
        let output = self.scope.call_with(&[], &arguments, || {
            let (batch, seq) = (input.size(0), input.size(1));
            let all = {
                let flat = self.queries.forward(input, self.group);
                flat.view(&[batch, seq, self.heads, still.saturating_add(turning)]).transpose(1, 2)
            };
            let (query_still, mut query_turning) = all.split_at(still);
            // A variable of its own, of which the keys' turning part is a view.
            let compressed = self.kv_a_proj_with_mqa.forward_columns(input, self.group);
            let (mut latent, mut key_turning) = compressed.split_at(rank);
            latent = self.kv_a_layernorm.forward(&latent);
            latent = latent.view(&[batch, 1, seq, rank]);
            key_turning = key_turning.view(&[batch, 1, seq, turning]);
            (query_turning, key_turning) = self.turned(&query_turning, &key_turning, keywords.rotary);
            let queries = Tensor::cat(input.tape(), &[&query_still, &query_turning], -1);
            let (keys, values) = self.expanded(&latent, &key_turning);
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, keywords.mask);
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(value)]);
            output = self.o_proj.replicated(&output, self.group);
            output
        });
        match self.group {
            None => output,
            Some(group) => own_sequence(&output, group),
        }
    }

    fn turned(&self, queries: &Tensor, keys: &Tensor, rotary: &(Tensor, Tensor)) -> (Tensor, Tensor) {
        match self.widths.rotation {
            LatentRotation::Halves => Rotation::Halves.apply(queries, keys, rotary),
            LatentRotation::Interleaved => interleaved(queries, keys, rotary),
            LatentRotation::Complex => as_complex_numbers(queries, keys, &rotary.0),
        }
    }

    /// `expand_kv`: keys and values of all heads.
    fn expanded(&self, latent: &Tensor, turning: &Tensor) -> (Tensor, Tensor) {
        let widths = &self.widths;
        let (batch, seq) = (latent.size(0), latent.size(2));
        let both = {
            let flat = self.kv_b_proj.replicated(latent, self.group);
            flat.view(&[batch, seq, self.heads, widths.still.saturating_add(widths.value)]).transpose(1, 2)
        };
        let (still, values) = both.split_at(widths.still);
        let turning = turning.expand(&[batch, self.heads, seq, widths.turning]);
        let mut keys = both.new_empty(&[batch, self.heads, seq, widths.still.saturating_add(widths.turning)]);
        keys = keys.with_part(0, &still);
        keys = keys.with_part(widths.still, &turning);
        (keys, values)
    }
}

/// `apply_rotary_pos_emb_interleave`: the even numbers of a head against the odd ones.
fn interleaved(queries: &Tensor, keys: &Tensor, (cosines, sines): &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let half = |angles: &Tensor| angles.slice(-1, 0, angles.size(-1) / 2).unsqueeze(1);
    let (cosines, sines) = (half(cosines), half(sines));
    let parts = |heads: &Tensor| (heads.every_second(0), heads.every_second(1));
    let (queries, keys) = (parts(queries), parts(keys));
    let turned = |(even, odd): &(Tensor, Tensor)| {
        let first = {
            let (straight, across) = (even.mul(&cosines), odd.mul(&sines));
            straight.sub(&across)
        };
        let second = {
            let (straight, across) = (odd.mul(&cosines), even.mul(&sines));
            straight.add(&across)
        };
        Tensor::cat(even.tape(), &[&first, &second], -1)
    };
    (turned(&queries), turned(&keys))
}

/// DeepSeek-V2's `apply_rotary_emb`: pairs of numbers, times a complex number of length 1.
fn as_complex_numbers(queries: &Tensor, keys: &Tensor, angles: &Tensor) -> (Tensor, Tensor) {
    let complex = |heads: &Tensor| {
        let single = heads.to(rematic_trace::Dtype::F32);
        let mut pairs = heads.shape().to_vec();
        let width = pairs.pop().unwrap_or(0);
        pairs.extend([width / 2, 2]);
        single.reshape(&pairs).as_complex()
    };
    let (wide_queries, wide_keys) = (complex(queries), complex(keys));
    let angles = angles.unsqueeze(1);
    let turned = |wide: &Tensor, heads: &Tensor| {
        let real = wide.turned_by(&angles).as_real();
        real.reshape(heads.shape()).to(heads.dtype())
    };
    (turned(&wide_queries, queries), turned(&wide_keys, keys))
}
