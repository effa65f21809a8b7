//! BERT and RoBERTa.

use rematic_trace::Dtype;

use super::head::{BertHead, Head};
use crate::models::causal_lm::{self, Activation};
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// The two, which differ in how they count positions, and in their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum BertFamily {
    Bert,
    Roberta,
}

impl BertFamily {
    /// The prefix of the Python classes.
    pub(in crate::models) fn prefix(self) -> &'static str {
        match self {
            BertFamily::Bert => "Bert",
            BertFamily::Roberta => "Roberta",
        }
    }

    fn base(self) -> &'static str {
        match self {
            BertFamily::Bert => "bert",
            BertFamily::Roberta => "roberta",
        }
    }
}

/// Sizes and switches of a BERT.
#[derive(Clone, Debug)]
pub(in crate::models) struct BertConfig {
    pub(in crate::models) family: BertFamily,
    pub(in crate::models) head: Head,
    pub(in crate::models) vocab: u64,
    pub(in crate::models) positions: u64,
    /// Rows of the table of positions that no token gets: RoBERTa counts from behind its padding token.
    pub(in crate::models) offset: u64,
    /// Kinds of tokens.
    pub(in crate::models) types: u64,
    pub(in crate::models) hidden: u64,
    pub(in crate::models) intermediate: u64,
    pub(in crate::models) layers: u64,
    pub(in crate::models) heads: u64,
    /// Classes that a head tells apart.
    pub(in crate::models) labels: u64,
    pub(in crate::models) activation: Activation,
    pub(in crate::models) hidden_dropout: f64,
    pub(in crate::models) attention_dropout: f64,
    pub(in crate::models) classifier_dropout: f64,
    /// The ranks that share the model, if several do.
    pub(in crate::models) group: Option<TensorParallel>,
}

impl BertConfig {
    /// The Python class.
    pub(super) fn class(&self) -> String {
        format!("{}{}", self.family.prefix(), self.head.suffix())
    }

    /// What the rank has of an extent that is cut.
    pub(super) fn share(&self, extent: u64) -> u64 {
        self.group.map_or(extent, |group| group.share(extent))
    }
}

/// A BERT with a head.
pub(in crate::models) struct Bert {
    scope: Scope,
    model: BertModel,
    head: BertHead,
}

impl Bert {
    pub(in crate::models) fn new(tape: &Tape, config: &BertConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, &config.class(), dtype);
        let model = BertModel::new(&scope, config, kernel);
        let head = BertHead::new(&scope, config, model.embeddings.word_embeddings.weight());
        Bert { scope, model, head }
    }

    /// What the loss compares with.
    pub(in crate::models) fn labels(tape: &Tape, config: &BertConfig, tokens: &Tensor) -> Tensor {
        let shape = match config.head {
            Head::MaskedLm | Head::TokenClassification => tokens.shape().to_vec(),
            Head::SequenceClassification => vec![tokens.size(0)],
        };
        tape.input(Dtype::I64, &shape)
    }

    /// Loss and logits.
    pub(in crate::models) fn forward(&self, tokens: &Tensor, labels: &Tensor) -> (Tensor, Tensor) {
        self.scope.call_with(&[], &[tokens, labels], || {
            // What the model returns is a variable of its own, as long as the head runs.
            let outputs = self.model.forward(tokens);
            self.head.forward(&outputs, labels)
        })
    }
}

struct BertModel {
    scope: Scope,
    embeddings: Embeddings,
    encoder: Scope,
    layers: Vec<Layer>,
    pooler: Option<Pooler>,
}

impl BertModel {
    fn new(parent: &Scope, config: &BertConfig, kernel: AttentionKernel) -> Self {
        let family = config.family;
        let class = |name: &str| format!("{}{name}", family.prefix());
        let scope = parent.child(family.base(), &class("Model"));
        let embeddings = Embeddings::new(&scope, config);
        let encoder = scope.child("encoder", &class("Encoder"));
        let list = encoder.child("layer", "ModuleList");
        let layers = (0..config.layers).map(|index| Layer::new(&list, index, config, kernel)).collect();
        let has_pooler = family == BertFamily::Bert && config.head == Head::SequenceClassification;
        let pooler = has_pooler.then(|| Pooler::new(&scope, config));
        BertModel { scope, embeddings, encoder, layers, pooler }
    }

