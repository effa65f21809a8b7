use std::path::Path;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_fake::{AttentionKernel, Dtype, Optimizer};
use rematic_layout::{Fsdp2, fsdp2, layers};
use rematic_plan::{Explanation, Limits, Outcome, Problem, RemedyKind};
use rematic_replay::{Allocator, Ledger, Ran, Schedule, Timeline};
use rematic_trace::{Bytes, Category, Phase, StepTrace, StorageId, Verdict};

use super::{explain_with, remedy};

fn trace(model: &str, options: &Options) -> StepTrace {
    let optimizer = options.optimizer.or(Some(Optimizer::Adam));
    Model::builtin(model).unwrap().with(&Options { optimizer, ..options.clone() }).unwrap().trace().unwrap()
}

fn explain(trace: &StepTrace) -> Explanation {
    explain_with(trace, Allocator::Cuda, 1)
}

/// By which share of the second the first is above it.
fn above(found: Bytes, expected: Bytes) -> f64 {
    found.0 as f64 / expected.0 as f64 - 1.0
}

fn small_llama(batch: u64) -> StepTrace {
    trace("llama-3-8b", &Options { layers: Some(4), batch: Some(batch), seq: Some(1024), ..Options::default() })
}

#[test]
fn sharding_is_what_fsdp2_takes() {
    let models = [trace("seed-transformer", &Options::default()), trace("gpt2", &Options::default()), small_llama(1)];
    for trace in models {
        let device = Device::find("h100").unwrap();
        let rank = fsdp2(&trace, &Fsdp2::over(8), &layers(&trace)).unwrap();
        let costs = Costs::new(&rank, &device, CostRule::Physical).unwrap();
        let problem = Problem::new(rank, costs, Limits::default()).unwrap();
        let explanation = explain(&trace);
        let sharded = remedy(&explanation, RemedyKind::Sharding).unwrap();
        assert_eq!(sharded.peak_bytes, problem.baseline().peak, "{}", trace.origin.model);
    }
}

/// The peak of a step that is traced with half the batch, if all gradients are there from a pass before.
fn accumulating(half: &StepTrace) -> Bytes {
    let timeline = Timeline::replay(half, Allocator::Cuda);
    let gradients = timeline.snapshots().iter().map(|snapshot| snapshot[Category::Gradient]).max().unwrap();
    let in_use = half.ops().iter().zip(timeline.snapshots()).map(|(op, snapshot)| match op.phase {
        Phase::Optimizer => snapshot.total(),
        _ => snapshot.total() + gradients - snapshot[Category::Gradient],
    });
    in_use.max().unwrap()
}

#[test]
fn half_the_batch_is_what_tracing_it_says() {
    let at = |model: &str, batch| trace(model, &Options { batch: Some(batch), ..Options::default() });
    let cases = [
        ("seed-transformer", at("seed-transformer", 8), at("seed-transformer", 4)),
        ("gpt2", at("gpt2", 4), at("gpt2", 2)),
        ("llama", small_llama(4), small_llama(2)),
        ("gpt2, odd", at("gpt2", 3), at("gpt2", 2)),
    ];
    for (name, whole, half) in cases {
        let explanation = explain(&whole);
        let halved = remedy(&explanation, RemedyKind::GradientAccumulation).unwrap();
        let (found, expected) = (halved.peak_bytes, accumulating(&half));
        let difference = above(found, expected);
        assert!(difference.abs() < 1e-4, "{name}: {found} for {expected}, {:+.4} %", difference * 100.0);
    }
}

#[test]
fn fused_attention_is_near_what_tracing_it_says() {
    let with = |model: &str, attention, dtype| {
        trace(model, &Options { batch: Some(2), attention: Some(attention), dtype: Some(dtype), ..Options::default() })
    };
    // In half precision, plain attention also copies its inputs to single precision, and those copies stay.
    let cases = [
        ("seed-transformer", Dtype::F32, AttentionKernel::Efficient, 1e-4),
        ("gpt2", Dtype::F32, AttentionKernel::Efficient, 1e-4),
        ("gpt2", Dtype::Bf16, AttentionKernel::Flash, 0.035),
    ];
    for (model, dtype, kernel, most) in cases {
        let explanation = explain(&with(model, AttentionKernel::Math, dtype));
        let fused = remedy(&explanation, RemedyKind::FusedAttention).unwrap();
        let expected = Timeline::replay(&with(model, kernel, dtype), Allocator::Cuda).peak().total();
        let difference = above(fused.peak_bytes, expected);
        assert!(difference.abs() < most, "{model} {dtype}: {:+.4} %", difference * 100.0);
    }
    let already = explain(&with("gpt2", AttentionKernel::Efficient, Dtype::F32));
    assert_eq!(remedy(&already, RemedyKind::FusedAttention), None);
}

/// The highest point if everything in forward and backward that has just the bytes of the logits in one of these types is
/// an eighth of it.
fn chunked(trace: &StepTrace, elements: u64) -> Bytes {
    let of_logits = |id: &StorageId| {
        let storage = &trace.storages()[*id];
        let activation = matches!(storage.category, Category::Activation | Category::Temp);
        activation && [2 * elements, 4 * elements].contains(&storage.bytes)
    };
    let logits: Vec<StorageId> = (0..trace.storages().len()).map(StorageId::new).filter(of_logits).collect();
    let start = Ledger::new(trace, Allocator::Cuda);
    let mut highest = Bytes(0);
    Schedule::plain(trace, &start).replay(&mut |_: Ran, ledger: &Ledger| {
        let alive = logits.iter().filter(|storage| ledger.is_alive(**storage));
        let spared = alive.map(|storage| {
            let bytes = ledger.footprint(*storage);
            bytes - Bytes(bytes.0.div_ceil(8)).round_up_to(Bytes(512))
        });
        highest = highest.max(ledger.snapshot().total() - spared.sum());
    });
    highest
}

