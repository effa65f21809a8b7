use std::path::Path;

use serde_json::{Value, json};

use crate::run::{refused, refused_source, run};

fn gpt2() -> Value {
    json!({ "model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2 })
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    })
}

const GPT2_COUNTS: [&str; 4] = ["vocab_size", "n_embd", "n_layer", "n_head"];
const LLAMA_COUNTS: [&str; 5] =
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];

fn with_text(text: &[u8], check: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, text).unwrap();
    check(&path);
}

fn refused_text(text: &[u8], parts: &[&str]) {
    with_text(text, |path| refused_source(path, parts));
}

fn with(mut config: Value, field: &str, value: Value) -> Value {
    config[field] = value;
    config
}

fn refused_with(config: Value, field: &str, value: Value, parts: &[&str]) {
    refused_text(with(config, field, value).to_string().as_bytes(), parts);
}

#[test]
fn the_configs_that_the_cases_break_are_good() {
    for config in [gpt2(), llama()] {
        with_text(config.to_string().as_bytes(), |path| {
            let ran = run(&["stats", path.to_str().unwrap()]);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        });
    }
}

#[test]
fn a_script_is_told_what_runs_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.py");
    std::fs::write(&path, "import torch\n").unwrap();
    refused_source(&path, &["is a Python script", "rematic rehearse -- python", "train.py"]);
}

#[test]
fn text_that_is_no_config_is_refused() {
    for text in ["", " ", "{", "not json", "{\"model_type\": \"gpt2\"", "{\"a\": 1,}", "\u{0}"] {
        refused_text(text.as_bytes(), &["not JSON", "line 1"]);
    }
    for text in ["[]", "[{\"model_type\": \"gpt2\"}]", "3", "null", "\"gpt2\""] {
        refused_text(text.as_bytes(), &["is JSON, but not an object", "config.json"]);
    }
    refused_text(b"\xff\xfe{}", &["UTF-8"]);
    refused_text("[".repeat(1_000_000).as_bytes(), &["not JSON"]);
    refused_text(format!("{{\"a\": {}", "[".repeat(1_000_000)).as_bytes(), &["not JSON"]);
}

