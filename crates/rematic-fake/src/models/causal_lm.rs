//! What the Hugging Face models for causal language modelling share.

use rematic_trace::Dtype;

use crate::nn::Scope;
use crate::ops::{Chunked, LogitScale};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Attention, Tape};

/// An activation function as `ACT2FN` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Silu,
    Gelu,
    GeluNew,
    GeluTanh,
    Relu,
    QuickGelu,
}

impl Activation {
    pub(super) const NAMES: [(&'static str, Activation); 7] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluNew),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("quick_gelu", Activation::QuickGelu),
    ];

    pub(super) fn class(self) -> &'static str {
        match self {
            Activation::Silu => "SiLUActivation",
            Activation::Gelu => "GELUActivation",
            Activation::GeluNew => "NewGELUActivation",
            Activation::GeluTanh => "GELUTanh",
            Activation::Relu => "ReLU",
            Activation::QuickGelu => "QuickGELUActivation",
        }
    }

    pub(super) fn forward(self, scope: &Scope, input: &Tensor) -> Tensor {
        scope.call(&[input], || match self {
            Activation::Silu => input.silu(),
            Activation::Gelu | Activation::GeluTanh => input.gelu(),
            Activation::GeluNew => gelu_new(input),
            Activation::Relu => input.relu(),
            Activation::QuickGelu => quick_gelu(input),
        })
    }
}

