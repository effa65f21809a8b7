//! The models that come with Rematic, and those that a Hugging Face `config.json` describes.

mod builtin;
mod causal_lm;
mod config;
mod decoder;
mod encoder;
mod gpt2;
mod gpt_neox;
mod recipe;
mod seed_transformer;
mod sharing;

use rematic_trace::{CardKind, Dtype, Opt, StepTrace};

pub use self::builtin::{BUILTIN, Builtin};
use self::decoder::{Decoder, DecoderConfig};
use self::encoder::{Network, Shape};
use self::gpt_neox::{GptNeoxConfig, GptNeoxForCausalLm};
use self::gpt2::{Gpt2Config, Gpt2LmHeadModel};
pub use self::recipe::{LossKind, Recipe};
use self::seed_transformer::SeedTransformer;
use crate::error::FakeError;
use crate::optimizer::Optimizer;
use crate::parallel::{TP, TP_RANK, TensorParallel};
use crate::step::Step;
use crate::tape::Tape;
use crate::{AttentionKernel, Tensor};

/// More layers than this are a slip of the finger. The heaviest known (Qwen3 with biases, dropout and a sliding window, math
/// kernel) make 1.9 million operators of them, below the limit of the tape; `rematic stats` takes 0.7 GB and 4 s for it.
const MAX_LAYERS: u64 = 5_000;
/// Where neither the user nor the config says how long a sequence is, it is at most this.
const DEFAULT_SEQ: u64 = 4096;

/// What a user may change about a model. `None` leaves the model's own value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Sequences in the batch.
    pub batch: Option<u64>,
    /// Positions in a sequence.
    pub seq: Option<u64>,
    /// Type of parameters and activations: fp32, bf16 or fp16.
    pub dtype: Option<Dtype>,
    /// Optimizer.
    pub optimizer: Option<Optimizer>,
    /// Attention kernel.
    pub attention: Option<AttentionKernel>,
    /// The kind of card, whose attention it is.
    pub card: Option<CardKind>,
    /// Number of layers.
    pub layers: Option<u64>,
    /// All dropout probabilities.
    pub dropout: Option<f64>,
    /// Width; seed-transformer only.
    pub dim: Option<u64>,
    /// Attention heads; seed-transformer only.
    pub heads: Option<u64>,
    /// Vocabulary; seed-transformer only.
    pub vocab: Option<u64>,
    /// Ranks that share the model's weights and its sequence, at least two: tensor parallelism. Decoders only.
    pub tp: Option<u32>,
    /// Which of them it is; the first, if nothing is said.
    pub tp_rank: Option<u32>,
    /// How it is trained.
    pub recipe: Recipe,
}

impl Options {
    /// Among how many ranks a step is shared that says so of itself, and which of them it is of.
    #[must_use]
    pub fn shared_like(facts: &[(String, String)]) -> (Option<u32>, Option<u32>) {
        let number = |name: &str| facts.iter().find(|fact| fact.0 == name).and_then(|fact| fact.1.parse().ok());
        (number(TP), number(TP_RANK))
    }
}

#[derive(Clone, Debug)]
enum Architecture {
    Seed(SeedTransformer),
    Gpt2(Gpt2Config),
    GptNeox(GptNeoxConfig),
    Decoder(DecoderConfig),
    Network(Network),
}

impl Architecture {
    /// The layers that PEFT gives adapters if it is not told which; none for a model that it does not know.
    fn lora_targets(&self) -> &'static [&'static str] {
        match self {
            Architecture::Seed(_) | Architecture::Network(_) => &[],
            Architecture::Gpt2(_) => &["c_attn"],
            Architecture::GptNeox(_) => &["query_key_value"],
            Architecture::Decoder(config) => config.family.lora_targets(),
        }
    }
}

/// A model and the step that it is trained with.
#[derive(Clone, Debug)]
pub struct Model {
    name: String,
    architecture: Architecture,
    batch: u64,
    seq: u64,
    dtype: Dtype,
    optimizer: Optimizer,
    attention: AttentionKernel,
    card: CardKind,
    recipe: Recipe,
    /// What is taken for granted about its weights.
    assumption: Option<String>,
}

