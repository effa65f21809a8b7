//! Decoders of Llama's kind: what their families share, and in which they differ.

mod attention;
mod experts;
mod feed_forward;
mod latent;
mod layer;
mod norm;
mod rotary;
mod router;

use rematic_trace::Dtype;

pub(super) use self::experts::ExpertsConfig;
pub(super) use self::latent::{LatentConfig, LatentRotation};
use self::layer::{Arrangement, DecoderLayer};
use self::norm::{Dealt, Norm, NormKind};
use self::rotary::Rotation;
pub(super) use self::rotary::{RotaryEmbedding, Turn, parts};
use super::causal_lm::{self, Activation};
use crate::AttentionKernel;
use crate::nn::{Embedding, Linear, Scope};
use crate::ops::{Cut, LogitScale, Wait};
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Olmo2,
    Granite,
    Cohere,
    Mixtral,
    Qwen2Moe,
    Qwen3Moe,
    GptOss,
    DeepseekV2,
    DeepseekV3,
}

/// Which masks a model makes before its first layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Masks {
    /// The causal one; and the window's, if a layer has one.
    AsNeeded,
    /// The window's instead of the causal one, if there is a window.
    Either,
    /// Both, whether or not a layer has a window.
    Both,
}

impl Family {
    /// The prefix of the Python classes.
    fn prefix(self) -> &'static str {
        match self {
            Family::Llama => "Llama",
            Family::Mistral => "Mistral",
            Family::Qwen2 => "Qwen2",
            Family::Qwen3 => "Qwen3",
            Family::Gemma => "Gemma",
            Family::Gemma2 => "Gemma2",
            Family::Gemma3 => "Gemma3",
            Family::Phi3 => "Phi3",
            Family::Olmo2 => "Olmo2",
            Family::Granite => "Granite",
            Family::Cohere => "Cohere",
            Family::Mixtral => "Mixtral",
            Family::Qwen2Moe => "Qwen2Moe",
            Family::Qwen3Moe => "Qwen3Moe",
            Family::GptOss => "GptOss",
            Family::DeepseekV2 => "DeepseekV2",
            Family::DeepseekV3 => "DeepseekV3",
        }
    }

    /// The layers that PEFT gives adapters if it is not told which (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of 0.21).
    pub(super) fn lora_targets(self) -> &'static [&'static str] {
        match self {
            Family::Phi3
            | Family::Olmo2
            | Family::Granite
            | Family::Cohere
            | Family::Qwen2Moe
            | Family::Qwen3Moe
            | Family::GptOss
            | Family::DeepseekV2
            | Family::DeepseekV3 => &[],
            _ => &["q_proj", "v_proj"],
        }
    }

    /// Whether `rotary_emb` gets the position ids as a positional argument.
    fn positions_are_positional(self) -> bool {
        matches!(
            self,
            Family::Qwen2
                | Family::Qwen3
                | Family::Gemma2
                | Family::Gemma3
                | Family::Qwen2Moe
                | Family::GptOss
                | Family::DeepseekV2
                | Family::DeepseekV3
        )
    }

    fn model_class(self) -> String {
        format!("{}{}Model", self.prefix(), if self == Family::Gemma3 { "Text" } else { "" })
    }

    fn norm(self) -> NormKind {
        match self {
            Family::Gemma | Family::Gemma2 | Family::Gemma3 => NormKind::Shifted,
            Family::Olmo2 | Family::GptOss => NormKind::Wide,
            Family::Cohere => NormKind::Centred,
            _ => NormKind::Plain,
        }
    }

    fn norm_class(self) -> String {
        format!("{}{}Norm", self.prefix(), if self == Family::Cohere { "Layer" } else { "RMS" })
    }

    fn rotation(self) -> Rotation {
        match self {
            Family::Phi3 => Rotation::Part,
            Family::Cohere => Rotation::Neighbours,
            Family::Olmo2 => Rotation::Wide,
            Family::GptOss => Rotation::Chunks,
            Family::DeepseekV2 => Rotation::Complex,
            _ => Rotation::Halves,
        }
    }

    fn arrangement(self) -> Arrangement {
        match self {
            Family::Gemma2 | Family::Gemma3 => Arrangement::Around,
            Family::Olmo2 => Arrangement::Behind,
            Family::Cohere => Arrangement::Parallel,
            _ => Arrangement::Before,
        }
    }

    fn masks(self) -> Masks {
        match self {
            Family::Mistral | Family::Phi3 | Family::Mixtral | Family::Qwen3Moe => Masks::Either,
            Family::Gemma2 | Family::Gemma3 | Family::Qwen2Moe | Family::GptOss => Masks::Both,
            _ => Masks::AsNeeded,
        }
    }

    /// The class of an embedding that scales what it looks up.
    fn scaled_embedding(self) -> Option<String> {
        let is_gemma = matches!(self, Family::Gemma | Family::Gemma2 | Family::Gemma3);
        is_gemma.then(|| format!("{}TextScaledWordEmbedding", self.prefix()))
    }
}

