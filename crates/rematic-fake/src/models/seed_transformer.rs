use rematic_trace::Dtype;

use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
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
}

impl Default for SeedTransformer {
    fn default() -> Self {
        SeedTransformer { layers: 4, dim: 768, heads: 12, vocab: 8192, dropout: 0.1 }
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
}

impl Transformer {
    fn new(tape: &Tape, options: &SeedTransformer, seq: u64, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "Transformer", dtype);
        let tok_embeddings = Embedding::new(&scope, "tok_embeddings", options.vocab, options.dim);
        let pos_embeddings = Embedding::new(&scope, "pos_embeddings", seq, options.dim);
        let dropout = Dropout::new(&scope, "dropout", options.dropout);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..options.layers).map(|index| Block::new(&list, index, options, kernel)).collect();
        let norm = LayerNorm::new(&scope, "norm", options.dim);
        let output = Linear::tied(&scope, "output", tok_embeddings.weight());
        Transformer { scope, tok_embeddings, pos_embeddings, dropout, layers, norm, output }
    }

    pub(super) fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call(&[tokens], || {
            let mut hidden = self.tok_embeddings.forward(tokens);
            let positions = Tensor::arange(tokens.tape(), tokens.size(1), ArangeOverload::StartEnd);
            let embedded = self.pos_embeddings.forward(&positions);
            hidden = hidden.add(&embedded);
            hidden = self.dropout.forward(&hidden);
            for layer in self.layers.iter().take_while(|_| !tokens.tape().has_failed()) {
                hidden = layer.forward(&hidden);
            }
            hidden = self.norm.forward(&hidden);
            let output = self.output.forward(&hidden);
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
            attention_norm: LayerNorm::new(&scope, "attention_norm", options.dim),
            attention: SelfAttention::new(&scope, options, kernel),
            ffn_norm: LayerNorm::new(&scope, "ffn_norm", options.dim),
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
    heads: u64,
    attention: Attention,
}

impl SelfAttention {
    fn new(parent: &Scope, options: &SeedTransformer, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attention", "Attention");
        let projection = |name| Linear::new(&scope, name, options.dim, options.dim, false);
        SelfAttention {
            resid_dropout: Dropout::new(&scope, "resid_dropout", options.dropout),
            wq: projection("wq"),
            wk: projection("wk"),
            wv: projection("wv"),
            wo: projection("wo"),
            heads: options.heads,
            attention: Attention { kernel, dropout: options.dropout, ..Attention::default() },
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let [batch, seq, dim] = *input.shape() else { return input.clone() };
            let split = [batch, seq, self.heads, dim / self.heads];
            let (mut queries, mut keys, mut values) =
                (self.wq.forward(input), self.wk.forward(input), self.wv.forward(input));
            queries = queries.view(&split);
            keys = keys.view(&split);
            values = values.view(&split);
            queries = queries.transpose(1, 2);
            keys = keys.transpose(1, 2);
            values = values.transpose(1, 2);
            let mut output = self.attention.attend(&queries, &keys, &values, None);
            output = {
                let transposed = output.transpose(1, 2);
                transposed.reshape(&[batch, seq, dim])
            };
            let projected = self.wo.forward(&output);
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
}

impl FeedForward {
    fn new(parent: &Scope, options: &SeedTransformer) -> Self {
        let scope = parent.child("feed_forward", "FeedForward");
        let hidden = options.dim.saturating_mul(4);
        FeedForward {
            w1: Linear::new(&scope, "w1", options.dim, hidden, true),
            gelu: scope.child("gelu", "GELU"),
            w2: Linear::new(&scope, "w2", hidden, options.dim, true),
            resid_dropout: Dropout::new(&scope, "resid_dropout", options.dropout),
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let projected = {
                let activated = {
                    let raised = self.w1.forward(input);
                    self.gelu.call(&[&raised], || raised.gelu())
                };
                self.w2.forward(&activated)
            };
            self.resid_dropout.forward(&projected)
        })
    }
}
