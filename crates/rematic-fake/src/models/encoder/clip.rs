//! CLIP: a tower for texts, one for images, and a loss that brings those together that belong together.

use rematic_trace::Dtype;

use super::bert::first_positions;
use super::vit::{Images, flat_patches};
use crate::kernel::{Kernel, Out};
use crate::models::causal_lm::{self, Activation};
use crate::nn::{Embedding, LayerNorm, Linear, PatchConvolution, Scope, own};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{ArangeOverload, Attention, AttentionKernel};

/// Sizes of a CLIP.
#[derive(Clone, Debug)]
pub(in crate::models) struct ClipConfig {
    pub(in crate::models) vocab: u64,
    pub(in crate::models) positions: u64,
    /// Whether the end of a text is its highest token, as in the first configs, or the first of a certain number.
    pub(in crate::models) ends_in_highest: bool,
    pub(in crate::models) text: TowerConfig,
    pub(in crate::models) images: Images,
    pub(in crate::models) vision: TowerConfig,
    /// Width of what both towers give.
    pub(in crate::models) projection: u64,
}

/// Sizes and switches of one tower.
#[derive(Clone, Debug)]
pub(in crate::models) struct TowerConfig {
    pub(in crate::models) hidden: u64,
    pub(in crate::models) intermediate: u64,
    pub(in crate::models) layers: u64,
    pub(in crate::models) heads: u64,
    pub(in crate::models) activation: Activation,
    pub(in crate::models) attention_dropout: f64,
    /// The ranks that share the model, if several do.
    pub(in crate::models) group: Option<TensorParallel>,
}

/// `CLIPModel`.
pub(in crate::models) struct Clip {
    scope: Scope,
    logit_scale: Tensor,
    text_model: TextModel,
    vision_model: VisionModel,
    visual_projection: Linear,
    text_projection: Linear,
    group: Option<TensorParallel>,
}

impl Clip {
    pub(in crate::models) fn new(tape: &Tape, config: &ClipConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, "CLIPModel", dtype);
        let logit_scale = scope.parameter("logit_scale", &[]);
        let text_model = TextModel::new(&scope, config, kernel);
        let vision_model = VisionModel::new(&scope, config, kernel);
        let project = |name, width| Linear::new(&scope, name, width, config.projection, false);
        let visual_projection = project("visual_projection", config.vision.hidden);
        let text_projection = project("text_projection", config.text.hidden);
        let group = config.text.group;
        Clip { scope, logit_scale, text_model, vision_model, visual_projection, text_projection, group }
    }

    /// The loss, the similarities both ways round, and what the towers give.
    pub(in crate::models) fn forward(&self, tokens: &Tensor, images: &Tensor) -> Vec<Tensor> {
        self.scope.call_with(&[], &[tokens, images], || {
            let logit_scale = own(&self.logit_scale, self.group);
            let (seen, of_images) = {
                let [last, pooled] = self.vision_model.forward(images);
                (last, self.visual_projection.replicated(&pooled, self.group))
            };
            let (read, of_texts) = {
                let [last, pooled] = self.text_model.forward(tokens);
                (last, self.text_projection.replicated(&pooled, self.group))
            };
            let image_embeds = normalized(&of_images);
            let text_embeds = normalized(&of_texts);
            let mut similarity = {
                let flipped = image_embeds.t();
                text_embeds.mm(&flipped)
            };
            similarity = {
                let scale = logit_scale.exp();
                similarity.mul(&scale)
            };
            let of_each_image = similarity.t();
            let loss = contrastive_loss(&similarity);
            vec![loss, of_each_image, similarity, text_embeds, image_embeds, read, of_texts, seen, of_images]
        })
    }
}

/// Vectors of length 1.
fn normalized(vectors: &Tensor) -> Tensor {
    let length = {
        // Variables of a function: both live to its end.
        let squares = vectors.pow_scalar();
        let sum = squares.sum_dim(-1, true);
        sum.pow_scalar()
    };
    vectors.div(&length)
}

/// Each text against all images, and each image against all texts.
fn contrastive_loss(similarity: &Tensor) -> Tensor {
    let against = |scores: &Tensor| {
        let own = Tensor::arange(scores.tape(), scores.size(0), ArangeOverload::End);
        scores.cross_entropy(&own)
    };
    let of_texts = against(similarity);
    let of_images = {
        let flipped = similarity.permute(&[1, 0]);
        against(&flipped)
    };
    let sum = of_texts.add(&of_images);
    sum.div_scalar()
}

