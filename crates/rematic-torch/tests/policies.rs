//! Policies for the regions of a real model.

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::Model;
use rematic_replay::Allocator;
use rematic_torch::{TorchError, Tradeoffs, optimal_policy};
use rematic_trace::Decision;

/// Regions of up to 453 operators, with nine shares each.
#[test]
fn more_memory_never_costs_more_time() {
    let trace = Model::builtin("gpt2").unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
    for (_, tradeoff) in Tradeoffs::new(&trace, &costs, Allocator::Cuda).unwrap().iter() {
        let stats = &tradeoff.stats;
        let mut last = 0.0;
        for tenths in 1..=9 {
            let fraction = f64::from(tenths) / 10.0;
            let policy = match optimal_policy(stats, fraction) {
                Ok(policy) => policy,
                Err(TorchError::PolicyTooSmall { .. }) if stats.force_store_random => continue,
                Err(error) => panic!("{error}"),
            };
            let saved = || (0..stats.len()).filter(|&op| policy[op] == Decision::Save);
            let memory: u64 = saved().map(|op| stats.memory[op].0).sum();
            let time: f64 = saved().map(|op| stats.runtimes[op].0).sum();
            assert!(memory as f64 <= (fraction * tradeoff.sac_memory.0 as f64).ceil());
            assert!(time >= last * (1.0 - 1e-12), "{fraction}: {time} after {last}");
            last = time;
        }
    }
}
