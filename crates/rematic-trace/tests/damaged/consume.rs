//! Reads bytes as a trace and, if they are one, runs every stage on it. Shared with the fuzz target `read_trace`.

use std::path::Path;

use rematic::{CostSource, Dtype, Fsdp2, Target, fsdp2, fsdp2_layers, replay_milp};
use rematic_cost::{CostRule, Costs, Device, ModuleTimes};
use rematic_plan::{Explanation, Limits, Outcome, PlanDocument, Problem};
use rematic_replay::{Allocator, Timeline};
use rematic_report::{ExplanationReport, Setup, StatsReport, Style};
use rematic_torch::{MilpOptions, MilpOutcome, ModuleGraph, StepStats, Tradeoffs, milp};
use rematic_trace::{Bytes, StepTrace, Verdict};

/// Whether the bytes are a trace. Panics only if Rematic does, or if a result contradicts itself.
pub(crate) fn consume(bytes: &[u8]) -> bool {
    let Ok(trace) = StepTrace::from_bytes(bytes, Path::new("damaged.rmt")) else { return false };
    let mut text = Vec::new();
    trace.to_writer(&mut text).unwrap();
    assert!(StepTrace::from_json(&text, Path::new("again.rmt")).unwrap() == trace, "a trace reads back as written");
    let device = Device::find("h100").unwrap();
    for (allocator, rule) in [(Allocator::Cuda, CostRule::Physical), (Allocator::Cpu, CostRule::Torch)] {
        let timeline = Timeline::replay(&trace, allocator);
        assert!(timeline.totals().iter().all(|total| *total <= timeline.peak().total()));
        // A type without a rate on the device is a fair answer.
        let Ok(costs) = Costs::new(&trace, &device, rule) else { continue };
        let times = ModuleTimes::new(&trace, &costs);
        assert!(times.forward().iter().chain(times.backward()).all(|time| time.0.is_finite() && time.0 >= 0.0));
        let stats = StepStats::new(&trace, &timeline, &costs);
        let target = Target::find("h100", None, CostSource::Rule(rule)).unwrap();
        let memory = (allocator == Allocator::Cuda).then(|| target.memory(&trace));
        if let Some(memory) = &memory {
            assert!(memory.allocated <= memory.reserved);
        }
        let (timeline, costs, stats, memory) = (&timeline, &costs, &stats, memory.as_ref());
        let report = StatsReport { trace: &trace, timeline, costs, stats, device: &device, memory, pace: None };
        assert!(report.json(true).ends_with("}\n"));
        assert!(report.text(Style::default()).contains("Peak"));
        plan(&trace, costs, stats, allocator);
        explain(&trace, costs, &device, allocator);
    }
    shard(&trace);
    true
}

/// What FSDP2 makes of it, if it can, is a step.
fn shard(trace: &StepTrace) {
    let how = Fsdp2 { rank: 2, ..Fsdp2::over(3) };
    let mixed = Fsdp2 { shards: Some(Dtype::F32), ..how };
    for made in [how, mixed].iter().filter_map(|how| fsdp2(trace, how, &fsdp2_layers(trace)).ok()) {
        let timeline = Timeline::replay(&made, Allocator::Cuda);
        assert!(timeline.totals().iter().all(|total| *total <= timeline.peak().total()));
    }
}

fn explain(trace: &StepTrace, costs: &Costs, device: &Device, allocator: Allocator) {
    let limits = Limits { allocator, ..Limits::default() };
    let explanation = Explanation::new(&Problem::new(trace.clone(), costs.clone(), limits).unwrap(), trace, device);
    assert_eq!(explanation.residents.iter().map(|group| group.bytes).sum::<Bytes>(), explanation.peak_bytes);
    for remedy in &explanation.remedies {
        assert_eq!(remedy.peak_bytes + remedy.freed_bytes, explanation.peak_bytes);
        assert!(remedy.extra_ms.is_none_or(|extra| extra.0.is_finite() && extra.0 >= 0.0));
    }
    let setup = Setup::new(trace, &device.name);
    let report = ExplanationReport {
        setup: &setup,
        explanation: &explanation,
        device,
        memory: None,
        budget: None,
        settings: &[],
        measured: None,
        compiled: None,
    };
    assert!(report.json().ends_with("}\n") && report.text(Style::default()).contains("The peak is"));
}

/// Every planner, for a budget that may or may not be reached.
fn plan(trace: &StepTrace, costs: &Costs, stats: &StepStats, allocator: Allocator) {
    let problem = Problem::new(trace.clone(), costs.clone(), Limits { allocator, ..Limits::default() }).unwrap();
    assert_eq!(problem.record(&[]).peak().map_or(problem.baseline().peak, |(_, peak)| peak), problem.baseline().peak);
    let budget = Bytes(problem.baseline().peak.0 / 10 * 9);
    for outcome in [problem.exact(budget), problem.greedy(budget)] {
        let Outcome { verdict: Verdict::Planned, solution } = outcome else { continue };
        assert!(solution.replayed.peak <= budget);
        let document = PlanDocument::new(&problem, &solution, budget, "h100");
        assert_eq!(document.checkpoints(trace, problem.regions()).unwrap(), solution.checkpoints);
    }
    // Sizes that add up to more than 64 bits are a fair answer.
    let Ok(tradeoffs) = Tradeoffs::new(trace, costs, allocator) else { return };
    let graph = ModuleGraph::new(trace, stats, &tradeoffs);
    let budget = Bytes(graph.peak(1).0 / 10 * 9);
    if let Ok(MilpOutcome::Planned(plan)) = milp(&graph, &MilpOptions::new(budget)) {
        let solution = replay_milp(&problem, &plan, &tradeoffs).unwrap();
        let document = PlanDocument::new(&problem, &solution, budget, "h100");
        assert_eq!(document.checkpoints(trace, problem.regions()).unwrap(), solution.checkpoints);
    }
}
