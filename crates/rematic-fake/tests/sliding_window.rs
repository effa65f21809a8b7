//! What configs and options say about sliding windows; that the steps are right is shown by `rematic-plan`'s
//! `torch_parity`.

use rematic_fake::models::{Model, Options};
use rematic_fake::{AttentionKernel, Dtype, FakeError};

fn config(family: &str, more: &str) -> String {
    format!(
        r#"{{"model_type": "{family}", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "max_position_embeddings": 64{more}}}"#
    )
}

fn step(family: &str, more: &str, options: &Options) -> Result<usize, FakeError> {
    let trace = Model::from_config("config.json", &config(family, more))?.with(options)?.trace()?;
    trace.validate().expect("a native trace is valid");
    Ok(trace.ops().iter().filter(|op| trace.op_name(op) == "where.self").count())
}

fn refusal(family: &str, more: &str) -> String {
    step(family, more, &Options::default()).unwrap_err().to_string()
}

/// Each layer with a window turns the mask into a bias of its own.
#[test]
fn only_layers_with_a_window_have_a_mask() {
    let plain = Options::default();
    assert_eq!(step("mistral", r#", "sliding_window": 64"#, &plain).unwrap(), 2);
    assert_eq!(step("mistral", r#", "sliding_window": 65"#, &plain).unwrap(), 0);
    assert_eq!(step("mistral", r#", "sliding_window": null"#, &plain).unwrap(), 0);
    assert_eq!(step("llama", r#", "sliding_window": 16"#, &plain).unwrap(), 0);
    assert_eq!(step("qwen2", r#", "sliding_window": 16"#, &plain).unwrap(), 0);
    let window = r#", "use_sliding_window": true, "sliding_window": 16"#;
    assert_eq!(step("qwen2", window, &plain).unwrap(), 0);
    assert_eq!(step("qwen2", &format!(r#"{window}, "max_window_layers": 1"#), &plain).unwrap(), 1);
    let listed = format!(r#"{window}, "layer_types": ["sliding_attention", "full_attention"]"#);
    assert_eq!(step("qwen3", &listed, &plain).unwrap(), 1);
    assert_eq!(step("qwen3", &listed, &Options { layers: Some(5), ..plain }).unwrap(), 3);
}

#[test]
fn flash_attention_is_refused() {
    let options = Options { dtype: Some(Dtype::Bf16), attention: Some(AttentionKernel::Flash), ..Options::default() };
    assert_eq!(
        step("mistral", r#", "sliding_window": 16"#, &options).unwrap_err().to_string(),
        "--attention is flash; flash attention takes no mask, and a sliding window or a bias for distances needs one; use --attention efficient"
    );
}

#[test]
fn wrong_layer_types_are_refused() {
    assert_eq!(
        refusal("qwen2", r#", "layer_types": ["full_attention"]"#),
        "config.json: field `layer_types` has 1 entries, but num_hidden_layers is 2"
    );
    assert_eq!(
        refusal("qwen2", r#", "layer_types": ["full_attention", "sliding_attention"]"#),
        "config.json: field `layer_types` lists sliding_attention, but no window is in force; \
         set use_sliding_window and sliding_window"
    );
    assert_eq!(
        refusal("qwen3", r#", "layer_types": ["full_attention", "linear_attention"]"#),
        "config.json: a layer of type \"linear_attention\" is not supported; \
         layer_types may hold full_attention and sliding_attention"
    );
    assert_eq!(
        refusal("qwen3", r#", "max_window_layers": -1"#),
        "config.json: field `max_window_layers` is -1; it must be a whole number"
    );
}
