//! Step time, exposed communication, tokens per second and MFU.

use std::collections::HashMap;
use std::process::{Command, Output};

use rematic::{ChromeTrace, CostRule, CostSource, Fsdp2, Limits, Options, Pace, Source, StepTrace, Study, Target};
use serde_json::Value;

const SEQ: u64 = 256;
const BATCH: u64 = 2;

fn llama(layers: u64) -> StepTrace {
    let options = Options { layers: Some(layers), seq: Some(SEQ), batch: Some(BATCH), ..Options::default() };
    Source::open("llama-3-8b").unwrap().trace(&options).unwrap()
}

fn target() -> Target {
    Target::find("h100", None, CostSource::Rule(CostRule::Physical)).unwrap()
}

fn sharded(trace: &StepTrace, how: &Fsdp2) -> StepTrace {
    rematic::fsdp2(trace, how, &rematic::fsdp2_layers(trace)).unwrap()
}

fn study(trace: StepTrace, target: Target) -> Study {
    Study::new(trace, target, Limits::default()).unwrap()
}

fn pace(trace: StepTrace, target: Target) -> Pace {
    *study(trace, target).pace()
}

/// 6 per token and multiplied parameter, and 12 · layers · width · positions per token for attention.
#[test]
fn flops_are_those_of_the_usual_rule() {
    let layers = 3;
    let trace = llama(layers);
    let parameters = trace.modules().iter().filter(|module| module.class == "Linear").flat_map(|m| &m.parameters);
    let multiplied: u64 = parameters.map(|parameter| trace.layouts()[parameter.layout].elements()).sum();
    let attention = 12 * layers * 4096 * SEQ;
    let expected = u128::from((6 * multiplied + attention) * SEQ * BATCH);
    let alone = pace(trace.clone(), target());
    assert_eq!(alone.flops.0, expected);
    let mfu = expected as f64 / (alone.step.0 / 1e3 * 989e12);
    assert!((alone.mfu.unwrap() - mfu).abs() < 1e-12);
    // Each of several has a batch of its own, and computes as much.
    let one_of_eight = pace(sharded(&trace, &Fsdp2::over(8)), target());
    assert_eq!(one_of_eight.flops, alone.flops);
    assert_eq!((alone.tokens, one_of_eight.tokens), (Some(SEQ * BATCH), Some(8 * SEQ * BATCH)));
}

#[test]
fn alone_a_step_is_the_sum_of_its_operators() {
    let study = study(llama(2), target());
    let (pace, costs) = (study.pace(), study.costs());
    assert_eq!((pace.step, pace.exposed.0, pace.communicates), (costs.step().time, 0.0, false));
    assert!((pace.phases.iter().map(|phase| phase.0).sum::<f64>() / pace.step.0 - 1.0).abs() < 1e-12);
}

#[test]
fn what_is_not_hidden_is_what_the_compute_stream_waits() {
    let trace = llama(4);
    let over = |device: &str, ranks: u32| {
        let target = Target::find(device, None, CostSource::Rule(CostRule::Physical)).unwrap();
        let study = study(sharded(&trace, &Fsdp2::over(ranks)), target);
        let computed: f64 = {
            let ops = study.trace().ops().entries().filter(|(_, op)| op.stream == rematic_trace::StreamId::COMPUTE);
            ops.map(|(id, _)| study.costs().time(id).0).sum()
        };
        let pace = *study.pace();
        assert!((pace.step.0 - pace.exposed.0 - computed).abs() < 1e-9 * pace.step.0, "{pace:?} for {computed}");
        pace
    };
    let (nvlink, pcie) = (over("h100", 8), over("h100-pcie", 8));
    assert!(nvlink.exposed.0 > 0.0 && pcie.exposed.0 > 3.0 * nvlink.exposed.0, "{nvlink:?} {pcie:?}");
}

#[test]
fn slower_links_never_make_a_step_faster() {
    let trace = sharded(&llama(4), &Fsdp2::over(16));
    let with = |link: &str, network: &str, nodes: u32| {
        let target = target().connected(Some(link.parse().unwrap()), Some(network.parse().unwrap()), Some(nodes));
        pace(trace.clone(), target).step.0
    };
    let mut before = 0.0;
    for (link, network, nodes) in [
        ("nvlink5", "xdr", 1),
        ("nvlink4", "xdr", 1),
        ("nvlink4", "xdr", 2),
        ("nvlink4", "hdr", 2),
        ("nvlink4", "hdr", 16),
        ("pcie3", "1", 16),
    ] {
        let step = with(link, network, nodes);
        assert!(step >= before, "{link} {network} {nodes}: {step} after {before}");
        before = step;
    }
}

/// The optimizer waits for the reduction between replicas, too.
#[test]
fn replicas_are_reduced_before_the_optimizer() {
    let trace = llama(2);
    let flat = sharded(&trace, &Fsdp2::over(8));
    let replicated = sharded(&trace, &Fsdp2 { replicas: 8, ..Fsdp2::over(8) });
    let slow = || target().connected(None, Some("1".parse().unwrap()), None);
    let (flat, replicated) = (pace(flat, slow()), pace(replicated, slow()));
    assert!((replicated.phases[2].0 / flat.phases[2].0 - 1.0).abs() < 1e-9, "{replicated:?} {flat:?}");
    assert!(replicated.phases[1].0 > 1.5 * flat.phases[1].0, "{replicated:?} {flat:?}");
    assert_eq!(replicated.devices, 64);
}

