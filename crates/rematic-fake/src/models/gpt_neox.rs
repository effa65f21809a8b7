use rematic_trace::Dtype;

use super::causal_lm::{self, Activation};
use super::decoder::{RotaryEmbedding, Turn, parts};
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// Sizes and switches of a GPT-NeoX (Pythia too).
#[derive(Clone, Debug)]
pub(super) struct GptNeoxConfig {
    pub(super) vocab: u64,
    pub(super) hidden: u64,
    pub(super) intermediate: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    /// How many of a head's numbers turn with the position.
    pub(super) rotary_dim: u64,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    pub(super) attention_bias: bool,
    /// Whether attention and the feed-forward network run beside each other.
    pub(super) parallel: bool,
    pub(super) attention_dropout: f64,
    pub(super) hidden_dropout: f64,
}

pub(super) struct GptNeoxForCausalLm {
    scope: Scope,
    gpt_neox: GptNeoxModel,
    lm_head: Linear,
}

impl GptNeoxForCausalLm {
    pub(super) fn new(tape: &Tape, config: &GptNeoxConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "GPTNeoXForCausalLM", dtype);
        let gpt_neox = GptNeoxModel::new(&scope, config, kernel);
        let lm_head = if config.tied {
            Linear::tied(&scope, "lm_head", gpt_neox.embed_in.weight())
        } else {
            Linear::new(&scope, "lm_head", config.hidden, config.vocab, false)
        };
        GptNeoxForCausalLm { scope, gpt_neox, lm_head }
    }

    /// Loss and logits; the tokens are their own labels.
    pub(super) fn forward(&self, tokens: &Tensor) -> (Tensor, Tensor) {
        // Token ids and labels.
        self.scope.call_with(&[], &[tokens, tokens], || {
            let hidden = self.gpt_neox.forward(tokens);
            causal_lm::lm_outputs(&hidden, &self.lm_head, |logits| logits, tokens, None)
        })
    }
}

struct GptNeoxModel {
    scope: Scope,
    embed_in: Embedding,
    emb_dropout: Dropout,
    layers: Vec<Layer>,
    final_layer_norm: LayerNorm,
    rotary_emb: RotaryEmbedding,
}

impl GptNeoxModel {
    fn new(parent: &Scope, config: &GptNeoxConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("gpt_neox", "GPTNeoXModel");
        let embed_in = Embedding::new(&scope, "embed_in", config.vocab, config.hidden);
        let emb_dropout = Dropout::new(&scope, "emb_dropout", config.hidden_dropout);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| Layer::new(&list, index, config, kernel)).collect();
        let final_layer_norm = LayerNorm::new(&scope, "final_layer_norm", config.hidden);
        let rotary_emb = RotaryEmbedding::of_width(&scope, "GPTNeoXRotaryEmbedding", config.rotary_dim, "");
        GptNeoxModel { scope, embed_in, emb_dropout, layers, final_layer_norm, rotary_emb }
    }

    fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call(&[tokens], || {
            let embedded = self.embed_in.forward(tokens);
            let positions = causal_lm::position_ids(tokens.tape(), tokens.size(1));
            causal_lm::skip_causal_mask(&positions, tokens.size(0));
            let mut hidden = self.emb_dropout.forward(&embedded);
            let rotary = self.rotary_emb.forward(&hidden, &positions, false);
            for layer in self.layers.iter().take_while(|_| !tokens.tape().has_failed()) {
                hidden = layer.forward(&hidden, &rotary, &positions);
            }
            self.final_layer_norm.forward(&hidden)
        })
    }
}

struct Layer {
    scope: Scope,
    input_layernorm: LayerNorm,
    post_attention_layernorm: LayerNorm,
    post_attention_dropout: Dropout,
    post_mlp_dropout: Dropout,
    attention: SelfAttention,
    mlp: Mlp,
    parallel: bool,
}

