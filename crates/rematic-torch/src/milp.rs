//! The planner `milp`: torch's `sac_milp`, in a form that a simple solver closes.
//!
//! # The model
//! For every module `i`, in torch's words: `y_i ∈ {0, 1}`, whether it is checkpointed; `r_i`, the share of its `ACM_i`
//! bytes of operator outputs that is discarded; `IA_i`, the activations that it leaves behind without checkpointing
//! (`ACM_i ≥ IA_i`, raised to it if it is not); `ACT_i`, the time of its operators.
//!
//! ```text
//! minimise Σ rct_i
//! d_i = ACM_i·r_i - (ACM_i - IA_i)·y_i                 bytes that i really saves
//! (ACM_i - IA_i)/ACM_i · y_i ≤ r_i ≤ y_i               it saves none or more, and none if it is not checkpointed
//! a_i = TA_i + AG_i - Σ_{j returns before i} d_j ≥ 0   activations at the top of i's backward
//! a_i + (P + TG_i)/world_size ≤ budget
//! rcp_i ≥ slope_is·r_i + intercept_is for all s, rcp_i ≥ 0
//! rct_i = ACT_i·rcp_i if y_i = 1, else 0               torch: with big-M
//! y_i + y_j ≤ 1 if j is inside i
//! ```
//!
//! # The form that is solved
//! With `d_i = IA_i·f_i` the share of what can be saved, `r_i = (IA_i·f_i + (ACM_i - IA_i)·y_i)/ACM_i`, and the rules
//! for `r_i` become `0 ≤ f_i ≤ y_i`. The time is taken in perspective form:
//!
//! ```text
//! rct_i = ACT_i·t_i,   t_i ≥ slope_is·r_i + intercept_is·y_i for all s,   t_i ≥ 0
//! ```
//!
//! This is torch's model wherever `y` is integral. If `y_i = 1`, the lines are torch's, and minimising makes `t_i` the
//! least `rcp_i`. If `y_i = 0`, then `f_i = 0`, so `r_i = 0`, every line reads `t_i ≥ 0`, and minimising makes it 0, as
//! torch's big-M does. But with a fractional `y_i` big-M lets `rct_i` be 0, and the perspective form does not: it is the
//! convex hull of the two cases, so the bound from the relaxation is tight for each module by itself.
//! (Torch's `rct_i ≤ M·y_i`, with `M ≥ 2·max ACT`, also forbids recomputing more than twice everything; no line of a
//! fit comes near that.)
//!
//! - Sums over all modules that return before `i` only grow with `i`'s position, so a need below an earlier one says
//!   nothing new; the others are lower bounds of one chain of running sums. Nothing behind the last need can help.
//! - Σ y over a path from the root to a leaf is at most 1: stronger than, and for integral `y` the same as, one
//!   constraint per pair.
//! - `a_i ≥ 0` becomes a row only where the modules before `i` could save more than `TA_i + AG_i`. If that is
//!   negative (an artefact of counting), torch finds every budget infeasible; here it reads `Σ d_j ≤ 0`.
//! - A module with `IA_i = 0` cannot save anything, and is left out.
//!
//! # How
//! Module trees nest, and what is left after these steps is a chain of sums, which the module `chain` solves exactly in
//! a millisecond or so. Where modules do not nest in the order of their returns, or `a_i ≥ 0` would be broken, the
//! general solver `microlp` takes the perspective form as it stands (module `model`). Once `y` is known, the `f_i` are
//! computed without any tolerance (module `refine`).

mod chain;
mod cost;
mod model;
mod refine;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rematic_trace::{Bytes, Millis, Verdict};
use serde::Serialize;

use crate::{ModuleGraph, TorchError};
use model::Model;

/// How the planner solves its model. Both ways give the best plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MilpMethod {
    /// Along the chain of running sums, exactly and in milliseconds; where modules do not nest in the order of their
    /// returns, like [`MilpMethod::General`].
    #[default]
    Chain,
    /// By a general solver, `microlp`. Equal layers keep it busy: with 32 of them (the seed transformer for 30 GiB) it had
    /// not closed the gap after 200 s.
    General,
}

/// What the planner is asked for.
#[derive(Clone, Debug)]
pub struct MilpOptions {
    /// The most bytes that parameters, gradients, activations and their gradients may take at once.
    pub budget: Bytes,
    /// Ranks among which parameters and gradients are split.
    pub world_size: u32,
    /// The modules that may be checkpointed; `None` if all may.
    pub ac_units: Option<Vec<String>>,
    /// Modules that are sharded as a unit. No module around one of them is checkpointed.
    pub fsdp_units: Vec<String>,
    /// How to solve it.
    pub method: MilpMethod,
    /// The general solver stops at a plan that is proved to be at most this share slower than the best. Torch: 0.05.
    pub gap: f64,
    /// The general solver stops after this time with the best plan found.
    pub time_limit: Option<Duration>,
    /// Ends planning early, without an answer, once somebody sets it.
    pub cancelled: Arc<AtomicBool>,
}