struct TextModel {
    scope: Scope,
    embeddings: Scope,
    position_ids: Tensor,
    token_embedding: Embedding,
    position_embedding: Embedding,
    encoder: Encoder,
    final_layer_norm: LayerNorm,
    ends_in_highest: bool,
    group: Option<TensorParallel>,
}

impl TextModel {
    fn new(parent: &Scope, config: &ClipConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("text_model", "CLIPTextModel");
        let embeddings = scope.child("embeddings", "CLIPTextEmbeddings");
        let position_ids = embeddings.buffer("position_ids", Dtype::I64, &[1, config.positions]);
        let width = config.text.hidden;
        let group = config.text.group;
        let token_embedding = Embedding::dealt(&embeddings, "token_embedding", [config.vocab, width], group);
        let position_embedding = Embedding::new(&embeddings, "position_embedding", config.positions, width);
        let encoder = Encoder::new(&scope, &config.text, kernel, true);
        let final_layer_norm = LayerNorm::new(&scope, "final_layer_norm", width);
        TextModel {
            scope,
            embeddings,
            position_ids,
            token_embedding,
            position_embedding,
            encoder,
            final_layer_norm,
            ends_in_highest: config.ends_in_highest,
            group,
        }
    }

    /// The last hidden states, and those of the end of each text.
    fn forward(&self, tokens: &Tensor) -> [Tensor; 2] {
        self.scope.call_with(&[], &[tokens], || {
            let tokens = &tokens.view(tokens.shape());
            let embedded = self.embeddings.call_with(&[], &[tokens], || {
                let positions = first_positions(&self.position_ids, tokens.size(1));
                let words = self.token_embedding.rows(tokens, self.group);
                let of_positions = self.position_embedding.replicated(&positions, self.group);
                words.add(&of_positions)
            });
            let encoded = self.encoder.forward(&embedded);
            let last = self.final_layer_norm.replicated(&encoded, self.group);
            let pooled = {
                let rows = Tensor::arange(tokens.tape(), last.size(0), ArangeOverload::End);
                let ends = self.ends(tokens);
                last.at_two(&rows, &ends)
            };
            [last, pooled]
        })
    }

    /// Where texts end.
    fn ends(&self, tokens: &Tensor) -> Tensor {
        let mut marks = tokens.to(Dtype::I32);
        if !self.ends_in_highest {
            marks = {
                let flags = marks.map_to("eq.Scalar", Dtype::Bool);
                drop(marks);
                flags.to(Dtype::I32)
            };
        }
        let layout = rematic_trace::Layout::contiguous(Dtype::I64, &[tokens.size(0)]);
        tokens.tape().launch_one(Kernel::new("argmax.default", &[&marks], vec![Out::New(layout)]))
    }
}

struct VisionModel {
    scope: Scope,
    embeddings: Scope,
    class_embedding: Tensor,
    position_ids: Tensor,
    patch_embedding: PatchConvolution,
    position_embedding: Embedding,
    pre_layrnorm: LayerNorm,
    encoder: Encoder,
    post_layernorm: LayerNorm,
    group: Option<TensorParallel>,
}

impl VisionModel {
    fn new(parent: &Scope, config: &ClipConfig, kernel: AttentionKernel) -> Self {
        let scope = parent.child("vision_model", "CLIPVisionModel");
        let embeddings = scope.child("embeddings", "CLIPVisionEmbeddings");
        let (images, width) = (config.images, config.vision.hidden);
        let positions = images.patches().saturating_add(1);
        let class_embedding = embeddings.parameter("class_embedding", &[width]);
        let position_ids = embeddings.buffer("position_ids", Dtype::I64, &[1, positions]);
        let patch_embedding =
            PatchConvolution::new(&embeddings, "patch_embedding", images.channels, width, images.patch, false);
        let group = config.vision.group;
        let patch_embedding = patch_embedding.shared(group);
        let position_embedding = Embedding::new(&embeddings, "position_embedding", positions, width);
        let pre_layrnorm = LayerNorm::new(&scope, "pre_layrnorm", width);
        let encoder = Encoder::new(&scope, &config.vision, kernel, false);
        let post_layernorm = LayerNorm::new(&scope, "post_layernorm", width);
        VisionModel {
            scope,
            embeddings,
            class_embedding,
            position_ids,
            patch_embedding,
            position_embedding,
            pre_layrnorm,
            encoder,
            post_layernorm,
            group,
        }
    }

