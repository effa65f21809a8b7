//! T5: an encoder and a decoder that looks at what it says.

mod attention;
mod feed_forward;

use rematic_trace::{Dtype, Layout};

use self::attention::{LayerAttention, Role};
use self::feed_forward::LayerFeedForward;
use super::head::classified_part;
use crate::AttentionKernel;
use crate::kernel::{Kernel, Out};
use crate::models::causal_lm::Activation;
use crate::nn::{Dropout, Embedding, Linear, Outputs, Scope, replicated};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// Sizes and switches of a T5.
#[derive(Clone, Debug)]
pub(in crate::models) struct T5Config {
    pub(in crate::models) vocab: u64,
    pub(in crate::models) hidden: u64,
    /// Width of a head, which the others do not follow from.
    pub(in crate::models) head_dim: u64,
    pub(in crate::models) intermediate: u64,
    pub(in crate::models) layers: u64,
    pub(in crate::models) decoder_layers: u64,
    pub(in crate::models) heads: u64,
    /// Distances that are told apart.
    pub(in crate::models) buckets: u64,
    pub(in crate::models) activation: Activation,
    /// Whether the feed-forward network has two projections up.
    pub(in crate::models) gated: bool,
    /// Whether the last hidden states are scaled before the output layer.
    pub(in crate::models) scaled: bool,
    pub(in crate::models) dropout: f64,
    /// The ranks that share the model, if several do.
    pub(in crate::models) group: Option<TensorParallel>,
}

impl T5Config {
    /// What the rank has of an extent that is cut.
    fn share(&self, extent: u64) -> u64 {
        self.group.map_or(extent, |group| group.share(extent))
    }
}

/// `T5ForConditionalGeneration`.
pub(in crate::models) struct T5 {
    scope: Scope,
    encoder: Stack,
    decoder: Stack,
    lm_head: Linear,
    scaled: bool,
    group: Option<TensorParallel>,
}

impl T5 {
    pub(in crate::models) fn new(tape: &Tape, config: &T5Config, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "T5ForConditionalGeneration", dtype);
        let shared = Embedding::dealt(&scope, "shared", [config.vocab, config.hidden], config.group);
        let encoder = Stack::new(&scope, config, kernel, (Side::Encoder, shared.weight()));
        let decoder = Stack::new(&scope, config, kernel, (Side::Decoder, shared.weight()));
        let lm_head = match config.group {
            None => Linear::tied(&scope, "lm_head", shared.weight()),
            // PyTorch makes two parameters of a tied one when it cuts it.
            Some(group) => Linear::new(&scope, "lm_head", config.hidden, group.share(config.vocab), false),
        };
        T5 { scope, encoder, decoder, lm_head, scaled: config.scaled, group: config.group }
    }

    /// Loss, logits and the encoder's last hidden states.
    pub(in crate::models) fn forward(&self, tokens: &Tensor, labels: &Tensor) -> Vec<Tensor> {
        self.scope.call_with(&[], &[tokens, labels], || {
            let encoded = self.encoder.forward(tokens, None);
            let answer = shifted_right(labels);
            let decoded = self.decoder.forward(&answer, Some(&encoded));
            let scaled = if self.scaled { decoded.mul_scalar() } else { decoded.clone() };
            let logits = self.lm_head.columns_dealt(&scaled, self.group);
            vec![classified_part(&logits, labels, self.group), logits, encoded]
        })
    }
}

/// `_shift_right`: the answer from its second token on, behind a first one.
fn shifted_right(labels: &Tensor) -> Tensor {
    let seq = labels.size(1);
    let shifted = labels.new_zeros(Layout::contiguous(labels.dtype(), labels.shape()));
    {
        let copy = labels.slice(-1, 0, seq.saturating_sub(1)).clone_contiguous();
        shifted.slice(-1, 1, seq).change("copy_.default", &[&copy]);
    }
    shifted.select(-1).change("fill_.Scalar", &[]);
    {
        let ignored = shifted.map_to("eq.Scalar", Dtype::Bool);
        shifted.change("masked_fill_.Scalar", &[&ignored]);
    }
    shifted
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Encoder,
    Decoder,
}

struct Stack {
    scope: Scope,
    embed_tokens: Embedding,
    blocks: Vec<Block>,
    final_layer_norm: Norm,
    dropout: Dropout,
    group: Option<TensorParallel>,
}

impl Stack {
    fn new(parent: &Scope, config: &T5Config, kernel: AttentionKernel, (side, table): (Side, &Tensor)) -> Self {
        let (name, layers) = match side {
            Side::Encoder => ("encoder", config.layers),
            Side::Decoder => ("decoder", config.decoder_layers),
        };
        let scope = parent.child(name, "T5Stack");
        let embed_tokens = Embedding::tied(&scope, "embed_tokens", table);
        let list = scope.child("block", "ModuleList");
        let blocks = (0..layers).map(|index| Block::new(&list, index, config, (side, kernel))).collect();
        let final_layer_norm = Norm::new(&scope, "final_layer_norm", config.hidden, config.group);
        let dropout = Dropout::new(&scope, "dropout", config.dropout);
        Stack { scope, embed_tokens, blocks, final_layer_norm, dropout, group: config.group }
    }