/// Torch stops its solver after this time.
const TIME_LIMIT: Duration = Duration::from_secs(180);

impl MilpOptions {
    /// The best plan for a budget on one rank.
    #[must_use]
    pub fn new(budget: Bytes) -> Self {
        MilpOptions {
            budget,
            world_size: 1,
            ac_units: None,
            fsdp_units: Vec::new(),
            method: MilpMethod::default(),
            gap: 0.0,
            time_limit: Some(TIME_LIMIT),
            cancelled: Arc::default(),
        }
    }

    fn check_cancelled(&self) -> Result<(), TorchError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(TorchError::Cancelled) } else { Ok(()) }
    }
}

/// What the planner found. Memory is that of torch's model of a step, not that of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum MilpOutcome {
    /// Nothing need be dropped.
    Fits {
        /// The highest point.
        peak: Bytes,
    },
    /// The modules to checkpoint.
    Planned(MilpPlan),
    /// No choice of modules meets the budget.
    Infeasible {
        /// No budget below this can be met; this one can, unless the general solver was needed.
        least_budget: Bytes,
        /// The module whose backward lacks most, even if everything before it is dropped.
        module: usize,
    },
}

impl MilpOutcome {
    /// Whether the step fits, by torch's model.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            MilpOutcome::Fits { .. } => Verdict::Fits,
            MilpOutcome::Planned(_) => Verdict::Planned,
            MilpOutcome::Infeasible { .. } => Verdict::Infeasible,
        }
    }
}

/// Modules to checkpoint, and what that does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MilpPlan {
    /// The modules, in the order of the graph.
    pub choices: Vec<MilpChoice>,
    /// Time that all of them spend on recomputing.
    pub recompute: Millis,
    /// No plan spends less time than this. Equal to `recompute` if the plan is proved to be the best.
    pub lower_bound: Millis,
    /// The highest point.
    pub peak: Bytes,
}

/// A module to checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MilpChoice {
    /// Its index in the graph.
    pub module: usize,
    /// Its name.
    pub fqn: String,
    /// The share of its operators' output bytes to discard, from 0 to 1.
    pub discard: f64,
    /// Bytes that this saves between its forward and its backward.
    pub saved: Bytes,
    /// Time that it spends on recomputing.
    pub recompute: Millis,
}

/// Chooses the modules to checkpoint, and how much each discards, so that the step meets a budget at the least time.
///
/// # Errors
/// If a setting is out of its range, if a unit is not a module, if the graph breaks a rule, if the time limit passes
/// before any plan is found, if the solver fails, or if it is cancelled.
pub fn milp(graph: &ModuleGraph, options: &MilpOptions) -> Result<MilpOutcome, TorchError> {
    graph.check()?;
    check(options)?;
    let eligible = eligible(graph, options)?;
    let model = Model::new(graph, options, &eligible);
    if model.needs.is_empty() {
        return Ok(MilpOutcome::Fits { peak: graph.peak(options.world_size) });
    }
    let (missing, module) = model.shortage();
    let least_budget = Bytes(options.budget.0.saturating_add(missing.0.max(1)));
    if missing > Bytes(0) {
        return Ok(MilpOutcome::Infeasible { least_budget: least(graph, options, &eligible, least_budget)?, module });
    }
    if options.method == MilpMethod::Chain
        && let Ok(chosen) = chain::solve(graph, &model)
    {
        let Some(chosen) = chosen else {
            return Ok(MilpOutcome::Infeasible {
                least_budget: least(graph, options, &eligible, least_budget)?,
                module,
            });
        };
        // The chain leaves out the caps; a plan that meets them all the same is the best with them too.
        if let Some(saved) = refine::refine(&model, &chosen) {
            return Ok(MilpOutcome::Planned(plan(graph, options, &model, &chosen, &saved, None)));
        }
    }
    let Some(solution) = model.solve(options)? else {
        return Ok(MilpOutcome::Infeasible { least_budget, module });
    };
    let saved = refine::refine(&model, &solution.chosen).unwrap_or(solution.saved);
    Ok(MilpOutcome::Planned(plan(graph, options, &model, &solution.chosen, &saved, solution.lower_bound)))
}