    /// The last hidden states; and what is made of the first token, if it is.
    fn forward(&self, tokens: &Tensor) -> Vec<Tensor> {
        self.scope.call(&[tokens], || {
            // A variable of its own, which lives to the end.
            let embedded = self.embeddings.forward(tokens);
            let sequence = self.encoder.call(&[&embedded], || {
                let mut hidden = embedded.clone();
                for layer in self.layers.iter().take_while(|_| !tokens.tape().has_failed()) {
                    hidden = layer.forward(&hidden);
                }
                hidden
            });
            let pooled = self.pooler.as_ref().map(|pooler| pooler.forward(&sequence));
            [sequence].into_iter().chain(pooled).collect()
        })
    }
}

struct Embeddings {
    scope: Scope,
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    norm: LayerNorm,
    dropout: Dropout,
    position_ids: Tensor,
    token_type_ids: Tensor,
    family: BertFamily,
    group: Option<TensorParallel>,
}

impl Embeddings {
    fn new(parent: &Scope, config: &BertConfig) -> Self {
        let scope = parent.child("embeddings", &format!("{}Embeddings", config.family.prefix()));
        let ids = |name| scope.buffer(name, Dtype::I64, &[1, config.positions]);
        let (position_ids, token_type_ids) = (ids("position_ids"), ids("token_type_ids"));
        let table = |name, count| Embedding::new(&scope, name, count, config.hidden);
        let positions = || table("position_embeddings", config.positions);
        let sizes = [config.vocab, config.hidden];
        let word_embeddings = Embedding::dealt(&scope, "word_embeddings", sizes, config.group);
        let before = (config.family == BertFamily::Bert).then(positions);
        let token_type_embeddings = table("token_type_embeddings", config.types);
        let norm = LayerNorm::new(&scope, "LayerNorm", config.hidden);
        let dropout = Dropout::new(&scope, "dropout", config.hidden_dropout);
        let position_embeddings = before.unwrap_or_else(positions);
        let family = config.family;
        Embeddings {
            scope,
            word_embeddings,
            position_embeddings,
            token_type_embeddings,
            norm,
            dropout,
            position_ids,
            token_type_ids,
            family,
            group: config.group,
        }
    }

    /// Called with keyword arguments only.
    fn forward(&self, tokens: &Tensor) -> Tensor {
        self.scope.call_with(&[], &[tokens], || {
            let (batch, seq) = (tokens.size(0), tokens.size(1));
            let positions = match self.family {
                BertFamily::Bert => first_positions(&self.position_ids, seq),
                BertFamily::Roberta => positions_behind_padding(tokens),
            };
            let types = {
                let all = self.token_type_ids.expand(&[positions.size(0), self.token_type_ids.size(1)]);
                let gathered = all.gather_last(&positions);
                gathered.expand(&[batch, seq])
            };
            let words = self.word_embeddings.rows(tokens, self.group);
            let of_types = self.token_type_embeddings.replicated(&types, self.group);
            let mut embedded = words.add(&of_types);
            let of_positions = self.position_embeddings.replicated(&positions, self.group);
            embedded = embedded.add(&of_positions);
            embedded = self.norm.replicated(&embedded, self.group);
            embedded = self.dropout.forward(&embedded);
            embedded
        })
    }
}

/// `position_ids[:, :seq]`, which is no slice if it is all of them.
pub(super) fn first_positions(positions: &Tensor, seq: u64) -> Tensor {
    if seq == positions.size(1) { positions.alias() } else { positions.slice(1, 0, seq) }
}

/// `create_position_ids_from_input_ids`: tokens are counted, padding is not.
fn positions_behind_padding(tokens: &Tensor) -> Tensor {
    let mask = {
        let counts = tokens.map_to("ne.Scalar", Dtype::Bool);
        counts.to(Dtype::I32)
    };
    let counted = {
        let shifted = {
            let narrow = {
                let sums = mask.map_to("cumsum.default", Dtype::I64);
                sums.to(Dtype::I32)
            };
            narrow.add_scalar()
        };
        shifted.mul(&mask)
    };
    let wide = counted.to(Dtype::I64);
    wide.add_scalar()
}

struct Layer {
    scope: Scope,
    attention: SelfAttention,
    intermediate: Scope,
    up: Linear,
    act: Scope,
    activation: Activation,
    output: Output,
    group: Option<TensorParallel>,
}