/// Sizes and switches of a decoder.
#[derive(Clone, Debug)]
pub(super) struct DecoderConfig {
    pub(super) family: Family,
    pub(super) vocab: u64,
    pub(super) hidden: u64,
    pub(super) intermediate: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    pub(super) key_heads: u64,
    pub(super) head_dim: u64,
    /// How many of a head's numbers turn with the position.
    pub(super) rotary_dim: u64,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    /// Bias of the query, key and value projections.
    pub(super) qkv_bias: bool,
    /// Bias of the output projection of attention.
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    /// Norms of queries and keys, where a family leaves it open.
    pub(super) qk_norm: bool,
    pub(super) attention_dropout: f64,
    pub(super) resid_dropout: f64,
    /// Whether scores are kept between two numbers, where a family leaves it open.
    pub(super) attention_softcap: bool,
    pub(super) logits: LogitScale,
    pub(super) window: Option<Window>,
    pub(super) experts: Option<ExpertsConfig>,
    /// Attention on latent vectors, if it is.
    pub(super) latent: Option<LatentConfig>,
    /// The ranks that share the model, if several do.
    pub(super) group: Option<TensorParallel>,
}

impl DecoderConfig {
    /// What the rank has of an extent that is cut.
    fn share(&self, extent: u64) -> u64 {
        self.group.map_or(extent, |group| group.share(extent))
    }

    /// Whether every one of several ranks computes attention of all heads, and shares the projections only: where they are one
    /// weight, or a norm is over all heads. It is how the plans of transformers do it.
    fn gathers_heads(&self) -> bool {
        self.group.is_some() && matches!(self.family, Family::Phi3 | Family::Olmo2)
    }

    /// What no kernel of PyTorch's has, so that plain operators compute attention.
    pub(super) fn beyond_kernels(&self) -> Option<&'static str> {
        match self.family {
            Family::Gemma2 => Some("soft-capping"),
            Family::GptOss => Some("sinks"),
            _ => None,
        }
    }

    /// Whether there are layers that see all, and such with a window.
    fn window_layers(&self) -> (bool, bool) {
        let windowed = |layer| self.window.as_ref().is_some_and(|window| window.layers.contains(layer));
        ((0..self.layers).any(|layer| !windowed(layer)), (0..self.layers).any(windowed))
    }
}

/// A window that slides over the sequence.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Positions that are seen.
    pub(super) size: u64,
    pub(super) layers: WindowLayers,
}

/// The layers whose attention has the window; the others see all that is past.
#[derive(Clone, Debug)]
pub(super) enum WindowLayers {
    All,
    From(u64),
    /// All but the last of every so many.
    AllBut {
        every: u64,
    },
    /// The first, third and so on of the first layers.
    EvenBelow(u64),
    /// One entry a layer. It repeats where a user asks for more layers than the config has.
    Listed(Vec<bool>),
}

