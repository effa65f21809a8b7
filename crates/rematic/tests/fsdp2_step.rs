//! One rank's step under FSDP2, by hand: bytes that were worked out on paper, and every verb of the command line.

#[path = "../../rematic-trace/tests/fsdp2/mod.rs"]
mod fsdp2;

use std::process::{Command, Output};

use fsdp2::{HIDDEN, SHARD, WEIGHT};
use rematic_replay::{Allocator, Clock, Ledger, Schedule, Timeline};
use rematic_trace::{Category, Millis, OpId, StepTrace, StreamId};
use serde_json::Value;

/// Shares of two weights (256 each), two averages for each (256 each), and the batch (512). The gathered weights are
/// released.
const START: u64 = 2 * SHARD + 4 * SHARD + HIDDEN;

/// After every operator, and how it comes about. The weights (1024) come back before their copy-out and go after their
/// layer.
const TOTALS: [(&str, u64); 25] = [
    ("_allgather_base_.default", 3072),  // 2048 at the start + the first buffer, 1024
    ("split_with_sizes_copy.out", 4096), // + the first weight
    ("mm.default", 4608),                // + its output, 512, which silu saves
    ("silu.default", 5120),              // + 512; then the weight is released: 4096
    ("_allgather_base_.default", 5120),  // + the second buffer; then the first goes: 4096
    ("split_with_sizes_copy.out", 5120), // + the second weight
    ("mm.default", 5632),                // + 512
    ("silu.default", 6144),              // + 512; weight released, buffer dropped: 4096
    ("sum.default", 4100),               // + 4
    ("ones_like.default", 4104),         // + 4; then the output goes: 3592
    ("_allgather_base_.default", 4616),  // backward: the second buffer again
    ("split_with_sizes_copy.out", 5640), // + the second weight; then the buffer goes: 4616
    ("_allgather_base_.default", 5640),  // the first layer's buffer, ahead of time
    ("expand.default", 5640),            // a view
    ("silu_backward.default", 6152),     // + 512; then what silu saved goes: 5640
    ("mm.default", 6664),                // + the weight's gradient, 1024
    ("mm.default", 7176),                // + the input's, 512: the peak. Then mm's input (512), the gradient
    // behind silu (512) and the weight (1024) go: 5128
    ("_chunk_cat.out", 6152),                // + 1024; then the gradient goes: 5128
    ("_reduce_scatter_base_.default", 5384), // + its share, 256
    ("split_with_sizes_copy.out", 6408),     // + the first weight; then its buffer goes: 5384
    ("silu_backward.default", 5896),         // + 512; what silu saved and the input's gradient go: 4872
    ("mm.default", 5896),                    // + 1024; then 512, the weight, and the second layer's buffer go: 3336
    ("_chunk_cat.out", 4360),                // + 1024; then the gradient goes: 3336
    ("_reduce_scatter_base_.default", 3592), // + 256; then buffer, seed and loss go: 2560
    ("_fused_adam_.default", 2560),          // the start and two gradients of 256
];

#[test]
fn every_total_is_as_on_paper() {
    let trace = fsdp2::step();
    assert_eq!(trace.validate(), Ok(()));
    let timeline = Timeline::replay(&trace, Allocator::Cpu);
    assert_eq!((START, timeline.start().total().0), (2048, 2048));
    let names = trace.ops().iter().map(|op| trace.op_name(op));
    let totals: Vec<(&str, u64)> = names.zip(timeline.totals().iter().map(|total| total.0)).collect();
    assert_eq!(totals, TOTALS);
    assert_eq!(timeline.end(), timeline.start());
    let peak = &timeline.peak().snapshot;
    assert_eq!(peak[Category::Parameter].0, 2 * SHARD + WEIGHT);
    assert_eq!((peak[Category::Optimizer].0, peak[Category::Gradient].0), (4 * SHARD, 0));
}

/// If a collective takes 4 ms and a kernel 1 ms. Forward: the first gather ends at 4 and the first layer at 7, so the second
/// layer waits for its gather until 8, and forward is over at 13, which hides the gather that backward begins with. The other
/// one ends at 16, while the second layer runs until 18. Its reduce-scatter ends at 22; the first layer runs from 18 to 21,
/// waits for it, and packs its gradient until 23; the last reduce-scatter ends at 27, and the optimizer at 28.
#[test]
fn every_stream_is_done_as_on_paper() {
    let trace = fsdp2::step();
    let time_of = |op: OpId| match trace.op(op) {
        op if op.collective.is_some() => Millis(4.0),
        op if op.flags.view => Millis(0.0),
        _ => Millis(1.0),
    };
    let start = Ledger::new(&trace, Allocator::Cpu);
    let mut clock = Clock::new(&trace, time_of);
    Schedule::plain(&trace, &start).replay(&mut clock);
    let done: Vec<f64> = (0..trace.streams().len()).map(|stream| clock.done(StreamId::new(stream)).0).collect();
    assert_eq!(trace.streams().items(), ["compute", "all_gather", "reduce_scatter"]);
    assert_eq!(done, [28.0, 16.0, 27.0]);
    assert_eq!(clock.end(), Millis(28.0));
    // Until 4 and 8 for gathers, until 22 and 27 for reduce-scatters; 18 kernels run in between.
    assert_eq!(clock.exposed(), Millis(4.0 + 1.0 + 1.0 + 4.0));
    assert_eq!(clock.phases(), [Millis(13.0), Millis(14.0), Millis(1.0)]);
    let directly = Clock::after(&trace, time_of);
    assert_eq!((directly.end(), directly.exposed(), directly.phases()), (clock.end(), clock.exposed(), clock.phases()));
    let one_after_the_other: f64 = (0..trace.ops().len()).map(|op| time_of(OpId::new(op)).0).sum();
    assert_eq!(one_after_the_other, 42.0);
}