impl Layer {
    fn new(list: &Scope, index: u64, config: &GptNeoxConfig, kernel: AttentionKernel) -> Self {
        let scope = list.child(&index.to_string(), "GPTNeoXLayer");
        Layer {
            input_layernorm: LayerNorm::new(&scope, "input_layernorm", config.hidden),
            post_attention_layernorm: LayerNorm::new(&scope, "post_attention_layernorm", config.hidden),
            post_attention_dropout: Dropout::new(&scope, "post_attention_dropout", config.hidden_dropout),
            post_mlp_dropout: Dropout::new(&scope, "post_mlp_dropout", config.hidden_dropout),
            attention: SelfAttention::new(&scope, config, kernel),
            mlp: Mlp::new(&scope, config),
            parallel: config.parallel,
            scope,
        }
    }

    fn forward(&self, input: &Tensor, rotary: &(Tensor, Tensor), positions: &Tensor) -> Tensor {
        self.scope.call_with(&[input], &[positions, &rotary.0, &rotary.1], || {
            let mut attended = {
                let normed = self.input_layernorm.forward(input);
                self.attention.forward(&normed, rotary, positions)
            };
            attended = self.post_attention_dropout.forward(&attended);
            if !self.parallel {
                attended = attended.add(input);
            }
            let mut fed = {
                let normed = self.post_attention_layernorm.forward(if self.parallel { input } else { &attended });
                self.mlp.forward(&normed)
            };
            fed = self.post_mlp_dropout.forward(&fed);
            let sum = fed.add(&attended);
            if self.parallel { sum.add(input) } else { sum }
        })
    }
}

struct SelfAttention {
    scope: Scope,
    query_key_value: Linear,
    dense: Linear,
    heads: u64,
    attention: Attention,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &GptNeoxConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attention", "GPTNeoXAttention");
        let (hidden, bias) = (config.hidden, config.attention_bias);
        SelfAttention {
            query_key_value: Linear::new(&scope, "query_key_value", hidden, hidden.saturating_mul(3), bias),
            dense: Linear::new(&scope, "dense", hidden, hidden, bias),
            heads: config.heads,
            attention: Attention { kernel, dropout: config.attention_dropout, ..Attention::default() },
            scope,
        }
    }

    fn forward(&self, input: &Tensor, rotary: &(Tensor, Tensor), positions: &Tensor) -> Tensor {
        self.scope.call_with(&[input], &[positions, &rotary.0, &rotary.1], || {
            let (batch, seq, width) = (input.size(0), input.size(1), input.size(2));
            // A variable of its own, of which all three are views.
            let all = {
                let projected = self.query_key_value.forward(input);
                projected.view(&[batch, seq, self.heads, (width / self.heads).saturating_mul(3)]).transpose(1, 2)
            };
            let [mut queries, mut keys, values] = all.split_into::<3>(-1);
            (queries, keys) = rotate(&queries, &keys, rotary);
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
            output = output.reshape(&[batch, seq, width]);
            output = self.dense.forward(&output);
            output
        })
    }
}

/// `apply_rotary_pos_emb`: both are turned before either is joined with its rest.
fn rotate(queries: &Tensor, keys: &Tensor, rotary: &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let turn = Turn::new(rotary);
    let (query, query_rest) = parts(queries, turn.width());
    let (key, key_rest) = parts(keys, turn.width());
    let (mut queries, mut keys) = (turn.halves(&query), turn.halves(&key));
    let tape = queries.tape().clone();
    queries = Tensor::cat(&tape, &[&queries, &query_rest], -1);
    keys = Tensor::cat(&tape, &[&keys, &key_rest], -1);
    (queries, keys)
}

struct Mlp {
    scope: Scope,
    dense_h_to_4h: Linear,
    dense_4h_to_h: Linear,
    act: Scope,
    activation: Activation,
}

impl Mlp {
    fn new(parent: &Scope, config: &GptNeoxConfig) -> Self {
        let scope = parent.child("mlp", "GPTNeoXMLP");
        Mlp {
            dense_h_to_4h: Linear::new(&scope, "dense_h_to_4h", config.hidden, config.intermediate, true),
            dense_4h_to_h: Linear::new(&scope, "dense_4h_to_h", config.intermediate, config.hidden, true),
            act: scope.child("act", config.activation.class()),
            activation: config.activation,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = self.dense_h_to_4h.forward(input);
            hidden = self.activation.forward(&self.act, &hidden);
            hidden = self.dense_4h_to_h.forward(&hidden);
            hidden
        })
    }
}