/// The least budget that can be met, given one that none below can be. Found by halving, which takes some 30 runs of the
/// chain; the given one if the chain does not apply.
fn least(graph: &ModuleGraph, options: &MilpOptions, eligible: &[bool], bound: Bytes) -> Result<Bytes, TorchError> {
    let feasible = |budget: Bytes| {
        let model = Model::new(graph, &MilpOptions { budget, ..options.clone() }, eligible);
        if model.needs.is_empty() {
            Some(true)
        } else {
            chain::solve(graph, &model).ok().map(|chosen| chosen.is_some())
        }
    };
    let mut most = graph.peak(options.world_size);
    let mut least = bound;
    while least < most {
        options.check_cancelled()?;
        let middle = Bytes(u64::midpoint(least.0, most.0));
        match feasible(middle) {
            Some(true) => most = middle,
            Some(false) => least = Bytes(middle.0 + 1),
            None => return Ok(bound),
        }
    }
    Ok(least)
}

/// A plan that is the best if no lower bound is given.
fn plan(
    graph: &ModuleGraph,
    options: &MilpOptions,
    model: &Model<'_>,
    chosen: &[usize],
    saved: &[f64],
    lower_bound: Option<Millis>,
) -> MilpPlan {
    let mut saved_by_module = vec![0.0; graph.modules.len()];
    let mut choices = Vec::new();
    for (&candidate, &bytes) in chosen.iter().zip(saved) {
        let candidate = &model.candidates[candidate];
        saved_by_module[candidate.module] = bytes;
        choices.push(MilpChoice {
            module: candidate.module,
            fqn: graph.modules[candidate.module].fqn.clone(),
            discard: candidate.discard(bytes),
            saved: whole(bytes),
            recompute: Millis(candidate.time(bytes)),
        });
    }
    choices.sort_by_key(|choice| choice.module);
    let recompute: Millis = choices.iter().map(|choice| choice.recompute).sum();
    MilpPlan {
        lower_bound: lower_bound.filter(|bound| *bound < recompute).unwrap_or(recompute),
        peak: peak(graph, options.world_size, &saved_by_module),
        recompute,
        choices,
    }
}

/// The highest point of torch's model with what each module saves.
fn peak(graph: &ModuleGraph, world_size: u32, saved: &[f64]) -> Bytes {
    let mut order: Vec<usize> = (0..graph.modules.len()).collect();
    order.sort_by_key(|&module| graph.modules[module].pos_fw_post_order);
    let (mut before, mut highest) = (0.0, 0.0_f64);
    for modules in order.chunk_by(|&a, &b| graph.modules[a].pos_fw_post_order == graph.modules[b].pos_fw_post_order) {
        for &module in modules {
            highest = highest.max(graph.memory_at(module, world_size) - before);
        }
        before += modules.iter().map(|&module| saved[module]).sum::<f64>();
    }
    // A share of a byte is rounding of the sums.
    whole(highest)
}

impl ModuleGraph {
    /// The highest point of torch's model if nothing is dropped, with parameters and gradients split among so many ranks.
    #[must_use]
    pub fn peak(&self, world_size: u32) -> Bytes {
        peak(self, world_size.max(1), &vec![0.0; self.modules.len()])
    }
}

/// The nearest whole number of bytes.
fn whole(bytes: f64) -> Bytes {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Bytes(bytes.round().max(0.0) as u64)
}

fn check(options: &MilpOptions) -> Result<(), TorchError> {
    if options.world_size == 0 {
        return Err(TorchError::Setting { setting: "world_size", found: "0".to_owned(), needed: "at least 1" });
    }
    if !(0.0..1.0).contains(&options.gap) {
        let found = options.gap.to_string();
        return Err(TorchError::Setting { setting: "gap", found, needed: "a number from 0 to below 1" });
    }
    Ok(())
}

/// For each module, whether the user's units let it be checkpointed.
fn eligible(graph: &ModuleGraph, options: &MilpOptions) -> Result<Vec<bool>, TorchError> {
    let find = |setting: &'static str, name: &String| {
        graph
            .modules
            .iter()
            .position(|module| module.fqn == *name)
            .ok_or_else(|| TorchError::UnknownModule { setting, name: name.clone() })
    };
    let mut eligible = vec![options.ac_units.is_none(); graph.modules.len()];
    for name in options.ac_units.iter().flatten() {
        eligible[find("ac_units", name)?] = true;
    }
    for name in &options.fsdp_units {
        let mut around = graph.modules[find("fsdp_units", name)?].parent;
        while let Some(module) = around {
            eligible[module] = false;
            around = graph.modules[module].parent;
        }
    }
    Ok(eligible)
}
