//! Plans without a budget: what PyTorch's allocator reserves has to fit the device.

use rematic::{
    Bytes, CostRule, CostSource, Limits, Options, PlanAnswer, Planner, Source, StepTrace, Study, Target, Verdict,
};

fn traced(batch: u64) -> StepTrace {
    model("seed-transformer", Options { batch: Some(batch), ..Options::default() })
}

fn model(name: &str, options: Options) -> StepTrace {
    Source::open(name).unwrap().trace(&options).unwrap()
}

fn target(usable: Bytes) -> Target {
    let mut target = Target::find("a100-80", None, CostSource::Rule(CostRule::Physical)).unwrap();
    target.device.usable = usable;
    target
}

fn planned(usable: Bytes, planner: Planner) -> PlanAnswer {
    Study::new(traced(8), target(usable), Limits::default()).unwrap().plan(planner, None).unwrap()
}

/// What the plain step needs, to the byte: what it reserves, and the context.
fn needed() -> Bytes {
    let memory = target(Bytes(80 << 30)).memory(&traced(8));
    memory.reserved + memory.context
}

#[test]
fn a_step_fits_to_the_byte() {
    let needed = needed();
    let fits = planned(needed, Planner::Exact);
    assert_eq!((fits.verdict, fits.for_device), (Verdict::Fits, true));
    assert_eq!(fits.document.budget_bytes, needed.saturating_sub(rematic::CONTEXT));
    let one_less = planned(Bytes(needed.0 - 1), Planner::Exact);
    assert_eq!(one_less.verdict, Verdict::Planned);
}

/// Every plan runs without the cache being emptied, as long as there is one; and more memory never costs more time.
#[test]
fn what_is_promised_is_reserved_within_the_device() {
    let needed = needed();
    for planner in [Planner::Exact, Planner::Greedy] {
        let mut last = f64::INFINITY;
        for percent in [62, 70, 80, 90, 99] {
            let usable = Bytes(needed.0 / 100 * percent);
            let found = planned(usable, planner);
            let memory = found.memory.unwrap();
            assert_eq!((found.verdict, memory.retries), (Verdict::Planned, Some(0)), "{percent} % with {planner:?}");
            assert!(memory.reserved + memory.context <= usable && memory.allocated <= memory.reserved);
            assert!(found.replayed.peak <= found.document.budget_bytes);
            assert!(found.document.lower_bound_ms <= found.document.recompute_ms);
            assert!(found.document.recompute_ms.0 <= last * 1.001, "{percent} % with {planner:?}");
            last = found.document.recompute_ms.0;
        }
    }
}

#[test]
fn a_device_that_is_too_small_is_named_with_what_is_missing() {
    let found = planned(Bytes(1200 << 20), Planner::Exact);
    assert_eq!(found.verdict, Verdict::Infeasible);
    assert!(!found.memory.unwrap().fits());
    let text = found.text(rematic::Style::default());
    assert!(text.contains("No plan was found that fits NVIDIA A100 SXM4 80GB: the least reachable peak is "), "{text}");
    assert!(text.contains(" more than its 1.17 GiB"), "{text}");
    assert!(text.contains("Choose a larger device with --device, shard with --fsdp"), "{text}");
}

/// A budget is for tensors: the device is told beside it, and does not decide.
#[test]
fn with_a_budget_the_device_does_not_decide() {
    let study = Study::new(traced(8), target(Bytes(1 << 30)), Limits::default()).unwrap();
    let found = study.plan(Planner::Exact, Some(Bytes(1600 << 20))).unwrap();
    assert_eq!((found.verdict, found.for_device), (Verdict::Planned, false));
    assert!(!found.memory.unwrap().fits());
}

/// The planner that looks at the plans of both finds what the other one finds, for no more time; and neither gives up where
/// the step fits as it is.
#[test]
fn no_planner_is_better_than_exact() {
    let small = |name, layers, batch, seq| {
        let options = Options { layers: Some(layers), batch: Some(batch), seq: Some(seq), ..Options::default() };
        model(name, options)
    };
    for trace in [small("gpt2", 2, 1, 256), small("gpt2", 3, 4, 512), small("seed-transformer", 4, 4, 512)] {
        let plain = target(Bytes(80 << 30)).memory(&trace);
        for percent in (56..=100).step_by(4) {
            let target = target(Bytes(plain.reserved.0 / 100 * percent) + plain.context);
            let just_fits = target.memory(&trace).fits();
            let study = Study::new(trace.clone(), target, Limits::default()).unwrap();
            let found = [Planner::Exact, Planner::Greedy].map(|planner| study.plan(planner, None).unwrap());
            let [exact, greedy] = &found;
            let at = format!("{} at {percent} %", trace.origin.model);
            for found in &found {
                let fits = found.verdict != Verdict::Infeasible;
                assert_eq!(found.memory.unwrap().fits(), fits, "{at}");
                assert!(fits || !just_fits, "{at}");
            }
            if greedy.verdict != Verdict::Infeasible {
                assert_ne!(exact.verdict, Verdict::Infeasible, "{at}");
                let easy = |found: &PlanAnswer| found.memory.unwrap().retries == Some(0);
                assert!(!easy(greedy) || easy(exact), "{at}");
                if easy(greedy) {
                    assert!(exact.document.recompute_ms.0 <= greedy.document.recompute_ms.0 * 1.001, "{at}");
                }
            }
        }
    }
}

/// What the process is allowed of the device is what it has.
#[test]
fn a_fraction_of_the_device_is_a_limit() {
    let trace = traced(8);
    let mut target = target(Bytes(80 << 30));
    target.settings = "per_process_memory_fraction:0.025".parse().unwrap();
    assert_eq!(target.room(), Bytes(2 << 30));
    assert!(!target.memory(&trace).fits());
    let found = Study::new(trace, target, Limits::default()).unwrap().plan(Planner::Exact, None).unwrap();
    assert_eq!(found.verdict, Verdict::Planned);
    assert!(found.memory.unwrap().reserved <= Bytes(2 << 30));
}

/// A planner that knows nothing of the allocator is held to what it reserves.
#[test]
fn milp_is_held_to_the_device() {
    let needed = needed();
    let milp = Planner::Milp(rematic::MilpSettings::default());
    assert_eq!(planned(needed, milp).verdict, Verdict::Fits);
    let tight = planned(Bytes(needed.0 / 100 * 93), milp);
    assert_eq!(tight.verdict != Verdict::Infeasible, tight.memory.unwrap().fits());
}
