use rematic_trace::{Dtype, StepTrace};

use crate::error::FakeError;
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::optimizer::Optimizer;
use crate::step::Step;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Attention, AttentionKernel};

/// The Transformer of PyTorch's own tests (`common_dtensor.py`), with the sizes of its checkpointing test.
#[derive(Clone, Debug)]
pub struct SeedTransformer {
    /// Number of blocks.
    pub layers: u64,
    /// Width.
    pub dim: u64,
    /// Attention heads; they must divide the width.
    pub heads: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Sequences in the batch.
    pub batch: u64,
    /// Positions in a sequence.
    pub seq: u64,
    /// Dropout probability.
    pub dropout: f64,
    /// Type of parameters and activations.
    pub dtype: Dtype,
    /// Attention kernel.
    pub attention: AttentionKernel,
}

impl Default for SeedTransformer {
    fn default() -> Self {
        SeedTransformer {
            layers: 4,
            dim: 768,
            heads: 12,
            vocab: 8192,
            batch: 8,
            seq: 1024,
            dropout: 0.1,
            dtype: Dtype::F32,
            attention: AttentionKernel::Auto,
        }
    }
}

impl SeedTransformer {
    /// Traces one step; the loss is the sum of the output.
    ///
    /// # Errors
    /// If the sizes do not fit each other.
    pub fn trace(&self, optimizer: Optimizer) -> Result<StepTrace, FakeError> {
        if self.heads == 0 || !self.dim.is_multiple_of(self.heads) {
            return Err(FakeError::Option {
                name: "heads".to_owned(),
                value: self.heads.to_string(),
                rule: format!("it must divide the width, {}", self.dim),
            });
        }
        let tape = Tape::new("seed-transformer");
        let model = Transformer::new(&tape, self);
        let tokens = tape.input(Dtype::I64, &[self.batch, self.seq]);
        Step::new(&tape, optimizer).run(|| model.forward(&tokens), Tensor::sum)
    }
}

struct Transformer {
    scope: Scope,
    tok_embeddings: Embedding,
    pos_embeddings: Embedding,
    dropout: Dropout,
    layers: Vec<Block>,
    norm: LayerNorm,
    output: Linear,
}

impl Transformer {
    fn new(tape: &Tape, options: &SeedTransformer) -> Self {
        let scope = Scope::root(tape, "Transformer", options.dtype);
        let tok_embeddings = Embedding::new(&scope, "tok_embeddings", options.vocab, options.dim);
        let pos_embeddings = Embedding::new(&scope, "pos_embeddings", options.seq, options.dim);
        let dropout = Dropout::new(&scope, "dropout", options.dropout);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..options.layers).map(|index| Block::new(&list, index, options)).collect();
        let norm = LayerNorm::new(&scope, "norm", options.dim);
        let output = Linear::tied(&scope, "output", tok_embeddings.weight());
        Transformer { scope, tok_embeddings, pos_embeddings, dropout, layers, norm, output }
    }

    fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call(&[tokens], || {
            let mut hidden = self.tok_embeddings.forward(tokens);
            let positions = Tensor::arange(tokens.tape(), tokens.size(1), ArangeOverload::StartEnd);
            let embedded = self.pos_embeddings.forward(&positions);
            hidden = hidden.add(&embedded);
            hidden = self.dropout.forward(&hidden);
            for layer in &self.layers {
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
    fn new(list: &Scope, index: u64, options: &SeedTransformer) -> Self {
        let scope = list.child(&index.to_string(), "TransformerBlock");
        Block {
            attention_norm: LayerNorm::new(&scope, "attention_norm", options.dim),
            attention: SelfAttention::new(&scope, options),
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
    fn new(parent: &Scope, options: &SeedTransformer) -> Self {
        let scope = parent.child("attention", "Attention");
        let projection = |name| Linear::new(&scope, name, options.dim, options.dim, false);
        SelfAttention {
            resid_dropout: Dropout::new(&scope, "resid_dropout", options.dropout),
            wq: projection("wq"),
            wk: projection("wk"),
            wv: projection("wv"),
            wo: projection("wo"),
            heads: options.heads,
            attention: Attention { kernel: options.attention, dropout: options.dropout },
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
            let mut output = self.attention.attend(&queries, &keys, &values);
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
