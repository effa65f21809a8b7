use rematic_trace::Dtype;

use super::causal_lm::{self, Activation};
use crate::nn::{Embedding, Linear, RmsNorm, Scope};
use crate::ops::Wait;
use crate::parallel::TensorParallel;
use crate::tape::Tape;
use crate::tensor::Tensor;
use crate::{Attention, AttentionKernel};

/// The families that share Llama's architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    /// The prefix of the Python classes.
    fn prefix(self) -> &'static str {
        match self {
            Family::Llama => "Llama",
            Family::Mistral => "Mistral",
            Family::Qwen2 => "Qwen2",
            Family::Qwen3 => "Qwen3",
        }
    }

    /// Whether `rotary_emb` gets the position ids as a positional argument.
    fn positions_are_positional(self) -> bool {
        matches!(self, Family::Qwen2 | Family::Qwen3)
    }
}

/// Sizes and switches of a model of Llama's kind.
#[derive(Clone, Debug)]
pub(super) struct LlamaConfig {
    pub(super) family: Family,
    pub(super) vocab: u64,
    pub(super) hidden: u64,
    pub(super) intermediate: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    pub(super) key_heads: u64,
    pub(super) head_dim: u64,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    /// Bias of the query, key and value projections.
    pub(super) qkv_bias: bool,
    /// Bias of the output projection of attention.
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) attention_dropout: f64,
    pub(super) window: Option<Window>,
    /// The ranks that share the model, if several do.
    pub(super) group: Option<TensorParallel>,
}

impl LlamaConfig {
    /// What the rank has of an extent that is cut.
    fn share(&self, extent: u64) -> u64 {
        self.group.map_or(extent, |group| group.share(extent))
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
    /// One entry a layer. It repeats where a user asks for more layers than the config has.
    Listed(Vec<bool>),
}

impl WindowLayers {
    fn contains(&self, layer: u64) -> bool {
        match self {
            WindowLayers::All => true,
            WindowLayers::From(first) => layer >= *first,
            WindowLayers::Listed(layers) => {
                let place = usize::try_from(layer).unwrap_or(0) % layers.len().max(1);
                layers.get(place) == Some(&true)
            }
        }
    }
}

pub(super) struct LlamaForCausalLm {
    scope: Scope,
    model: LlamaModel,
    lm_head: Linear,
    group: Option<TensorParallel>,
}

impl LlamaForCausalLm {
    pub(super) fn new(tape: &Tape, config: &LlamaConfig, dtype: Dtype, kernel: AttentionKernel) -> Self {
        let scope = Scope::root(tape, &format!("{}ForCausalLM", config.family.prefix()), dtype);
        let model = LlamaModel::new(&scope, config, kernel);
        // PyTorch makes two parameters of a tied one when it cuts it.
        let lm_head = if config.tied && config.group.is_none() {
            Linear::tied(&scope, "lm_head", model.embed_tokens.weight())
        } else {
            Linear::new(&scope, "lm_head", config.hidden, config.share(config.vocab), false)
        };
        LlamaForCausalLm { scope, model, lm_head, group: config.group }
    }

    /// Loss and logits; the tokens are their own labels. Where several ranks share the model, positions are given: a rank sees
    /// too few of them to count.
    pub(super) fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> (Tensor, Tensor) {
        // Token ids and labels.
        let given: Vec<&Tensor> = [tokens, tokens].into_iter().chain(positions).collect();
        self.scope.call_with(&[], &given, || {
            let hidden = self.model.forward(tokens, positions);
            causal_lm::lm_outputs(&hidden, &self.lm_head, tokens, self.group)
        })
    }
}

struct LlamaModel {
    scope: Scope,
    embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    rotary_emb: RotaryEmbedding,
    family: Family,
    window: Option<Window>,
    group: Option<TensorParallel>,
}

impl LlamaModel {
    fn new(parent: &Scope, config: &LlamaConfig, kernel: AttentionKernel) -> Self {
        let prefix = config.family.prefix();
        let scope = parent.child("model", &format!("{prefix}Model"));
        let embed_tokens = match config.group {
            None => Embedding::new(&scope, "embed_tokens", config.vocab, config.hidden),
            Some(group) => Embedding::part(&scope, "embed_tokens", config.vocab, config.hidden, group),
        };
        let list = scope.child("layers", "ModuleList");
        let layers = (0..config.layers).map(|index| DecoderLayer::new(&list, index, config, kernel)).collect();
        let norm = RmsNorm::with(&scope, "norm", &format!("{prefix}RMSNorm"), config.hidden, config.group);
        let rotary_emb = RotaryEmbedding::new(&scope, config);
        // The window counts only if some layer has it.
        let window =
            config.window.clone().filter(|window| (0..config.layers).any(|layer| window.layers.contains(layer)));
        LlamaModel { scope, embed_tokens, layers, norm, rotary_emb, family: config.family, window, group: config.group }
    }

