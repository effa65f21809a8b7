use std::time::{Duration, Instant};

use microlp::{
    ComparisonOp, Error, OptimizationDirection, Problem, ResumeOptions, SolutionStatus, SolveOptions, SolveOutcome,
    TerminationReason, Variable,
};
use rematic_trace::{Bytes, Millis};

use super::{MilpOptions, whole};
use crate::{ModuleGraph, TorchError};

/// The solver cannot be cancelled while it runs, but it can be resumed: this is how long it runs at a time.
const SLICE: Duration = Duration::from_millis(200);

/// A module that may be checkpointed.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) module: usize,
    /// Its position in the order in which forwards return.
    pub(super) position: usize,
    /// `IA`: bytes that it can save.
    pub(super) savable: f64,
    /// `ACM - IA`: bytes that it must discard before it saves any.
    pub(super) unsaved: f64,
    /// `ACT`, in milliseconds.
    pub(super) time: f64,
    /// Slopes and intercepts of the share of the time over the share of `ACM`.
    pub(super) lines: Vec<(f64, f64)>,
}

impl Candidate {
    /// The share `r` of its operators' bytes that is discarded if it saves so many.
    pub(super) fn discard(&self, bytes: f64) -> f64 {
        (bytes + self.unsaved) / (self.savable + self.unsaved)
    }

    /// The time that it then spends on recomputing.
    pub(super) fn time(&self, bytes: f64) -> f64 {
        let discard = self.discard(bytes);
        self.lines.iter().map(|(slope, intercept)| slope * discard + intercept).fold(0.0, f64::max) * self.time
    }
}

/// Bytes that the candidates before a position must save together, and at most can.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) position: usize,
    pub(super) bytes: f64,
    pub(super) most: f64,
    /// The module whose backward needs it.
    pub(super) module: usize,
}

/// What is left of a graph for the solver.
#[derive(Debug)]
pub(super) struct Model<'a> {
    graph: &'a ModuleGraph,
    /// In the order of their positions.
    pub(super) candidates: Vec<Candidate>,
    /// In the order of their positions; bytes ascend.
    pub(super) needs: Vec<Need>,
    /// Positions before which no more than so many bytes may be saved, in order; only those that can matter.
    pub(super) caps: Vec<(usize, f64)>,
}

/// The solver's answer.
#[derive(Debug)]
pub(super) struct Solution {
    /// Candidates that are checkpointed, ascending.
    pub(super) chosen: Vec<usize>,
    /// Bytes that each of them saves, within the solver's tolerances.
    pub(super) saved: Vec<f64>,
    /// No plan takes less time; `None` if this one is proved to be the best.
    pub(super) lower_bound: Option<Millis>,
}

impl<'a> Model<'a> {
    pub(super) fn new(graph: &'a ModuleGraph, options: &MilpOptions, eligible: &[bool]) -> Self {
        let mut order: Vec<usize> = (0..graph.modules.len()).collect();
        order.sort_by_key(|&module| graph.modules[module].pos_fw_post_order);
        let mut most = Most::new(graph);
        let (mut candidates, mut needs, mut caps): (Vec<Candidate>, Vec<Need>, Vec<_>) = Default::default();
        for &module in &order {
            let row = &graph.modules[module];
            let position = row.pos_fw_post_order;
            let bytes = graph.memory_at(module, options.world_size) - options.budget.0 as f64;
            if bytes > needs.last().map_or(0.0, |need| need.bytes) {
                let need = Need { position, bytes, most: most.total, module };
                needs.push(need);
            }
            let cap = (row.act_total.0 as f64 + row.act_grad_per_module as f64).max(0.0);
            if most.total > cap {
                caps.push((position, cap));
            }
            let candidate = eligible[module].then(|| candidate(graph, module)).flatten();
            most.passes(module, candidate.as_ref().map_or(0.0, |candidate| candidate.savable));
            candidates.extend(candidate);
        }
        let end = needs.last().map_or(0, |need| need.position);
        candidates.retain(|candidate| candidate.position < end);
        caps.retain(|(position, _)| *position <= end);
        Model { graph, candidates, needs, caps }
    }

