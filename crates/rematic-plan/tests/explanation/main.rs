//! Explanations of peaks: small steps whose answer is known, and remedies on real models against what is computed in another
//! way.

mod by_hand;
mod models;
mod script;

use rematic_cost::{CostRule, Costs, Device};
use rematic_plan::{Explanation, Limits, Remedy, RemedyKind};
use rematic_replay::Allocator;
use rematic_trace::StepTrace;

/// On an H100, whose data sheet says everything that the rules ask for.
fn explain_with(trace: &StepTrace, allocator: Allocator, world_size: u64) -> Explanation {
    trace.validate().expect("the step breaks a rule");
    let device = Device::find("h100").unwrap();
    let costs = Costs::new(trace, &device, CostRule::Physical).unwrap();
    Explanation::new(trace, world_size, &costs, &device, Limits { allocator, ..Limits::default() }).unwrap()
}

fn remedy(explanation: &Explanation, kind: RemedyKind) -> Option<&Remedy> {
    explanation.remedies.iter().find(|remedy| remedy.kind == kind)
}
