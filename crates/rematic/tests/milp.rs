//! The planner `milp`, replayed.

use rematic_layout::even_shards;
use std::collections::HashMap;

use rematic::{
    Allocator, Bytes, CostRule, Costs, Device, Limits, MilpOptions, MilpOutcome, Model, ModuleGraph, PlanDocument,
    Problem, StepStats, Timeline, Tradeoffs, milp, replay_milp,
};
use rematic_trace::OpId;

/// The shares become decisions about operators that keep no more than they say, and the replay counts them.
#[test]
fn plans_are_replayed() {
    let trace = Model::builtin("seed-transformer").unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
    let stats = StepStats::new(&trace, &Timeline::replay(&trace, Allocator::Cuda), &costs);
    let tradeoffs = Tradeoffs::new(&trace, &costs, Allocator::Cpu).unwrap();
    let graph = ModuleGraph::new(&trace, &stats, &tradeoffs);
    let rank = even_shards(&trace, 4).unwrap();
    let problem = Problem::new(rank.into_owned(), costs.clone(), Limits::default()).unwrap();
    for budget in ["1.6GiB", "1.2GiB", "1GiB"] {
        let options = MilpOptions { world_size: 4, ..MilpOptions::new(budget.parse().unwrap()) };
        let MilpOutcome::Planned(plan) = milp(&graph, &options).unwrap() else { panic!("{budget}") };
        let solution = replay_milp(&problem, &plan, &tradeoffs).unwrap();
        assert_eq!(solution.replayed, problem.replay(&solution.checkpoints));
        assert_eq!(solution.checkpoints.len(), plan.choices.len(), "{budget}");
        assert!(solution.replayed.peak < problem.baseline().peak, "{budget}");
        for (checkpoint, choice) in solution.checkpoints.iter().zip(&plan.choices) {
            let region = &problem.regions().all()[checkpoint.region];
            assert_eq!(trace.path(region.module), choice.fqn);
            let (facts, tradeoff) = tradeoffs.iter().find(|(facts, _)| facts.call == region.call).unwrap();
            let memory: HashMap<OpId, Bytes> =
                facts.decided_ops(&trace).zip(tradeoff.stats.memory.iter().copied()).collect();
            let kept: Bytes = checkpoint.saved.iter().map(|op| memory[op]).sum();
            let allowed = (1.0 - choice.discard) * tradeoff.sac_memory.0 as f64;
            assert!(kept.0 as f64 <= allowed.ceil(), "{budget}: {} keeps {kept}", choice.fqn);
        }
        // The document says the same, and reads back as the same.
        let document = PlanDocument::new(&problem, &solution, options.budget, "a100-80");
        assert_eq!(document.checkpoints(&trace, problem.regions()).unwrap(), solution.checkpoints);
        assert_eq!(document.peak_bytes, solution.replayed.peak);
    }
}
