//! Native traces against what torch's own tools say about the same step: memory to the byte, times to 1e-9.
//!
//! The fixtures in `tests/golden` are written by `tests/oracle/make_golden.py` (at the root of the repository), which
//! runs MemTracker, RuntimeEstimator and `ilp_utils` of torch 2.15 on the models of torch's tests and of transformers.
//!
//! A fixture has no `runtime_ms` where RuntimeEstimator refuses the step (fused attention in half precision), and no
//! `mod_stats` and `baseline` where `aggregate_stats` fails (Llama's rotary embedding has no backward).

mod checkpoints;
mod compare;
mod fixture;

use std::collections::BTreeSet;

use compare::Comparison;
use fixture::Fixture;

macro_rules! steps {
    ($($test:ident: $name:literal,)*) => {
        const NAMES: &[&str] = &[$($name),*];

        $(
            #[test]
            fn $test() {
                let fixture = Fixture::read_from(&fixture::golden(), $name);
                if let Err(difference) = Comparison::new(&fixture).run() {
                    panic!("{}: {difference}", $name);
                }
            }
        )*
    };
}

#[test]
fn every_fixture_is_compared() {
    let files: BTreeSet<String> = Fixture::names_in(&fixture::golden());
    let names: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(files, names);
}

/// A fixture that lost a part would pass without a look at it.
#[test]
fn fixtures_say_all_that_torch_can() {
    for name in NAMES {
        let fixture = Fixture::read_from(&fixture::golden(), name);
        let (timed, all_have_backward) = (fixture.is_timed(), fixture.all_have_backward());
        // The reference oracle wrote no order where it ran MemTracker alone.
        assert_eq!(fixture.order.is_some(), *name != "llama-tiny", "order of {name}");
        assert_eq!(fixture.runtime_ms.is_some(), timed, "runtime_ms of {name}");
        assert_eq!(fixture.mod_stats.is_some(), timed && all_have_backward, "mod_stats of {name}");
        assert_eq!(fixture.baseline.is_some(), timed && all_have_backward, "baseline of {name}");
    }
}

/// Random steps that `make_golden.py --random` has written to `$REMATIC_FIXTURES`; not part of the usual run, because
/// they need torch.
#[test]
#[ignore = "needs fixtures from make_golden.py --random"]
fn random_steps() {
    let directory = std::env::var("REMATIC_FIXTURES").expect("set REMATIC_FIXTURES to a directory of fixtures");
    let names = Fixture::names_in(directory.as_ref());
    assert!(!names.is_empty(), "{directory} has no fixtures");
    let different: Vec<String> = (names.iter())
        .filter_map(|name| {
            let fixture = Fixture::read_from(directory.as_ref(), name);
            Comparison::new(&fixture).run().err().map(|difference| format!("{name}: {difference}"))
        })
        .collect();
    assert!(different.is_empty(), "{} of {} differ\n{}", different.len(), names.len(), different.join("\n"));
}

