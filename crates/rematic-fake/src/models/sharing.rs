//! What a model and its step must have so that ranks can share it.

use rematic_trace::Opt;

use super::decoder::{DecoderConfig, Family};
use super::encoder::Network;
use super::gpt_neox::GptNeoxConfig;
use super::seed_transformer::SeedTransformer;
use super::{Architecture, out_of_range};
use crate::error::FakeError;
use crate::optimizer::Optimizer;
use crate::parallel::TensorParallel;

/// Whether it is known what an optimizer does with parameters that are dealt out: those of PyTorch that look at each element alone.
pub(super) fn check_optimizer(optimizer: Optimizer) -> Result<(), FakeError> {
    match optimizer {
        Optimizer::AdamW8bit | Optimizer::Lion | Optimizer::Muon | Optimizer::Adafactor => {
            let rule =
                format!("what it does with parts of parameters ({}) is not known; take adamw, adam or sgd", Opt("tp"));
            Err(out_of_range("optimizer", optimizer, &rule))
        }
        _ => Ok(()),
    }
}

/// Has ranks share an architecture.
pub(super) fn share(name: &str, architecture: &mut Architecture, group: TensorParallel) -> Result<(), FakeError> {
    let why = match architecture {
        Architecture::Decoder(decoder) => {
            decoder.group = Some(group);
            return Ok(());
        }
        Architecture::GptNeox(neox) => {
            neox.group = Some(group);
            return Ok(());
        }
        Architecture::Gpt2(_) => "its projections are Conv1D modules, which PyTorch's parallel styles refuse",
        Architecture::Network(network) => {
            network.share(group);
            return Ok(());
        }
        Architecture::Seed(seed) => {
            seed.group = Some(group);
            return Ok(());
        }
    };
    Err(FakeError::NotParallel {
        model: name.to_owned(),
        option: Opt("tp").to_string(),
        why: why.to_owned(),
        instead: Opt("fsdp").to_string(),
    })
}

/// What of a model is cut among ranks.
struct Extents {
    /// Rows that need not divide, if there are any.
    vocab: Option<u64>,
    /// Whether the sequence is cut too.
    has_sequence: bool,
    /// With their names; those must divide.
    even: Vec<(&'static str, u64)>,
}

impl Extents {
    fn of_decoder(config: &DecoderConfig) -> Self {
        let wide = ("width of the feed-forward network", config.intermediate);
        // Attention on latent vectors is not cut.
        let heads = [("attention heads", config.heads), ("key and value heads", config.key_heads)];
        let heads = heads.into_iter().filter(|_| config.latent.is_none());
        let width = |heads: u64| heads.saturating_mul(config.head_dim);
        let (queries, keys) = (width(config.heads), width(config.key_heads));
        let even = match config.family {
            Family::Phi3 => {
                let all = queries.saturating_add(keys.saturating_mul(2));
                vec![("outputs of qkv_proj", all), ("inputs of o_proj", queries), wide]
            }
            Family::Olmo2 => vec![("outputs of q_proj", queries), ("outputs of k_proj", keys), wide],
            _ => match &config.experts {
                None => heads.chain([wide]).collect(),
                Some(experts) => {
                    let shared = experts.shared.map(|width| ("width of the shared experts", width));
                    let dense = (!experts.is_everywhere(config.layers)).then_some(wide);
                    let all = heads.chain([("width of an expert", experts.width)]);
                    all.chain(shared).chain(dense).collect()
                }
            },
        };
        Extents { vocab: Some(config.vocab), has_sequence: true, even }
    }

    fn of_neox(config: &GptNeoxConfig) -> Self {
        let even = vec![("attention heads", config.heads), ("width of the feed-forward network", config.intermediate)];
        Extents { vocab: Some(config.vocab), has_sequence: true, even }
    }

    fn of_network(network: &Network) -> Self {
        const HEADS: &str = "attention heads";
        const WIDTH: &str = "width of the feed-forward network";
        let (vocab, even) = match network {
            Network::Bert(bert) => (Some(bert.vocab), vec![(HEADS, bert.heads), (WIDTH, bert.intermediate)]),
            Network::Vit(vit) => (None, vec![(HEADS, vit.heads), (WIDTH, vit.intermediate)]),
            Network::T5(t5) => (Some(t5.vocab), vec![(HEADS, t5.heads), (WIDTH, t5.intermediate)]),
            Network::Clip(clip) => {
                let towers = [&clip.text, &clip.vision];
                let even = towers.into_iter().flat_map(|tower| [(HEADS, tower.heads), (WIDTH, tower.intermediate)]);
                (Some(clip.vocab), even.collect())
            }
        };
        Extents { vocab, has_sequence: false, even }
    }

    fn of_seed(seed: &SeedTransformer) -> Self {
        Extents { vocab: Some(seed.vocab), has_sequence: true, even: vec![("attention heads", seed.heads)] }
    }
}

/// Whether PyTorch runs the step when `parallelize_module` deals the model out to ranks, if it does.
pub(super) fn check(name: &str, architecture: &Architecture, seq: u64) -> Result<(), FakeError> {
    let (group, extents) = match architecture {
        Architecture::Decoder(config) => (config.group, Extents::of_decoder(config)),
        Architecture::GptNeox(config) => (config.group, Extents::of_neox(config)),
        Architecture::Network(network) => (network.group(), Extents::of_network(network)),
        Architecture::Seed(seed) => (seed.group, Extents::of_seed(seed)),
        Architecture::Gpt2(_) => return Ok(()),
    };
    let Some(group) = group else { return Ok(()) };
    let ranks = u64::from(group.ranks);
    for (what, extent) in extents.even {
        if !extent.is_multiple_of(ranks) {
            return Err(out_of_range("tp", ranks, &format!("it must divide the {what} of {name}, {extent}")));
        }
    }
    if extents.has_sequence && !seq.is_multiple_of(ranks) {
        let rule = format!("it must be a multiple of {}, {ranks}, among whose ranks the sequence is cut", Opt("tp"));
        return Err(out_of_range("seq", seq, &rule));
    }
    // The last chunk of an extent that does not divide may be empty.
    let last = TensorParallel { rank: group.ranks - 1, ..group };
    if let Some(vocab) = extents.vocab.filter(|vocab| last.share(*vocab) == 0) {
        let rule = format!("the vocabulary of {name}, {vocab}, has no rows for the last rank");
        return Err(out_of_range("tp", ranks, &rule));
    }
    match architecture {
        Architecture::Decoder(config) if config.qk_norm => Err(FakeError::UnsupportedFeature {
            file: name.to_owned(),
            what: format!("use_qk_norm with {}", Opt("tp")),
            instead: "each head has norms of its own there, which no plan cuts; capture the parallel model in Python"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}
