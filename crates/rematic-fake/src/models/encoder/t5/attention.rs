//! Attention of T5: distances have a learned number for each head, which is added to the scores.

use rematic_trace::{Dtype, Layout};

use super::{Norm, T5Config};
use crate::kernel::{Kernel, Out};
use crate::nn::{Dropout, Embedding, Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Attention, AttentionKernel};

/// Where attention stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Encoder {
        has_bias: bool,
    },
    Decoder {
        has_bias: bool,
    },
    /// The decoder's, on what the encoder says.
    Cross,
}

/// `T5LayerSelfAttention` and `T5LayerCrossAttention`.
pub(super) struct LayerAttention {
    scope: Scope,
    attention: T5Attention,
    layer_norm: Norm,
    dropout: Dropout,
}

impl LayerAttention {
    pub(super) fn new(parent: &Scope, name: &str, config: &T5Config, (role, kernel): (Role, AttentionKernel)) -> Self {
        let (class, inner) = match role {
            Role::Cross => ("T5LayerCrossAttention", "EncDecAttention"),
            _ => ("T5LayerSelfAttention", "SelfAttention"),
        };
        let scope = parent.child(name, class);
        let attention = T5Attention::new(&scope, inner, config, (role, kernel));
        let layer_norm = Norm::new(&scope, "layer_norm", config.hidden, config.group);
        let dropout = Dropout::new(&scope, "dropout", config.dropout);
        LayerAttention { scope, attention, layer_norm, dropout }
    }

    /// The input with what attention makes of it, and the bias.
    pub(super) fn forward(&self, input: &Tensor, encoded: Option<&Tensor>, bias: Option<&Tensor>) -> (Tensor, Tensor) {
        let keywords: Vec<&Tensor> = encoded.into_iter().chain(bias).collect();
        self.scope.call_with(&[input], &keywords, || {
            let normed = self.layer_norm.forward(input);
            let (mut attended, bias) = self.attention.forward(&normed, encoded, bias);
            attended = {
                let kept = self.dropout.forward(&attended);
                input.add(&kept)
            };
            (attended, bias)
        })
    }
}

