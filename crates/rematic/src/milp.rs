//! Torch's planner, asked about a step: its shares become decisions about operators, and a replay says what they do.

use std::collections::HashMap;

use rematic_plan::{Limits, Problem, Replayed, Solution, Writes, nearest_saved};
use rematic_replay::{Allocator, Checkpoint};
use rematic_torch::{MilpOptions, MilpOutcome, MilpPlan, ModuleGraph, TorchError, Tradeoffs, milp, nearest_policy};
use rematic_trace::{Bytes, Decision, Millis};

use crate::error::Error;
use crate::planning::{MilpSettings, PlanAnswer};
use crate::study::Study;

/// What torch's model of memory says about a step and its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct MilpAnswer {
    /// What the planner found.
    pub outcome: MilpOutcome,
    /// The highest point if nothing is dropped.
    pub baseline: Bytes,
    /// The step as it is, replayed.
    pub replayed_baseline: Replayed,
}

impl Study {
    /// Torch's `sac_milp`: it plans by its own idea of the peak; the replay then says what the plan does.
    pub(crate) fn milp(&self, settings: MilpSettings, budget: Bytes) -> Result<PlanAnswer, Error> {
        if self.limits.whole {
            return Err(Error::WholeMilp);
        }
        let problem = self.problem()?;
        self.limits.cancel.catch(|| {
            // The step of a rank has its own share already.
            let ranks = if self.whole.place.axes.is_empty() { self.target.ranks } else { 1 };
            let mut options = milp_options(ranks, &self.limits, settings, budget)?;
            let chosen = !self.limits.only.is_empty() || !self.limits.never.is_empty();
            options.ac_units = chosen.then(|| problem.checkpointable());
            let (graph, tradeoffs) = self.module_graph()?;
            let found = MilpAnswer {
                outcome: milp(&graph, &options)?,
                baseline: graph.peak(options.world_size),
                replayed_baseline: problem.baseline().clone(),
            };
            let solution = match &found.outcome {
                MilpOutcome::Planned(plan) => bounded(problem, replay_milp(problem, plan, &tradeoffs)?, budget),
                MilpOutcome::Fits { .. } | MilpOutcome::Infeasible { .. } => problem.unplanned(),
            };
            let memory = self.memory_under(problem, &solution.checkpoints);
            let answer = self.answer(problem, (found.outcome.verdict(), solution), budget, memory);
            Ok(PlanAnswer { milp: Some(found), ..answer })
        })?
    }

    /// The step as torch's planner sees it.
    fn module_graph(&self) -> Result<(ModuleGraph, Tradeoffs), Error> {
        // Torch counts what it traced on the meta device, without rounding.
        let rounding = if self.target.cost.is_torch() { Allocator::Cpu } else { self.allocator() };
        let tradeoffs = Tradeoffs::new(&self.whole, &self.costs, rounding)?;
        Ok((ModuleGraph::new(&self.whole, &self.statistics().stats, &tradeoffs), tradeoffs))
    }
}

/// Torch's model spreads parameters and gradients by itself.
fn milp_options(ranks: u64, limits: &Limits, settings: MilpSettings, budget: Bytes) -> Result<MilpOptions, Error> {
    let mut options = MilpOptions::new(budget);
    options.world_size = u32::try_from(ranks).map_err(|_| TorchError::Setting {
        setting: "world_size",
        found: ranks.to_string(),
        needed: "at most 4294967295 to the planner milp",
    })?;
    options.gap = settings.gap.unwrap_or(options.gap);
    options.time_limit = settings.time_limit.or(options.time_limit);
    options.cancelled = limits.cancel.flag();
    Ok(options)
}

/// Torch's bound is one for its own model; a document's is for all plans.
fn bounded(problem: &Problem, solution: Solution, budget: Bytes) -> Solution {
    let lower_bound = problem.lower_bound(budget).unwrap_or(Millis(0.0));
    Solution { lower_bound: Millis(lower_bound.0.min(solution.replayed.recompute.0)), ..solution }
}

/// Replays the step under a plan of the planner `milp`: in every call of each module that it chooses, the outputs are
/// saved that [`optimal_policy`](crate::optimal_policy) picks within the share that the plan keeps. Where operators must
/// be saved that take more, as random ones may, just these are.
///
/// The plan's own peak is that of torch's model; that of the replay may be higher, because it counts optimizer state and
/// all else that is in use, or lower.
///
/// # Errors
/// If the trade-offs are not those of this step.
pub fn replay_milp(problem: &Problem, plan: &MilpPlan, tradeoffs: &Tradeoffs) -> Result<Solution, TorchError> {
    let discards: HashMap<&str, f64> =
        plan.choices.iter().map(|choice| (choice.fqn.as_str(), choice.discard)).collect();
    let (trace, regions) = (problem.trace(), problem.regions().all());
    let writes = Writes::new(trace);
    let mut checkpoints: Vec<Checkpoint> = Vec::new();
    // A region stands before those inside it.
    let mut behind = 0;
    for (facts, tradeoff) in tradeoffs.iter() {
        let Some(discard) = discards.get(trace.path(facts.module).as_str()) else { continue };
        // Modules do not contain each other, but a call may lie in one of another module. And where backward needs
        // nothing of a call, there is nothing to recompute. Some calls cannot be checkpointed where others can.
        let region = problem.region_of(facts.call).filter(|_| facts.ops.start >= behind);
        let Some(region) = region else { continue };
        behind = facts.ops.end;
        let policy = nearest_policy(&tradeoff.stats, 1.0 - discard)?;
        let decided = facts.decided_ops(trace).zip(policy);
        let saved: Vec<_> = decided.filter(|(_, decision)| *decision == Decision::Save).map(|(op, _)| op).collect();
        // Torch's statistics know nothing of what happens behind the region, and do not see every operator.
        if let Some(saved) = nearest_saved(trace, &writes, &regions[region], &saved) {
            checkpoints.push(Checkpoint::new(region, saved));
        }
    }
    let replayed = problem.replay(&checkpoints);
    Ok(Solution { checkpoints, replayed, lower_bound: plan.lower_bound })
}
