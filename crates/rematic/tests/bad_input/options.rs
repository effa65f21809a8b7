use crate::run::{refused, run};

fn stats(model: &str, options: &str, parts: &[&str]) {
    let mut arguments = vec!["stats", model];
    arguments.extend(options.split_whitespace());
    refused(&arguments, parts);
}

const COUNTS: [&str; 6] = ["--batch", "--seq", "--layers", "--dim", "--heads", "--vocab"];

#[test]
fn counts_are_whole_numbers_from_1() {
    for option in COUNTS {
        for value in ["0", "-1", "1.5", "x", "1e3", "NaN", "18446744073709551616"] {
            let rule = if value.len() > 10 { "a whole number from 1 to" } else { "a whole number, 1 or more" };
            stats("seed-transformer", &format!("{option} {value}"), &[option, value, rule]);
        }
        refused(&["stats", "seed-transformer", option, ""], &[option]);
    }
}

#[test]
fn sizes_that_overflow_64_bits_are_refused() {
    let huge = "18446744073709551615";
    for (options, parts) in [
        (format!("--batch {huge}"), [huge, "2^62 bytes"]),
        ("--batch 4611686018427387904".to_owned(), ["4611686018427387904", "2^62 bytes"]),
        (format!("--seq {huge}"), [huge, "2^62 bytes"]),
        ("--seq 9999999999999999".to_owned(), ["9999999999999999", "2^62 bytes"]),
        ("--dim 99999999999999996".to_owned(), ["99999999999999996", "2^62 bytes"]),
        (format!("--dim {huge} --heads 1"), [huge, "2^62 bytes"]),
        (format!("--vocab {huge}"), [huge, "2^62 bytes"]),
        (format!("--batch {huge} --seq {huge} --vocab {huge}"), [huge, "2^62 bytes"]),
        ("--seq 4294967295 --attention math".to_owned(), ["4294967295", "2^62 bytes"]),
        ("--layers 5000 --vocab 99999999999999996".to_owned(), ["99999999999999996", "2^62 bytes"]),
    ] {
        stats("seed-transformer", &options, &parts);
        stats("seed-transformer", &options, &["smaller"]);
    }
    for model in ["gpt2", "llama-3-8b", "qwen3-8b"] {
        stats(model, &format!("--batch {huge}"), &[huge, "2^62 bytes", "use smaller sizes"]);
    }
    stats("llama-3-8b", "--seq 9999999999999999", &["9999999999999999", "2^62 bytes"]);
}

/// Every tensor fits, but not all together.
#[test]
fn sums_that_overflow_64_bits_are_refused() {
    for batch in ["20000000000", "100000000000"] {
        stats("seed-transformer", &format!("--batch {batch}"), &["storages", "2^62 bytes", "smaller batch"]);
    }
}

#[test]
fn too_many_layers_are_refused() {
    for layers in ["5001", "100000", "99999999999", "18446744073709551615"] {
        for model in ["seed-transformer", "gpt2", "llama-3-8b"] {
            stats(model, &format!("--layers {layers}"), &[layers, "at most 5000"]);
        }
    }
}

#[test]
fn heads_must_divide_the_width() {
    stats("seed-transformer", "--heads 7", &["heads is 7", "divide the width, 768"]);
    stats("seed-transformer", "--heads 1000", &["heads is 1000", "768"]);
    stats("seed-transformer", "--dim 100", &["heads is 12", "100"]);
}

#[test]
fn dropout_is_a_probability_below_1() {
    for value in ["1", "-0.1", "NaN", "inf", "1e400", "x", "1.0000001"] {
        stats("seed-transformer", &format!("--dropout {value}"), &["--dropout", value, "at least 0 and below 1"]);
    }
}