    fn forward(&self, tokens: &Tensor, encoded: Option<&Tensor>) -> Tensor {
        let given: Vec<&Tensor> = [tokens].into_iter().chain(encoded).collect();
        self.scope.call_with(&[], &given, || {
            let embedded = self.embed_tokens.rows(tokens, self.group);
            let mut passed = Passed { hidden: self.dropout.forward(&embedded), bias: None, cross_bias: None };
            for block in self.blocks.iter().take_while(|_| !tokens.tape().has_failed()) {
                passed = block.forward(&passed, encoded);
            }
            let mut hidden = passed.hidden.clone();
            // The biases are variables of their own, and live to the end.
            let Passed { hidden: last, bias: _bias, cross_bias: _cross_bias } = passed;
            drop(last);
            hidden = self.final_layer_norm.forward(&hidden);
            hidden = self.dropout.forward(&hidden);
            hidden
        })
    }
}

/// What a block gives to the next: the biases of attention are made by the first.
struct Passed {
    hidden: Tensor,
    bias: Option<Tensor>,
    cross_bias: Option<Tensor>,
}

impl Outputs for Passed {
    fn tensors(&self) -> Vec<Tensor> {
        [&self.hidden].into_iter().chain(&self.bias).chain(&self.cross_bias).cloned().collect()
    }
}

struct Block {
    scope: Scope,
    attention: LayerAttention,
    cross: Option<LayerAttention>,
    feed_forward: LayerFeedForward,
}

impl Block {
    fn new(list: &Scope, index: u64, config: &T5Config, (side, kernel): (Side, AttentionKernel)) -> Self {
        let scope = list.child(&index.to_string(), "T5Block");
        let layers = scope.child("layer", "ModuleList");
        let has_bias = index == 0;
        let role = match side {
            Side::Encoder => Role::Encoder { has_bias },
            Side::Decoder => Role::Decoder { has_bias },
        };
        let attention = LayerAttention::new(&layers, "0", config, (role, kernel));
        let cross = (side == Side::Decoder).then(|| LayerAttention::new(&layers, "1", config, (Role::Cross, kernel)));
        let place = if cross.is_some() { "2" } else { "1" };
        let feed_forward = LayerFeedForward::new(&layers, place, config);
        Block { scope, attention, cross, feed_forward }
    }

    fn forward(&self, passed: &Passed, encoded: Option<&Tensor>) -> Passed {
        let mut given = vec![&passed.hidden];
        given.extend(&passed.bias);
        given.extend(encoded);
        given.extend(&passed.cross_bias);
        self.scope.call(&given, || {
            let mut bound = None;
            let (mut hidden, bias) = self.attention.forward(&passed.hidden, None, passed.bias.as_ref());
            hidden = bounded(hidden, &mut bound);
            let mut cross_bias = None;
            if let (Some(cross), Some(encoded)) = (&self.cross, encoded) {
                let (attended, bias) = cross.forward(&hidden, Some(encoded), passed.cross_bias.as_ref());
                hidden = attended;
                cross_bias = Some(bias);
                hidden = bounded(hidden, &mut bound);
            }
            hidden = self.feed_forward.forward(&hidden);
            hidden = bounded(hidden, &mut bound);
            Passed { hidden, bias: Some(bias), cross_bias }
        })
    }
}

/// In fp16, what is infinite is brought back. `bound` is a variable that is written several times.
fn bounded(hidden: Tensor, bound: &mut Option<Tensor>) -> Tensor {
    if hidden.dtype() != Dtype::F16 {
        return hidden;
    }
    let tape = hidden.tape();
    let scalar = |dtype| vec![Out::New(Layout::contiguous(dtype, &[]))];
    let number = || tape.launch_one(Kernel::new("scalar_tensor.default", &[], scalar(Dtype::F32)));
    let most = {
        let any = {
            let infinite = hidden.map_to("isinf.default", Dtype::Bool);
            tape.launch_one(Kernel::new("any.default", &[&infinite], scalar(Dtype::Bool)))
        };
        let (otherwise, chosen) = (number(), number());
        let inputs = [&any, &chosen, &otherwise];
        tape.launch_one(Kernel::new("where.self", &inputs, scalar(Dtype::F32)))
    };
    drop(bound.replace(most.clone()));
    let least = most.map("neg.default");
    hidden.clamp_between(&least, &most)
}

/// `T5LayerNorm`: the mean square is taken in fp32, and the rest in what comes of it.
struct Norm {
    scope: Scope,
    weight: Tensor,
    group: Option<TensorParallel>,
}

impl Norm {
    fn new(parent: &Scope, name: &str, width: u64, group: Option<TensorParallel>) -> Self {
        let scope = parent.child(name, "T5LayerNorm");
        let weight = scope.parameter("weight", &[width]);
        Norm { scope, weight, group }
    }

    /// On all ranks the same.
    fn forward(&self, input: &Tensor) -> Tensor {
        replicated(input, self.group, |input| self.normed(input))
    }

    fn normed(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let variance = {
                let squares = {
                    let single = input.to(Dtype::F32);
                    single.pow_scalar()
                };
                squares.mean_last()
            };
            let mut hidden = {
                let scale = {
                    let raised = variance.add_scalar();
                    raised.rsqrt()
                };
                input.mul(&scale)
            };
            if self.weight.dtype() != Dtype::F32 {
                hidden = hidden.to(self.weight.dtype());
            }
            self.weight.mul(&hidden)
        })
    }
}
