//! Configs of decoders of Llama's kind. What a config leaves out is what transformers takes for its family.

use serde_json::Value;

use super::Config;
use crate::error::FakeError;
use crate::models::causal_lm::Activation;
use crate::models::decoder::{
    DecoderConfig, ExpertsConfig, Family, LatentConfig, LatentRotation, Window, WindowLayers,
};
use crate::ops::LogitScale;

pub(super) fn parse(config: &Config<'_>, family: Family) -> Result<DecoderConfig, FakeError> {
    config.refuse_rope_types()?;
    refuse(config, family)?;
    let is_gemma = matches!(family, Family::Gemma | Family::Gemma2 | Family::Gemma3);
    let hidden = config.count("hidden_size")?;
    let (heads, key_heads, head_dim) = heads(config, family, hidden)?;
    let layers = config.count("num_hidden_layers")?;
    let (qkv_bias, output_bias) = biases(config, family)?;
    let (act_field, act) = match family {
        Family::Gemma2 | Family::Gemma3 => ("hidden_activation", Activation::GeluTanh),
        Family::Gemma => ("hidden_act", Activation::GeluTanh),
        _ => ("hidden_act", Activation::Silu),
    };
    let activation = match config.activation(act_field, act)? {
        // An old spelling of Gemma's first configs.
        Activation::Gelu if family == Family::Gemma => Activation::GeluTanh,
        other => other,
    };
    let latent = latent(config, family, heads, key_heads)?;
    let rotary_dim = if let Some(latent) = &latent {
        latent.turning
    } else if family == Family::Phi3 {
        let share = config.rope_field("partial_rotary_factor").or_else(|| config.get("partial_rotary_factor"));
        config.rotary_dim(share, 1.0, head_dim)?
    } else {
        head_dim
    };
    Ok(DecoderConfig {
        family,
        vocab: config.count("vocab_size")?,
        hidden,
        intermediate: intermediate(config, family)?,
        layers,
        heads,
        key_heads,
        head_dim,
        rotary_dim,
        activation,
        tied: config.flag_or("tie_word_embeddings", is_gemma || family == Family::Cohere)?,
        qkv_bias,
        output_bias,
        mlp_bias: matches!(family, Family::Llama | Family::Granite | Family::DeepseekV2)
            && config.flag_or("mlp_bias", false)?,
        qk_norm: family == Family::Cohere && config.flag_or("use_qk_norm", false)?,
        attention_dropout: config.probability_or("attention_dropout", 0.0)?,
        resid_dropout: if family == Family::Phi3 { config.probability_or("resid_pdrop", 0.0)? } else { 0.0 },
        attention_softcap: family == Family::Gemma2 && softcap(config, "attn_logit_softcapping", true)?,
        logits: logits(config, family)?,
        window: window(config, family, layers)?,
        experts: experts(config, family)?,
        latent,
        group: None,
    })
}

/// What runs other operators than the native model.
fn refuse(config: &Config<'_>, family: Family) -> Result<(), FakeError> {
    let flags: &[&str] = match family {
        Family::Gemma | Family::Gemma2 | Family::Gemma3 => &["use_bidirectional_attention"],
        Family::Mixtral
        | Family::Qwen2Moe
        | Family::Qwen3Moe
        | Family::GptOss
        | Family::DeepseekV2
        | Family::DeepseekV3 => &["output_router_logits"],
        _ => &[],
    };
    for flag in flags {
        if config.flag_or(flag, false)? {
            return Err(config.unsupported(flag, "remove it"));
        }
    }
    if family == Family::Mixtral && config.probability_or("router_jitter_noise", 0.0)? > 0.0 {
        return Err(config.unsupported("router_jitter_noise", "remove it"));
    }
    Ok(())
}

