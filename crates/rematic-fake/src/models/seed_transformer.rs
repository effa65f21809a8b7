use rematic_trace::Dtype;

use super::decoder::whole_sequence;
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Attention, AttentionKernel};

/// The Transformer of PyTorch's own tests (`common_dtensor.py`), with the sizes of its checkpointing test.
#[derive(Clone, Debug)]
pub(super) struct SeedTransformer {
    pub(super) layers: u64,
    pub(super) dim: u64,
    pub(super) heads: u64,
    pub(super) vocab: u64,
    pub(super) dropout: f64,
    /// The ranks that share the model, if several do.
    pub(super) group: Option<TensorParallel>,
}

impl Default for SeedTransformer {
    fn default() -> Self {
        SeedTransformer { layers: 4, dim: 768, heads: 12, vocab: 8192, dropout: 0.1, group: None }
    }
}

impl SeedTransformer {
    /// `seq` is the number of position embeddings: the test makes as many as it uses.
    pub(super) fn build(&self, tape: &Tape, seq: u64, dtype: Dtype, kernel: AttentionKernel) -> Transformer {
        Transformer::new(tape, self, seq, dtype, kernel)
    }
}

pub(super) struct Transformer {
    scope: Scope,
    tok_embeddings: Embedding,
    pos_embeddings: Embedding,
    dropout: Dropout,
    layers: Vec<Block>,
    norm: LayerNorm,
    output: Linear,
    vocab: u64,
    group: Option<TensorParallel>,
}

impl Transformer {
    fn new(tape: &Tape, options: &SeedTransformer, seq: u64, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "Transformer", dtype);
        let group = options.group;
        let tok_embeddings = match group {
            None => Embedding::new(&scope, "tok_embeddings", options.vocab, options.dim),
            Some(group) => Embedding::tied_part(&scope, "tok_embeddings", [options.vocab, options.dim], group),
        };
        let pos_embeddings = Embedding::dealt(&scope, "pos_embeddings", [seq, options.dim], group);
        let dropout = Dropout::new(&scope, "dropout", options.dropout);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..options.layers).map(|index| Block::new(&list, index, options, kernel)).collect();
        let norm = LayerNorm::with(&scope, "norm", options.dim, group);
        let output = Linear::tied(&scope, "output", tok_embeddings.weight());
        let vocab = options.vocab;
        Transformer { scope, tok_embeddings, pos_embeddings, dropout, layers, norm, output, vocab, group }
    }

    pub(super) fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call(&[tokens], || {
            let mut hidden = match self.group {
                None => self.tok_embeddings.forward(tokens),
                Some(group) => self.tok_embeddings.forward_part(tokens, group, false),
            };
            let positions = Tensor::arange(tokens.tape(), tokens.size(1), ArangeOverload::StartEnd);
            let embedded = self.pos_embeddings.forward_rows(&positions, self.group);
            hidden = hidden.add(&embedded);
            hidden = self.dropout.forward(&hidden);
            for layer in self.layers.iter().take_while(|_| !tokens.tape().has_failed()) {
                hidden = layer.forward(&hidden);
            }
            hidden = self.norm.forward(&hidden);
            let output = self.output.forward_gathered_whole(&hidden, self.vocab, self.group);
            output.to(Dtype::F32)
        })
    }
}

struct Block {
    scope: Scope,
    attention_norm: LayerNorm,
    attention: SelfAttention,
    ffn_norm: LayerNorm,
    feed_forward: FeedForward,
}

impl Block {
    fn new(list: &Scope, index: u64, options: &SeedTransformer, kernel: AttentionKernel) -> Self {
        let scope = list.child(&index.to_string(), "TransformerBlock");
        Block {
            attention_norm: LayerNorm::with(&scope, "attention_norm", options.dim, options.group),
            attention: SelfAttention::new(&scope, options, kernel),
            ffn_norm: LayerNorm::with(&scope, "ffn_norm", options.dim, options.group),
            feed_forward: FeedForward::new(&scope, options),
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let hidden = {
                let attended = {
                    let normed = self.attention_norm.forward(input);
                    self.attention.forward(&normed)
                };
                input.add(&attended)
            };
            let fed = {
                let normed = self.ffn_norm.forward(&hidden);
                self.feed_forward.forward(&normed)
            };
            hidden.add(&fed)
        })
    }
}

struct SelfAttention {
    scope: Scope,
    resid_dropout: Dropout,
    wq: Linear,
    wk: Linear,
    wv: Linear,
    wo: Linear,
    /// The rank's own.
    heads: u64,
    head_dim: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, options: &SeedTransformer, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attention", "Attention");
        let width = TensorParallel::share_of(options.group, options.dim);
        let projection = |name| Linear::new(&scope, name, options.dim, width, false);
        SelfAttention {
            resid_dropout: Dropout::new(&scope, "resid_dropout", options.dropout),
            wq: projection("wq"),
            wk: projection("wk"),
            wv: projection("wv"),
            wo: Linear::new(&scope, "wo", width, options.dim, false),
            heads: TensorParallel::share_of(options.group, options.heads),
            head_dim: options.dim / options.heads.max(1),
            attention: Attention { kernel, dropout: options.dropout, ..Attention::default() },
            group: options.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        self.scope.call(&[input], || {
            let [batch, seq, _] = *input.shape() else { return input.clone() };
            let split = [batch, seq, self.heads, self.head_dim];
            let [mut queries, mut keys, mut values] =
                [&self.wq, &self.wk, &self.wv].map(|linear| linear.forward_columns(input, self.group));
            queries = queries.view(&split);
            keys = keys.view(&split);
            values = values.view(&split);
            queries = queries.transpose(1, 2);
            keys = keys.transpose(1, 2);
            values = values.transpose(1, 2);
            let mut output = self.attention.attend(&queries, &keys, &values, None);
            output = {
                let transposed = output.transpose(1, 2);
                transposed.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)])
            };
            let projected = self.wo.forward_rows(&output, self.group);
            self.resid_dropout.forward(&projected)
        })
    }
}

struct FeedForward {
    scope: Scope,
    w1: Linear,
    gelu: Scope,
    w2: Linear,
    resid_dropout: Dropout,
    group: Option<TensorParallel>,
}

impl FeedForward {
    fn new(parent: &Scope, options: &SeedTransformer) -> Self {
        let scope = parent.child("feed_forward", "FeedForward");
        let hidden = TensorParallel::share_of(options.group, options.dim.saturating_mul(4));
        FeedForward {
            w1: Linear::new(&scope, "w1", options.dim, hidden, true),
            gelu: scope.child("gelu", "GELU"),
            w2: Linear::new(&scope, "w2", hidden, options.dim, true),
            resid_dropout: Dropout::new(&scope, "resid_dropout", options.dropout),
            group: options.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let projected = {
                let activated = {
                    let raised = self.w1.forward_gathered_columns(input, self.group);
                    self.gelu.call(&[&raised], || raised.gelu())
                };
                self.w2.forward_rows(&activated, self.group)
            };
            self.resid_dropout.forward(&projected)
        })
    }
}
