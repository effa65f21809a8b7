use rematic_trace::Dtype;

use super::causal_lm::{self, Activation};
use crate::nn::{Conv1d, Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::ops::LogitScale;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// Sizes and switches of a GPT-2.
#[derive(Clone, Debug)]
pub(super) struct Gpt2Config {
    pub(super) vocab: u64,
    pub(super) positions: u64,
    pub(super) hidden: u64,
    pub(super) inner: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    pub(super) resid_dropout: f64,
    pub(super) embd_dropout: f64,
    pub(super) attn_dropout: f64,
}

pub(super) struct Gpt2LmHeadModel {
    scope: Scope,
    transformer: Gpt2Model,
    lm_head: Linear,
}

impl Gpt2LmHeadModel {
    pub(super) fn new(tape: &Tape, config: &Gpt2Config, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "GPT2LMHeadModel", dtype);
        let transformer = Gpt2Model::new(&scope, config, kernel);
        let lm_head = if config.tied {
            Linear::tied(&scope, "lm_head", transformer.wte.weight())
        } else {
            Linear::new(&scope, "lm_head", config.hidden, config.vocab, false)
        };
        Gpt2LmHeadModel { scope, transformer, lm_head }
    }

    /// Loss and logits; the tokens are their own labels.
    pub(super) fn forward(&self, tokens: &Tensor) -> (Tensor, Tensor) {
        // Token ids and labels.
        self.scope.call_with(&[], &[tokens, tokens], || {
            let hidden = self.transformer.forward(tokens);
            causal_lm::lm_outputs(&hidden, &self.lm_head, LogitScale::None, tokens, None)
        })
    }
}

struct Gpt2Model {
    scope: Scope,
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Gpt2Model {
    fn new(parent: &Scope, config: &Gpt2Config, kernel: AttentionKernel) -> Self {
        let scope = parent.child("transformer", "GPT2Model");
        let wte = Embedding::new(&scope, "wte", config.vocab, config.hidden);
        let wpe = Embedding::new(&scope, "wpe", config.positions, config.hidden);
        let drop = Dropout::new(&scope, "drop", config.embd_dropout);
        let list = scope.child("h", "ModuleList");
        let h = (0..config.layers).map(|index| Block::new(&list, index, config, kernel)).collect();
        let ln_f = LayerNorm::new(&scope, "ln_f", config.hidden);
        Gpt2Model { scope, wte, wpe, drop, h, ln_f }
    }

    fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call(&[tokens], || {
            let tokens = tokens.view(tokens.shape());
            let embedded = self.wte.forward(&tokens);
            let positions = causal_lm::position_ids(tokens.tape(), tokens.size(1));
            let position_embedded = self.wpe.forward(&positions);
            let mut hidden = embedded.add(&position_embedded);
            causal_lm::skip_causal_mask(&positions, tokens.size(0));
            hidden = self.drop.forward(&hidden);
            for block in self.h.iter().take_while(|_| !tokens.tape().has_failed()) {
                hidden = block.forward(&hidden, &positions);
            }
            hidden = self.ln_f.forward(&hidden);
            hidden = hidden.view(hidden.shape());
            hidden
        })
    }
}

struct Block {
    scope: Scope,
    ln_1: LayerNorm,
    attn: SelfAttention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(list: &Scope, index: u64, config: &Gpt2Config, kernel: AttentionKernel) -> Self {
        let scope = list.child(&index.to_string(), "GPT2Block");
        Block {
            ln_1: LayerNorm::new(&scope, "ln_1", config.hidden),
            attn: SelfAttention::new(&scope, config, kernel),
            ln_2: LayerNorm::new(&scope, "ln_2", config.hidden),
            mlp: Mlp::new(&scope, config),
            scope,
        }
    }

    fn forward(&self, input: &Tensor, positions: &Tensor) -> Tensor {
        self.scope.call_with(&[input], &[positions], || {
            let mut residual = input.clone();
            let mut hidden = self.ln_1.forward(input);
            // Its own variable in the original: it lives to the end of the block.
            let attended = self.attn.forward(&hidden, positions);
            hidden = attended.add(&residual);
            residual = hidden.clone();
            hidden = self.ln_2.forward(&hidden);
            let fed = self.mlp.forward(&hidden);
            residual.add(&fed)
        })
    }
}

struct SelfAttention {
    scope: Scope,
    c_attn: Conv1d,
    c_proj: Conv1d,
    resid_dropout: Dropout,
    heads: u64,
    attention: Attention,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &Gpt2Config, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attn", "GPT2Attention");
        let c_attn = Conv1d::new(&scope, "c_attn", config.hidden, config.hidden.saturating_mul(3));
        let c_proj = Conv1d::new(&scope, "c_proj", config.hidden, config.hidden);
        // Registered, but only its probability is used.
        let _attn_dropout = Dropout::new(&scope, "attn_dropout", config.attn_dropout);
        SelfAttention {
            c_attn,
            c_proj,
            resid_dropout: Dropout::new(&scope, "resid_dropout", config.resid_dropout),
            heads: config.heads,
            attention: Attention { kernel, dropout: config.attn_dropout, ..Attention::default() },
            scope,
        }
    }

    fn forward(&self, input: &Tensor, positions: &Tensor) -> Tensor {
        self.scope.call_with(&[input], &[positions], || {
            let (batch, seq, width) = (input.size(0), input.size(1), input.size(2));
            let [mut queries, mut keys, mut values] = {
                let projected = self.c_attn.forward(input);
                projected.split_into::<3>(2)
            };
            let split = [batch, seq, self.heads, width / self.heads];
            keys = keys.view(&split).transpose(1, 2);
            values = values.view(&split).transpose(1, 2);
            queries = queries.view(&split).transpose(1, 2);
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
            output = output.reshape(&[batch, seq, width]);
            output = self.c_proj.forward(&output);
            output = self.resid_dropout.forward(&output);
            output
        })
    }
}

struct Mlp {
    scope: Scope,
    c_fc: Conv1d,
    c_proj: Conv1d,
    act: Scope,
    dropout: Dropout,
    activation: Activation,
}

impl Mlp {
    fn new(parent: &Scope, config: &Gpt2Config) -> Self {
        let scope = parent.child("mlp", "GPT2MLP");
        Mlp {
            c_fc: Conv1d::new(&scope, "c_fc", config.hidden, config.inner),
            c_proj: Conv1d::new(&scope, "c_proj", config.inner, config.hidden),
            act: scope.child("act", config.activation.class()),
            dropout: Dropout::new(&scope, "dropout", config.resid_dropout),
            activation: config.activation,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = self.c_fc.forward(input);
            hidden = self.activation.forward(&self.act, &hidden);
            hidden = self.c_proj.forward(&hidden);
            hidden = self.dropout.forward(&hidden);
            hidden
        })
    }
}