    fn forward(&self, tokens: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let given: Vec<&Tensor> = [tokens].into_iter().chain(positions).collect();
        self.scope.call_with(&[], &given, || {
            let embedded = match self.group {
                None => self.embed_tokens.forward(tokens),
                Some(group) => self.embed_tokens.forward_part(tokens, group),
            };
            let counted = || causal_lm::position_ids(tokens.tape(), tokens.size(1));
            let positions = positions.cloned().unwrap_or_else(counted);
            let mask = self.mask(&positions, tokens.size(0));
            let mut hidden = embedded.clone();
            let rotary = self.rotary_emb.forward(&hidden, &positions);
            for (index, layer) in (0..).zip(&self.layers).take_while(|_| !tokens.tape().has_failed()) {
                let windowed = self.window.as_ref().is_some_and(|window| window.layers.contains(index));
                let mask = mask.as_ref().filter(|_| windowed);
                hidden = layer.forward(&hidden, &Keywords { rotary: &rotary, mask, positions: &positions });
            }
            self.norm.forward_part(&hidden, self.group)
        })
    }
}

impl LlamaModel {
    /// The mask of the layers with a window. Mistral makes it instead of the causal one, the others besides.
    fn mask(&self, positions: &Tensor, batch: u64) -> Option<Tensor> {
        if self.window.is_none() || self.family != Family::Mistral {
            causal_lm::skip_causal_mask(positions, batch);
        }
        let window = self.window.as_ref()?;
        causal_lm::sliding_window_mask(positions, batch, window.size)
    }
}

struct RotaryEmbedding {
    scope: Scope,
    inv_freq: Tensor,
    family: Family,
}

impl RotaryEmbedding {
    fn new(parent: &Scope, config: &LlamaConfig) -> Self {
        let scope = parent.child("rotary_emb", &format!("{}RotaryEmbedding", config.family.prefix()));
        let frequencies = [config.head_dim.div_ceil(2)];
        let inv_freq = scope.buffer("inv_freq", Dtype::F32, &frequencies);
        let _original = scope.buffer("original_inv_freq", Dtype::F32, &frequencies);
        RotaryEmbedding { scope, inv_freq, family: config.family }
    }

