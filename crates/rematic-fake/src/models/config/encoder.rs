//! Configs of models that are not decoders alone. What a config leaves out is what transformers takes.

use serde_json::Value;

use super::Config;
use crate::error::FakeError;
use crate::models::causal_lm::Activation;
use crate::models::encoder::{BertConfig, BertFamily, ClipConfig, Head, Images, T5Config, TowerConfig, VitConfig};

pub(super) fn bert(config: &Config<'_>, family: BertFamily) -> Result<BertConfig, FakeError> {
    for flag in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
        if config.flag_or(flag, false)? {
            return Err(config.unsupported(flag, "remove it"));
        }
    }
    if !config.flag_or("tie_word_embeddings", true)? {
        return Err(config.unsupported("tie_word_embeddings false", "remove it"));
    }
    if config.whole_or("chunk_size_feed_forward", 0)? > 0 {
        return Err(config.unsupported("chunk_size_feed_forward", "remove it"));
    }
    let suffixes = Head::SUFFIXES.map(|(suffix, head)| (format!("{}{suffix}", family.prefix()), head));
    let head = head(config, family.prefix(), &suffixes)?.unwrap_or(Head::MaskedLm);
    let hidden = config.count_or("hidden_size", 768)?;
    let heads = config.count_or("num_attention_heads", 12)?;
    config.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    let (vocab, offset) = match family {
        BertFamily::Bert => (30_522, 0),
        BertFamily::Roberta => (50_265, padding(config)?.saturating_add(1)),
    };
    let positions = config.count_or("max_position_embeddings", 512)?;
    if positions <= offset {
        let problem = format!("is {positions}; positions are counted from {offset} on");
        return Err(config.fault("max_position_embeddings", &problem));
    }
    let hidden_dropout = config.probability_or("hidden_dropout_prob", 0.1)?;
    Ok(BertConfig {
        family,
        head,
        vocab: config.count_or("vocab_size", vocab)?,
        positions,
        offset,
        types: config.count_or("type_vocab_size", 2)?,
        hidden,
        intermediate: config.count_or("intermediate_size", 3072)?,
        layers: config.count_or("num_hidden_layers", 12)?,
        heads,
        labels: labels(config, head != Head::MaskedLm)?,
        activation: config.activation("hidden_act", Activation::Gelu)?,
        hidden_dropout,
        attention_dropout: config.probability_or("attention_probs_dropout_prob", 0.1)?,
        classifier_dropout: config.probability_or("classifier_dropout", hidden_dropout)?,
        group: None,
    })
}

pub(super) fn vit(config: &Config<'_>) -> Result<VitConfig, FakeError> {
    head(config, "ViT", &[("ViTForImageClassification".to_owned(), ())])?;
    let hidden = config.count_or("hidden_size", 768)?;
    let heads = config.count_or("num_attention_heads", 12)?;
    config.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    if config.get("head_dim").is_some() {
        return Err(config.unsupported("head_dim", "remove it"));
    }
    Ok(VitConfig {
        images: images(config, 224, 16)?,
        hidden,
        intermediate: config.count_or("intermediate_size", 3072)?,
        layers: config.count_or("num_hidden_layers", 12)?,
        heads,
        labels: labels(config, true)?,
        activation: config.activation("hidden_act", Activation::Gelu)?,
        qkv_bias: config.flag_or("qkv_bias", true)?,
        hidden_dropout: config.probability_or("hidden_dropout_prob", 0.0)?,
        attention_dropout: config.probability_or("attention_probs_dropout_prob", 0.0)?,
        group: None,
    })
}

pub(super) fn t5(config: &Config<'_>) -> Result<T5Config, FakeError> {
    if !config.flag_or("is_encoder_decoder", true)? {
        return Err(config.unsupported("is_encoder_decoder false", "remove it"));
    }
    // The second is what the first was called.
    let known = ["T5ForConditionalGeneration", "T5WithLMHeadModel"].map(|class| (class.to_owned(), ()));
    head(config, "T5", &known)?;
    if config.fields.get("pad_token_id").is_some_and(Value::is_null) {
        return Err(config.fault("pad_token_id", "is null; it fills what is left out of an answer"));
    }
    let kind = config.text("feed_forward_proj")?.unwrap_or("relu");
    let (gated, name) = match kind.split_once('-') {
        None => (false, kind),
        Some(("gated", "gelu")) => (true, "gelu_new"),
        Some(("gated", name)) if !name.contains('-') => (true, name),
        Some(_) => {
            let problem = format!("is `{kind}`; it must be an activation, or `gated-` and one");
            return Err(config.fault("feed_forward_proj", &problem));
        }
    };
    let layers = config.count_named_or(&["num_layers", "num_hidden_layers"], 6)?;
    Ok(T5Config {
        vocab: config.count_or("vocab_size", 32_128)?,
        hidden: config.count_named_or(&["d_model", "hidden_size"], 512)?,
        head_dim: config.count_named_or(&["d_kv", "head_dim"], 64)?,
        intermediate: config.count_or("d_ff", 2048)?,
        layers,
        decoder_layers: config.count_or("num_decoder_layers", layers)?,
        heads: config.count_named_or(&["num_heads", "num_attention_heads"], 8)?,
        buckets: config.count_or("relative_attention_num_buckets", 32)?,
        activation: config.activation_named("feed_forward_proj", name)?,
        gated,
        scaled: config.flag_or("tie_word_embeddings", true)?,
        dropout: config.probability_or("dropout_rate", 0.1)?,
        group: None,
    })
}

