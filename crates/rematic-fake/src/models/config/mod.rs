//! Hugging Face `config.json` files.

mod decoder;
mod encoder;

use rematic_trace::Dtype;
use serde_json::{Map, Value};

use super::Architecture;
use super::causal_lm::Activation;
use super::decoder::Family;
use super::encoder::{BertFamily, Network};
use super::gpt_neox::GptNeoxConfig;
use super::gpt2::Gpt2Config;
use crate::error::FakeError;

/// The decoders that have a front end, by `model_type`.
const DECODERS: [(&str, Family); 17] = [
    ("llama", Family::Llama),
    ("mistral", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("gemma", Family::Gemma),
    ("gemma2", Family::Gemma2),
    ("gemma3_text", Family::Gemma3),
    ("phi3", Family::Phi3),
    ("olmo2", Family::Olmo2),
    ("granite", Family::Granite),
    ("cohere", Family::Cohere),
    ("mixtral", Family::Mixtral),
    ("qwen2_moe", Family::Qwen2Moe),
    ("qwen3_moe", Family::Qwen3Moe),
    ("gpt_oss", Family::GptOss),
    ("deepseek_v2", Family::DeepseekV2),
    ("deepseek_v3", Family::DeepseekV3),
];

/// Rotary embeddings of these types differ only in their frequencies, not in what runs.
const ROPE_TYPES: [&str; 4] = ["default", "linear", "llama3", "yarn"];

/// All model types that have a front end.
fn supported() -> String {
    let decoders = DECODERS.iter().map(|(name, _)| *name);
    ["gpt2", "gpt_neox", "bert", "roberta", "t5", "vit", "clip"]
        .into_iter()
        .chain(decoders)
        .collect::<Vec<_>>()
        .join(", ")
}

/// What a config says that is not architecture.
pub(super) struct Parsed {
    pub(super) architecture: Architecture,
    /// The type that the checkpoint has, if it says so.
    pub(super) dtype: Option<Dtype>,
    /// The longest sequence that it was made for.
    pub(super) positions: u64,
    /// What is taken for granted about its weights.
    pub(super) assumption: Option<String>,
}

/// Families whose publishers quantize the weights, and how. Nobody trains them so: they are dequantized first.
const PUBLISHED_QUANTIZED: [(&str, &str); 2] = [("gpt_oss", "mxfp4"), ("deepseek_v3", "fp8")];

pub(super) fn parse(file: &str, text: &str) -> Result<Parsed, FakeError> {
    // Editors on Windows write a byte-order mark.
    let value: Value = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text))
        .map_err(|error| FakeError::ConfigSyntax { file: file.to_owned(), reason: error.to_string() })?;
    let Value::Object(fields) = value else {
        return Err(FakeError::ConfigNotObject { file: file.to_owned() });
    };
    let config = Config { file, fields };
    let found = config.text("model_type")?.ok_or_else(|| config.fault("model_type", "is missing"))?;
    let assumption = config.dequantized(found)?;
    let family = DECODERS.iter().find(|(name, _)| *name == found);
    let architecture = match (found, family) {
        ("gpt2", _) => gpt2(&config)?,
        ("gpt_neox", _) => gpt_neox(&config)?,
        ("bert", _) => Architecture::Network(Network::Bert(encoder::bert(&config, BertFamily::Bert)?)),
        ("roberta", _) => Architecture::Network(Network::Bert(encoder::bert(&config, BertFamily::Roberta)?)),
        ("t5", _) => Architecture::Network(Network::T5(encoder::t5(&config)?)),
        ("clip", _) => Architecture::Network(Network::Clip(encoder::clip(&config)?)),
        ("vit", _) => Architecture::Network(Network::Vit(encoder::vit(&config)?)),
        (_, Some((_, family))) => Architecture::Decoder(decoder::parse(&config, *family)?),
        (other, None) => {
            return Err(FakeError::UnsupportedFamily {
                file: file.to_owned(),
                found: other.to_owned(),
                supported: supported(),
            });
        }
    };
    let positions = match &architecture {
        Architecture::Gpt2(gpt2) => gpt2.positions,
        Architecture::Network(network) => match network.longest_text() {
            Some(longest) => longest,
            None => config.count_named_or(&["max_position_embeddings", "n_positions"], u64::MAX)?,
        },
        _ => config.count_or("max_position_embeddings", 2048)?,
    };
    // What is dequantized is so to this type.
    let dtype = dtype(&config)?.or(assumption.as_ref().map(|_| Dtype::Bf16));
    Ok(Parsed { dtype, positions, architecture, assumption })
}