fn heads(config: &Config<'_>, family: Family, hidden: u64) -> Result<(u64, u64, u64), FakeError> {
    let heads = config.count("num_attention_heads")?;
    let default_key_heads = match family {
        Family::Mistral | Family::Mixtral | Family::GptOss => 8,
        Family::Gemma => 16,
        Family::Gemma2 | Family::Gemma3 | Family::Qwen3Moe => 4,
        Family::Qwen2Moe => 16,
        _ => heads,
    };
    let key_heads = config.count_or("num_key_value_heads", default_key_heads)?;
    config.divides(("num_key_value_heads", key_heads), ("num_attention_heads", heads))?;
    let fixed = match family {
        Family::Qwen3 => Some(128),
        Family::GptOss => Some(64),
        Family::Gemma | Family::Gemma2 | Family::Gemma3 => Some(256),
        _ => None,
    };
    let head_dim = config.count_or("head_dim", fixed.unwrap_or(hidden / heads))?;
    // Transformers checks it for some families whether or not the width of heads is given.
    let checked = matches!(family, Family::Llama | Family::Gemma2 | Family::Gemma3 | Family::DeepseekV2);
    if checked || config.get("head_dim").is_none() && fixed.is_none() && family != Family::DeepseekV3 {
        config.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    }
    let is_latent = matches!(family, Family::DeepseekV2 | Family::DeepseekV3);
    if !head_dim.is_multiple_of(2) && !is_latent {
        return Err(config.fault("head_dim", &format!("is {head_dim}; rotary embeddings need an even width")));
    }
    Ok((heads, key_heads, head_dim))
}

/// Whether queries, keys and values have a bias, and whether the output has.
fn biases(config: &Config<'_>, family: Family) -> Result<(bool, bool), FakeError> {
    Ok(match family {
        Family::Mistral | Family::Mixtral | Family::Phi3 => (false, false),
        Family::Qwen2 => (true, false),
        Family::Qwen2Moe => (config.flag_or("qkv_bias", true)?, false),
        _ => {
            let both = config.flag_or("attention_bias", family == Family::GptOss)?;
            (both, both)
        }
    })
}

/// The width of the feed-forward network; models of experts alone need none.
fn intermediate(config: &Config<'_>, family: Family) -> Result<u64, FakeError> {
    match family {
        Family::Qwen2Moe => config.count_or("intermediate_size", 5632),
        Family::Qwen3Moe => config.count_or("intermediate_size", 6144),
        _ => config.count("intermediate_size"),
    }
}

/// Whether a field with a bound for numbers is set.
fn softcap(config: &Config<'_>, field: &str, default: bool) -> Result<bool, FakeError> {
    match config.fields.get(field) {
        None => Ok(default),
        Some(Value::Null) => Ok(false),
        Some(value) if value.as_f64().is_some_and(|bound| bound > 0.0) => Ok(true),
        Some(value) => Err(config.fault(field, &format!("is {value}; it must be a number above 0, or null"))),
    }
}

fn logits(config: &Config<'_>, family: Family) -> Result<LogitScale, FakeError> {
    let capped = |default| {
        let is_capped = softcap(config, "final_logit_softcapping", default)?;
        Ok(if is_capped { LogitScale::Softcap } else { LogitScale::None })
    };
    match family {
        Family::Granite => Ok(LogitScale::Over),
        Family::Cohere => Ok(LogitScale::Times),
        Family::Gemma2 => capped(true),
        Family::Gemma3 => capped(false),
        _ => Ok(LogitScale::None),
    }
}

/// Widths of latent attention.
fn latent(config: &Config<'_>, family: Family, heads: u64, key_heads: u64) -> Result<Option<LatentConfig>, FakeError> {
    let rotation = match family {
        Family::DeepseekV2 => LatentRotation::Complex,
        Family::DeepseekV3 if config.flag_or("rope_interleave", true)? => LatentRotation::Interleaved,
        Family::DeepseekV3 => LatentRotation::Halves,
        _ => return Ok(None),
    };
    if heads != key_heads {
        let problem = format!("is {key_heads}; every one of the {heads} heads has keys and values of its own");
        return Err(config.fault("num_key_value_heads", &problem));
    }
    let turning = config.count_or("qk_rope_head_dim", 64)?;
    if !turning.is_multiple_of(2) {
        let problem = format!("is {turning}; rotary embeddings need an even width");
        return Err(config.fault("qk_rope_head_dim", &problem));
    }
    let is_null = config.fields.get("q_lora_rank").is_some_and(Value::is_null);
    let query_rank = if is_null { None } else { Some(config.count_or("q_lora_rank", 1536)?) };
    Ok(Some(LatentConfig {
        query_rank,
        rank: config.count_or("kv_lora_rank", 512)?,
        still: config.count_or("qk_nope_head_dim", 128)?,
        turning,
        value: config.count_or("v_head_dim", 128)?,
        rotation,
    }))
}

