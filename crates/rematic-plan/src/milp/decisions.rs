//! From the shares that the planner `milp` chooses to decisions about operators, and what a replay says about them.

use std::collections::HashMap;

use rematic_memory::Checkpoint;
use rematic_tradeoff::{Tradeoffs, Writes, nearest_saved};

use super::MilpPlan;
use crate::policy::nearest_policy;
use crate::{Decision, PlanError, Problem, Solution};

impl Problem<'_> {
    /// The full names of the modules that the limits let be checkpointed, each once, in the order of the model: what
    /// [`MilpOptions::ac_units`](crate::MilpOptions::ac_units) takes.
    #[must_use]
    pub fn checkpointable(&self) -> Vec<String> {
        let mut seen = vec![false; self.trace.modules().len()];
        let modules = self.nodes.iter().map(|node| self.regions.all()[node.region].module);
        let new = |module: &rematic_trace::ModuleId| !std::mem::replace(&mut seen[module.index()], true);
        modules.filter(new).map(|module| self.trace.path(module)).collect()
    }

    /// Replays the step under a plan of the planner `milp`: in every call of each module that it chooses, the outputs
    /// are saved that [`optimal_policy`](crate::optimal_policy) picks within the share that the plan keeps. Where
    /// operators must be saved that take more, as random ones may, just these are.
    ///
    /// The plan's own peak is that of torch's model; that of the replay may be higher, because it counts optimizer state
    /// and all else that is in use, or lower.
    ///
    /// # Errors
    /// If the trade-offs are not those of this step.
    pub fn replay_milp(&self, plan: &MilpPlan, tradeoffs: &Tradeoffs) -> Result<Solution, PlanError> {
        let discards: HashMap<&str, f64> =
            plan.choices.iter().map(|choice| (choice.fqn.as_str(), choice.discard)).collect();
        let regions = self.regions.all();
        let writes = Writes::new(self.trace);
        let mut checkpoints: Vec<Checkpoint> = Vec::new();
        // A region stands before those inside it.
        let mut behind = 0;
        for (facts, tradeoff) in tradeoffs.iter() {
            let Some(discard) = discards.get(self.trace.path(facts.module).as_str()) else { continue };
            // Modules do not contain each other, but a call may lie in one of another module. And where backward needs
            // nothing of a call, there is nothing to recompute. Some calls cannot be checkpointed where others can.
            let node = self.nodes.iter().find(|node| regions[node.region].call == facts.call);
            let region = node.map(|node| node.region);
            let Some(region) = region.filter(|_| facts.ops.start >= behind) else { continue };
            behind = facts.ops.end;
            let policy = nearest_policy(&tradeoff.stats, 1.0 - discard)?;
            let decided = facts.decided_ops(self.trace).zip(policy);
            let saved: Vec<_> = decided.filter(|(_, decision)| *decision == Decision::Save).map(|(op, _)| op).collect();
            // Torch's statistics know nothing of what happens behind the region, and do not see every operator.
            if let Some(saved) = nearest_saved(self.trace, &writes, &regions[region], &saved) {
                checkpoints.push(Checkpoint { region, saved });
            }
        }
        let replayed = self.replay(&checkpoints);
        Ok(Solution { checkpoints, replayed, lower_bound: plan.lower_bound })
    }
}
