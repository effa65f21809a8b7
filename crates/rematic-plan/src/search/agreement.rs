//! A draft says what the replay says, whatever is done to it.

#[path = "../../tests/brute_force/model.rs"]
mod model;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_trace::{Op, Phase, StepTrace};

use super::{Draft, Search};
use crate::search::Goal;
use crate::{Limits, Problem};

fn problem(trace: StepTrace) -> Problem {
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    Problem::new(trace, costs, Limits::default()).unwrap()
}

/// Changes a plan at random, and compares after every step.
fn agrees(name: &str, problem: &Problem, steps: usize) {
    if problem.nodes.is_empty() {
        return;
    }
    let mut search = Search::new(problem, Goal::Peak);
    for step in 0..steps {
        let draft = search.wander();
        let plan = draft.write();
        let replayed = problem.replay(&plan);
        assert_eq!(draft.peak(), replayed.peak.0, "{name}, step {step}: {plan:?}");
        let difference = (draft.time() - replayed.recompute.0).abs();
        assert!(difference <= 1e-9 * (1.0 + replayed.recompute.0), "{name}, step {step}: {plan:?}");
    }
    let (axis, lives) = problem.moments_of_plans();
    let mut draft = Draft::new(problem, axis, lives);
    let wandered = search.wander();
    draft.read(&wandered.write());
    assert_eq!((draft.peak(), draft.write()), (wandered.peak(), wandered.write()), "{name}");
}

#[test]
fn a_draft_agrees_with_the_replay_on_random_models() {
    for seed in 0..60 {
        let Some(trace) = model::step_with(seed, 20) else { continue };
        agrees(&format!("seed {seed}"), &problem(trace), 60);
    }
}

#[test]
fn a_draft_agrees_with_the_replay_where_memory_is_changed_in_place() {
    let mut changed = 0;
    for seed in 0..120 {
        let Some(trace) = model::step_in_place(seed, 20) else { continue };
        assert_eq!(trace.validate(), Ok(()), "seed {seed}");
        let in_place = |op: &Op| op.phase == Phase::Forward && !trace.mutates(op).is_empty();
        changed += trace.ops().iter().filter(|op| in_place(op)).count();
        agrees(&format!("seed {seed} in place"), &problem(trace), 60);
    }
    assert!(changed > 300, "{changed}");
}

#[test]
fn a_draft_agrees_with_the_replay_on_transformers() {
    for name in ["seed-transformer", "gpt2", "llama-3-8b"] {
        let options = Options { layers: Some(3), ..Options::default() };
        let trace = Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
        agrees(name, &problem(trace), 60);
    }
}