fn gpt2(config: &Config<'_>) -> Result<Architecture, FakeError> {
    if config.flag_or("add_cross_attention", false)? {
        return Err(config.unsupported("add_cross_attention", "remove it"));
    }
    let hidden = config.count_named(&["n_embd", "hidden_size"])?;
    let heads = config.count_named(&["n_head", "num_attention_heads"])?;
    config.divides(("n_head", heads), ("n_embd", hidden))?;
    Ok(Architecture::Gpt2(Gpt2Config {
        vocab: config.count("vocab_size")?,
        positions: config.count_or("n_positions", 1024)?,
        hidden,
        inner: config.count_or("n_inner", hidden.saturating_mul(4))?,
        layers: config.count_named(&["n_layer", "num_hidden_layers"])?,
        heads,
        activation: config.activation("activation_function", Activation::GeluNew)?,
        tied: config.flag_or("tie_word_embeddings", true)?,
        resid_dropout: config.probability_or("resid_pdrop", 0.1)?,
        embd_dropout: config.probability_or("embd_pdrop", 0.1)?,
        attn_dropout: config.probability_or("attn_pdrop", 0.1)?,
    }))
}

fn gpt_neox(config: &Config<'_>) -> Result<Architecture, FakeError> {
    config.refuse_rope_types()?;
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    config.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    let share = config.rope_field("partial_rotary_factor").or_else(|| config.get("rotary_pct"));
    Ok(Architecture::GptNeox(GptNeoxConfig {
        vocab: config.count("vocab_size")?,
        hidden,
        intermediate: config.count("intermediate_size")?,
        layers: config.count("num_hidden_layers")?,
        heads,
        rotary_dim: config.rotary_dim(share, 0.25, hidden / heads)?,
        activation: config.activation("hidden_act", Activation::Gelu)?,
        tied: config.flag_or("tie_word_embeddings", false)?,
        attention_bias: config.flag_or("attention_bias", true)?,
        parallel: config.flag_or("use_parallel_residual", true)?,
        attention_dropout: config.probability_or("attention_dropout", 0.0)?,
        hidden_dropout: config.probability_or("hidden_dropout", 0.0)?,
        group: None,
    }))
}

fn dtype(config: &Config<'_>) -> Result<Option<Dtype>, FakeError> {
    let field = if config.fields.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    let Some(name) = config.text(field)? else { return Ok(None) };
    match name.trim_start_matches("torch.") {
        "float32" => Ok(Some(Dtype::F32)),
        "bfloat16" => Ok(Some(Dtype::Bf16)),
        "float16" => Ok(Some(Dtype::F16)),
        other => Err(config.fault(field, &format!("is `{other}`; supported are float32, bfloat16 and float16"))),
    }
}

struct Config<'a> {
    file: &'a str,
    fields: Map<String, Value>,
}

