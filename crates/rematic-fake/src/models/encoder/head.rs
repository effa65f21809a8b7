//! Heads of BERT and RoBERTa, and their losses.

use super::bert::{BertConfig, BertFamily};
use crate::models::causal_lm::Activation;
use crate::nn::{Dropout, LayerNorm, Linear, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// What a model is trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum Head {
    /// Tokens that are masked.
    MaskedLm,
    /// A class for each sample.
    SequenceClassification,
    /// A class for each token.
    TokenClassification,
}

impl Head {
    /// All of them, with what the names of their classes end in.
    pub(in crate::models) const SUFFIXES: [(&'static str, Head); 3] = [
        ("ForMaskedLM", Head::MaskedLm),
        ("ForSequenceClassification", Head::SequenceClassification),
        ("ForTokenClassification", Head::TokenClassification),
    ];

    pub(super) fn suffix(self) -> &'static str {
        Self::SUFFIXES.iter().find(|(_, head)| *head == self).map_or("", |(suffix, _)| suffix)
    }

    /// What the loss compares.
    pub(in crate::models) fn loss(self) -> &'static str {
        match self {
            Head::MaskedLm => "masked tokens",
            Head::SequenceClassification => "a class for each sample",
            Head::TokenClassification => "a class for each token",
        }
    }
}

/// The head of a model.
pub(super) enum BertHead {
    MaskedLm(MaskedLm),
    /// Dropout and one layer, on the hidden states or what was made of the first of them.
    Classifier {
        dropout: Dropout,
        classifier: Linear,
        group: Option<TensorParallel>,
    },
    /// RoBERTa's, which makes something of the first token itself.
    Dense(DenseHead),
}

impl BertHead {
    pub(super) fn new(parent: &Scope, config: &BertConfig, table: &Tensor) -> Self {
        match (config.head, config.family) {
            (Head::MaskedLm, _) => BertHead::MaskedLm(MaskedLm::new(parent, config, table)),
            (Head::SequenceClassification, BertFamily::Roberta) => BertHead::Dense(DenseHead::new(parent, config)),
            _ => BertHead::Classifier {
                dropout: Dropout::new(parent, "dropout", config.classifier_dropout),
                classifier: Linear::new(parent, "classifier", config.hidden, config.labels, true),
                group: config.group,
            },
        }
    }

    /// Loss and logits.
    pub(super) fn forward(&self, outputs: &[Tensor], labels: &Tensor) -> (Tensor, Tensor) {
        let (Some(first), Some(last)) = (outputs.first(), outputs.last()) else {
            return (labels.clone(), labels.clone());
        };
        let logits = match self {
            BertHead::MaskedLm(head) => {
                let logits = head.forward(first);
                return (classified_part(&logits, labels, head.group), logits);
            }
            BertHead::Dense(head) => head.forward(first),
            BertHead::Classifier { dropout, classifier, group } => {
                let kept = dropout.forward(last);
                let logits = classifier.replicated(&kept, *group);
                return (classified(&logits, labels), logits);
            }
        };
        (classified(&logits, labels), logits)
    }
}

/// Cross-entropy of logits `[…, classes]` against as many labels.
pub(super) fn classified(logits: &Tensor, labels: &Tensor) -> Tensor {
    classified_part(logits, labels, None)
}

/// The same of logits of which every rank has a part, if several share the model.
pub(super) fn classified_part(logits: &Tensor, labels: &Tensor, group: Option<TensorParallel>) -> Tensor {
    let classes = logits.size(-1);
    let rows = labels.layout().elements();
    let flat = logits.view(&[rows, classes]);
    let targets = labels.view(&[rows]);
    match group {
        None => flat.cross_entropy(&targets),
        Some(group) => flat.cross_entropy_part(&targets, group),
    }
}

