//! Explanations of peaks: small steps whose answer is known, and remedies on real models against what is computed in another
//! way.

mod by_hand;
mod models;
mod script;

use rematic_cost::{CostRule, Costs, Device};
use rematic_layout::even_shards;
use rematic_plan::{Explanation, Limits, Problem, Remedy, RemedyKind};
use rematic_replay::Allocator;
use rematic_trace::StepTrace;

/// On an H100, whose data sheet says everything that the rules ask for.
fn explain_with(trace: &StepTrace, allocator: Allocator, world_size: u64) -> Explanation {
    trace.validate().expect("the step breaks a rule");
    let device = Device::find("h100").unwrap();
    let rank = even_shards(trace, world_size).unwrap().into_owned();
    let costs = Costs::new(&rank, &device, CostRule::Physical).unwrap();
    let problem = Problem::new(rank, costs, Limits { allocator, ..Limits::default() }).unwrap();
    Explanation::new(&problem, trace, &device)
}

fn remedy(explanation: &Explanation, kind: RemedyKind) -> Option<&Remedy> {
    explanation.remedies.iter().find(|remedy| remedy.kind == kind)
}