impl Config<'_> {
    fn fault(&self, field: &str, problem: &str) -> FakeError {
        FakeError::ConfigField { file: self.file.to_owned(), field: field.to_owned(), problem: problem.to_owned() }
    }

    fn unsupported(&self, what: &str, instead: &str) -> FakeError {
        FakeError::UnsupportedFeature { file: self.file.to_owned(), what: what.to_owned(), instead: instead.to_owned() }
    }

    /// Quantized weights would be counted at their full size, and as trained; except where all who train a model dequantize them. What
    /// is assumed then.
    fn dequantized(&self, family: &str) -> Result<Option<String>, FakeError> {
        let Some(quantization) = self.get("quantization_config") else { return Ok(None) };
        let method = quantization.get("quant_method").and_then(Value::as_str);
        if let Some(method) = method.filter(|method| PUBLISHED_QUANTIZED.contains(&(family, method))) {
            return Ok(Some(format!("weights that are published in {method} are dequantized before training")));
        }
        let what = format!("quantization_config{}", method.map_or_else(String::new, |method| format!(" ({method})")));
        Err(FakeError::Quantized { file: self.file.to_owned(), what })
    }

    /// A config in the config; empty if there is none.
    fn inner(&self, field: &str) -> Result<Config<'_>, FakeError> {
        let fields = match self.get(field) {
            None => Map::new(),
            Some(Value::Object(fields)) => fields.clone(),
            Some(value) => return Err(self.fault(field, &format!("is {value}; it must be an object"))),
        };
        Ok(Config { file: self.file, fields })
    }

    /// Refuses rotary embeddings that run other operators.
    fn refuse_rope_types(&self) -> Result<(), FakeError> {
        for field in ["rope_scaling", "rope_parameters"] {
            let Some(Value::Object(rope)) = self.fields.get(field) else { continue };
            // Some families have one for each kind of layer.
            let inner = rope.values().filter_map(Value::as_object);
            for rope in [rope].into_iter().chain(inner) {
                let kind =
                    rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
                if !ROPE_TYPES.contains(&kind) {
                    let instead = format!("supported are {}", ROPE_TYPES.join(", "));
                    return Err(self.unsupported(&format!("{field} of type `{kind}`"), &instead));
                }
            }
        }
        Ok(())
    }

    /// A field of the rotary embeddings, in the newer or the older spelling.
    fn rope_field(&self, field: &str) -> Option<&Value> {
        ["rope_parameters", "rope_scaling"].into_iter().find_map(|place| self.get(place)?.get(field))
    }

    /// How many of a head's numbers turn: a share of them.
    fn rotary_dim(&self, share: Option<&Value>, default: f64, head_dim: u64) -> Result<u64, FakeError> {
        let field = "partial_rotary_factor";
        let share = match share {
            None => default,
            Some(value) => value
                .as_f64()
                .filter(|share| *share > 0.0 && *share <= 1.0)
                .ok_or_else(|| self.fault(field, &format!("is {value}; it must be above 0 and at most 1")))?,
        };
        // Python's `int` cuts off, too.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of 64 bits")]
        let width = (head_dim as f64 * share) as u64;
        if width == 0 || !width.is_multiple_of(2) {
            let problem =
                format!("leaves {width} of the {head_dim} numbers of a head; rotary embeddings need an even number");
            return Err(self.fault(field, &problem));
        }
        Ok(width)
    }

    /// A field that is there and not null.
    fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Result<Option<&str>, FakeError> {
        self.get(field)
            .map(|value| value.as_str().ok_or_else(|| self.fault(field, &format!("is {value}; it must be a string"))))
            .transpose()
    }

    fn count(&self, field: &str) -> Result<u64, FakeError> {
        self.count_named(&[field])
    }

    /// A count under the first of several names that is there.
    fn count_named(&self, names: &[&str]) -> Result<u64, FakeError> {
        let field = names.iter().find(|name| self.get(name).is_some()).unwrap_or(&names[0]);
        let value = self.get(field).ok_or_else(|| self.fault(field, "is missing"))?;
        value
            .as_u64()
            .filter(|count| *count > 0)
            .ok_or_else(|| self.fault(field, &format!("is {value}; it must be a whole number of at least 1")))
    }

    fn count_or(&self, field: &str, default: u64) -> Result<u64, FakeError> {
        if self.get(field).is_some() { self.count(field) } else { Ok(default) }
    }

    fn count_named_or(&self, names: &[&str], default: u64) -> Result<u64, FakeError> {
        if names.iter().any(|name| self.get(name).is_some()) { self.count_named(names) } else { Ok(default) }
    }

    /// A count that may be zero.
    fn whole_or(&self, field: &str, default: u64) -> Result<u64, FakeError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value.as_u64().ok_or_else(|| self.fault(field, &format!("is {value}; it must be a whole number")))
    }

    /// For each layer, whether `layer_types` gives it the sliding window.
    fn layer_types(&self, layers: u64) -> Result<Option<Vec<bool>>, FakeError> {
        let Some(value) = self.get("layer_types") else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.fault("layer_types", "must be a list"))?;
        if list.len() as u64 != layers {
            let problem = format!("has {} entries, but num_hidden_layers is {layers}", list.len());
            return Err(self.fault("layer_types", &problem));
        }
        let kinds = list.iter().map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(self.unsupported(
                &format!("a layer of type {kind}"),
                "layer_types may hold full_attention and sliding_attention",
            )),
        });
        kinds.collect::<Result<_, _>>().map(Some)
    }

    fn flag_or(&self, field: &str, default: bool) -> Result<bool, FakeError> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.fault(field, &format!("is {value}; it must be true or false"))),
        }
    }

    fn probability_or(&self, field: &str, default: f64) -> Result<f64, FakeError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value
            .as_f64()
            .filter(|probability| (0.0..1.0).contains(probability))
            .ok_or_else(|| self.fault(field, &format!("is {value}; it must be at least 0 and below 1")))
    }

    fn activation(&self, field: &str, default: Activation) -> Result<Activation, FakeError> {
        let Some(name) = self.text(field)? else { return Ok(default) };
        self.activation_named(field, name)
    }

    fn activation_named(&self, field: &str, name: &str) -> Result<Activation, FakeError> {
        let known = Activation::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, activation)| *activation).ok_or_else(|| {
            let names: Vec<&str> = Activation::NAMES.iter().map(|(name, _)| *name).collect();
            self.unsupported(&format!("{field} `{name}`"), &format!("supported are {}", names.join(", ")))
        })
    }

    fn divides(&self, part: (&str, u64), whole: (&str, u64)) -> Result<(), FakeError> {
        if whole.1.is_multiple_of(part.1) {
            return Ok(());
        }
        Err(self.fault(part.0, &format!("is {}; it must divide {}, {}", part.1, whole.0, whole.1)))
    }
}