#[test]
fn a_chunked_loss_is_what_the_sizes_say() {
    // Logits of a size that no parameter has.
    let llama = Options { layers: Some(4), batch: Some(3), seq: Some(1000), ..Options::default() };
    for (trace, elements) in
        [(trace("gpt2", &Options::default()), 1024 * 50257), (trace("llama-3-8b", &llama), 3 * 1000 * 128_256)]
    {
        let explanation = explain(&trace);
        let found = remedy(&explanation, RemedyKind::ChunkedLoss).unwrap();
        assert_eq!(found.peak_bytes, chunked(&trace, elements), "{}", trace.origin.model);
    }
}

#[test]
fn state_in_8_bits_is_what_the_parameters_say() {
    let trace = trace("gpt2", &Options::default());
    let explanation = explain(&trace);
    let state = remedy(&explanation, RemedyKind::OptimizerState).unwrap();
    assert_eq!(state.at, explanation.at, "the peak stays where it is, so all that is freed is state");
    let footprint = |bytes: u64| Bytes(bytes).round_up_to(Bytes(512)).0;
    let mut freed = 0;
    let mut seen = std::collections::HashSet::new();
    for parameter in trace.modules().iter().flat_map(|module| &module.parameters) {
        let bytes = trace.storages()[parameter.storage].bytes;
        let elements = bytes / 4;
        if seen.insert(parameter.storage) && elements >= 4096 {
            freed += 2 * (footprint(bytes) - footprint(elements + elements.div_ceil(256) * 4));
        }
    }
    assert_eq!(state.freed_bytes, Bytes(freed));
}

#[test]
fn recomputation_is_the_planners_own() {
    let trace = trace("gpt2", &Options { batch: Some(4), ..Options::default() });
    let device = Device::find("h100").unwrap();
    let costs = Costs::new(&trace, &device, CostRule::Physical).unwrap();
    let problem = Problem::new(trace.clone(), costs.clone(), Limits::default()).unwrap();
    let explanation = explain(&trace);
    let planned = remedy(&explanation, RemedyKind::Checkpointing).unwrap();
    assert!(planned.extra_ms.unwrap().0 <= 0.05 * costs.step().time.0);
    let Outcome { verdict: Verdict::Planned, solution } = problem.exact(planned.peak_bytes) else {
        panic!("its own budget must do")
    };
    assert!(solution.replayed.recompute.0 <= planned.extra_ms.unwrap().0 * (1.0 + 1e-9));
}

/// The total after every operator, as torch's MemTracker counts it, and the operators' names.
fn golden(name: &str) -> (Vec<String>, Vec<u64>, serde_json::Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../rematic-torch/tests/golden/{name}.json.zst"));
    let text = zstd::decode_all(std::fs::read(path).unwrap().as_slice()).unwrap();
    let mut fixture: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let column = |name: &str| fixture["timeline"][name].as_array().unwrap().clone();
    let distinct = column("names");
    let names = column("name")
        .into_iter()
        .map(|at| distinct[usize::try_from(at.as_u64().unwrap()).unwrap()].as_str().unwrap().to_owned());
    let names = names.collect();
    let mut total: u64 = 0;
    let totals = column("total").into_iter().map(|change| {
        total = total.checked_add_signed(change.as_i64().unwrap()).unwrap();
        total
    });
    (names, totals.collect(), fixture["setup"].take())
}

/// Torch's own totals, less what the temporaries of all parameters but the largest take.
#[test]
fn temporaries_are_what_torch_says() {
    let (names, totals, setup) = golden("gpt2-seq-1-math");
    let sqrt = names.iter().position(|name| name == "_foreach_sqrt.default").unwrap();
    assert_eq!(totals.iter().max(), Some(&totals[sqrt]), "the peak is in the optimizer");
    let model = Model::from_config("config.json", &setup["config"].to_string()).unwrap();
    let options = Options {
        batch: setup["batch"].as_u64(),
        seq: setup["seq"].as_u64(),
        dtype: Some(Dtype::F32),
        optimizer: Some(Optimizer::Adam),
        attention: Some(AttentionKernel::Math),
        ..Options::default()
    };
    let trace = model.with(&options).unwrap().trace().unwrap();
    let explanation = explain(&trace);
    assert_eq!(explanation.peak_bytes, Bytes(totals[sqrt]));
    let parameters = trace.modules().iter().flat_map(|module| &module.parameters);
    let largest = parameters.map(|parameter| trace.storages()[parameter.storage].bytes).max().unwrap();
    let spared = totals[sqrt] - totals[sqrt - 1] - Bytes(largest).round_up_to(Bytes(512)).0;
    let expected = totals.iter().map(|&total| if total >= totals[sqrt] { total - spared } else { total }).max();
    let temporaries = remedy(&explanation, RemedyKind::OptimizerTemporaries).unwrap();
    assert_eq!(Some(temporaries.peak_bytes.0), expected);
}