steps! {
    gpt2: "gpt2",
    gpt2_batch_1: "gpt2-batch-1",
    gpt2_bf16: "gpt2-bf16",
    gpt2_bf16_batch_1: "gpt2-bf16-batch-1",
    gpt2_bf16_math_odd: "gpt2-bf16-math-odd",
    gpt2_bf16_no_dropout_sgd: "gpt2-bf16-no-dropout-sgd",
    gpt2_fp16_efficient: "gpt2-fp16-efficient",
    gpt2_fp16_odd: "gpt2-fp16-odd",
    gpt2_gelu_tanh_no_dropout: "gpt2-gelu-tanh-no-dropout",
    gpt2_inner_gelu: "gpt2-inner-gelu",
    gpt2_math: "gpt2-math",
    gpt2_relu_one_head: "gpt2-relu-one-head",
    gpt2_seq_1_math: "gpt2-seq-1-math",
    gpt2_silu_untied: "gpt2-silu-untied",
    gpt2_small: "gpt2-small",
    llama_bf16: "llama-bf16",
    llama_bf16_batch_1: "llama-bf16-batch-1",
    llama_bf16_efficient: "llama-bf16-efficient",
    llama_bf16_efficient_grouped: "llama-bf16-efficient-grouped",
    llama_bf16_math: "llama-bf16-math",
    llama_bf16_tied_biases: "llama-bf16-tied-biases",
    llama_bf16_wide: "llama-bf16-wide",
    llama_fp16_odd_one_head: "llama-fp16-odd-one-head",
    llama_fp16_odd_width: "llama-fp16-odd-width",
    llama_fp32: "llama-fp32",
    llama_fp32_batch_1: "llama-fp32-batch-1",
    llama_fp32_biases_batch_1: "llama-fp32-biases-batch-1",
    llama_fp32_grouped: "llama-fp32-grouped",
    llama_fp32_grouped_batch_1: "llama-fp32-grouped-batch-1",
    llama_fp32_grouped_math: "llama-fp32-grouped-math",
    llama_fp32_odd_width: "llama-fp32-odd-width",
    llama_fp32_one_head_math_batch_1: "llama-fp32-one-head-math-batch-1",
    llama_gelu: "llama-gelu",
    llama_grouped_dropout: "llama-grouped-dropout",
    llama_grouped_dropout_math: "llama-grouped-dropout-math",
    llama_head_dim_dropout: "llama-head-dim-dropout",
    llama_rope_llama3: "llama-rope-llama3",
    llama_seq_1_math: "llama-seq-1-math",
    llama_tiny: "llama-tiny",
    mistral_batch_1: "mistral-batch-1",
    mistral_bf16: "mistral-bf16",
    mistral_fp32_below_window: "mistral-fp32-below-window",
    mistral_window_bf16_grouped: "mistral-window-bf16-grouped",
    mistral_window_bf16_math_batch_1: "mistral-window-bf16-math-batch-1",
    mistral_window_equals_seq: "mistral-window-equals-seq",
    mistral_window_fp32: "mistral-window-fp32",
    mistral_window_math: "mistral-window-math",
    mistral_window_odd_batch_1: "mistral-window-odd-batch-1",
    mistral_window_one_key_head: "mistral-window-one-key-head",
    qwen2_bf16: "qwen2-bf16",
    qwen2_fp32_grouped_batch_1: "qwen2-fp32-grouped-batch-1",
    qwen2_fp32_tied: "qwen2-fp32-tied",
    qwen2_window_all_layers_above_seq: "qwen2-window-all-layers-above-seq",
    qwen2_window_no_layers: "qwen2-window-no-layers",
    qwen2_window_some_layers: "qwen2-window-some-layers",
    qwen3_bf16: "qwen3-bf16",
    qwen3_bf16_batch_1_tied: "qwen3-bf16-batch-1-tied",
    qwen3_fp32: "qwen3-fp32",
    qwen3_fp32_batch_1: "qwen3-fp32-batch-1",
    qwen3_window_layer_types: "qwen3-window-layer-types",
    seed_adamw: "seed-adamw",
    seed_batch_1: "seed-batch-1",
    seed_bf16: "seed-bf16",
    seed_bf16_batch_1: "seed-bf16-batch-1",
    seed_bf16_efficient: "seed-bf16-efficient",
    seed_bf16_math: "seed-bf16-math",
    seed_fp16_odd: "seed-fp16-odd",
    seed_math: "seed-math",
    seed_math_batch_1: "seed-math-batch-1",
    seed_math_dropout: "seed-math-dropout",
    seed_no_dropout: "seed-no-dropout",
    seed_odd: "seed-odd",
    seed_one_layer_one_head: "seed-one-layer-one-head",
    seed_seq_1: "seed-seq-1",
    seed_seq_1_math: "seed-seq-1-math",
    seed_sgd: "seed-sgd",
    seed_sgd_momentum: "seed-sgd-momentum",
    seed_small: "seed-small",
    seed_transformer: "seed-transformer",
    seed_wide: "seed-wide",
}