/// `x * sigmoid(1.702 * x)`.
fn quick_gelu(input: &Tensor) -> Tensor {
    let share = {
        let scaled = input.mul_scalar();
        scaled.sigmoid()
    };
    input.mul(&share)
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

/// `create_sliding_window_causal_mask`: which positions see which. `None` if the sequence is shorter than the window, so
/// that causality says it all.
pub(super) fn sliding_window_mask(positions: &Tensor, [batch, seq]: [u64; 2], window: u64) -> Option<Tensor> {
    skip_causal_mask(positions, batch);
    (seq >= window).then(|| boolean_mask(positions.tape(), [batch, seq], true))
}

/// The mask of attention that plain operators compute: numbers to add to the scores, with a window or without.
pub(super) fn eager_mask(positions: &Tensor, seen: [u64; 2], windowed: bool, dtype: Dtype) -> Tensor {
    let mask = boolean_mask(positions.tape(), seen, windowed);
    mask.as_numbers(dtype)
}

/// `sdpa_mask`: true where a position sees another: one before it, within the window if there is one.
fn boolean_mask(tape: &Tape, [batch, seq]: [u64; 2], windowed: bool) -> Tensor {
    let batches = Tensor::arange(tape, batch, ArangeOverload::End);
    let heads = Tensor::arange(tape, 1, ArangeOverload::End);
    let indices = || {
        let numbers = Tensor::arange(tape, seq, ArangeOverload::End);
        numbers.add_scalar()
    };
    let (queries, keys) = (indices(), indices());
    // The one of batches and that of heads are made, but no pattern looks at them.
    let _batches = batches.unsqueeze(1).unsqueeze(2).unsqueeze(3);
    let _heads = heads.unsqueeze(0).unsqueeze(2).unsqueeze(3);
    let of_queries = queries.unsqueeze(0).unsqueeze(1).unsqueeze(3);
    let of_keys = keys.unsqueeze(0).unsqueeze(1).unsqueeze(2);
    let past = || of_keys.compare("le.Tensor", &of_queries);
    let mut mask = if windowed {
        let mut mask = of_queries.new_ones(Dtype::Bool);
        mask = {
            let near = {
                let first = of_queries.map("sub.Tensor");
                of_keys.compare("gt.Tensor", &first)
            };
            mask.zip("bitwise_and.Tensor", &near)
        };
        let past = past();
        mask.zip("bitwise_and.Tensor", &past)
    } else {
        past()
    };
    mask = mask.expand(&[batch, 1, seq, seq]);
    mask
}

/// `sdpa_attention_forward`, up to its transposed output.
pub(super) fn attend(
    attention: Attention,
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    mask: Option<&Tensor>,
) -> Tensor {
    let group = queries.size(1) / keys.size(1).max(1);
    // `use_gqa_in_sdpa`: with a mask, or wider heads than this, it repeats them itself.
    const WIDEST_GROUPED: u64 = 256;
    let repeats = group > 1 && (mask.is_some() || keys.size(3) > WIDEST_GROUPED);
    let repeated = repeats.then(|| (repeat_kv(keys, group), repeat_kv(values, group)));
    let (keys, values) = repeated.as_ref().map_or((keys, values), |(keys, values)| (keys, values));
    // A single position counts as decoding, and sees all.
    let attention = Attention { causal: attention.causal && queries.size(2) > 1, ..attention };
    let attended = attention.attend(queries, keys, values, mask);
    let transposed = attended.transpose(1, 2);
    transposed.contiguous()
}

/// `eager_attention_forward`, up to its transposed output; and the weights, which are returned too.
pub(super) fn attend_eagerly(
    attention: Attention,
    [queries, keys, values]: [&Tensor; 3],
    mask: Option<&Tensor>,
    capped: bool,
) -> (Tensor, Tensor) {
    let group = queries.size(1) / keys.size(1).max(1);
    let repeated = |heads: &Tensor| if group > 1 { repeat_kv(heads, group) } else { heads.clone() };
    let (keys, values) = (repeated(keys), repeated(values));
    let mut weights = {
        let scores = {
            let flipped = keys.transpose(2, 3);
            queries.matmul(&flipped)
        };
        scores.mul_scalar()
    };
    if capped {
        weights = softcap(weights);
    }
    if let Some(mask) = mask {
        weights = weights.add(mask);
    }
    weights = {
        let single = weights.softmax_in_single();
        single.to(queries.dtype())
    };
    weights = weights.dropout(attention.dropout);
    let mut output = weights.matmul(&values);
    output = {
        let transposed = output.transpose(1, 2);
        transposed.contiguous()
    };
    (output, weights)
}

/// GPT-OSS's `eager_attention_forward`: each head has a score beside those of the keys, which takes its share of the weights and
/// gives nothing.
pub(super) fn attend_with_sinks(
    attention: Attention,
    [queries, keys, values]: [&Tensor; 3],
    mask: Option<&Tensor>,
    sinks: &Tensor,
) -> (Tensor, Tensor) {
    let [batch, heads, positions, _] = *queries.shape() else { return (queries.clone(), queries.clone()) };
    let group = heads / keys.size(1).max(1);
    let repeated = |heads: &Tensor| if group > 1 { repeat_kv(heads, group) } else { heads.clone() };
    let (keys, values) = (repeated(keys), repeated(values));
    let mut weights = {
        let scores = {
            let flipped = keys.transpose(2, 3);
            queries.matmul(&flipped)
        };
        scores.mul_scalar()
    };
    if let Some(mask) = mask {
        weights = weights.add(mask);
    }
    let wide = sinks.reshape(&[1, heads, 1, 1]).expand(&[batch, heads, positions, 1]);
    let mut combined = Tensor::cat(queries.tape(), &[&weights, &wide], -1);
    combined = {
        let highest = combined.max_last(true);
        combined.sub(&highest)
    };
    let shares = combined.softmax_last();
    let scores = shares.slice(-1, 0, shares.size(-1).saturating_sub(1));
    weights = {
        let kept = scores.dropout(attention.dropout);
        kept.to(values.dtype())
    };
    let mut output = weights.matmul(&values);
    output = {
        let transposed = output.transpose(1, 2);
        transposed.contiguous()
    };
    (output, weights)
}

/// `tanh(x / c) * c`, a variable that is written three times.
pub(super) fn softcap(mut values: Tensor) -> Tensor {
    values = values.div_scalar();
    values = values.tanh();
    values.mul_scalar()
}

fn repeat_kv(heads: &Tensor, group: u64) -> Tensor {
    let [batch, count, positions, width] = *heads.shape() else { return heads.clone() };
    let wide = heads.unsqueeze(2).expand(&[batch, count, group, positions, width]);
    wide.reshape(&[batch, count.saturating_mul(group), positions, width])
}

/// `ForCausalLMLoss`: cross-entropy in fp32 of every position against the next token.
pub(super) fn causal_lm_loss(logits: &Tensor, labels: &Tensor, group: Option<TensorParallel>) -> Tensor {
    let mut logits = logits.to(Dtype::F32);
    let padded = labels.pad_last(1);
    let mut targets = {
        let shifted = padded.slice(-1, 1, padded.size(-1));
        shifted.contiguous()
    };
    let rows = logits.size(0).saturating_mul(logits.size(1));
    logits = logits.view(&[rows, logits.size(-1)]);
    targets = targets.view(&[rows]);
    match group {
        None => logits.cross_entropy(&targets),
        Some(group) => logits.cross_entropy_part(&targets, group),
    }
}

/// Over so many parts the chunked loss is computed.
pub(super) const CHUNKS: u64 = 8;

/// The last hidden states through the output layer, whose result is scaled, and the loss.
pub(super) fn lm_outputs(
    hidden: &Tensor,
    lm_head: &crate::nn::Linear,
    scale: LogitScale,
    labels: &Tensor,
    group: Option<TensorParallel>,
) -> (Tensor, Tensor) {
    let states = hidden.alias();
    if hidden.tape().training(|training| training.chunks_loss) {
        // Logits are not returned.
        let (states, weight) = lm_head.deferred(&states);
        let loss = Chunked { chunks: CHUNKS, scale }.loss(states, weight, labels);
        return (loss.clone(), loss);
    }
    let logits = scale.applied(lm_head.forward_gathered(&states, group));
    let loss = causal_lm_loss(&logits, labels, group);
    (loss, logits)
}
