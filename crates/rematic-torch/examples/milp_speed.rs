//! Times every stage of `milp` on the seed transformer with 32 layers (454 modules), whose plan for 30 GiB takes torch
//! 183 s at a gap of 5 %:
//!
//!     cargo run --release -p rematic-torch --example milp_speed -- [layers] [world size] [budget…]

use std::time::Instant;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_replay::{Allocator, Timeline};
use rematic_torch::{MilpOptions, MilpOutcome, ModuleGraph, StepStats, Tradeoffs, milp};

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let layers = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let world_size = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let mut budgets: Vec<String> = arguments.collect();
    if budgets.is_empty() {
        budgets = vec!["30GiB".to_owned(), "20GiB".to_owned()];
    }
    let options = Options {
        layers: Some(layers),
        dim: Some(4096),
        heads: Some(32),
        vocab: Some(32000),
        batch: Some(1),
        seq: Some(4096),
        ..Options::default()
    };
    let mut clock = Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:.1} ms", clock.elapsed().as_secs_f64() * 1e3);
        clock = Instant::now();
    };
    let trace = Model::builtin("seed-transformer")?.with(&options)?.trace()?;
    lap("trace");
    let costs = Costs::new(&trace, &Device::find("a100-80")?, CostRule::Torch)?;
    lap("costs");
    let stats = StepStats::new(&trace, &Timeline::replay(&trace, Allocator::Cuda), &costs);
    lap("memory");
    let tradeoffs = Tradeoffs::new(&trace, &costs, Allocator::Cpu)?;
    lap("trade-offs");
    let graph = ModuleGraph::new(&trace, &stats, &tradeoffs);
    lap("graph");
    for budget in budgets {
        let outcome = milp(&graph, &MilpOptions { world_size, ..MilpOptions::new(budget.parse()?) })?;
        lap(&format!("milp {budget}"));
        match outcome {
            MilpOutcome::Planned(plan) => println!(
                "  {} modules, recompute {} ms (at least {}), peak {}",
                plan.choices.len(),
                plan.recompute.0,
                plan.lower_bound.0,
                plan.peak
            ),
            other => println!("  {other:?}"),
        }
    }
    Ok(())
}
