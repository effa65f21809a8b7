//! One layer of a decoder: attention, feed-forward, and the norms around them.

use super::attention::{Attended, SelfAttention};
use super::feed_forward::FeedForward;
use super::latent::LatentAttention;
use super::norm::{Dealt, Norm};
use super::{DecoderConfig, Family, Keywords};
use crate::AttentionKernel;
use crate::nn::{Dropout, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// One before attention, one before the feed-forward network.
    Before,
    /// One behind each.
    Behind,
    /// Before and behind.
    Around,
    /// One before both, which run beside each other.
    Parallel,
}

/// Attention of either kind.
enum AnyAttention {
    Heads(Box<SelfAttention>),
    Latent(Box<LatentAttention>),
}

impl AnyAttention {
    fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Attended {
        match self {
            AnyAttention::Heads(attention) => attention.forward(input, keywords),
            AnyAttention::Latent(attention) => Attended { output: attention.forward(input, keywords), weights: None },
        }
    }
}

pub(super) struct DecoderLayer {
    scope: Scope,
    arrangement: Arrangement,
    self_attn: AnyAttention,
    mlp: FeedForward,
    /// In the order in which they are used.
    norms: Vec<Norm>,
    dropouts: Option<(Dropout, Dropout)>,
    /// Whether what is added to the residual is scaled.
    scaled: bool,
    group: Option<TensorParallel>,
}

impl DecoderLayer {
    pub(super) fn new(list: &Scope, index: u64, config: &DecoderConfig, kernel: AttentionKernel) -> Self {
        let family = config.family;
        let scope = list.child(&index.to_string(), &format!("{}DecoderLayer", family.prefix()));
        let arrangement = family.arrangement();
        let self_attn = match &config.latent {
            None => AnyAttention::Heads(Box::new(SelfAttention::new(&scope, config, kernel))),
            Some(widths) => AnyAttention::Latent(Box::new(LatentAttention::new(&scope, config, widths, kernel))),
        };
        let mlp = FeedForward::new(&scope, index, config);
        let names: &[&str] = match arrangement {
            Arrangement::Before => &["input_layernorm", "post_attention_layernorm"],
            Arrangement::Behind => &["post_attention_layernorm", "post_feedforward_layernorm"],
            Arrangement::Around => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            Arrangement::Parallel => &["input_layernorm"],
        };
        let kind = (family.norm(), family.norm_class());
        // What a norm behind a part gives is added to the residual.
        let is_behind = |at: usize| match arrangement {
            Arrangement::Behind => true,
            Arrangement::Around => at % 2 == 1,
            Arrangement::Before | Arrangement::Parallel => false,
        };
        let norm = |(at, name): (usize, &&str)| {
            let dealt = if is_behind(at) { Dealt::own(config.group) } else { Dealt::before(config.group) };
            Norm::new(&scope, name, (kind.0, &kind.1), &[config.hidden], dealt)
        };
        let norms = names.iter().enumerate().map(norm).collect();
        let dropout = |name| Dropout::new(&scope, name, config.resid_dropout);
        let dropouts = (family == Family::Phi3).then(|| (dropout("resid_attn_dropout"), dropout("resid_mlp_dropout")));
        let scaled = family == Family::Granite;
        DecoderLayer { arrangement, self_attn, mlp, norms, dropouts, scaled, group: config.group, scope }
    }

    pub(super) fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Tensor {
        self.scope.call_with(&[input], &keywords.tensors(), || match (self.arrangement, self.norms.as_slice()) {
            (Arrangement::Before, [first, second]) => self.normed_before(input, keywords, first, second),
            (Arrangement::Behind, [first, second]) => self.normed_behind(input, keywords, first, second),
            (Arrangement::Around, [first, second, third, fourth]) => {
                self.normed_around(input, keywords, [first, second, third, fourth])
            }
            (_, norms) => self.in_parallel(input, keywords, norms),
        })
    }

    fn normed_before(&self, input: &Tensor, keywords: &Keywords<'_>, first: &Norm, second: &Norm) -> Tensor {
        let mut residual = input.clone();
        let mut hidden = first.forward(input);
        let attended = self.self_attn.forward(&hidden, keywords);
        // A variable that nobody looks at: the weights, until there are shares of experts.
        let mut unused = attended.weights;
        hidden = attended.output;
        hidden = self.added(&residual, hidden, true);
        residual = hidden.clone();
        hidden = second.forward(&hidden);
        let fed = self.mlp.forward_with_shares(&hidden);
        hidden = fed.0;
        if fed.1.is_some() {
            unused = fed.1;
        }
        let output = self.added(&residual, hidden, false);
        drop(unused);
        output
    }

    /// The residual with what a part of the layer has made of it.
    fn added(&self, residual: &Tensor, hidden: Tensor, attended: bool) -> Tensor {
        let part = match &self.dropouts {
            Some((first, second)) => (if attended { first } else { second }).forward(&hidden),
            None if self.scaled => hidden.mul_scalar(),
            None => hidden.clone(),
        };
        residual.add(&part)
    }

    fn normed_behind(&self, input: &Tensor, keywords: &Keywords<'_>, first: &Norm, second: &Norm) -> Tensor {
        let mut residual = input.clone();
        let mut hidden = self.self_attn.forward(&self.dealt(input), keywords).output;
        hidden = first.forward(&hidden);
        hidden = residual.add(&hidden);
        residual = hidden.clone();
        hidden = self.mlp.forward(&self.dealt(&hidden));
        hidden = second.forward(&hidden);
        residual.add(&hidden)
    }

    /// The rank's own part of the residual, as a part of what is dealt out.
    fn dealt(&self, part: &Tensor) -> Tensor {
        if self.group.is_some() { part.distributed() } else { part.clone() }
    }

    fn normed_around(&self, input: &Tensor, keywords: &Keywords<'_>, norms: [&Norm; 4]) -> Tensor {
        let mut residual = input.clone();
        let mut hidden = norms[0].forward(input);
        let attended = self.self_attn.forward(&hidden, keywords);
        let _weights = attended.weights;
        hidden = attended.output;
        hidden = norms[1].forward(&hidden);
        hidden = residual.add(&hidden);
        residual = hidden.clone();
        hidden = norms[2].forward(&hidden);
        hidden = self.mlp.forward(&hidden);
        hidden = norms[3].forward(&hidden);
        residual.add(&hidden)
    }

    fn in_parallel(&self, input: &Tensor, keywords: &Keywords<'_>, norms: &[Norm]) -> Tensor {
        let residual = input.clone();
        let hidden = norms.first().map_or_else(|| input.clone(), |norm| norm.forward(input));
        let attended = self.self_attn.forward(&hidden, keywords).output;
        let fed = self.mlp.forward(&hidden);
        let sum = residual.add(&attended);
        sum.add(&fed)
    }
}
