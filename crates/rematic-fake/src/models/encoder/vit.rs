//! Vision transformers that say what is in an image.

use rematic_trace::Dtype;

use super::head::classified;
use crate::models::causal_lm::{self, Activation};
use crate::nn::{Dropout, LayerNorm, Linear, PatchConvolution, Scope, own};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// The images that a model sees, and the patches that it cuts them into.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Images {
    pub(in crate::models) channels: u64,
    pub(in crate::models) height: u64,
    pub(in crate::models) width: u64,
    /// Height and width of a patch.
    pub(in crate::models) patch: (u64, u64),
}

impl Images {
    /// How many patches an image has.
    pub(super) fn patches(self) -> u64 {
        (self.height / self.patch.0).saturating_mul(self.width / self.patch.1)
    }

    /// A batch of them.
    pub(super) fn input(self, tape: &Tape, batch: u64, dtype: Dtype) -> Tensor {
        tape.input(dtype, &[batch, self.channels, self.height, self.width])
    }

    pub(super) fn describe(self) -> String {
        format!("images of {} × {}", self.height, self.width)
    }
}

/// Sizes and switches of a ViT.
#[derive(Clone, Debug)]
pub(in crate::models) struct VitConfig {
    pub(in crate::models) images: Images,
    pub(in crate::models) hidden: u64,
    pub(in crate::models) intermediate: u64,
    pub(in crate::models) layers: u64,
    pub(in crate::models) heads: u64,
    pub(in crate::models) labels: u64,
    pub(in crate::models) activation: Activation,
    pub(in crate::models) qkv_bias: bool,
    pub(in crate::models) hidden_dropout: f64,
    pub(in crate::models) attention_dropout: f64,
    /// The ranks that share the model, if several do.
    pub(in crate::models) group: Option<TensorParallel>,
}

/// `ViTForImageClassification`.
pub(in crate::models) struct Vit {
    scope: Scope,
    model: VitModel,
    classifier: Linear,
    group: Option<TensorParallel>,
}

impl Vit {
    pub(in crate::models) fn new(tape: &Tape, config: &VitConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "ViTForImageClassification", dtype);
        let model = VitModel::new(&scope, config, kernel);
        let classifier = Linear::new(&scope, "classifier", config.hidden, config.labels, true);
        Vit { scope, model, classifier, group: config.group }
    }

    /// Loss and logits.
    pub(in crate::models) fn forward(&self, images: &Tensor, labels: &Tensor) -> (Tensor, Tensor) {
        self.scope.call_with(&[], &[images, labels], || {
            let sequence = self.model.forward(images);
            let pooled = sequence.select(1);
            let logits = self.classifier.replicated(&pooled, self.group);
            (classified(&logits, labels), logits)
        })
    }
}

struct VitModel {
    scope: Scope,
    embeddings: Embeddings,
    layers: Vec<Layer>,
    layernorm: LayerNorm,
    group: Option<TensorParallel>,
}

impl VitModel {
    fn new(parent: &Scope, config: &VitConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("vit", "ViTModel");
        let embeddings = Embeddings::new(&scope, config);
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| Layer::new(&list, index, config, kernel)).collect();
        let layernorm = LayerNorm::new(&scope, "layernorm", config.hidden);
        VitModel { scope, embeddings, layers, layernorm, group: config.group }
    }

    fn forward(&self, images: &Tensor) -> Tensor {
        self.scope.call(&[images], || {
            // A variable of its own, which lives to the end.
            let embedded = self.embeddings.forward(images);
            let mut hidden = embedded.clone();
            for layer in self.layers.iter().take_while(|_| !images.tape().has_failed()) {
                hidden = layer.forward(&hidden);
            }
            self.layernorm.replicated(&hidden, self.group)
        })
    }
}

struct Embeddings {
    scope: Scope,
    cls_token: Tensor,
    position_embeddings: Tensor,
    patch_embeddings: Scope,
    projection: PatchConvolution,
    dropout: Dropout,
    group: Option<TensorParallel>,
}

impl Embeddings {
    fn new(parent: &Scope, config: &VitConfig) -> Self {
        let scope = parent.child("embeddings", "ViTEmbeddings");
        let (images, hidden) = (config.images, config.hidden);
        let cls_token = scope.parameter("cls_token", &[1, 1, hidden]);
        let position_embeddings =
            scope.parameter("position_embeddings", &[1, images.patches().saturating_add(1), hidden]);
        let patch_embeddings = scope.child("patch_embeddings", "ViTPatchEmbeddings");
        let projection =
            PatchConvolution::new(&patch_embeddings, "projection", images.channels, hidden, images.patch, true);
        let projection = projection.shared(config.group);
        let dropout = Dropout::new(&scope, "dropout", config.hidden_dropout);
        let group = config.group;
        Embeddings { scope, cls_token, position_embeddings, patch_embeddings, projection, dropout, group }
    }