    /// The most bytes that some module's backward lacks even if all before it is dropped; and that module.
    pub(super) fn shortage(&self) -> (Bytes, usize) {
        let missing = |need: &Need| need.bytes - need.most;
        let worst = self.needs.iter().max_by(|a, b| missing(a).total_cmp(&missing(b)));
        // Less than a byte is rounding of the sums.
        worst.map_or((Bytes(0), 0), |worst| {
            let bytes = missing(worst);
            (if bytes < 1.0 { Bytes(0) } else { whole(bytes.ceil()) }, worst.module)
        })
    }

    /// The best choice, or `None` if there is none.
    pub(super) fn solve(&self, options: &MilpOptions) -> Result<Option<Solution>, TorchError> {
        let written = Written::new(self);
        let Some(outcome) = self.solve_in_slices(&written.problem, options)? else { return Ok(None) };
        let SolveOutcome::Solution(found) = outcome else {
            let seconds = options.time_limit.unwrap_or(Duration::MAX).as_secs_f64();
            return Err(TorchError::TimeLimit { budget: options.budget, seconds });
        };
        let chosen: Vec<usize> =
            (0..self.candidates.len()).filter(|&index| found.var_value(written.columns[index].chosen) > 0.5).collect();
        let saved = chosen.iter().map(|&index| {
            let candidate = &self.candidates[index];
            (found.var_value(written.columns[index].share) * candidate.savable).clamp(0.0, candidate.savable)
        });
        Ok(Some(Solution {
            saved: saved.collect(),
            lower_bound: (found.status() != SolutionStatus::Optimal)
                .then(|| Millis(found.stats().best_bound.unwrap_or(0.0).max(0.0) * written.time_unit)),
            chosen,
        }))
    }

    /// What the solver says; `None` if there is no choice.
    fn solve_in_slices(&self, problem: &Problem, options: &MilpOptions) -> Result<Option<SolveOutcome>, TorchError> {
        let start = Instant::now();
        let slice = || options.time_limit.map_or(SLICE, |limit| limit.saturating_sub(start.elapsed()).min(SLICE));
        let mut settings = SolveOptions::default();
        settings.mip_gap = options.gap;
        settings.time_limit = Some(slice());
        options.check_cancelled()?;
        let mut outcome = problem.solve_with(settings);
        loop {
            outcome = match outcome {
                Ok(found) if found.termination_reason() == TerminationReason::TimeLimit && slice() > Duration::ZERO => {
                    options.check_cancelled()?;
                    let mut settings = ResumeOptions::default();
                    settings.mip_gap = Some(options.gap);
                    settings.time_limit = Some(slice());
                    found.resume_with(settings)
                }
                Ok(found) => return Ok(Some(found)),
                Err(Error::Infeasible) => return Ok(None),
                Err(error) => {
                    return Err(TorchError::Solver { modules: self.candidates.len(), reason: error.to_string() });
                }
            };
        }
    }
}

fn candidate(graph: &ModuleGraph, module: usize) -> Option<Candidate> {
    let row = &graph.modules[module];
    let tradeoff = row.tradeoff.as_ref()?;
    let savable = row.act_fw_per_module;
    (savable.0 > 0).then(|| Candidate {
        module,
        position: row.pos_fw_post_order,
        savable: savable.0 as f64,
        unsaved: tradeoff.sac_memory.saturating_sub(savable).0 as f64,
        time: tradeoff.sac_runtime.0,
        lines: tradeoff.slopes.iter().copied().zip(tradeoff.intercepts.iter().copied()).collect(),
    })
}

/// The most bytes that modules which have returned can save together, no two of them nested.
struct Most<'a> {
    graph: &'a ModuleGraph,
    total: f64,
    /// Of each module: the most that the modules inside it can save, of those that have returned.
    inside: Vec<f64>,
}

impl<'a> Most<'a> {
    fn new(graph: &'a ModuleGraph) -> Self {
        Most { graph, total: 0.0, inside: vec![0.0; graph.modules.len()] }
    }

    /// Modules return before those around them do, so what is inside is complete. Should one return later (a module
    /// that is shared and first runs elsewhere), it is counted on top, which is still an upper bound.
    fn passes(&mut self, module: usize, savable: f64) {
        let best = self.inside[module].max(savable);
        self.total += best - self.inside[module];
        if let Some(parent) = self.graph.modules[module].parent {
            self.inside[parent] += best;
        }
    }
}

/// The columns of one candidate.
#[derive(Clone, Copy)]
struct Columns {
    /// `y`.
    chosen: Variable,
    /// `f`: the share of what it can save.
    share: Variable,
}