impl Model {
    /// The built-in model with this name.
    ///
    /// # Errors
    /// If there is none; the error suggests the nearest name.
    pub fn builtin(name: &str) -> Result<Model, FakeError> {
        let Some(entry) = BUILTIN.iter().find(|entry| entry.name == name) else {
            return Err(FakeError::UnknownModel { name: name.to_owned(), suggestion: builtin::suggestion(name) });
        };
        let Some(config) = entry.config else {
            let seed = SeedTransformer::default();
            return Ok(Model {
                name: name.to_owned(),
                batch: 8,
                seq: 1024,
                dtype: Dtype::F32,
                optimizer: Optimizer::default(),
                attention: AttentionKernel::default(),
                card: CardKind::default(),
                recipe: Recipe::default(),
                assumption: None,
                architecture: Architecture::Seed(seed),
            });
        };
        Model::from_config(name, config)
    }

    /// The model that the text of a `config.json` describes; `name` is what it is called in messages.
    ///
    /// # Errors
    /// If the text is not JSON, lacks a field, or describes a model that is not supported.
    pub fn from_config(name: &str, text: &str) -> Result<Model, FakeError> {
        let parsed = config::parse(name, text)?;
        Ok(Model {
            name: name.to_owned(),
            batch: 1,
            seq: parsed.positions.min(DEFAULT_SEQ),
            dtype: parsed.dtype.unwrap_or(Dtype::F32),
            // What Hugging Face's Trainer takes.
            optimizer: Optimizer::AdamWFused,
            attention: AttentionKernel::default(),
            card: CardKind::default(),
            recipe: Recipe::default(),
            assumption: parsed.assumption,
            architecture: parsed.architecture,
        })
    }

    /// The model with the user's changes.
    ///
    /// # Errors
    /// If a value is out of range, or the model has no such option.
    pub fn with(mut self, options: &Options) -> Result<Model, FakeError> {
        let counts = [
            ("batch", options.batch),
            ("seq", options.seq),
            ("layers", options.layers),
            ("dim", options.dim),
            ("heads", options.heads),
            ("vocab", options.vocab),
        ];
        for (name, value) in counts {
            if value == Some(0) {
                return Err(out_of_range(name, 0, "it must be at least 1"));
            }
        }
        if let Some(layers) = options.layers.filter(|layers| *layers > MAX_LAYERS) {
            return Err(out_of_range("layers", layers, &format!("it must be at most {MAX_LAYERS}")));
        }
        if let Some(dropout) = options.dropout.filter(|dropout| !(0.0..1.0).contains(dropout)) {
            return Err(out_of_range("dropout", dropout, "it must be at least 0 and below 1"));
        }
        self.batch = options.batch.unwrap_or(self.batch);
        self.seq = options.seq.unwrap_or(self.seq);
        self.dtype = options.dtype.unwrap_or(self.dtype);
        self.optimizer = options.optimizer.unwrap_or(self.optimizer);
        self.attention = options.attention.unwrap_or(self.attention);
        self.card = options.card.unwrap_or(self.card);
        if !matches!(self.dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) {
            return Err(out_of_range("dtype", self.dtype, "it must be fp32, bf16 or fp16"));
        }
        self.recipe = options.recipe.clone().settled(&self.name, &self.architecture)?;
        self.resize(options)?;
        self.share(options)?;
        self.check()?;
        Ok(self)
    }