#[test]
fn unknown_names_are_answered_with_known_ones() {
    stats("gpt2", "--device h10", &["`h10`", "did you mean h100", "rematic devices"]);
    stats("gpt2", "--device a100", &["`a100`", "did you mean a100-40 or a100-80?"]);
    stats("gpt2", "--device xyzzy", &["`xyzzy`", "rematic devices"]);
    stats("lama-3-8b", "", &["`lama-3-8b`; did you mean `llama-3-8b`? `rematic models`"]);
    stats("gtp2", "", &["did you mean `gpt2`?"]);
    stats("Llama-3-8", "", &["did you mean `llama-3-8b`?"]);
    stats("xyzzy", "", &["`xyzzy`; `rematic models`"]);
    stats("gpt2", "--dtype fp8", &["fp8", "fp32, bf16, fp16"]);
    stats("gpt2", "--optimizer adm", &["'adm'", "adam, adamw, sgd, sgd-momentum"]);
    stats("gpt2", "--attention flas", &["'flas'", "auto, flash, efficient, math"]);
    stats("gpt2", "--cost exact", &["exact", "physical, torch"]);
    stats("gpt2", "--allocator tpu", &["tpu", "cuda, cpu"]);
    refused(&["stat", "gpt2"], &["stat", "stats"]);
    refused(&["stats", ""], &["rematic models"]);
}

/// The devices' names are found in any case.
#[test]
fn a_device_in_capitals_is_known() {
    let ran = run(&["stats", "seed-transformer", "--layers", "1", "--device", "H100"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("H100"));
}

#[test]
fn attention_kernels_say_what_they_do_not_take() {
    stats("seed-transformer", "--attention flash --dtype fp32", &["flash", "fp32", "--dtype bf16", "--attention auto"]);
    for (dtype, heads, width, multiple) in
        [("fp32", 128, "6 wide", "multiple of 4"), ("bf16", 64, "12 wide", "multiple of 8")]
    {
        let options = format!("--attention efficient --dtype {dtype} --heads {heads}");
        stats("seed-transformer", &options, &[width, multiple, dtype, "--attention auto"]);
    }
    let wide = "--attention flash --dtype bf16 --dim 1040 --heads 4";
    stats("seed-transformer", wide, &["260 wide", "up to 256", "--attention auto"]);
}

#[test]
fn the_advice_about_attention_helps() {
    for arguments in [
        ["--attention", "auto", "--dtype", "fp32"],
        ["--attention", "efficient", "--dtype", "fp32"],
        ["--attention", "flash", "--dtype", "bf16"],
    ] {
        let ran = run(&[["stats", "llama-3-8b", "--layers", "1"].as_slice(), &arguments].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn sizes_of_a_config_cannot_be_changed() {
    for option in ["--dim", "--heads", "--vocab"] {
        stats("gpt2", &format!("{option} 64"), &["gpt2", option, "--layers"]);
    }
    stats("gpt2", "--seq 1025", &["1025", "1024 positions", "shorter --seq"]);
}

#[test]
fn the_torch_rule_needs_a_device_that_torch_knows() {
    stats("gpt2", "--device v100 --cost torch", &["v100", "physical", "a100-80"]);
}

#[test]
fn a_timeline_needs_json() {
    stats("gpt2", "--timeline", &["--json"]);
}

#[test]
fn names_are_understood_in_any_case_and_as_pytorch_has_them() {
    let said = |options: &str| {
        let ran = run(&[&["stats", "gpt2", "--json"][..], &options.split(' ').collect::<Vec<_>>()].concat());
        assert_eq!(ran.code, Some(0), "{options}: {ran:?}");
        ran.stdout
    };
    let usual = said("--dtype bf16 --optimizer adamw");
    for other in [
        "--dtype bfloat16 --optimizer AdamW",
        "--dtype BF16 --optimizer ADAMW",
        "--dtype torch.bfloat16 --optimizer torch.optim.AdamW",
    ] {
        assert_eq!(said(other), usual, "{other}");
    }
    stats("gpt2", "--dtype float8", &["--dtype", "float8", "fp32, bf16, fp16"]);
    stats("gpt2", "--dtype torch.", &["--dtype", "torch.", "fp32, bf16, fp16"]);
    stats("gpt2", "--optimizer adagrad", &["--optimizer", "adagrad", "adamw-fused"]);
}
