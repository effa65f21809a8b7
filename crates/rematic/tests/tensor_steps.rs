//! Steps under tensor parallelism, operator by operator, as one rank of PyTorch's DTensor runs them.
//!
//! `tensor_steps.tsv.zst` is what `tests/allocator/predictions shared` recorded with torch 2.15: after every operator, the bytes that
//! its CUDA allocator was asked for and has not got back. The figures of whole steps are those of `predictions tensor`.

use std::collections::BTreeSet;

use rematic::{
    Allocator, CostRule, CostSource, Dtype, Fsdp2, Model, Optimizer, Options, StepTrace, Target, fsdp2, fsdp2_layers,
};
use rematic_replay::{Ledger, Reserved, Schedule, Timeline};
use serde_json::Value;

/// They make no memory, and run at other moments or not at all.
const LEFT_OUT: [&str; 3] = ["detach.default", "_local_scalar_dense.default", "lift_fresh.default"];

/// Another file than the one that is kept.
const RECORDED: &str = "REMATIC_TENSOR_STEPS";

/// Every family of which ranks can share a model.
const FAMILIES: [&str; 24] = [
    "bert",
    "clip",
    "cohere",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "roberta",
    "seed-transformer",
    "t5",
    "vit",
];

/// A step, and its operators with the bytes after each.
type Recorded = (Value, Vec<(String, u64)>);

/// What is kept, or what the variable names: a file of `tests/allocator/shared.py`.
fn recorded() -> Vec<Recorded> {
    let text = match std::env::var_os(RECORDED) {
        Some(place) => std::fs::read(place).unwrap(),
        None => zstd::decode_all(&include_bytes!("tensor_steps.tsv.zst")[..]).unwrap(),
    };
    let mut steps: Vec<Recorded> = Vec::new();
    for line in String::from_utf8(text).unwrap().lines() {
        match line.split_once('\t') {
            Some((name, bytes)) => steps.last_mut().unwrap().1.push((name.to_owned(), bytes.parse().unwrap())),
            None => steps.push((serde_json::from_str(line).unwrap(), Vec::new())),
        }
    }
    steps
}

fn ours(step: &Value) -> Vec<(String, u64)> {
    let config = &step["config"];
    let number = |field: &Value| field.as_u64();
    let options = Options {
        batch: number(&step["batch"]),
        seq: number(&step["seq"]),
        dtype: Some(Dtype::Bf16),
        optimizer: Some(step["optimizer"].as_str().unwrap().parse().unwrap()),
        tp: Some(number(&step["tp"]).unwrap().try_into().unwrap()),
        tp_rank: Some(number(&step["tp_rank"]).unwrap().try_into().unwrap()),
        // Those of the model without a config.
        layers: number(&config["layers"]),
        dim: number(&config["dim"]),
        heads: number(&config["heads"]),
        vocab: number(&config["vocab"]),
        ..Options::default()
    };
    let model = match config["model_type"].as_str() {
        Some(name @ "seed-transformer") => Model::builtin(name),
        _ => Model::from_config("tiny", &config.to_string()),
    };
    let trace = model.unwrap().with(&options).unwrap().trace().unwrap();
    assert_eq!(trace.validate(), Ok(()));
    let timeline = Timeline::replay(&trace, Allocator::Cpu);
    let ops = trace.ops().iter().zip(timeline.totals());
    let on_device = ops.filter(|(op, _)| !op.flags.host && !LEFT_OUT.contains(&trace.op_name(op)));
    on_device.map(|(op, total)| (trace.op_name(op).to_owned(), total.0)).collect()
}

#[test]
fn every_operator_and_the_bytes_after_it_are_pytorchs() {
    let mut families = BTreeSet::new();
    for (step, real) in recorded() {
        let ours = ours(&step);
        // What `shared.py` wrote down is all there.
        assert_eq!(step["operators"].as_u64(), Some(real.len() as u64), "{step}");
        families.insert(step["config"]["model_type"].as_str().unwrap().to_owned());
        for (at, (found, wanted)) in ours.iter().zip(&real).enumerate() {
            assert_eq!(found, wanted, "operator {at} of {step}");
        }
        assert_eq!(ours.len(), real.len(), "{step}");
    }
    if std::env::var_os(RECORDED).is_none() {
        assert_eq!(families.into_iter().collect::<Vec<_>>(), FAMILIES);
    }
}

/// The first of the small steps, with another optimizer and two layers.
fn small(optimizer: Optimizer) -> StepTrace {
    let (step, _) = recorded().swap_remove(0);
    let options = Options {
        batch: Some(2),
        seq: Some(256),
        layers: Some(2),
        dtype: Some(Dtype::Bf16),
        optimizer: Some(optimizer),
        tp: Some(2),
        tp_rank: Some(1),
        ..Options::default()
    };
    Model::from_config("tiny", &step["config"].to_string()).unwrap().with(&options).unwrap().trace().unwrap()
}

fn large(name: &str, tp: u32) -> StepTrace {
    let (seq, optimizer) = (Some(8192), Some(Optimizer::AdamW));
    let options = Options { seq, optimizer, tp: Some(tp), ..Options::default() };
    Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap()
}

#[test]
fn allocated_and_reserved_are_pytorchs_with_and_without_fsdp2_over_it() {
    let two = Fsdp2 { rank: 1, ..Fsdp2::over(2) };
    let mixed = Fsdp2 { shards: Some(Dtype::F32), ..Fsdp2::over(2) };
    // How far allocated may be away: parts in a million.
    let real = [
        (small(Optimizer::AdamW), Some(two), 49_029_120, 75_497_472, 0),
        (small(Optimizer::SgdMomentum), Some(two), 47_764_992, 75_497_472, 0),
        (small(Optimizer::AdamW), Some(mixed), 52_813_824, 134_217_728, 0),
        (large("llama-3-8b", 8), None, 18_829_089_792, 20_667_432_960, 39),
        (large("llama-3-8b", 8), Some(Fsdp2::over(8)), 13_883_320_320, 15_357_444_096, 5),
        (large("qwen3-8b", 4), Some(Fsdp2::over(8)), 27_528_354_304, 30_643_585_024, 41),
    ];
    let target = Target::find("h100", None, CostSource::Rule(CostRule::Physical)).unwrap();
    for (trace, how, allocated, reserved, near) in real {
        let rank = match how {
            Some(how) => fsdp2(&trace, &how, &fsdp2_layers(&trace)).unwrap(),
            None => trace,
        };
        let start = Ledger::new(&rank, Allocator::Cuda);
        let device = rematic_allocator::Device::with_memory(1 << 42);
        let scratch = target.scratch(&rank);
        let schedule = Schedule::plain(&rank, &start);
        let found = Reserved::new(&rank, &schedule, target.settings.clone(), device, &scratch).unwrap().counters;
        let far = u128::from(found.allocated.peak.abs_diff(allocated)) * 1_000_000;
        let model = &rank.origin.model;
        assert!(far <= u128::from(allocated) * near, "{model}, {how:?}: allocated {}", found.allocated.peak);
        assert_eq!(found.reserved.peak, reserved, "{model}, {how:?}");
    }
}
