use rematic_trace::Dtype;

use super::causal_lm::{self, Activation};
use super::decoder::{RotaryEmbedding, Turn, parts, whole_sequence};
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::ops::LogitScale;
use crate::parallel::TensorParallel;
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
    /// The ranks that share the model, if several do.
    pub(super) group: Option<TensorParallel>,
}

impl GptNeoxConfig {
    /// What the rank has of an extent that is cut.
    fn share(&self, extent: u64) -> u64 {
        self.group.map_or(extent, |group| group.share(extent))
    }
}

pub(super) struct GptNeoxForCausalLm {
    scope: Scope,
    gpt_neox: GptNeoxModel,
    lm_head: Linear,
    group: Option<TensorParallel>,
}

impl GptNeoxForCausalLm {
    pub(super) fn new(tape: &Tape, config: &GptNeoxConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "GPTNeoXForCausalLM", dtype);
        let gpt_neox = GptNeoxModel::new(&scope, config, kernel);
        // PyTorch makes two parameters of a tied one when it cuts it.
        let lm_head = if config.tied && config.group.is_none() {
            Linear::tied(&scope, "lm_head", gpt_neox.embed_in.weight())
        } else {
            Linear::new(&scope, "lm_head", config.hidden, config.share(config.vocab), false)
        };
        GptNeoxForCausalLm { scope, gpt_neox, lm_head, group: config.group }
    }

    /// Loss and logits; the tokens are their own labels. Where several ranks share the model, positions are given: a rank sees
    /// too few of them to count.
    pub(super) fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> (Tensor, Tensor) {
        // Token ids and labels.
        let given: Vec<&Tensor> = [tokens, tokens].into_iter().chain(positions).collect();
        self.scope.call_with(&[], &given, || {
            let hidden = self.gpt_neox.forward(tokens, positions);
            causal_lm::lm_outputs(&hidden, &self.lm_head, LogitScale::None, tokens, self.group)
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
    group: Option<TensorParallel>,
}

impl GptNeoxModel {
    fn new(parent: &Scope, config: &GptNeoxConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("gpt_neox", "GPTNeoXModel");
        let embed_in = match config.group {
            None => Embedding::new(&scope, "embed_in", config.vocab, config.hidden),
            Some(group) => Embedding::part(&scope, "embed_in", None, [config.vocab, config.hidden], group),
        };
        let emb_dropout = Dropout::new(&scope, "emb_dropout", config.hidden_dropout);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| Layer::new(&list, index, config, kernel)).collect();
        let final_layer_norm = LayerNorm::with(&scope, "final_layer_norm", config.hidden, config.group);
        let rotary_emb = RotaryEmbedding::of_width(&scope, "GPTNeoXRotaryEmbedding", config.rotary_dim, "");
        GptNeoxModel { scope, embed_in, emb_dropout, layers, final_layer_norm, rotary_emb, group: config.group }
    }

    fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let keywords: Vec<&Tensor> = positions.into_iter().collect();
        self.scope.call_with(&[tokens], &keywords, || {
            let embedded = match self.group {
                None => self.embed_in.forward(tokens),
                Some(group) => self.embed_in.forward_part(tokens, group, false),
            };
            let counted = || causal_lm::position_ids(tokens.tape(), tokens.size(1));
            let positions = positions.cloned().unwrap_or_else(counted);
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
            input_layernorm: LayerNorm::with(&scope, "input_layernorm", config.hidden, config.group),
            post_attention_layernorm: LayerNorm::with(&scope, "post_attention_layernorm", config.hidden, config.group),
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
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &GptNeoxConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attention", "GPTNeoXAttention");
        let (hidden, own, bias) = (config.hidden, config.share(config.hidden), config.attention_bias);
        SelfAttention {
            query_key_value: Linear::new(&scope, "query_key_value", hidden, own.saturating_mul(3), bias),
            dense: Linear::new(&scope, "dense", own, hidden, bias),
            heads: config.share(config.heads),
            group: config.group,
            attention: Attention { kernel, dropout: config.attention_dropout, ..Attention::default() },
            scope,
        }
    }

    fn forward(&self, input: &Tensor, rotary: &(Tensor, Tensor), positions: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        self.scope.call_with(&[input], &[positions, &rotary.0, &rotary.1], || {
            let (batch, seq) = (input.size(0), input.size(1));
            // A variable of its own, of which all three are views.
            let all = {
                let projected = self.query_key_value.forward_columns(input, self.group);
                let width = projected.size(-1) / self.heads.max(1);
                projected.view(&[batch, seq, self.heads, width]).transpose(1, 2)
            };
            let [mut queries, mut keys, values] = all.split_into::<3>(-1);
            (queries, keys) = rotate(&queries, &keys, rotary);
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
            output = output.reshape(&[batch, seq, output.size(2).saturating_mul(output.size(3))]);
            output = self.dense.forward_rows(&output, self.group);
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
    group: Option<TensorParallel>,
}

impl Mlp {
    fn new(parent: &Scope, config: &GptNeoxConfig) -> Self {
        let scope = parent.child("mlp", "GPTNeoXMLP");
        let wide = config.share(config.intermediate);
        Mlp {
            dense_h_to_4h: Linear::new(&scope, "dense_h_to_4h", config.hidden, wide, true),
            dense_4h_to_h: Linear::new(&scope, "dense_4h_to_h", wide, config.hidden, true),
            group: config.group,
            act: scope.child("act", config.activation.class()),
            activation: config.activation,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        self.scope.call(&[input], || {
            let mut hidden = self.dense_h_to_4h.forward_columns(input, self.group);
            hidden = self.activation.forward(&self.act, &hidden);
            hidden = self.dense_4h_to_h.forward_rows(&hidden, self.group);
            hidden
        })
    }
}