    /// The last hidden states, and what is made of the first.
    fn forward(&self, images: &Tensor) -> [Tensor; 2] {
        self.scope.call_with(&[], &[images], || {
            let mut hidden = self.embeddings.call(&[images], || self.embed(images));
            hidden = self.pre_layrnorm.replicated(&hidden, self.group);
            let last = self.encoder.forward(&hidden);
            let mut pooled = last.select(1);
            pooled = self.post_layernorm.replicated(&pooled, self.group);
            [last, pooled]
        })
    }

    fn embed(&self, images: &Tensor) -> Tensor {
        let class_embedding = own(&self.class_embedding, self.group);
        let patches = flat_patches(&self.patch_embedding, images);
        let first = class_embedding.expand(&[images.size(0), 1, class_embedding.size(0)]);
        let mut embedded = Tensor::cat(images.tape(), &[&first, &patches], 1);
        embedded = {
            let of_positions = self.position_embedding.replicated(&self.position_ids, self.group);
            embedded.add(&of_positions)
        };
        embedded
    }
}

struct Encoder {
    scope: Scope,
    layers: Vec<Layer>,
}

impl Encoder {
    fn new(parent: &Scope, config: &TowerConfig, kernel: AttentionKernel, causal: bool) -> Self {
        let scope = parent.child("encoder", "CLIPEncoder");
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| Layer::new(&list, index, config, (kernel, causal))).collect();
        Encoder { scope, layers }
    }

    /// Called with keyword arguments only.
    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call_with(&[], &[input], || {
            let mut hidden = input.clone();
            for layer in self.layers.iter().take_while(|_| !input.tape().has_failed()) {
                hidden = layer.forward(&hidden);
            }
            hidden
        })
    }
}

struct Layer {
    scope: Scope,
    self_attn: SelfAttention,
    layer_norm1: LayerNorm,
    mlp: Scope,
    act: Scope,
    activation: Activation,
    fc1: Linear,
    fc2: Linear,
    layer_norm2: LayerNorm,
    group: Option<TensorParallel>,
}

impl Layer {
    fn new(list: &Scope, index: u64, config: &TowerConfig, how: (AttentionKernel, bool)) -> Self {
        let scope = list.child(&index.to_string(), "CLIPEncoderLayer");
        let self_attn = SelfAttention::new(&scope, config, how);
        let layer_norm1 = LayerNorm::new(&scope, "layer_norm1", config.hidden);
        let mlp = scope.child("mlp", "CLIPMLP");
        let act = mlp.child("activation_fn", config.activation.class());
        let wide = TensorParallel::share_of(config.group, config.intermediate);
        let fc1 = Linear::new(&mlp, "fc1", config.hidden, wide, true);
        let fc2 = Linear::new(&mlp, "fc2", wide, config.hidden, true);
        let layer_norm2 = LayerNorm::new(&scope, "layer_norm2", config.hidden);
        let (activation, group) = (config.activation, config.group);
        Layer { scope, self_attn, layer_norm1, mlp, act, activation, fc1, fc2, layer_norm2, group }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut residual = input.clone();
            let mut hidden = self.layer_norm1.replicated(input, self.group);
            hidden = self.self_attn.forward(&hidden);
            hidden = residual.add(&hidden);
            residual = hidden.clone();
            hidden = self.layer_norm2.replicated(&hidden, self.group);
            hidden = self.feed_forward(&hidden);
            residual.add(&hidden)
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
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    /// The rank's own.
    heads: u64,
    head_dim: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &TowerConfig, (kernel, causal): (AttentionKernel, bool)) -> Self {
        let scope = parent.child("self_attn", "CLIPAttention");
        let width = TensorParallel::share_of(config.group, config.hidden);
        let linear = |name| Linear::new(&scope, name, config.hidden, width, true);
        SelfAttention {
            k_proj: linear("k_proj"),
            v_proj: linear("v_proj"),
            q_proj: linear("q_proj"),
            out_proj: Linear::new(&scope, "out_proj", width, config.hidden, true),
            heads: TensorParallel::share_of(config.group, config.heads),
            head_dim: config.hidden / config.heads.max(1),
            attention: Attention { kernel, dropout: config.attention_dropout, causal, ..Attention::default() },
            group: config.group,
            scope,
        }
    }

    /// Called with keyword arguments only.
    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call_with(&[], &[input], || {
            let (batch, seq) = (input.size(0), input.size(1));
            let split = [batch, seq, self.heads, self.head_dim];
            let flat = [&self.q_proj, &self.k_proj, &self.v_proj].map(|linear| linear.columns(input, self.group));
            let [queries, keys, values] = flat.map(|flat| flat.view(&split).transpose(1, 2));
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, None);
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)]);
            output = self.out_proj.rows(&output, self.group);
            output
        })
    }
}
