//! A draft says what the replay says, whatever is done to it.

#[path = "../../tests/brute_force/model.rs"]
mod model;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_trace::StepTrace;

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
fn a_draft_agrees_with_the_replay_on_transformers() {
    for name in ["seed-transformer", "gpt2", "llama-3-8b"] {
        let options = Options { layers: Some(3), ..Options::default() };
        let trace = Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
        agrees(name, &problem(trace), 60);
    }
}