    fn forward(&self, images: &Tensor) -> Tensor {
        self.scope.call(&[images], || {
            let cls_token = own(&self.cls_token, self.group);
            let position_embeddings = own(&self.position_embeddings, self.group);
            let mut embedded = self.patch_embeddings.call(&[images], || flat_patches(&self.projection, images));
            let first = cls_token.expand(&[images.size(0), 1, cls_token.size(2)]);
            embedded = Tensor::cat(images.tape(), &[&first, &embedded], 1);
            embedded = embedded.add(&position_embeddings);
            embedded = self.dropout.forward(&embedded);
            embedded
        })
    }
}

/// The patches of images as a sequence: `[batch, patches, width]`.
pub(super) fn flat_patches(projection: &PatchConvolution, images: &Tensor) -> Tensor {
    let patches = projection.forward(images);
    let count = patches.size(2).saturating_mul(patches.size(3));
    let flat = patches.view(&[patches.size(0), patches.size(1), count]);
    flat.transpose(1, 2)
}

struct Layer {
    scope: Scope,
    attention: SelfAttention,
    layernorm_before: LayerNorm,
    layernorm_after: LayerNorm,
    mlp: Scope,
    act: Scope,
    activation: Activation,
    fc1: Linear,
    fc2: Linear,
    dropout: Dropout,
    group: Option<TensorParallel>,
}

impl Layer {
    fn new(list: &Scope, index: u64, config: &VitConfig, kernel: AttentionKernel) -> Self {
        let scope = list.child(&index.to_string(), "ViTLayer");
        let attention = SelfAttention::new(&scope, config, kernel);
        let layernorm_before = LayerNorm::new(&scope, "layernorm_before", config.hidden);
        let layernorm_after = LayerNorm::new(&scope, "layernorm_after", config.hidden);
        let mlp = scope.child("mlp", "ViTMLP");
        let act = mlp.child("activation_fn", config.activation.class());
        let wide = TensorParallel::share_of(config.group, config.intermediate);
        let fc1 = Linear::new(&mlp, "fc1", config.hidden, wide, true);
        let fc2 = Linear::new(&mlp, "fc2", wide, config.hidden, true);
        let dropout = Dropout::new(&scope, "dropout", config.hidden_dropout);
        let (activation, group) = (config.activation, config.group);
        Layer { scope, attention, layernorm_before, layernorm_after, mlp, act, activation, fc1, fc2, dropout, group }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut residual = input.clone();
            let mut hidden = self.layernorm_before.replicated(input, self.group);
            hidden = self.attention.forward(&hidden);
            hidden = self.dropout.forward(&hidden);
            hidden = hidden.add(&residual);
            residual = hidden.clone();
            hidden = self.layernorm_after.replicated(&hidden, self.group);
            hidden = self.feed_forward(&hidden);
            hidden = self.dropout.forward(&hidden);
            hidden.add(&residual)
        })
    }

    fn feed_forward(&self, input: &Tensor) -> Tensor {
        self.mlp.call(&[input], || {
            let mut hidden = self.fc1.columns(input, self.group);
            hidden = self.activation.forward(&self.act, &hidden);
            hidden = self.fc2.rows(&hidden, self.group);
            hidden
        })
    }
}

struct SelfAttention {
    scope: Scope,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// The rank's own.
    heads: u64,
    head_dim: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &VitConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("attention", "ViTAttention");
        let width = TensorParallel::share_of(config.group, config.hidden);
        let linear = |name, bias| Linear::new(&scope, name, config.hidden, width, bias);
        SelfAttention {
            q_proj: linear("q_proj", config.qkv_bias),
            k_proj: linear("k_proj", config.qkv_bias),
            v_proj: linear("v_proj", config.qkv_bias),
            o_proj: Linear::new(&scope, "o_proj", width, config.hidden, true),
            heads: TensorParallel::share_of(config.group, config.heads),
            head_dim: config.hidden / config.heads.max(1),
            attention: Attention { kernel, dropout: config.attention_dropout, causal: false, ..Attention::default() },
            group: config.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let (batch, seq) = (input.size(0), input.size(1));
            let split = [batch, seq, self.heads, self.head_dim];
            let [queries, keys, values] = [&self.q_proj, &self.k_proj, &self.v_proj]
                .map(|linear| linear.columns(input, self.group).view(&split).transpose(1, 2));
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)]);
            output = self.o_proj.rows(&output, self.group);
            output
        })
    }
}