impl WindowLayers {
    fn contains(&self, layer: u64) -> bool {
        match self {
            WindowLayers::All => true,
            WindowLayers::From(first) => layer >= *first,
            WindowLayers::AllBut { every } => !(layer + 1).is_multiple_of(*every),
            WindowLayers::EvenBelow(end) => layer.is_multiple_of(2) && layer < *end,
            WindowLayers::Listed(layers) => {
                let place = usize::try_from(layer).unwrap_or(0) % layers.len().max(1);
                layers.get(place) == Some(&true)
            }
        }
    }
}

pub(super) struct Decoder {
    scope: Scope,
    model: DecoderModel,
    lm_head: Linear,
    logits: LogitScale,
    group: Option<TensorParallel>,
}

impl Decoder {
    pub(super) fn new(tape: &Tape, config: &DecoderConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, &format!("{}ForCausalLM", config.family.prefix()), dtype);
        let model = DecoderModel::new(&scope, config, kernel);
        // PyTorch makes two parameters of a tied one when it cuts it.
        let lm_head = if config.tied && config.group.is_none() {
            Linear::tied(&scope, "lm_head", model.embed_tokens.weight())
        } else {
            Linear::new(&scope, "lm_head", config.hidden, config.share(config.vocab), false)
        };
        Decoder { scope, model, lm_head, logits: config.logits, group: config.group }
    }

    /// Loss and logits; the tokens are their own labels. Where several ranks share the model, positions are given: a rank sees
    /// too few of them to count.
    pub(super) fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> (Tensor, Tensor) {
        // Token ids and labels.
        let given: Vec<&Tensor> = [tokens, tokens].into_iter().chain(positions).collect();
        self.scope.call_with(&[], &given, || {
            let hidden = self.model.forward(tokens, positions);
            causal_lm::lm_outputs(&hidden, &self.lm_head, self.logits, tokens, self.group)
        })
    }
}

struct DecoderModel {
    scope: Scope,
    embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    norm: Norm,
    rotary_emb: RotaryEmbedding,
    family: Family,
    window: Option<Window>,
    /// Whether a layer has the window.
    windowed: bool,
    group: Option<TensorParallel>,
}