fn rematic(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rematic")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = rematic(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_command_line_reads_plans_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let trace = fsdp2::step();
    for name in ["step.rmt", "step.rmt.zst"] {
        trace.write(path(name).as_ref()).unwrap();
        assert!(StepTrace::read(path(name).as_ref()).unwrap() == trace, "{name}");
    }
    let (step, plan, page) = (path("step.rmt.zst"), path("plan.json"), path("page.html"));
    let stats = json(&["stats", &step, "--allocator", "cpu"]);
    assert_eq!(stats["peak"]["total"], 7176);
    let planned = json(&["plan", &step, "--allocator", "cpu", "--budget", "7176", "-o", &plan]);
    assert_eq!((&planned["baseline_peak_bytes"], &planned["peak_bytes"]), (&7176.into(), &7176.into()), "{planned}");
    assert_eq!(json(&["replay", &step, "--plan", &plan, "--allocator", "cpu"])["peak_bytes"], 7176);
    assert!(!json(&["curve", &step, "--allocator", "cpu", "--points", "3"]).is_null());
    let explained = json(&["explain", &step, "--allocator", "cpu"]);
    assert_eq!(explained["peak_bytes"], 7176);
    let kinds: Vec<&str> =
        explained["remedies"].as_array().unwrap().iter().map(|remedy| remedy["kind"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"sharding"), "its share is what the step has: {kinds:?}");
    let output = rematic(&["report", &step, "--allocator", "cpu", "-o", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(&page).unwrap().contains("two layers under FSDP2"));
    // What a copy-out writes are the weights that were there before, so what was computed from them can run again: silu's
    // input of the first layer, 512 bytes, is gone while the second is in backward.
    let planned = json(&["plan", &step, "--allocator", "cpu", "--budget", "6700"]);
    assert_eq!(
        (&planned["peak_bytes"], &planned["regions"][0]["module"]),
        (&6664.into(), &"Model.0".into()),
        "{planned}"
    );
}

/// A rank's step has its share already: dividing once more would promise what no run keeps.
#[test]
fn a_ranks_step_is_not_spread_again() {
    let folder = tempfile::tempdir().unwrap();
    let step = folder.path().join("step.rmt");
    fsdp2::step().write(&step).unwrap();
    for verb in [vec!["plan", "--budget", "1MiB"], vec!["explain"], vec!["curve"]] {
        let output = rematic(&[&verb[..], &[step.to_str().unwrap(), "--world-size", "8"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb:?}: {said}");
        assert!(said.contains("world") && said.contains("is 8; give 1: the trace is the step of one rank"), "{said}");
    }
}

/// A plan remembers how its step was sharded: whoever is given it says the same of it, without being told again.
#[test]
fn every_verb_says_the_same_of_a_sharded_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plan, page, saved) = (path("plan.json"), path("page.html"), path("rank.rmt.zst"));
    let model = ["seed-transformer", "--batch", "16"];
    for sharding in ["--fsdp 4", "--fsdp 4 --fsdp-rank 3 --reshard no", "--fsdp 2 --replicate 2"] {
        let sharding: Vec<&str> = sharding.split(' ').collect();
        let step = [&model[..], &sharding].concat();
        let whole = json(&[&["stats"], &step[..]].concat())["peak"]["total"].as_u64().unwrap();
        let budget = (whole * 9 / 10).to_string();
        let planned = json(&[&["plan"], &step[..], &["--budget", &budget, "-o", &plan]].concat());
        let peak = &planned["peak_bytes"];
        assert!(peak.as_u64().unwrap() <= whole * 9 / 10, "{sharding:?}: {planned}");
        assert_eq!(&json(&[&["replay"], &model[..], &["--plan", &plan]].concat())["peak_bytes"], peak, "{sharding:?}");
        assert_eq!(&json(&[&["replay"], &step[..], &["--plan", &plan]].concat())["peak_bytes"], peak, "{sharding:?}");
        // A rank's saved step is that step.
        let output = rematic(&[&["trace"], &step[..], &["-o", &saved]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(json(&["stats", &saved])["peak"]["total"], whole, "{sharding:?}");
        assert_eq!(&json(&["replay", &saved, "--plan", &plan])["peak_bytes"], peak, "{sharding:?}");
        for source in [&[&model[..], &["--plan", &plan]].concat()[..], &[plan.as_str()]] {
            let output = rematic(&[&["report"], source, &["-o", &page]].concat());
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains(&format!("\"peak_bytes\":{peak}")), "{sharding:?} {source:?}");
        }
    }
}