/// A model in the solver's words. Bytes are in units of the largest need and times in units of the longest time, so that
/// numbers are around one.
struct Written {
    problem: Problem,
    columns: Vec<Columns>,
    time_unit: f64,
}

impl Written {
    fn new(model: &Model<'_>) -> Self {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let longest = model.candidates.iter().map(|candidate| candidate.time).fold(0.0, f64::max);
        let time_unit = if longest > 0.0 { longest } else { 1.0 };
        let mut columns = Vec::with_capacity(model.candidates.len());
        for candidate in &model.candidates {
            let chosen = problem.add_binary_var(0.0);
            let share = problem.add_var(0.0, (0.0, 1.0));
            let time = problem.add_var(candidate.time / time_unit, (0.0, f64::INFINITY));
            problem.add_constraint([(share, 1.0), (chosen, -1.0)], ComparisonOp::Le, 0.0);
            // slope·r + intercept·y with r = (IA·f + (ACM - IA)·y) / ACM.
            let all = candidate.savable + candidate.unsaved;
            for &(slope, intercept) in &candidate.lines {
                let per_share = slope * candidate.savable / all;
                let fixed = slope * candidate.unsaved / all + intercept;
                let line = [(time, 1.0), (share, -per_share), (chosen, -fixed)];
                problem.add_constraint(line, ComparisonOp::Ge, 0.0);
            }
            columns.push(Columns { chosen, share });
        }
        let mut written = Written { problem, columns, time_unit };
        written.add_paths(model);
        written.add_chain(model);
        written
    }

    /// At most one module on each path from the root to a leaf; only for paths that no longer path contains.
    fn add_paths(&mut self, model: &Model<'_>) {
        let mut of_module = vec![None; model.graph.modules.len()];
        for (index, candidate) in model.candidates.iter().enumerate() {
            of_module[candidate.module] = Some(index);
        }
        let parent = |module: usize| model.graph.modules[module].parent;
        let mut holds_another = vec![false; model.graph.modules.len()];
        for candidate in &model.candidates {
            let mut at = parent(candidate.module);
            while let Some(module) = at.filter(|&module| !holds_another[module]) {
                holds_another[module] = true;
                at = parent(module);
            }
        }
        for candidate in model.candidates.iter().filter(|candidate| !holds_another[candidate.module]) {
            let mut path = Vec::new();
            let mut at = Some(candidate.module);
            while let Some(module) = at {
                path.extend(of_module[module].map(|index| (self.columns[index].chosen, 1.0)));
                at = parent(module);
            }
            if path.len() > 1 {
                self.problem.add_constraint(path, ComparisonOp::Le, 1.0);
            }
        }
    }

    /// One running sum of what is saved, with its needs and caps as bounds.
    fn add_chain(&mut self, model: &Model<'_>) {
        let unit = model.needs.last().map_or(1.0, |need| need.bytes);
        let mut stops: Vec<(usize, f64, f64)> = Vec::new();
        stops.extend(model.needs.iter().map(|need| (need.position, need.bytes / unit, f64::INFINITY)));
        stops.extend(model.caps.iter().map(|&(position, cap)| (position, 0.0, cap / unit)));
        stops.sort_by_key(|stop| stop.0);
        let mut candidates = model.candidates.iter().zip(&self.columns).peekable();
        let mut before: Option<Variable> = None;
        for stop in stops.chunk_by(|a, b| a.0 == b.0) {
            let (least, most) =
                stop.iter().fold((0.0_f64, f64::INFINITY), |(least, most), stop| (least.max(stop.1), most.min(stop.2)));
            // Bounds that cross make the problem infeasible, which is the answer.
            let sum = self.problem.add_var(0.0, (least, most.max(least)));
            let mut row = vec![(sum, 1.0)];
            row.extend(before.map(|before| (before, -1.0)));
            while let Some((candidate, columns)) = candidates.next_if(|(candidate, _)| candidate.position < stop[0].0) {
                row.push((columns.share, -candidate.savable / unit));
            }
            self.problem.add_constraint(row, ComparisonOp::Eq, 0.0);
            if most < least {
                self.problem.add_constraint([(sum, 1.0)], ComparisonOp::Le, most);
            }
            before = Some(sum);
        }
    }
}