/// DeepSeek's experts: those that tokens are sent to, in groups, and those that all go through.
fn deepseek_experts(config: &Config<'_>, family: Family) -> Result<ExpertsConfig, FakeError> {
    let is_v3 = family == Family::DeepseekV3;
    let (count, chosen, width, shared, first) = if is_v3 { (256, 8, 2048, 1, 3) } else { (64, 0, 1407, 2, 0) };
    let count = config.count_named_or(&["n_routed_experts", "num_experts", "num_local_experts"], count)?;
    let chosen =
        if is_v3 { config.count_or("num_experts_per_tok", chosen)? } else { config.count("num_experts_per_tok")? };
    let width = config.count_or("moe_intermediate_size", width)?;
    let method = config.text("topk_method")?.unwrap_or("greedy");
    let by_groups = match (is_v3, method) {
        (true, _) | (false, "group_limited_greedy") => true,
        (false, "greedy") => false,
        (false, other) => return Err(config.unsupported(&format!("topk_method `{other}`"), "remove it")),
    };
    let groups = by_groups.then(|| groups(config, is_v3, count)).transpose()?;
    let reachable = groups.map_or(count, |(groups, kept)| count / groups * kept);
    if chosen > reachable {
        let problem = format!("is {chosen}, but there are {reachable} experts to choose from");
        return Err(config.fault("num_experts_per_tok", &problem));
    }
    Ok(ExpertsConfig {
        count,
        chosen,
        width,
        groups,
        shared: Some(width.saturating_mul(config.count_or("n_shared_experts", shared)?)),
        normalized: is_v3 && config.flag_or("norm_topk_prob", true)?,
        dense: (0..config.whole_or("first_k_dense_replace", first)?.min(MOST_DENSE)).collect(),
        step: 1,
    })
}

/// More layers than any model has.
const MOST_DENSE: u64 = 10_000;

/// Groups of experts, and of how many of them a token's experts are.
fn groups(config: &Config<'_>, is_v3: bool, count: u64) -> Result<(u64, u64), FakeError> {
    let number = |field, default| if is_v3 { config.count_or(field, default) } else { config.count(field) };
    let (groups, kept) = (number("n_group", 8)?, number("topk_group", 4)?);
    config.divides(("n_group", groups), ("n_routed_experts", count))?;
    if kept > groups {
        return Err(config.fault("topk_group", &format!("is {kept}, but there are {groups} groups")));
    }
    if is_v3 && count / groups < 2 {
        return Err(config.fault("n_group", &format!("is {groups}; a group needs two experts, of {count} in all")));
    }
    Ok((groups, kept))
}