struct T5Attention {
    scope: Scope,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    relative_attention_bias: Option<Embedding>,
    role: Role,
    /// The rank's own.
    heads: u64,
    head_dim: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl T5Attention {
    fn new(parent: &Scope, name: &str, config: &T5Config, (role, kernel): (Role, AttentionKernel)) -> Self {
        let scope = parent.child(name, "T5Attention");
        let heads = config.share(config.heads);
        let inner = heads.saturating_mul(config.head_dim);
        let linear = |name| Linear::new(&scope, name, config.hidden, inner, false);
        let (q, k, v) = (linear("q"), linear("k"), linear("v"));
        let o = Linear::new(&scope, "o", inner, config.hidden, false);
        let has_bias = matches!(role, Role::Encoder { has_bias: true } | Role::Decoder { has_bias: true });
        let table = || Embedding::new(&scope, "relative_attention_bias", config.buckets, heads);
        let relative_attention_bias = has_bias.then(table);
        // With a bias none of its own: the mask says what is past.
        let attention = Attention { kernel, dropout: config.dropout, causal: false, ..Attention::default() };
        let (head_dim, group) = (config.head_dim, config.group);
        T5Attention { scope, q, k, v, o, relative_attention_bias, role, heads, head_dim, attention, group }
    }

    fn forward(&self, input: &Tensor, encoded: Option<&Tensor>, bias: Option<&Tensor>) -> (Tensor, Tensor) {
        let keywords: Vec<&Tensor> = encoded.into_iter().chain(bias).collect();
        self.scope.call_with(&[input], &keywords, || {
            let (batch, seq) = (input.size(0), input.size(1));
            let split = |linear: &Linear, from: &Tensor| {
                let flat = linear.columns(from, self.group);
                flat.view(&[batch, from.size(1), self.heads, self.head_dim]).transpose(1, 2)
            };
            let queries = split(&self.q, input);
            let from = encoded.unwrap_or(input);
            let keys = split(&self.k, from);
            let values = split(&self.v, from);
            let bias = bias.cloned().unwrap_or_else(|| self.bias(&queries, from.size(1)));
            let mut output = {
                let mask = self.mask(&bias, seq, from.size(1));
                let attended = self.attention.attend_biased(&queries, &keys, &values, &mask);
                let transposed = attended.transpose(1, 2);
                transposed.contiguous()
            };
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)]);
            output = self.o.rows(&output, self.group);
            (output, bias)
        })
    }

    /// `create_position_bias_mask`: the bias, with what lies ahead masked in a decoder.
    fn mask(&self, bias: &Tensor, queries: u64, keys: u64) -> Tensor {
        if !matches!(self.role, Role::Decoder { .. }) || queries < 2 {
            return bias.contiguous();
        }
        let tape = bias.tape();
        let past = {
            let rows = Tensor::arange(tape, queries, ArangeOverload::End).unsqueeze(1);
            let columns = Tensor::arange(tape, keys, ArangeOverload::End).unsqueeze(0);
            rows.compare("ge.Tensor", &columns)
        };
        let past = past.view(&[1, 1, queries, keys]);
        let masked = bias.where_true(&past);
        masked.contiguous()
    }

    /// The numbers that are added to scores: none on what the encoder says.
    fn bias(&self, queries: &Tensor, keys: u64) -> Tensor {
        let (tape, seq) = (queries.tape(), queries.size(2));
        let Some(table) = &self.relative_attention_bias else {
            let layout = Layout::contiguous(queries.dtype(), &[1, self.heads, seq, keys]);
            return tape.launch_one(Kernel::new("zeros.default", &[], vec![Out::New(layout)]));
        };
        // Positions and distances are variables of their own.
        let rows = {
            let numbers = Tensor::arange(tape, seq, ArangeOverload::End).unsqueeze(1);
            numbers.add_scalar()
        };
        let columns = Tensor::arange(tape, keys, ArangeOverload::End).unsqueeze(0);
        let distances = columns.sub(&rows);
        let buckets = buckets(&distances, self.role);
        let mut values = table.replicated(&buckets, self.group);
        values = values.permute(&[2, 0, 1]).unsqueeze(0);
        values
    }
}

/// `_relative_position_bucket`: near distances have a bucket each, far ones share them.
fn buckets(distances: &Tensor, role: Role) -> Tensor {
    let is_encoder = matches!(role, Role::Encoder { .. });
    // In a decoder there is but one side, and nothing to start from.
    let sides = is_encoder.then(|| {
        let offset = {
            let ahead = {
                let flags = distances.map_to("gt.Scalar", Dtype::Bool);
                flags.to(Dtype::I64)
            };
            ahead.mul_scalar()
        };
        offset.add_scalar()
    });
    let far = if is_encoder {
        distances.map("abs.default")
    } else {
        let past = {
            let zeros = distances.map("zeros_like.default");
            distances.zip("minimum.default", &zeros)
        };
        past.neg()
    };
    let is_small = far.map_to("lt.Scalar", Dtype::Bool);
    let mut large = {
        let whole = logarithmic(&far).to(Dtype::I64);
        whole.add_scalar()
    };
    large = {
        let last = large.map("full_like.default");
        large.zip("minimum.default", &last)
    };
    let chosen = {
        let out = Out::New(Layout::contiguous(Dtype::I64, far.shape()));
        far.tape().launch_one(Kernel::new("where.self", &[&is_small, &far, &large], vec![out]))
    };
    match sides {
        Some(sides) => {
            sides.change("add_.Tensor", &[&chosen]);
            sides
        }
        None => chosen.add_scalar(),
    }
}

/// `log(x / a) / b * c`; every inner result goes as soon as it is used.
fn logarithmic(distances: &Tensor) -> Tensor {
    let scaled = {
        let logarithm = {
            let share = {
                let single = distances.to(Dtype::F32);
                single.div_scalar()
            };
            share.map("log.default")
        };
        logarithm.div_scalar()
    };
    scaled.mul_scalar()
}