#[test]
fn a_chrome_trace_has_streams_beside_each_other() {
    let study = study(sharded(&llama(2), &Fsdp2::over(8)), target());
    let recording = &study.problem().unwrap().record(&[]);
    let mut text = Vec::new();
    ChromeTrace { trace: study.trace(), costs: study.costs(), recording }.write(&mut text).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    let mut ends: HashMap<u64, f64> = HashMap::new();
    let mut names = Vec::new();
    for event in document["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" {
            let (begin, end) = (number(event, "ts"), ends.entry(event["tid"].as_u64().unwrap()).or_default());
            assert!(begin >= *end - 1e-6, "slices of a track do not overlap: {event} after {end}");
            *end = begin + number(event, "dur");
        } else if event["name"] == "thread_name" {
            names.push(event["args"]["name"].as_str().unwrap().to_owned());
        }
    }
    let streams = ["all_gather_copy_in", "all_gather", "reduce_scatter"];
    assert!(streams.iter().all(|stream| names.iter().any(|name| name == stream)), "{names:?}");
    let last = ends.values().copied().fold(0.0, f64::max);
    assert!((last / 1e3 - study.pace().step.0).abs() < 1e-5, "{last} µs for {:?}", study.pace());
}

fn rematic(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rematic")).args(arguments.split(' ')).output().unwrap()
}

fn json(arguments: &str) -> Value {
    let output = rematic(&format!("{arguments} --json"));
    assert_eq!(output.status.code(), Some(0), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(answer: &Value, field: &str) -> f64 {
    answer[field].as_f64().unwrap_or_else(|| panic!("{field} of {answer}"))
}

#[test]
fn every_verb_says_it() {
    let step = "llama-3-8b --layers 4 --seq 2048 --batch 1 --fsdp 8";
    let stats = json(&format!("stats {step}"));
    let tokens = 8.0 * 2048.0 / number(&stats, "step_ms") * 1e3;
    assert!((number(&stats, "tokens_per_second") / tokens - 1.0).abs() < 1e-9);
    assert!((number(&stats, "tokens_per_second_per_gpu") * 8.0 / tokens - 1.0).abs() < 1e-9);
    assert!(number(&stats, "exposed_ms") > 0.0 && (0.0..1.0).contains(&number(&stats, "mfu")));
    let plan = json(&format!("plan {step} --budget 8GiB"));
    assert_eq!((&plan["outcome"], &plan["step_ms"]), (&"planned".into(), &stats["step_ms"]));
    assert!(number(&plan, "planned_step_ms") > number(&plan, "step_ms"));
    assert!(number(&plan, "mfu") < number(&stats, "mfu") && plan["flops"] == stats["flops"]);
    assert!(number(&plan, "tokens_per_second") < tokens);
    let curve = json(&format!("curve {step} --points 3"));
    assert_eq!((&curve["step_ms"], &curve["points"][0]["step_ms"]), (&stats["step_ms"], &stats["step_ms"]));
    assert!(number(&curve["points"][2], "step_ms") > number(&stats, "step_ms"));
}

#[test]
fn what_cannot_be_is_said() {
    for (arguments, said) in [
        ("--fsdp 8 --nodes 3", "error: --nodes 3 spreads 8 GPUs unevenly; give a number that divides 8"),
        ("--fsdp 8 --nodes 16", "error: --nodes 16 spreads 8 GPUs unevenly; give a number that divides 8"),
        (
            "--fsdp 8 --reshard auto",
            "--reshard auto chooses together with a plan, so it is for the verb plan; give yes or no",
        ),
        ("--nodes 2", "error: --nodes 2 spreads 1 GPU unevenly; give a number that divides 1"),
        (
            "--link nvlink9",
            "`nvlink9` is none; give nvlink2, nvlink3, nvlink4, nvlink5, pcie3, pcie4, pcie5, or a number of GB per second such as 370",
        ),
        ("--network -3", "`-3` is none; give edr, hdr, ndr, xdr, or a number of GB per second such as 50"),
    ] {
        let output = rematic(&format!("stats gpt2 {arguments}"));
        let found = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{found}");
        assert!(found.contains(said), "{found}");
    }
}

/// At five budgets: never slower than with all weights resharded, or with none; and the plan says what it keeps.
#[test]
fn chosen_resharding_is_never_slower() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let step = "llama-3-8b --layers 8 --seq 2048 --batch 1 --fsdp 16 --nodes 4 --network 12.5";
    let mut kept = Vec::new();
    for budget in ["7GiB", "8GiB", "9GiB", "10GiB", "40GiB"] {
        let plan = |reshard: &str| {
            let output =
                rematic(&format!("plan {step} --budget {budget} --reshard {reshard} --json -o {}", file.display()));
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            (answer["outcome"] != "infeasible").then(|| number(&answer, "planned_step_ms"))
        };
        let others = [plan("yes"), plan("no")];
        let chosen = plan("auto");
        assert!(others.iter().flatten().all(|other| chosen.unwrap() <= *other), "{budget}: {chosen:?} {others:?}");
        if chosen.is_some() {
            let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            let facts = document["facts"].as_array().unwrap().clone();
            kept.push(
                facts.iter().find(|fact| fact[0] == "gathered" || fact[0] == "reshard").map(|fact| fact[1].clone()),
            );
            let replayed =
                json(&format!("replay llama-3-8b --layers 8 --nodes 4 --network 12.5 --plan {}", file.display()));
            assert_eq!(Some(number(&replayed, "planned_step_ms")), chosen);
        }
    }
    assert!(kept.len() == 5 && kept.iter().all(Option::is_some), "{kept:?}");
}
