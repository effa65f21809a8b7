use std::sync::Arc;

use rematic_cost::{Costs, Measured};
use rematic_plan::{Limits, Outcome, PlanDocument, PlannedMoment, Problem, Replayed, Solution};
use rematic_report::{CurvePoint, CurveReport, PlanReport, Verdict};
use rematic_trace::{Bytes, Flops, Millis, StepTrace};

use crate::error::Error;
use crate::target::Target;

/// How to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planner {
    /// The least recomputation under which the replayed step fits.
    #[default]
    Exact,
    /// The most bytes per time first: the baseline.
    Greedy,
}

/// Whether a step fits a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// As it is.
    Fits,
    /// With a plan.
    Planned,
    /// With no plan.
    Infeasible,
}

/// What a planner says about a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanAnswer {
    /// Whether it fits.
    pub fit: Fit,
    /// The plan; without regions if the step fits as it is, and the one with the lowest peak if no plan fits.
    pub document: PlanDocument,
    /// The step under that plan.
    pub replayed: Replayed,
    /// The bytes in use after every operator, without the plan and with it.
    pub moments: Vec<PlannedMoment>,
    /// Flops of the operators that run again.
    pub recompute_flops: Flops,
    /// How much of the time was measured.
    pub measured: Option<Measured>,
}

impl PlanAnswer {
    /// What the command line says about it. The trace must be the one that was planned.
    #[must_use]
    pub fn report<'a>(&'a self, trace: &'a StepTrace) -> PlanReport<'a> {
        PlanReport {
            trace,
            budget: self.document.budget_bytes,
            baseline: self.document.baseline_peak_bytes,
            step: self.document.step_ms,
            verdict: match self.fit {
                Fit::Fits => Verdict::Fits,
                Fit::Planned => Verdict::Planned(&self.document, self.replayed.at),
                Fit::Infeasible => Verdict::Infeasible(&self.replayed),
            },
            moments: &self.moments,
            measured: self.measured.as_ref(),
        }
    }
}

/// Budget against time.
#[derive(Clone, Debug)]
pub struct CurveAnswer {
    /// The largest budget first.
    pub points: Vec<CurvePoint>,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// How much of the time was measured.
    pub measured: Option<Measured>,
}

impl CurveAnswer {
    /// What the command line says about it.
    #[must_use]
    pub fn report<'a>(&'a self, model: &'a str) -> CurveReport<'a> {
        CurveReport { model, step: self.step, points: &self.points, measured: self.measured.as_ref() }
    }
}

/// The allocator of the limits is the target's, whatever they say.
impl Target {
    /// Finds what to drop and recompute so that the step fits a budget.
    ///
    /// # Errors
    /// If the step cannot be costed, the limits leave nothing to plan or are cancelled, or the budget is zero.
    pub fn plan(
        &self,
        trace: &StepTrace,
        limits: Limits,
        planner: Planner,
        budget: Bytes,
    ) -> Result<PlanAnswer, Error> {
        if budget == Bytes(0) {
            return Err(Error::NoBudget { found: budget });
        }
        let costs = self.costs(trace)?;
        let cancel = limits.cancel.clone();
        let (problem, outcome) = cancel.catch(|| -> Result<_, Error> {
            let problem = self.problem(trace, &costs, limits)?;
            let outcome = match planner {
                Planner::Exact => problem.exact(budget),
                Planner::Greedy => problem.greedy(budget),
            };
            Ok((problem, outcome))
        })??;
        let (fit, solution) = match outcome {
            Outcome::Fits => (Fit::Fits, problem.unplanned()),
            Outcome::Planned(solution) => (Fit::Planned, solution),
            Outcome::Infeasible(infeasible) => (Fit::Infeasible, infeasible.least),
        };
        let document = PlanDocument::new(&problem, &solution, budget, &self.device.name);
        let moments = problem.moments(&solution.checkpoints);
        Ok(answer(fit, document, solution.replayed, moments, &costs))
    }

    /// Plans each of several variants of a step for the same budget.
    ///
    /// # Errors
    /// As [`Target::plan`].
    pub fn plan_each(
        &self,
        traces: &[Arc<StepTrace>],
        limits: &Limits,
        planner: Planner,
        budget: Bytes,
    ) -> Result<Vec<PlanAnswer>, Error> {
        traces.iter().map(|trace| self.plan(trace, limits.clone(), planner, budget)).collect()
    }

    /// Plans for budgets from the step as it is down to the least that can be reached; `progress` is told after each one.
    ///
    /// # Errors
    /// If the step cannot be costed, or the limits leave nothing to plan or are cancelled.
    pub fn curve(
        &self,
        trace: &StepTrace,
        limits: Limits,
        points: usize,
        progress: impl Fn() + Sync,
    ) -> Result<CurveAnswer, Error> {
        let costs = self.costs(trace)?;
        let cancel = limits.cancel.clone();
        let curve = cancel
            .catch(|| -> Result<_, Error> { Ok(self.problem(trace, &costs, limits)?.curve(points, progress)) })??;
        let point = |(budget, solution): (Bytes, Solution)| CurvePoint {
            budget_bytes: budget,
            peak_bytes: solution.replayed.peak,
            recompute_ms: solution.replayed.recompute,
            lower_bound_ms: solution.lower_bound,
        };
        Ok(CurveAnswer {
            points: curve.into_iter().map(point).collect(),
            step: costs.step().time,
            measured: costs.measurements().cloned(),
        })
    }

    /// Replays the step under a plan, with the plan's times and peaks as they are here.
    ///
    /// # Errors
    /// If the step cannot be costed, or the plan is for another one.
    pub fn replay(&self, trace: &StepTrace, limits: Limits, document: PlanDocument) -> Result<PlanAnswer, Error> {
        let costs = self.costs(trace)?;
        let problem = self.problem(trace, &costs, limits)?;
        let solution = Self::replayed(&problem, &document, document.budget_bytes)?;
        let document = PlanDocument::new(&problem, &solution, document.budget_bytes, &self.device.name);
        let moments = problem.moments(&solution.checkpoints);
        Ok(answer(Fit::Planned, document, solution.replayed, moments, &costs))
    }

    /// A plan from a document, with what the replay says about it here.
    pub(crate) fn replayed(problem: &Problem<'_>, document: &PlanDocument, budget: Bytes) -> Result<Solution, Error> {
        let (_, checkpoints) = document.for_step(problem.trace(), problem.regions())?;
        let replayed = problem.replay(&checkpoints);
        let bound = problem.lower_bound(budget).unwrap_or(Millis(0.0));
        let lower_bound = Millis(bound.0.min(replayed.recompute.0));
        Ok(Solution { checkpoints, replayed, lower_bound })
    }

    pub(crate) fn problem<'a>(
        &self,
        trace: &'a StepTrace,
        costs: &'a Costs,
        limits: Limits,
    ) -> Result<Problem<'a>, Error> {
        Ok(Problem::new(trace, costs, Limits { allocator: self.allocator(trace), ..limits })?)
    }
}

fn answer(
    fit: Fit,
    document: PlanDocument,
    replayed: Replayed,
    moments: Vec<PlannedMoment>,
    costs: &Costs,
) -> PlanAnswer {
    PlanAnswer {
        fit,
        document,
        moments,
        recompute_flops: replayed.recomputed.iter().map(|op| costs.flops()[op.index()]).sum(),
        replayed,
        measured: costs.measurements().cloned(),
    }
}
