//! Steps under tensor parallelism, operator by operator, as one rank of PyTorch's DTensor runs them.
//!
//! `tensor_steps.tsv.zst` is what `tests/allocator/predictions shared` recorded with torch 2.15: after every operator, the bytes that
//! its CUDA allocator was asked for and has not got back. The figures of whole steps are those of `predictions tensor`.

use rematic::{
    Allocator, CostRule, CostSource, Dtype, Fsdp2, Model, Optimizer, Options, StepTrace, Target, fsdp2, fsdp2_layers,
};
use rematic_replay::{Ledger, Reserved, Schedule, Timeline};
use serde_json::Value;

/// They make no memory, and run at other moments or not at all.
const LEFT_OUT: [&str; 3] = ["detach.default", "_local_scalar_dense.default", "lift_fresh.default"];

/// A step, and its operators with the bytes after each.
type Recorded = (Value, Vec<(String, u64)>);

fn recorded() -> Vec<Recorded> {
    let text = zstd::decode_all(&include_bytes!("tensor_steps.tsv.zst")[..]).unwrap();
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
    let options = Options {
        batch: step["batch"].as_u64(),
        seq: step["seq"].as_u64(),
        dtype: Some(Dtype::Bf16),
        optimizer: Some(step["optimizer"].as_str().unwrap().parse().unwrap()),
        tp: Some(step["tp"].as_u64().unwrap().try_into().unwrap()),
        tp_rank: Some(step["tp_rank"].as_u64().unwrap().try_into().unwrap()),
        ..Options::default()
    };
    let model = Model::from_config("tiny", &step["config"].to_string()).unwrap().with(&options).unwrap();
    let trace = model.trace().unwrap();
    assert_eq!(trace.validate(), Ok(()));
    let timeline = Timeline::replay(&trace, Allocator::Cpu);
    let ops = trace.ops().iter().zip(timeline.totals());
    let on_device = ops.filter(|(op, _)| !op.flags.host && !LEFT_OUT.contains(&trace.op_name(op)));
    on_device.map(|(op, total)| (trace.op_name(op).to_owned(), total.0)).collect()
}

#[test]
fn every_operator_and_the_bytes_after_it_are_pytorchs() {
    let steps = recorded();
    assert_eq!(steps.len(), 17);
    for (step, real) in steps {
        let ours = ours(&step);
        assert!(real.len() > 350, "{}", real.len());
        for (at, (found, wanted)) in ours.iter().zip(&real).enumerate() {
            assert_eq!(found, wanted, "operator {at} of {step}");
        }
        assert_eq!(ours.len(), real.len(), "{step}");
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