#[test]
fn a_byte_order_mark_is_skipped() {
    with_text(format!("\u{feff}{}", gpt2()).as_bytes(), |path| {
        let ran = run(&["stats", path.to_str().unwrap()]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    });
}

#[test]
fn quantized_models_are_refused() {
    for config in [gpt2(), llama()] {
        let parts = ["quantization_config (gptq) is not supported", "smaller", "remove the field"];
        refused_with(config.clone(), "quantization_config", json!({ "quant_method": "gptq", "bits": 4 }), &parts);
        refused_with(config.clone(), "quantization_config", json!({}), &["quantization_config is not supported"]);
        with_text(Value::to_string(&with(config, "quantization_config", Value::Null)).as_bytes(), |path| {
            assert_eq!(run(&["stats", path.to_str().unwrap()]).code, Some(0));
        });
    }
}

#[test]
fn a_missing_field_is_named() {
    let missing = |mut config: Value, field: &str| {
        config.as_object_mut().unwrap().remove(field);
        refused_text(config.to_string().as_bytes(), &[&format!("`{field}` is missing")]);
    };
    refused_text(b"{}", &["`model_type` is missing"]);
    for field in ["model_type"].into_iter().chain(GPT2_COUNTS) {
        missing(gpt2(), field);
        refused_with(gpt2(), field, Value::Null, &[&format!("`{field}` is missing")]);
    }
    for field in ["model_type"].into_iter().chain(LLAMA_COUNTS) {
        missing(llama(), field);
    }
}

#[test]
fn counts_are_whole_numbers_from_1() {
    let values = [json!(0), json!(-1), json!(1.5), json!("16"), json!([16]), json!(true), json!(1e300), json!({})];
    for value in values {
        for field in GPT2_COUNTS.into_iter().chain(["n_positions", "n_inner"]) {
            refused_with(gpt2(), field, value.clone(), &[&format!("`{field}` is "), "whole number of at least 1"]);
        }
        for field in LLAMA_COUNTS.into_iter().chain(["num_key_value_heads", "max_position_embeddings", "head_dim"]) {
            refused_with(llama(), field, value.clone(), &[&format!("`{field}` is "), "whole number of at least 1"]);
        }
    }
}

#[test]
fn absurd_counts_are_refused() {
    let huge = u64::MAX;
    let shown = huge.to_string();
    for field in ["vocab_size", "n_embd", "n_positions", "n_inner"] {
        let mut config = gpt2();
        config["n_head"] = json!(1);
        refused_with(config, field, json!(huge), &[&shown, "2^62 bytes", "smaller"]);
    }
    refused_with(gpt2(), "n_layer", json!(huge), &[&shown, "at most 5000"]);
    refused_with(gpt2(), "n_head", json!(huge), &["n_head", &shown]);
    for field in ["vocab_size", "intermediate_size"] {
        refused_with(llama(), field, json!(huge), &[&shown, "2^62 bytes", "smaller"]);
    }
    refused_with(llama(), "hidden_size", json!(huge - 7), &["2^62 bytes", "smaller"]);
    refused_with(llama(), "head_dim", json!(huge - 1), &["2^62 bytes", "smaller"]);
    refused_with(llama(), "num_hidden_layers", json!(huge), &[&shown, "at most 5000"]);
    refused_with(llama(), "num_attention_heads", json!(huge), &["num_attention_heads", &shown]);
    refused_with(llama(), "num_key_value_heads", json!(huge), &["num_key_value_heads", &shown]);
    let mut wide = llama();
    wide["num_attention_heads"] = json!(huge - 1);
    wide["hidden_size"] = json!(huge - 1);
    refused_with(wide, "head_dim", json!(2), &["2^62 bytes", "smaller"]);
}

#[test]
fn heads_must_divide() {
    refused_with(gpt2(), "n_head", json!(3), &["n_head", "3", "n_embd", "16"]);
    refused_with(llama(), "num_attention_heads", json!(6), &["num_attention_heads", "6", "hidden_size", "16"]);
    refused_with(llama(), "num_key_value_heads", json!(3), &["num_key_value_heads", "3", "num_attention_heads", "4"]);
    refused_with(llama(), "head_dim", json!(3), &["`head_dim` is 3", "even"]);
}

#[test]
fn fields_of_another_type_are_refused() {
    refused_with(gpt2(), "model_type", json!(3), &["`model_type` is 3", "string"]);
    refused_with(gpt2(), "tie_word_embeddings", json!("yes"), &["`tie_word_embeddings` is \"yes\"", "true or false"]);
    refused_with(gpt2(), "attn_pdrop", json!(1), &["`attn_pdrop` is 1", "below 1"]);
    refused_with(gpt2(), "attn_pdrop", json!(-0.1), &["`attn_pdrop` is -0.1"]);
    refused_with(gpt2(), "activation_function", json!("mish"), &["activation_function", "mish", "gelu_new"]);
    refused_with(llama(), "torch_dtype", json!("int8"), &["`torch_dtype` is `int8`", "bfloat16"]);
    refused_with(llama(), "rope_scaling", json!({ "rope_type": "longrope" }), &["longrope", "llama3"]);
}

/// What has no native model is captured with Python, of which there is none here.
#[test]
fn other_families_need_python() {
    let lines =
        ["`no-such-python` does not have rematic and transformers", "\n  pip install rematic torch transformers\n"];
    for family in ["electra", "GPT2", "", "whisper"] {
        let why =
            format!("model_type `{family}` has no native model; those that have are gpt2, gpt_neox, bert, roberta, t5");
        refused_with(gpt2(), "model_type", json!(family), &[&why, lines[0], lines[1], "rematic stats /"]);
    }
    let why = "rope_scaling of type `longrope` is not supported";
    refused_with(llama(), "rope_scaling", json!({ "rope_type": "longrope" }), &[why, lines[0], lines[1]]);
    for (field, value) in [("quantization_config", json!({})), ("vocab_size", json!(0))] {
        let config = with(llama(), field, value);
        with_text(config.to_string().as_bytes(), |path| {
            let said = run(&["stats", path.to_str().unwrap()]).stderr;
            assert!(!said.contains("transformers"), "{said}");
        });
    }
}

#[test]
fn models_that_the_cache_does_not_have_are_not_downloaded() {
    let parts =
        ["`org/model` is neither a file nor a model in the Hugging Face cache, /", "nothing is downloaded here"];
    refused(&["stats", "org/model"], &parts);
    refused(&["stats", "org/model"], &["`hf download org/model config.json`", "`rematic models` lists"]);
    refused(&["stats", "Qwen/Qwen3-8B-Base"], &["`rematic models` lists, like `qwen3-8b`"]);
    refused(&["stats", "no-such-model"], &["there is no model or file called `no-such-model`"]);
    // Neither of these is an id.
    refused(&["stats", "../org/model"], &["cannot read ../org/model"]);
    refused(&["stats", "org/model.json"], &["cannot read org/model.json"]);
}

#[test]
fn options_that_mean_nothing_to_a_captured_model_are_refused() {
    let config = with(gpt2(), "model_type", json!("electra"));
    with_text(config.to_string().as_bytes(), |path| {
        let path = path.to_str().unwrap();
        for option in ["--heads", "--dim", "--vocab", "--tp"] {
            let parts = ["captured with transformers", &format!("has no option {option}"), "--batch, --seq, --dtype"];
            refused(&["stats", path, option, "2"], &parts);
        }
    });
}

/// Configs of every native family with a field that is none.
#[test]
fn fields_of_families_are_checked() {
    // The last field is GPT-NeoX's; others do not look at it.
    let of = |family: &str| with(with(llama(), "model_type", json!(family)), "rotary_pct", json!(0.5));
    let mixtral =
        |field: &str, value: Value| refused_with(of("mixtral"), field, value.clone(), &[field, &value.to_string()]);
    for value in [json!(0), json!(-1), json!("8"), json!(1.5)] {
        mixtral("num_local_experts", value.clone());
        mixtral("num_experts_per_tok", value);
    }
    refused_with(of("mixtral"), "num_experts_per_tok", json!(9), &["is 9, but there are 8 experts"]);
    refused_with(
        of("qwen3_moe"),
        "mlp_only_layers",
        json!(["a"]),
        &["`mlp_only_layers` must be a list of whole numbers"],
    );
    refused_with(of("qwen3_moe"), "decoder_sparse_step", json!(0), &["`decoder_sparse_step` is 0"]);
    refused_with(of("gemma2"), "attn_logit_softcapping", json!(-1), &["is -1", "above 0, or null"]);
    refused_with(of("gemma2"), "final_logit_softcapping", json!("x"), &["is \"x\"", "above 0, or null"]);
    refused_with(of("gemma2"), "sliding_window", Value::Null, &["is null", "layers with a window"]);
    refused_with(of("gemma3_text"), "sliding_window_pattern", json!(0), &["`sliding_window_pattern` is 0"]);
    refused_with(of("phi3"), "partial_rotary_factor", json!(1.5), &["is 1.5", "at most 1"]);
    refused_with(of("phi3"), "partial_rotary_factor", json!(0.25), &["leaves 1 of the 4", "even number"]);
    refused_with(of("gpt_neox"), "rotary_pct", json!(0.1), &["leaves 0 of the 4", "even number"]);
    refused_with(of("cohere"), "use_qk_norm", json!(3), &["`use_qk_norm` is 3", "true or false"]);
    for family in [
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "olmo2",
        "granite",
        "cohere",
        "gpt_neox",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
    ] {
        refused_with(of(family), "num_hidden_layers", json!(u64::MAX), &["at most 5000"]);
        refused_with(of(family), "vocab_size", json!(u64::MAX), &["2^62 bytes"]);
        refused_with(of(family), "hidden_size", Value::Null, &["`hidden_size` is missing"]);
    }
    let gemma2 = of("gemma2").to_string();
    with_text(gemma2.as_bytes(), |path| {
        let parts = ["attention is math", "soft-capping"];
        refused(&["stats", path.to_str().unwrap(), "--attention", "math"], &parts);
    });
    refused(&["stats", "gpt2", "--tp", "2"], &["gpt2 is not shared by --tp", "Conv1D"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    refused_source(folder.path(), &["is a directory", "config.json"]);
    for name in ["config.json", "step.rmt", "step.rmt.zst", "folder/model"] {
        let missing = folder.path().join(name);
        refused_source(&missing, &["cannot read", missing.to_str().unwrap(), "No such file"]);
    }
    refused(&["stats", "."], &[". is a directory", "config.json"]);
    refused(&["stats", "config-that-is-not-there.json"], &["No such file", "rematic models"]);
    let directory = folder.path().join("folder.rmt");
    std::fs::create_dir(&directory).unwrap();
    refused_source(&directory, &["cannot read", "directory"]);
}

/// Configs of encoders with a field that is none, or that goes through Python.
#[test]
fn fields_of_encoders_are_checked() {
    let of = |family: &str| json!({ "model_type": family });
    for value in [json!(0), json!(-1), json!("8"), json!(1.5)] {
        for (family, field) in [
            ("bert", "hidden_size"),
            ("roberta", "type_vocab_size"),
            ("t5", "d_kv"),
            ("t5", "relative_attention_num_buckets"),
            ("vit", "patch_size"),
            ("clip", "projection_dim"),
        ] {
            refused_with(of(family), field, value.clone(), &[field, &value.to_string()]);
        }
    }
    refused_with(
        of("bert"),
        "num_attention_heads",
        json!(7),
        &["`num_attention_heads` is 7", "divide hidden_size, 768"],
    );
    refused_with(of("roberta"), "max_position_embeddings", json!(2), &["is 2; positions are counted from 2 on"]);
    refused_with(of("roberta"), "pad_token_id", json!(null), &["`pad_token_id` is null"]);
    refused_with(of("t5"), "feed_forward_proj", json!("half-relu"), &["is `half-relu`", "`gated-` and one"]);
    refused_with(of("t5"), "pad_token_id", json!(null), &["`pad_token_id` is null"]);
    refused_with(of("vit"), "patch_size", json!(300), &["is 300 × 300; images are 224 × 224"]);
    refused_with(of("vit"), "image_size", json!([224]), &["`image_size` must be", "a list of two"]);
    refused_with(of("clip"), "text_config", json!(7), &["`text_config` is 7; it must be an object"]);
    refused_with(
        of("clip"),
        "vision_config",
        json!({ "patch_size": [2, 2] }),
        &["`patch_size` must be a whole number"],
    );
    for (family, field, value) in [
        ("bert", "architectures", json!(["BertForMultipleChoice"])),
        ("bert", "tie_word_embeddings", json!(false)),
        ("bert", "is_decoder", json!(true)),
        ("vit", "problem_type", json!("regression")),
        ("t5", "architectures", json!(["T5ForQuestionAnswering"])),
        ("clip", "text_config_dict", json!({ "hidden_size": 8 })),
    ] {
        refused_with(of(family), field, value, &["is not supported", "does not have rematic and transformers"]);
    }
}

/// Fields of latent attention, of groups of experts and of sinks.
#[test]
fn fields_of_new_decoders_are_checked() {
    let of = |family: &str| {
        let config = with(with(llama(), "model_type", json!(family)), "num_experts_per_tok", json!(2));
        with(config, "num_key_value_heads", json!(4))
    };
    refused_with(
        of("deepseek_v3"),
        "num_key_value_heads",
        json!(1),
        &["every one of the", "heads has keys and values"],
    );
    refused_with(of("deepseek_v3"), "qk_rope_head_dim", json!(7), &["`qk_rope_head_dim` is 7", "even width"]);
    refused_with(of("deepseek_v3"), "n_group", json!(7), &["`n_group` is 7; it must divide n_routed_experts, 256"]);
    refused_with(of("deepseek_v3"), "n_group", json!(256), &["a group needs two experts, of 256 in all"]);
    refused_with(of("deepseek_v3"), "topk_group", json!(9), &["is 9, but there are 8 groups"]);
    refused_with(of("deepseek_v3"), "num_experts_per_tok", json!(129), &["there are 128 experts to choose from"]);
    refused_with(of("deepseek_v2"), "num_experts_per_tok", json!(65), &["there are 64 experts to choose from"]);
    refused_with(of("deepseek_v2"), "topk_method", json!("noaux_tc"), &["topk_method `noaux_tc` is not supported"]);
    refused_with(of("gpt_oss"), "sliding_window", json!(null), &["`sliding_window` is null"]);
    refused_with(of("gpt_oss"), "num_experts_per_tok", json!(129), &["is 129, but there are 128 experts"]);
    // Others than the publishers' own are not known to be dequantized.
    let other = json!({ "quant_method": "awq" });
    refused_with(of("gpt_oss"), "quantization_config", other, &["quantization_config (awq)"]);
}