    /// The sequences, or samples, in its batch.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// The optimizer of its step.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        self.optimizer
    }

    fn resize(&mut self, options: &Options) -> Result<(), FakeError> {
        let set = |field: &mut u64, value: Option<u64>| *field = value.unwrap_or(*field);
        if let Architecture::Seed(seed) = &mut self.architecture {
            set(&mut seed.layers, options.layers);
            set(&mut seed.dim, options.dim);
            set(&mut seed.heads, options.heads);
            set(&mut seed.vocab, options.vocab);
            seed.dropout = options.dropout.unwrap_or(seed.dropout);
            return Ok(());
        }
        for (option, value) in [("dim", options.dim), ("heads", options.heads), ("vocab", options.vocab)] {
            if value.is_some() {
                return Err(FakeError::unknown_option(&self.name, Opt(option)));
            }
        }
        match &mut self.architecture {
            Architecture::Gpt2(gpt2) => {
                set(&mut gpt2.layers, options.layers);
                if let Some(dropout) = options.dropout {
                    (gpt2.resid_dropout, gpt2.embd_dropout, gpt2.attn_dropout) = (dropout, dropout, dropout);
                }
            }
            Architecture::GptNeox(neox) => {
                set(&mut neox.layers, options.layers);
                if let Some(dropout) = options.dropout {
                    (neox.attention_dropout, neox.hidden_dropout) = (dropout, dropout);
                }
            }
            Architecture::Decoder(decoder) => {
                set(&mut decoder.layers, options.layers);
                if let Some(dropout) = options.dropout {
                    (decoder.attention_dropout, decoder.resid_dropout) = (dropout, dropout);
                }
            }
            Architecture::Network(network) => {
                if let Some(layers) = options.layers {
                    network.set_layers(layers);
                }
                if let Some(dropout) = options.dropout {
                    network.set_dropout(dropout);
                }
                if options.seq.is_some() && !network.reads_text() {
                    let rule = format!("{} reads no text; drop the option", self.name);
                    return Err(out_of_range("seq", self.seq, &rule));
                }
            }
            Architecture::Seed(_) => {}
        }
        Ok(())
    }

    /// Shares the model among ranks.
    fn share(&mut self, options: &Options) -> Result<(), FakeError> {
        let Some(ranks) = options.tp else {
            return match options.tp_rank {
                Some(rank) => Err(out_of_range("tp-rank", rank, &format!("say with {} among how many", Opt("tp")))),
                None => Ok(()),
            };
        };
        if ranks < 2 {
            return Err(out_of_range("tp", ranks, "it must be at least 2"));
        }
        self.recipe.check_shared()?;
        sharing::check_optimizer(self.optimizer)?;
        let rank = options.tp_rank.unwrap_or(0);
        if rank >= ranks {
            let rule = format!("{} GPUs have the ranks 0 to {}", ranks, ranks - 1);
            return Err(out_of_range("tp-rank", rank, &rule));
        }
        sharing::share(&self.name, &mut self.architecture, TensorParallel { ranks, rank })
    }

    /// Rules that tie several sizes together.
    fn check(&self) -> Result<(), FakeError> {
        sharing::check(&self.name, &self.architecture, self.seq)?;
        let layers = match &self.architecture {
            Architecture::Seed(seed) => {
                if !seed.dim.is_multiple_of(seed.heads) {
                    let rule = format!("it must divide the width, {}", seed.dim);
                    return Err(out_of_range("heads", seed.heads, &rule));
                }
                seed.layers
            }
            Architecture::Gpt2(gpt2) => {
                if self.seq > gpt2.positions {
                    let rule = format!("{} has {} positions; use a shorter {}", self.name, gpt2.positions, Opt("seq"));
                    return Err(out_of_range("seq", self.seq, &rule));
                }
                gpt2.layers
            }
            Architecture::GptNeox(neox) => neox.layers,
            Architecture::Network(network) => {
                if let Some(longest) = network.longest_text().filter(|longest| self.seq > *longest) {
                    let rule = format!("{} has {longest} positions; use a shorter {}", self.name, Opt("seq"));
                    return Err(out_of_range("seq", self.seq, &rule));
                }
                network.layers()
            }
            Architecture::Decoder(decoder) => {
                if let Some(what) = decoder.beyond_kernels().filter(|_| self.attention != AttentionKernel::Auto) {
                    let rule =
                        format!("{} computes attention with plain operators ({what}); drop the option", self.name);
                    return Err(out_of_range("attention", self.attention, &rule));
                }
                decoder.layers
            }
        };
        if layers > MAX_LAYERS {
            return Err(out_of_range("layers", layers, &format!("it must be at most {MAX_LAYERS}")));
        }
        Ok(())
    }

    /// Traces one training step. The loss of seed-transformer is the sum of its output; that of the others their own
    /// cross-entropy, with the tokens as labels.
    ///
    /// # Errors
    /// If the sizes do not fit each other or 64-bit arithmetic.
    pub fn trace(&self) -> Result<StepTrace, FakeError> {
        self.check()?;
        let tape = Tape::new(&self.name);
        tape.fact("batch", self.batch);
        if self.reads_text() {
            tape.fact("seq", self.seq);
        }
        tape.fact("dtype", self.dtype);
        tape.fact("attention", self.attention);
        if let Some(assumption) = &self.assumption {
            tape.fact("assumed", assumption);
        }
        tape.run_on(self.card);
        self.recipe.begin(&tape);
        match &self.architecture {
            Architecture::Network(network) => {
                network.describe(&tape, self.seq);
                if let Some(group) = network.group() {
                    tape.share(group);
                }
                let shape = Shape {
                    batch: self.batch,
                    seq: self.seq,
                    dtype: self.dtype,
                    kernel: self.attention,
                    micro_batches: self.recipe.micro_batches(),
                };
                network.trace(&tape, &shape, || self.step(&tape))
            }
            Architecture::Seed(seed) => {
                if let Some(group) = seed.group {
                    tape.share(group);
                }
                let model = seed.build(&tape, self.seq, self.dtype, self.attention);
                let tokens = self.tokens(&tape);
                self.step(&tape)?.run_each(|batch| model.forward(&tokens[batch]), Tensor::sum)
            }
            Architecture::Gpt2(config) => {
                let model = Gpt2LmHeadModel::new(&tape, config, self.dtype, self.attention);
                let tokens = self.tokens(&tape);
                self.step(&tape)?.run_each(|batch| model.forward(&tokens[batch]), loss_of)
            }
            Architecture::GptNeox(config) => {
                let positions = self.shared(&tape, config.group);
                let model = GptNeoxForCausalLm::new(&tape, config, self.dtype, self.attention);
                let tokens = self.tokens(&tape);
                self.step(&tape)?.run_each(|batch| model.forward(&tokens[batch], positions.as_ref()), loss_of)
            }
            Architecture::Decoder(config) => {
                let positions = self.shared(&tape, config.group);
                let model = Decoder::new(&tape, config, self.dtype, self.attention);
                let tokens = self.tokens(&tape);
                self.step(&tape)?.run_each(|batch| model.forward(&tokens[batch], positions.as_ref()), loss_of)
            }
        }
    }

    /// Notes that ranks share the model, if they do; and the positions, which a rank is given.
    fn shared(&self, tape: &Tape, group: Option<TensorParallel>) -> Option<Tensor> {
        group.map(|group| {
            tape.share(group);
            tape.input(Dtype::I64, &[1, self.seq])
        })
    }

    /// Whether a sample is a text, which has a length.
    fn reads_text(&self) -> bool {
        !matches!(&self.architecture, Architecture::Network(network) if !network.reads_text())
    }

    /// The tokens of every micro-batch.
    fn tokens(&self, tape: &Tape) -> Vec<Tensor> {
        (0..self.recipe.micro_batches()).map(|_| tape.input(Dtype::I64, &[self.batch, self.seq])).collect()
    }

    /// The step of a model that has been made.
    fn step(&self, tape: &Tape) -> Result<Step, FakeError> {
        tape.check_training()?;
        let mut step = Step::new(tape, self.optimizer).autocast(self.recipe.autocast);
        // What ranks that share a model tell each other of infinities is not known.
        let is_shared = !tape.state().trace.place.axes.is_empty();
        if self.recipe.scales_loss() && self.optimizer != Optimizer::None && !is_shared {
            step = step.scaled();
        }
        Ok(step.micro_batches(self.recipe.micro_batches()))
    }
}

/// The first output of the Hugging Face models; the second is the logits.
fn loss_of((loss, _): &(Tensor, Tensor)) -> Tensor {
    loss.clone()
}

impl FakeError {
    /// A model that is given by its config has no such option.
    #[must_use]
    pub fn unknown_option(model: &str, option: Opt) -> Self {
        let known = format!("{}; its sizes come from its config", known_options());
        FakeError::UnknownOption { model: model.to_owned(), name: option.to_string(), known }
    }
}

/// The options of every model.
fn known_options() -> String {
    let [before @ .., last] = ["batch", "seq", "dtype", "optimizer", "attention", "layers", "dropout"].map(Opt);
    let before: Vec<String> = before.iter().map(ToString::to_string).collect();
    format!("{} and {last}", before.join(", "))
}

fn out_of_range(name: &'static str, value: impl std::fmt::Display, rule: &str) -> FakeError {
    FakeError::Option { name: Opt(name), value: value.to_string(), rule: rule.to_owned() }
}