pub(super) fn clip(config: &Config<'_>) -> Result<ClipConfig, FakeError> {
    head(config, "CLIP", &[("CLIPModel".to_owned(), ())])?;
    for field in ["text_config_dict", "vision_config_dict"] {
        if config.get(field).is_some() {
            return Err(config.unsupported(field, "remove it"));
        }
    }
    let (text, vision) = (config.inner("text_config")?, config.inner("vision_config")?);
    for (inner, field) in [(&vision, "image_size"), (&vision, "patch_size")] {
        if inner.get(field).is_some_and(Value::is_array) {
            return Err(inner.fault(field, "must be a whole number"));
        }
    }
    Ok(ClipConfig {
        vocab: text.count_or("vocab_size", 49_408)?,
        positions: text.count_or("max_position_embeddings", 77)?,
        ends_in_highest: text.whole_or("eos_token_id", 49_407)? == 2,
        text: tower(&text, [512, 2048, 12, 8])?,
        images: images(&vision, 224, 32)?,
        vision: tower(&vision, [768, 3072, 12, 12])?,
        projection: config.count_or("projection_dim", 512)?,
    })
}

/// One tower of CLIP; the numbers are those that it has unless the config says otherwise.
fn tower(config: &Config<'_>, [hidden, intermediate, layers, heads]: [u64; 4]) -> Result<TowerConfig, FakeError> {
    let hidden = config.count_or("hidden_size", hidden)?;
    let heads = config.count_or("num_attention_heads", heads)?;
    config.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    Ok(TowerConfig {
        hidden,
        intermediate: config.count_or("intermediate_size", intermediate)?,
        layers: config.count_or("num_hidden_layers", layers)?,
        heads,
        activation: config.activation("hidden_act", Activation::QuickGelu)?,
        attention_dropout: config.probability_or("attention_dropout", 0.0)?,
        group: None,
    })
}

/// Images of this side, in patches of that, unless the config says otherwise.
fn images(config: &Config<'_>, side: u64, patch: u64) -> Result<Images, FakeError> {
    let (height, width) = sides(config, "image_size", side)?;
    let patch = sides(config, "patch_size", patch)?;
    if patch.0 > height || patch.1 > width {
        let problem = format!("is {} × {}; images are {height} × {width}", patch.0, patch.1);
        return Err(config.fault("patch_size", &problem));
    }
    Ok(Images { channels: config.count_or("num_channels", 3)?, height, width, patch })
}

/// A height and a width: one number for both, or a list of two.
fn sides(config: &Config<'_>, field: &str, default: u64) -> Result<(u64, u64), FakeError> {
    let Some(Value::Array(list)) = config.get(field) else {
        let side = config.count_or(field, default)?;
        return Ok((side, side));
    };
    match list.iter().map(|side| side.as_u64().filter(|side| *side > 0)).collect::<Option<Vec<u64>>>().as_deref() {
        Some([height, width]) => Ok((*height, *width)),
        _ => Err(config.fault(field, "must be a whole number of at least 1, or a list of two")),
    }
}

fn padding(config: &Config<'_>) -> Result<u64, FakeError> {
    if config.fields.get("pad_token_id").is_some_and(Value::is_null) {
        return Err(config.fault("pad_token_id", "is null; positions are counted from behind it"));
    }
    config.whole_or("pad_token_id", 1)
}

/// The head that `architectures` names, as `rematic._hugging_face` picks it: the first, if it has a loss.
fn head<T: Copy>(config: &Config<'_>, prefix: &str, known: &[(String, T)]) -> Result<Option<T>, FakeError> {
    let Some(named) = config.get("architectures") else { return Ok(None) };
    let Some(first) = named.as_array().and_then(|list| list.first()).and_then(Value::as_str) else { return Ok(None) };
    if let Some((_, head)) = known.iter().find(|(class, _)| class == first) {
        return Ok(Some(*head));
    }
    let has_head = ["For", "LMHead", "WithProjection"].iter().any(|part| first.contains(part));
    if has_head && first.starts_with(prefix) {
        let names: Vec<&str> = known.iter().map(|(class, _)| class.as_str()).collect();
        return Err(config.unsupported(&format!("the class {first}"), &format!("native are {}", names.join(", "))));
    }
    Ok(None)
}

/// How many classes a head tells apart.
fn labels(config: &Config<'_>, classifies: bool) -> Result<u64, FakeError> {
    if !classifies {
        return Ok(2);
    }
    let named = config.get("id2label").and_then(Value::as_object).map(|names| names.len() as u64);
    let counted = config.count_or("num_labels", named.unwrap_or(2))?;
    if named.is_some_and(|named| named != counted) {
        return Err(config.unsupported("num_labels that is not the number of id2label", "remove one of them"));
    }
    if counted < 2 || config.get("problem_type").is_some_and(|kind| kind != "single_label_classification") {
        return Err(config.unsupported("a loss that is not that of one class of several", "take two labels or more"));
    }
    Ok(counted)
}
