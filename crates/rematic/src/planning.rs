use std::sync::Arc;
use std::time::Duration;

use rematic_cost::{Costs, Measured};
use rematic_plan::{Limits, Outcome, PlanDocument, PlannedMoment, Problem, Replayed, Solution};
use rematic_report::{CurvePoint, CurveReport, MilpReport, PlanReport, Style, Verdict};
use rematic_torch::MilpOutcome;
use rematic_trace::{Bytes, Flops, Millis, StepTrace};

use crate::error::Error;
use crate::milp::MilpAnswer;
use crate::target::Target;

/// How to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Planner {
    /// The least recomputation under which the replayed step fits.
    #[default]
    Exact,
    /// The most bytes per time first: the baseline.
    Greedy,
    /// Torch's `sac_milp`: the least recomputation by its model of memory.
    Milp(MilpSettings),
}

impl Planner {
    /// The same planner with what only `milp` looks at.
    ///
    /// # Errors
    /// If something is given to another planner, which would ignore it.
    pub fn with(self, settings: MilpSettings) -> Result<Self, Error> {
        let planner = match self {
            Planner::Milp(_) => return Ok(Planner::Milp(settings)),
            Planner::Exact => "exact",
            Planner::Greedy => "greedy",
        };
        let given = [(settings.gap.is_some(), "--gap"), (settings.time_limit.is_some(), "--time-limit")];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(Error::MilpOnly { option, planner }),
            None => Ok(self),
        }
    }
}

/// How long torch's planner may try.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MilpSettings {
    /// It stops at a plan that is proved to be at most this share slower than the best; `None` for 0.
    pub gap: Option<f64>,
    /// It stops after this time with the best plan found; `None` for 3 minutes, as torch.
    pub time_limit: Option<Duration>,
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
    /// The plan; without regions if the step fits as it is. If no plan fits, the one with the lowest peak; without regions
    /// from `milp`.
    pub document: PlanDocument,
    /// The step under that plan.
    pub replayed: Replayed,
    /// The bytes in use after every operator, without the plan and with it.
    pub moments: Vec<PlannedMoment>,
    /// Flops of the operators that run again.
    pub recompute_flops: Flops,
    /// How much of the time was measured.
    pub measured: Option<Measured>,
    /// What the planner `milp` says, by whose model the step fits or does not; `None` from the others.
    pub milp: Option<MilpAnswer>,
}

/// The trace must be the one that was planned.
impl PlanAnswer {
    /// What the command line says about it.
    #[must_use]
    pub fn text(&self, trace: &StepTrace, style: Style) -> String {
        match &self.milp {
            Some(milp) => self.milp_report(trace, milp).text(style),
            None => self.report(trace).text(style),
        }
    }

    /// One JSON document, as the command line writes it.
    #[must_use]
    pub fn json(&self, trace: &StepTrace) -> String {
        match &self.milp {
            Some(milp) => self.milp_report(trace, milp).json(),
            None => self.report(trace).json(),
        }
    }

    /// The least budget that a plan meets, where none meets the one that was given.
    #[must_use]
    pub fn least_budget(&self) -> Option<Bytes> {
        match &self.milp {
            Some(MilpAnswer { outcome: MilpOutcome::Infeasible { least_budget, .. }, .. }) => Some(*least_budget),
            _ => (self.fit == Fit::Infeasible).then_some(self.replayed.peak),
        }
    }

    /// What there is to say if torch's model promises what the replay does not keep.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let budget = self.document.budget_bytes;
        let broken = self.milp.is_some() && self.fit != Fit::Infeasible && self.replayed.peak > budget;
        broken.then(|| {
            let above = self.replayed.peak.saturating_sub(budget);
            format!(
                "by torch's model the step fits {budget}, but replayed it is {above} above that, at {}: the planner milp \
                 leaves out optimizer state, and its curves are fits; the planner exact plans by the replay",
                self.replayed.peak
            )
        })
    }

    fn milp_report<'a>(&'a self, trace: &'a StepTrace, milp: &'a MilpAnswer) -> MilpReport<'a> {
        MilpReport {
            trace,
            budget: self.document.budget_bytes,
            baseline: milp.baseline,
            step: self.document.step_ms,
            outcome: &milp.outcome,
            replayed_baseline: &milp.replayed_baseline,
            replayed: (self.fit == Fit::Planned).then_some((&self.document, &self.replayed)),
            moments: &self.moments,
            measured: self.measured.as_ref(),
        }
    }

    fn report<'a>(&'a self, trace: &'a StepTrace) -> PlanReport<'a> {
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
    /// If the step cannot be costed, the limits leave nothing to plan or are cancelled, or the budget is zero. The planner
    /// `milp` does not take regions as a whole, and may run out of time.
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
        let search = match planner {
            Planner::Exact => Problem::exact,
            Planner::Greedy => Problem::greedy,
            Planner::Milp(settings) => return self.milp(trace, limits, settings, budget),
        };
        let trace = &*self.of_rank(trace)?;
        let costs = self.costs(trace)?;
        let cancel = limits.cancel.clone();
        let (problem, outcome) = cancel.catch(|| -> Result<_, Error> {
            let problem = self.problem(trace, &costs, limits)?;
            let outcome = search(&problem, budget);
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
        let trace = &*self.of_rank(trace)?;
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
        let trace = &*self.of_rank(trace)?;
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

pub(crate) fn answer(
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
        milp: None,
    }
}