fn experts(config: &Config<'_>, family: Family) -> Result<Option<ExpertsConfig>, FakeError> {
    if matches!(family, Family::DeepseekV2 | Family::DeepseekV3) {
        return deepseek_experts(config, family).map(Some);
    }
    let (count, defaults) = match family {
        Family::Mixtral => (config.count_or("num_local_experts", 8)?, (2, config.count("intermediate_size")?)),
        Family::Qwen2Moe => (config.count_or("num_experts", 60)?, (4, 1408)),
        Family::Qwen3Moe => (config.count_named_or(&["num_experts", "num_local_experts"], 128)?, (8, 768)),
        Family::GptOss => (
            config.count_named_or(&["num_local_experts", "num_experts"], 128)?,
            (4, config.count("intermediate_size")?),
        ),
        _ => return Ok(None),
    };
    let chosen = config.count_or("num_experts_per_tok", defaults.0)?;
    if chosen > count {
        let problem = format!("is {chosen}, but there are {count} experts");
        return Err(config.fault("num_experts_per_tok", &problem));
    }
    let is_qwen = matches!(family, Family::Qwen2Moe | Family::Qwen3Moe);
    let dense = match config.get("mlp_only_layers") {
        Some(value) if is_qwen => {
            let list = value.as_array().map(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
            list.flatten().ok_or_else(|| config.fault("mlp_only_layers", "must be a list of whole numbers"))?
        }
        _ => Vec::new(),
    };
    Ok(Some(ExpertsConfig {
        count,
        chosen,
        groups: None,
        width: if is_qwen { config.count_or("moe_intermediate_size", defaults.1)? } else { defaults.1 },
        shared: match family {
            Family::Qwen2Moe => Some(config.count_or("shared_expert_intermediate_size", 5632)?),
            _ => None,
        },
        normalized: family == Family::Mixtral || config.flag_or("norm_topk_prob", false)?,
        dense,
        step: if is_qwen { config.count_or("decoder_sparse_step", 1)? } else { 1 },
    }))
}

/// The sliding window that is in force, and in which layers.
fn window(config: &Config<'_>, family: Family, layers: u64) -> Result<Option<Window>, FakeError> {
    let is_given = config.get("sliding_window").is_some();
    let in_force = match family {
        Family::Llama
        | Family::Gemma
        | Family::Olmo2
        | Family::Granite
        | Family::Cohere
        | Family::DeepseekV2
        | Family::DeepseekV3 => false,
        Family::Mistral => true,
        Family::Phi3 | Family::Mixtral => is_given,
        Family::Gemma2 | Family::Gemma3 | Family::GptOss => true,
        Family::Qwen2 | Family::Qwen3 | Family::Qwen2Moe | Family::Qwen3Moe => {
            config.flag_or("use_sliding_window", false)?
        }
    };
    let is_null = config.fields.get("sliding_window").is_some_and(Value::is_null);
    if is_null && matches!(family, Family::Gemma2 | Family::Gemma3 | Family::GptOss) {
        return Err(config.fault("sliding_window", "is null; this family has layers with a window"));
    }
    if family == Family::Qwen2Moe && !in_force {
        // The mask of a window of no width is made all the same, and no layer takes it.
        return Ok(Some(Window { size: 0, layers: WindowLayers::Listed(vec![false]) }));
    }
    let default = if family == Family::GptOss { 128 } else { 4096 };
    let size = if !in_force || is_null { None } else { Some(config.count_or("sliding_window", default)?) };
    let layers = match family {
        Family::Qwen2 | Family::Qwen3 | Family::Gemma2 | Family::Gemma3 | Family::Qwen2Moe | Family::GptOss => {
            match config.layer_types(layers)? {
                Some(listed) if size.is_none() && listed.contains(&true) => {
                    let problem =
                        "lists sliding_attention, but no window is in force; set use_sliding_window and sliding_window";
                    return Err(config.fault("layer_types", problem));
                }
                Some(listed) => WindowLayers::Listed(listed),
                None => default_layers(config, family)?,
            }
        }
        _ => WindowLayers::All,
    };
    Ok(size.map(|size| Window { size, layers }))
}

/// The layers with a window, where the config does not list them.
fn default_layers(config: &Config<'_>, family: Family) -> Result<WindowLayers, FakeError> {
    Ok(match family {
        Family::Gemma2 | Family::GptOss => WindowLayers::AllBut { every: 2 },
        Family::Gemma3 => WindowLayers::AllBut { every: config.count_or("sliding_window_pattern", 6)? },
        Family::Qwen2Moe => WindowLayers::EvenBelow(config.whole_or("max_window_layers", 28)?),
        _ => WindowLayers::From(config.whole_or("max_window_layers", 28)?),
    })
}