    /// Cosines and sines of every position.
    fn forward(&self, hidden: &Tensor, positions: &Tensor) -> (Tensor, Tensor) {
        let given = [hidden, positions];
        let (positional, keywords) = given.split_at(if self.family.positions_are_positional() { 2 } else { 1 });
        let tape = hidden.tape();
        self.scope.call_with(positional, keywords, || {
            tape.no_grad(|| {
                let angles = {
                    let numbers = {
                        let column = positions.unsqueeze(-1);
                        column.to(Dtype::F32)
                    };
                    numbers.mul(&self.inv_freq)
                };
                let doubled = Tensor::cat(tape, &[&angles, &angles], -1);
                let cosines = {
                    let raw = doubled.cos();
                    raw.mul_scalar()
                };
                let sines = {
                    let raw = doubled.sin();
                    raw.mul_scalar()
                };
                (cosines.to(hidden.dtype()), sines.to(hidden.dtype()))
            })
        })
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
        let always = [&self.rotary.0, &self.rotary.1, self.positions];
        always.into_iter().chain(self.mask).collect()
    }
}

struct DecoderLayer {
    scope: Scope,
    self_attn: SelfAttention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    group: Option<TensorParallel>,
}

impl DecoderLayer {
    fn new(list: &Scope, index: u64, config: &LlamaConfig, kernel: AttentionKernel) -> Self {
        let prefix = config.family.prefix();
        let scope = list.child(&index.to_string(), &format!("{prefix}DecoderLayer"));
        let norm = |name| RmsNorm::with(&scope, name, &format!("{prefix}RMSNorm"), config.hidden, config.group);
        DecoderLayer {
            self_attn: SelfAttention::new(&scope, config, kernel),
            mlp: Mlp::new(&scope, config),
            input_layernorm: norm("input_layernorm"),
            post_attention_layernorm: norm("post_attention_layernorm"),
            group: config.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Tensor {
        self.scope.call_with(&[input], &keywords.tensors(), || {
            let mut residual = input.clone();
            let mut hidden = self.input_layernorm.forward_part(input, self.group);
            hidden = self.self_attn.forward(&hidden, keywords);
            hidden = residual.add(&hidden);
            residual = hidden.clone();
            hidden = self.post_attention_layernorm.forward_part(&hidden, self.group);
            hidden = self.mlp.forward(&hidden);
            residual.add(&hidden)
        })
    }
}

struct SelfAttention {
    scope: Scope,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Normalisation of each head of queries and keys.
    norms: Option<(RmsNorm, RmsNorm)>,
    head_dim: u64,
    heads: u64,
    key_heads: u64,
    attention: Attention,
    group: Option<TensorParallel>,
}

impl SelfAttention {
    fn new(parent: &Scope, config: &LlamaConfig, kernel: AttentionKernel) -> Self {
        let prefix = config.family.prefix();
        let scope = parent.child("self_attn", &format!("{prefix}Attention"));
        let (heads, key_heads) = (config.share(config.heads), config.share(config.key_heads));
        let queries = heads.saturating_mul(config.head_dim);
        let keys = key_heads.saturating_mul(config.head_dim);
        let norm = |name| RmsNorm::with(&scope, name, &format!("{prefix}RMSNorm"), config.head_dim, config.group);
        SelfAttention {
            q_proj: Linear::new(&scope, "q_proj", config.hidden, queries, config.qkv_bias),
            k_proj: Linear::new(&scope, "k_proj", config.hidden, keys, config.qkv_bias),
            v_proj: Linear::new(&scope, "v_proj", config.hidden, keys, config.qkv_bias),
            o_proj: Linear::new(&scope, "o_proj", queries, config.hidden, config.output_bias),
            norms: (config.family == Family::Qwen3).then(|| (norm("q_norm"), norm("k_norm"))),
            head_dim: config.head_dim,
            heads,
            key_heads,
            attention: Attention { kernel, dropout: config.attention_dropout, ..Attention::default() },
            group: config.group,
            scope,
        }
    }

    /// Called with keyword arguments only.
    fn forward(&self, input: &Tensor, keywords: &Keywords<'_>) -> Tensor {
        let input = &whole_sequence(input, self.group);
        let mut arguments = vec![input];
        arguments.extend(keywords.tensors());
        self.scope.call_with(&[], &arguments, || {
            let (batch, seq) = (input.size(0), input.size(1));
            let heads_of = |projection: &Linear, heads: u64, norm: Option<&RmsNorm>| {
                let mut split = {
                    let projected = projection.forward_columns(input, self.group);
                    projected.view(&[batch, seq, heads, self.head_dim])
                };
                if let Some(norm) = norm {
                    split = norm.forward_heads(&split, self.group);
                }
                split.transpose(1, 2)
            };
            let mut queries = heads_of(&self.q_proj, self.heads, self.norms.as_ref().map(|norms| &norms.0));
            let mut keys = heads_of(&self.k_proj, self.key_heads, self.norms.as_ref().map(|norms| &norms.1));
            let values = heads_of(&self.v_proj, self.key_heads, None);
            (queries, keys) = rotate(&queries, &keys, keywords.rotary);
            let mut output = causal_lm::attend(self.attention, &queries, &keys, &values, keywords.mask);
            output = output.reshape(&[batch, seq, self.heads.saturating_mul(self.head_dim)]);
            output = self.o_proj.forward_rows(&output, self.group);
            output
        })
    }
}

/// What a rank of several computes attention and the feed-forward network of: all of the sequence.
fn whole_sequence(part: &Tensor, group: Option<TensorParallel>) -> Tensor {
    group.map_or_else(|| part.clone(), |group| part.gather_sequence(group, Wait::AtOnce))
}

/// `apply_rotary_pos_emb`.
fn rotate(queries: &Tensor, keys: &Tensor, (cosines, sines): &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let cosines = cosines.unsqueeze(1);
    let sines = sines.unsqueeze(1);
    let apply = |heads: &Tensor| {
        let straight = heads.mul(&cosines);
        let turned = {
            let rotated = rotate_half(heads);
            rotated.mul(&sines)
        };
        straight.add(&turned)
    };
    (apply(queries), apply(keys))
}

fn rotate_half(heads: &Tensor) -> Tensor {
    let width = heads.size(-1);
    let first = heads.slice(-1, 0, width / 2);
    let second = heads.slice(-1, width / 2, width);
    let negated = second.neg();
    Tensor::cat(heads.tape(), &[&negated, &first], -1)
}

struct Mlp {
    scope: Scope,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act_fn: Scope,
    activation: Activation,
    group: Option<TensorParallel>,
}

impl Mlp {
    fn new(parent: &Scope, config: &LlamaConfig) -> Self {
        let scope = parent.child("mlp", &format!("{}MLP", config.family.prefix()));
        let (hidden, wide, bias) = (config.hidden, config.share(config.intermediate), config.mlp_bias);
        Mlp {
            gate_proj: Linear::new(&scope, "gate_proj", hidden, wide, bias),
            up_proj: Linear::new(&scope, "up_proj", hidden, wide, bias),
            down_proj: Linear::new(&scope, "down_proj", wide, hidden, bias),
            act_fn: scope.child("act_fn", config.activation.class()),
            activation: config.activation,
            group: config.group,
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        let input = &whole_sequence(input, self.group);
        self.scope.call(&[input], || {
            let product = {
                let activated = {
                    let gate = self.gate_proj.forward_columns(input, self.group);
                    self.activation.forward(&self.act_fn, &gate)
                };
                let up = self.up_proj.forward_columns(input, self.group);
                activated.mul(&up)
            };
            self.down_proj.forward_rows(&product, self.group)
        })
    }
}