impl Layer {
    fn new(list: &Scope, index: u64, config: &BertConfig, kernel: AttentionKernel) -> Self {
        let class = |name: &str| format!("{}{name}", config.family.prefix());
        let scope = list.child(&index.to_string(), &class("Layer"));
        let attention = SelfAttention::new(&scope, config, kernel);
        let intermediate = scope.child("intermediate", &class("Intermediate"));
        let wide = config.share(config.intermediate);
        let up = Linear::new(&intermediate, "dense", config.hidden, wide, true);
        let act = intermediate.child("intermediate_act_fn", config.activation.class());
        let output = Output::new(&scope, &class("Output"), config, wide);
        let (activation, group) = (config.activation, config.group);
        Layer { scope, attention, intermediate, up, act, activation, output, group }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let attended = self.attention.forward(input);
            let wide = self.intermediate.call(&[&attended], || {
                let mut hidden = self.up.columns(&attended, self.group);
                hidden = self.activation.forward(&self.act, &hidden);
                hidden
            });
            self.output.forward(&wide, &attended)
        })
    }
}

/// `BertAttention`, and the `BertSelfAttention` in it.
struct SelfAttention {
    scope: Scope,
    inner: Scope,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Output,
    /// The rank's own.
    heads: u64,
    head_dim: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &BertConfig, kernel: AttentionKernel) -> Self {
        let class = |name: &str| format!("{}{name}", config.family.prefix());
        let scope = parent.child("attention", &class("Attention"));
        let inner = scope.child("self", &class("SelfAttention"));
        let width = config.share(config.hidden);
        let linear = |name| Linear::new(&inner, name, config.hidden, width, true);
        let (query, key, value) = (linear("query"), linear("key"), linear("value"));
        // Registered, but only its probability is used.
        let _dropout = Dropout::new(&inner, "dropout", config.attention_dropout);
        let output = Output::new(&scope, &class("SelfOutput"), config, width);
        let attention = Attention { kernel, dropout: config.attention_dropout, causal: false, ..Attention::default() };
        let (heads, head_dim, group) = (config.share(config.heads), config.hidden / config.heads.max(1), config.group);
        SelfAttention { scope, inner, query, key, value, output, heads, head_dim, attention, group }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut attended = self.inner.call(&[input], || self.attend(input));
            attended = self.output.forward(&attended, input);
            attended
        })
    }

    fn attend(&self, input: &Tensor) -> Tensor {
        let (batch, seq) = (input.size(0), input.size(1));
        let split = [batch, seq, self.heads, self.head_dim];
        let [queries, keys, values] = [&self.query, &self.key, &self.value]
            .map(|linear| linear.columns(input, self.group).view(&split).transpose(1, 2));
        let output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
        output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)])
    }
}

/// A projection that is added to what came before, and normalized.
struct Output {
    scope: Scope,
    dense: Linear,
    norm: LayerNorm,
    dropout: Dropout,
    group: Option<TensorParallel>,
}

impl Output {
    fn new(parent: &Scope, class: &str, config: &BertConfig, inputs: u64) -> Self {
        let scope = parent.child("output", class);
        let dense = Linear::new(&scope, "dense", inputs, config.hidden, true);
        let norm = LayerNorm::new(&scope, "LayerNorm", config.hidden);
        let dropout = Dropout::new(&scope, "dropout", config.hidden_dropout);
        Output { scope, dense, norm, dropout, group: config.group }
    }

    fn forward(&self, input: &Tensor, residual: &Tensor) -> Tensor {
        self.scope.call(&[input, residual], || {
            let mut hidden = self.dense.rows(input, self.group);
            hidden = self.dropout.forward(&hidden);
            hidden = {
                let sum = hidden.add(residual);
                self.norm.replicated(&sum, self.group)
            };
            hidden
        })
    }
}

/// What classification makes of the first token.
struct Pooler {
    scope: Scope,
    dense: Linear,
    activation: Scope,
    group: Option<TensorParallel>,
}

impl Pooler {
    fn new(parent: &Scope, config: &BertConfig) -> Self {
        let scope = parent.child("pooler", &format!("{}Pooler", config.family.prefix()));
        let dense = Linear::new(&scope, "dense", config.hidden, config.hidden, true);
        let activation = scope.child("activation", "Tanh");
        Pooler { scope, dense, activation, group: config.group }
    }

    fn forward(&self, sequence: &Tensor) -> Tensor {
        self.scope.call(&[sequence], || {
            let first = sequence.select(1);
            let mut pooled = self.dense.replicated(&first, self.group);
            pooled = self.activation.call(&[&pooled], || pooled.tanh());
            pooled
        })
    }
}
