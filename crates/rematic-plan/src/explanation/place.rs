use rematic_replay::Ran;
use rematic_trace::{Phase, StepTrace, any_layer};
use serde::Serialize;

use super::flow::Flow;
use super::loss::Loss;
use crate::Solution;
use crate::problem::Problem;

/// Which part of a step a moment belongs to: what decides about its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Before the first operator.
    Start,
    /// Forward or backward of the layers.
    Layers,
    /// The logits, the loss, or their gradients.
    Loss,
    /// The optimizer's step.
    Optimizer,
}

/// A moment of the step, for people and for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// The operator that has just run; `None` for the start of the step.
    pub op: Option<String>,
    /// The module that it belongs to.
    pub module: Option<String>,
    /// The part of the step.
    pub phase: Option<Phase>,
    /// What that is of the model.
    pub moment: Moment,
    /// Whether the operator has run for the second time.
    pub recomputed: bool,
    /// The same in words, as the end of a sentence: `in backward, when the loss's gradient is computed`.
    pub words: String,
}

impl Place {
    /// Where a step peaks without a plan.
    #[must_use]
    pub fn of_baseline(problem: &Problem) -> Self {
        let trace = problem.trace();
        Place::new(trace, Loss::find(trace, &Flow::new(trace)).as_ref(), problem.baseline().at)
    }

    /// Where it peaks under a plan.
    #[must_use]
    pub fn of(problem: &Problem, solution: &Solution) -> Self {
        let trace = problem.trace();
        Place::new(trace, Loss::find(trace, &Flow::new(trace)).as_ref(), solution.replayed.at)
    }

    pub(super) fn new(trace: &StepTrace, loss: Option<&Loss>, at: Option<Ran>) -> Self {
        let Some(ran) = at else {
            let words = "at the start, before the first operator".to_owned();
            return Place { op: None, module: None, phase: None, moment: Moment::Start, recomputed: false, words };
        };
        let op = trace.op(ran.op);
        let module = trace.module_of(op).map(|module| trace.path(module));
        // Behind the model's own name, or the model.
        let named = module.as_deref().map(|path| path.split_once('.').map_or(path, |(_, inner)| inner));
        let of_loss = loss.is_some_and(|loss| loss.contains(trace, ran.op));
        let makes_logits = loss.is_some_and(|loss| loss.projections.contains(&ran.op));
        let words = match (op.phase, named) {
            (Phase::Forward, Some(name)) if ran.again => format!("in backward, when {name} is recomputed"),
            (Phase::Forward, _) if makes_logits => "in forward, when the logits are computed".to_owned(),
            (Phase::Forward, _) if of_loss => "in forward, when the loss is computed".to_owned(),
            (Phase::Forward, Some(name)) => format!("in forward, when {name} runs"),
            (Phase::Forward, None) => "in forward".to_owned(),
            (Phase::Backward, _) if of_loss => "in backward, when the loss's gradient is computed".to_owned(),
            (Phase::Backward, Some(name)) => format!("in the backward of {name}"),
            (Phase::Backward, None) => "in backward".to_owned(),
            (Phase::Optimizer, _) => "when the optimizer steps".to_owned(),
        };
        let moment = match op.phase {
            Phase::Optimizer => Moment::Optimizer,
            _ if of_loss || makes_logits => Moment::Loss,
            _ => Moment::Layers,
        };
        let name = trace.op_name(op).to_owned();
        Place { op: Some(name), module, phase: Some(op.phase), moment, recomputed: ran.again, words }
    }

    /// The module without the root's name, with positions in lists left open; empty if there is none.
    #[must_use]
    pub fn any_layer(&self) -> String {
        self.module.as_deref().map_or_else(String::new, any_layer)
    }
}