/// The head for masked tokens: its last layer is the table of tokens.
pub(super) struct MaskedLm {
    outer: Option<Scope>,
    scope: Scope,
    transform: Option<Scope>,
    dense: Linear,
    act: Option<(Scope, Activation)>,
    norm: LayerNorm,
    decoder: Linear,
    group: Option<TensorParallel>,
}

impl MaskedLm {
    fn new(parent: &Scope, config: &BertConfig, table: &Tensor) -> Self {
        let (hidden, group) = (config.hidden, config.group);
        let vocab = config.share(config.vocab);
        let decoder = |scope: &Scope, bias: &Tensor| match group {
            None => Linear::tied_with(scope, "decoder", table, bias),
            // PyTorch makes two parameters of a tied one when it cuts it.
            Some(_) => Linear::biased_with(scope, "decoder", [hidden, vocab], bias),
        };
        if config.family == BertFamily::Roberta {
            let scope = parent.child("lm_head", "RobertaLMHead");
            let bias = scope.parameter("bias", &[vocab]);
            let dense = Linear::new(&scope, "dense", hidden, hidden, true);
            let norm = LayerNorm::new(&scope, "layer_norm", hidden);
            let decoder = decoder(&scope, &bias);
            return MaskedLm { outer: None, scope, transform: None, dense, act: None, norm, decoder, group };
        }
        let outer = parent.child("cls", "BertOnlyMLMHead");
        let scope = outer.child("predictions", "BertLMPredictionHead");
        let bias = scope.parameter("bias", &[vocab]);
        let transform = scope.child("transform", "BertPredictionHeadTransform");
        let dense = Linear::new(&transform, "dense", hidden, hidden, true);
        let act = (transform.child("transform_act_fn", config.activation.class()), config.activation);
        let norm = LayerNorm::new(&transform, "LayerNorm", hidden);
        let decoder = decoder(&scope, &bias);
        let (outer, transform, act) = (Some(outer), Some(transform), Some(act));
        MaskedLm { outer, scope, transform, dense, act, norm, decoder, group }
    }

    fn forward(&self, hidden: &Tensor) -> Tensor {
        match &self.outer {
            None => self.predict(hidden),
            Some(outer) => outer.call(&[hidden], || self.predict(hidden)),
        }
    }

    fn predict(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = match &self.transform {
                None => self.transformed(input),
                Some(transform) => transform.call(&[input], || self.transformed(input)),
            };
            hidden = self.decoder.columns_dealt(&hidden, self.group);
            hidden
        })
    }

    fn transformed(&self, input: &Tensor) -> Tensor {
        let mut hidden = self.dense.replicated(input, self.group);
        hidden = match &self.act {
            Some((scope, activation)) => activation.forward(scope, &hidden),
            None => hidden.gelu(),
        };
        hidden = self.norm.replicated(&hidden, self.group);
        hidden
    }
}

/// RoBERTa's head for a class of the whole text.
pub(super) struct DenseHead {
    scope: Scope,
    dense: Linear,
    dropout: Dropout,
    out_proj: Linear,
    group: Option<TensorParallel>,
}

impl DenseHead {
    fn new(parent: &Scope, config: &BertConfig) -> Self {
        let scope = parent.child("classifier", "RobertaClassificationHead");
        DenseHead {
            dense: Linear::new(&scope, "dense", config.hidden, config.hidden, true),
            dropout: Dropout::new(&scope, "dropout", config.classifier_dropout),
            out_proj: Linear::new(&scope, "out_proj", config.hidden, config.labels, true),
            group: config.group,
            scope,
        }
    }

    fn forward(&self, sequence: &Tensor) -> Tensor {
        self.scope.call(&[sequence], || {
            let mut hidden = sequence.select(1);
            hidden = self.dropout.forward(&hidden);
            hidden = self.dense.replicated(&hidden, self.group);
            hidden = hidden.tanh();
            hidden = self.dropout.forward(&hidden);
            hidden = self.out_proj.replicated(&hidden, self.group);
            hidden
        })
    }
}