impl DecoderModel {
    fn new(parent: &Scope, config: &DecoderConfig, kernel: AttentionKernel) -> Self {
        let family = config.family;
        let scope = parent.child("model", &family.model_class());
        let embed_tokens = match (config.group, family.scaled_embedding()) {
            (None, None) => Embedding::new(&scope, "embed_tokens", config.vocab, config.hidden),
            (None, Some(class)) => Embedding::scaled(&scope, "embed_tokens", &class, config.vocab, config.hidden),
            (Some(group), class) => {
                Embedding::part(&scope, "embed_tokens", class.as_deref(), [config.vocab, config.hidden], group)
            }
        };
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| DecoderLayer::new(&list, index, config, kernel)).collect();
        let norm = Norm::new(
            &scope,
            "norm",
            (family.norm(), &family.norm_class()),
            &[config.hidden],
            Dealt::before(config.group),
        );
        let rotary_emb = RotaryEmbedding::new(&scope, config);
        // The window counts only if some layer has it, unless its mask is made all the same.
        let windowed = config.window_layers().1;
        let counts = family.masks() == Masks::Both || windowed;
        let window = config.window.clone().filter(|_| counts);
        DecoderModel { scope, embed_tokens, layers, norm, rotary_emb, family, window, windowed, group: config.group }
    }

    fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let given: Vec<&Tensor> = [tokens].into_iter().chain(positions).collect();
        self.scope.call_with(&[], &given, || {
            let mut embedded = match self.group {
                None => self.embed_tokens.forward(tokens),
                Some(group) => self.embed_tokens.forward_part(tokens, group, self.has_masks(tokens.size(1))),
            };
            if self.family == Family::Granite {
                embedded = embedded.mul_scalar();
            }
            let counted = || causal_lm::position_ids(tokens.tape(), tokens.size(1));
            let positions = positions.cloned().unwrap_or_else(counted);
            let (full, sliding) = self.masks(&positions, &embedded);
            let mut hidden = embedded.clone();
            let angles = self.angles(&hidden, &positions);
            if let Some(group) = self.group.filter(|_| self.has_masks(tokens.size(1))) {
                hidden = own_sequence(&hidden, group);
            }
            for (index, layer) in (0..).zip(&self.layers).take_while(|_| !tokens.tape().has_failed()) {
                let windowed = self.window.as_ref().is_some_and(|window| window.layers.contains(index));
                let mask = if windowed { sliding.as_ref() } else { full.as_ref() };
                let rotary = angles.1.as_ref().filter(|_| windowed).unwrap_or(&angles.0);
                hidden = layer.forward(&hidden, &Keywords { rotary, mask, positions: &positions });
            }
            self.norm.forward(&hidden)
        })
    }

    /// Whether a layer has a mask, which is of the length of what the embedding gives.
    fn has_masks(&self, seq: u64) -> bool {
        let has_plain = matches!(self.family, Family::Gemma2 | Family::GptOss);
        has_plain || self.windowed && self.window.as_ref().is_some_and(|window| seq >= window.size)
    }

    /// Cosines and sines; and those of layers with a window, if they are others.
    fn angles(&self, hidden: &Tensor, positions: &Tensor) -> ((Tensor, Tensor), Option<(Tensor, Tensor)>) {
        let full = self.rotary_emb.forward(hidden, positions, false);
        let sliding = self.rotary_emb.tells_layers_apart().then(|| self.rotary_emb.forward(hidden, positions, true));
        (full, sliding)
    }

    /// The masks of layers that see all, and of those with a window.
    fn masks(&self, positions: &Tensor, embedded: &Tensor) -> (Option<Tensor>, Option<Tensor>) {
        let batch = embedded.size(0);
        if matches!(self.family, Family::Gemma2 | Family::GptOss) {
            let mask = |windowed| {
                // Given to what makes the mask, or not.
                if self.family == Family::Gemma2 {
                    causal_lm::skip_causal_mask(positions, batch);
                }
                causal_lm::eager_mask(positions, [batch, embedded.size(1)], windowed, embedded.dtype())
            };
            let full = mask(false);
            return (Some(full), Some(mask(true)));
        }
        if self.window.is_none() || self.family.masks() != Masks::Either {
            causal_lm::skip_causal_mask(positions, batch);
        }
        let window = self.window.as_ref();
        (
            None,
            window.and_then(|window| {
                let seen = [batch, embedded.size(1)];
                causal_lm::sliding_window_mask(positions, seen, window.size)
            }),
        )
    }
}

/// What every layer gets as keyword arguments.
struct Keywords<'a> {
    rotary: &'a (Tensor, Tensor),
    mask: Option<&'a Tensor>,
    positions: &'a Tensor,
}

impl<'a> Keywords<'a> {
    fn tensors(&self) -> Vec<&'a Tensor> {
        // Complex numbers are one tensor.
        let second = Some(&self.rotary.1).filter(|second| second.storage() != self.rotary.0.storage());
        let always = [&self.rotary.0].into_iter().chain(second).chain([self.positions]);
        always.chain(self.mask).collect()
    }
}

/// What a rank of several has of hidden states that all of them have.
fn own_sequence(whole: &Tensor, group: TensorParallel) -> Tensor {
    let whole = whole.distributed();
    let part = whole.own_part(group, Cut::Sequence, Wait::AtOnce);
    part.local()
}

/// What a rank of several computes attention and the feed-forward network of: all of the sequence.
pub(super) fn whole_sequence(part: &Tensor, group: Option<TensorParallel>) -> Tensor {
    group.map_or_else(|| part.clone(), |group| part.gather_sequence(group, Wait::AtOnce))
}
