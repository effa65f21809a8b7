use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;
use rematic_cost::{Device, Measured};
use rematic_plan::{Explanation, Outcome, PlanDocument, PlannedMoment, Problem, Replayed, Solution};
use rematic_report::{
    CurvePoint, CurveReport, LossTaken, Memory, MilpReport, OffloadPoint, OnDevice, Pace, PlanReport, Setup, Style,
    Ways, plan_python,
};
use rematic_torch::MilpOutcome;
use rematic_trace::{Bytes, Flops, Millis, Opt, StepTrace, Verdict};

use crate::error::Error;
use crate::milp::MilpAnswer;
use crate::room::{Effort, Fitting, Found, Searches};
use crate::study::Study;

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
        let given = [(settings.gap.is_some(), Opt("gap")), (settings.time_limit.is_some(), Opt("time-limit"))];
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

/// What a planner says about a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanAnswer {
    /// The step of one rank.
    pub trace: Arc<StepTrace>,
    /// Whether it fits.
    pub verdict: Verdict,
    /// The plan; without regions if the step fits as it is. If no plan fits, the one with the lowest peak; without regions
    /// from `milp`.
    pub document: PlanDocument,
    /// The step under that plan.
    pub replayed: Replayed,
    /// The bytes in use after every operator, without the plan and with it.
    pub moments: Vec<PlannedMoment>,
    /// Flops of the operators that run again.
    pub recompute_flops: Flops,
    /// The device.
    pub device: Device,
    /// What the step under that plan takes of it; `None` on the CPU.
    pub memory: Option<Memory>,
    /// How fast the step under that plan goes.
    pub pace: Pace,
    /// Whether it is the device that the step has to fit, and not a budget.
    pub for_device: bool,
    /// How much of the time was measured.
    pub measured: Option<Measured>,
    /// What else brings the step within the budget on the same devices and computes the same, alone or, where nothing does, on
    /// top of a plan; the cheapest first. Nothing for a step that fits as it is.
    pub ways: Ways,
    /// Which loss was taken, if that was to be chosen.
    pub loss: Option<LossTaken>,
    /// What the planner `milp` says, by whose model the step fits or does not; `None` from the others.
    pub milp: Option<MilpAnswer>,
}

impl PlanAnswer {
    /// What the command line says about it.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        match &self.milp {
            Some(milp) => self.milp_report(milp, &self.setup()).text(style),
            None => self.report().text(style),
        }
    }

    /// One JSON document, as the command line writes it.
    #[must_use]
    pub fn json(&self) -> String {
        match &self.milp {
            Some(milp) => self.milp_report(milp, &self.setup()).json(),
            None => self.report().json(),
        }
    }

    /// The least budget that a plan meets, where none meets the one that was given.
    #[must_use]
    pub fn least_budget(&self) -> Option<Bytes> {
        match &self.milp {
            Some(MilpAnswer { outcome: MilpOutcome::Infeasible { least_budget, .. }, .. }) => Some(*least_budget),
            _ => (self.verdict == Verdict::Infeasible).then_some(self.replayed.peak),
        }
    }

    /// What there is to say if torch's model promises what the replay does not keep.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let budget = self.document.budget_bytes;
        let broken = self.milp.is_some() && self.verdict != Verdict::Infeasible && self.replayed.peak > budget;
        broken.then(|| {
            let above = self.replayed.peak.saturating_sub(budget);
            format!(
                "by torch's model the step fits {budget}, but replayed it is {above} above that, at {}: the planner milp \
                 leaves out optimizer state, and its curves are fits; the planner exact plans by the replay",
                self.replayed.peak
            )
        })
    }

    /// The answer of a planner that knows no allocator: for a device, what is reserved decides all the same.
    fn held_to(self, for_device: bool) -> Self {
        let fits = self.memory.is_none_or(|memory| memory.fits());
        let verdict = if for_device && !fits { Verdict::Infeasible } else { self.verdict };
        PlanAnswer { verdict, ..self }
    }

    fn setup(&self) -> Setup {
        Setup::new(&self.trace, &self.device.name)
    }

    fn milp_report<'a>(&'a self, milp: &'a MilpAnswer, setup: &'a Setup) -> MilpReport<'a> {
        MilpReport {
            setup,
            trace: &self.trace,
            budget: self.document.budget_bytes,
            baseline: milp.baseline,
            step: self.document.step_ms,
            outcome: &milp.outcome,
            replayed_baseline: &milp.replayed_baseline,
            replayed: (self.verdict == Verdict::Planned).then_some((&self.document, &self.replayed)),
            moments: &self.moments,
            on_device: self.on_device(),
            pace: Some(&self.pace),
            measured: self.measured.as_ref(),
            loss: self.loss.as_ref(),
        }
    }

    fn on_device(&self) -> Option<OnDevice<'_>> {
        let memory = self.memory.as_ref()?;
        Some(OnDevice { device: &self.device, memory, decides: self.for_device })
    }

    fn report(&self) -> PlanReport<'_> {
        PlanReport {
            trace: &self.trace,
            verdict: self.verdict,
            document: &self.document,
            replayed: Some(&self.replayed),
            moments: &self.moments,
            on_device: self.on_device(),
            pace: Some(&self.pace),
            measured: self.measured.as_ref(),
            ways: &self.ways,
            loss: self.loss.as_ref(),
        }
    }
}

/// A plan as a Python file that needs nothing but torch.
///
/// # Errors
/// If it has variants, or decisions that such a file cannot follow: outputs on the host, a loss in chunks.
pub fn emitted_python(document: &PlanDocument) -> Result<String, Error> {
    if let Some(offload) = document.offload {
        return Err(Error::EmitsOffload { bytes: offload.bytes });
    }
    if let Some(loss) = &document.loss {
        return Err(Error::EmitsLoss { head: loss.head.clone() });
    }
    Ok(plan_python(document.single()?))
}

/// Budget against time.
#[derive(Clone, Debug)]
pub struct CurveAnswer {
    /// What the step is trained with.
    pub setup: Setup,
    /// The largest budget first.
    pub points: Vec<CurvePoint>,
    /// The device.
    pub device: Device,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// How much of the time was measured.
    pub measured: Option<Measured>,
}

impl CurveAnswer {
    /// What the command line says about it.
    #[must_use]
    pub fn report(&self) -> CurveReport<'_> {
        let CurveAnswer { setup, points, device, step, measured } = self;
        CurveReport { setup, step: *step, points, device: &device.product, measured: measured.as_ref() }
    }
}

/// The planners by the replay: for a device, greedy plans are looked at too, which may reserve less.
pub(crate) const EXACT: Searches = Searches { asked: &[Problem::quick, Problem::quick_greedy], last: Problem::exact };
const GREEDY: Searches = Searches { asked: &[Problem::quick_greedy], last: Problem::greedy };

impl Study {
    /// Finds what to drop and recompute so that the step fits: a budget for what tensors take; or without one the device,
    /// with what PyTorch's allocator reserves for them and what is taken beside it.
    ///
    /// # Errors
    /// If the limits leave nothing to plan or are cancelled, or the budget is zero. The planner `milp` does not take regions
    /// as a whole, and may run out of time.
    pub fn plan(&self, planner: Planner, budget: Option<Bytes>) -> Result<PlanAnswer, Error> {
        if budget == Some(Bytes(0)) {
            return Err(Error::NoBudget { found: Bytes(0) });
        }
        self.check_host(planner)?;
        let for_device = budget.is_none();
        let budget = budget.unwrap_or_else(|| self.room());
        let searches = match planner {
            Planner::Exact => EXACT,
            Planner::Greedy => GREEDY,
            Planner::Milp(settings) => return Ok(self.milp(settings, budget)?.held_to(for_device)),
        };
        let problem = self.problem()?;
        let Found { outcome: Outcome { verdict, solution }, budget, memory } = self.limits.cancel.catch(|| {
            if for_device {
                return self.offloading_device(problem, self.for_device(problem, searches, Effort::Full));
            }
            let outcome = problem.offloading(budget, (searches.last)(problem, budget));
            Found { outcome, budget, memory: None }
        })?;
        // Whether another way fits a device, only the allocator knows.
        let has_ways = verdict != Verdict::Fits && !for_device;
        let ways = || if has_ways { self.ways(problem, budget, verdict) } else { Ways::default() };
        let under = || if for_device { memory } else { self.memory_under(problem, &solution.checkpoints) };
        let (ways, memory) = self.limits.cancel.catch(|| rayon::join(ways, under))?;
        // The replay for the picture may be cancelled too.
        let answer = self.limits.cancel.catch(|| self.answer(problem, (verdict, solution), budget, memory))?;
        Ok(PlanAnswer { for_device: for_device && self.is_cuda(), ways, ..answer })
    }

    /// Some plan for a budget, or for the device without one, that takes little time to find.
    pub(crate) fn quickly(&self, budget: Option<Bytes>) -> Result<(Verdict, Solution), Error> {
        let problem = self.problem()?;
        let Outcome { verdict, solution } = self.limits.cancel.catch(|| match budget {
            None => {
                let found = self.for_device(problem, EXACT, Effort::Some);
                // Under another plan the allocator need not empty its cache, and that one is taken, though it may cost more.
                let empties = found.memory.is_some_and(|memory| memory.retries.is_some_and(|retries| retries > 0));
                if empties { self.for_device(problem, EXACT, Effort::Full).outcome } else { found.outcome }
            }
            Some(budget) => {
                let greedy = problem.quick_greedy(budget);
                if greedy.verdict == Verdict::Infeasible { problem.quick(budget) } else { greedy }
            }
        })?;
        Ok((verdict, solution))
    }

    /// Whether a plan for a budget is likely to take at least such a share of the step: the relaxation says so.
    ///
    /// # Errors
    /// As [`Study::problem`].
    pub(crate) fn is_likely_dear(&self, budget: Option<Bytes>, share: f64) -> Result<bool, Error> {
        let problem = self.problem()?;
        let bound =
            budget.filter(|budget| *budget < problem.baseline().peak).and_then(|budget| problem.quick_bound(budget));
        Ok(bound.is_some_and(|bound| bound.0 >= share * self.pace().step.0))
    }

    /// Whether what the host has can be of use.
    fn check_host(&self, planner: Planner) -> Result<(), Error> {
        let planner = match planner {
            Planner::Exact => None,
            Planner::Greedy => Some("greedy"),
            Planner::Milp(_) => Some("milp"),
        };
        match (self.limits.host_memory, planner) {
            (Some(Bytes(0)), _) => Err(Error::NoHostMemory),
            (Some(_), Some(planner)) => Err(Error::HostMemoryPlanner { planner }),
            _ => Ok(()),
        }
    }

    /// The plan for a device with what its host has, if it is a better one and fits by the allocator too.
    fn offloading_device(&self, problem: &Problem, found: Found) -> Found {
        let outcome = problem.offloading(found.budget, found.outcome.clone());
        if outcome == found.outcome {
            return found;
        }
        let memory = self.memory_under(problem, &outcome.solution.checkpoints);
        let fits = memory.is_none_or(|memory| memory.fits() && memory.retries == Some(0));
        if fits { Found { outcome, memory, ..found } } else { found }
    }

    fn ways(&self, problem: &Problem, budget: Bytes, verdict: Verdict) -> Ways {
        let (whole, device) = (&*self.whole, &self.target.device);
        let (alone, with_plan) = Explanation::ways_within(problem, whole, device, budget, verdict);
        Ways { alone, with_plan }
    }

    /// The plan under which the step fits the device.
    pub(crate) fn for_device(&self, problem: &Problem, searches: Searches, effort: Effort) -> Found {
        if self.is_cuda() {
            return Fitting::new(self, problem, searches, effort).find();
        }
        Found { outcome: (searches.last)(problem, self.room()), budget: self.room(), memory: None }
    }

    /// The same answer for a larger budget, within which its plan is too.
    ///
    /// # Errors
    /// As [`Study::plan`].
    pub fn with_budget(&self, answer: PlanAnswer, budget: Bytes) -> Result<PlanAnswer, Error> {
        let bound = self.problem()?.lower_bound(budget).unwrap_or(Millis(0.0));
        let mut answer = answer;
        answer.document.budget_bytes = budget;
        answer.document.lower_bound_ms = Millis(bound.0.min(answer.document.lower_bound_ms.0));
        Ok(answer)
    }

    /// What the device has for the step.
    pub(crate) fn room(&self) -> Bytes {
        if self.is_cuda() { self.target.room() } else { self.target.device.memory }
    }

    /// Plans for budgets from the step as it is down to the least that can be reached; `progress` is told after each one.
    ///
    /// # Errors
    /// If the limits leave nothing to plan or are cancelled.
    pub fn curve(&self, points: usize, progress: impl Fn() + Sync) -> Result<CurveAnswer, Error> {
        self.check_host(Planner::Exact)?;
        let problem = self.problem()?;
        let curve = self.limits.cancel.catch(|| problem.offloading_curve(problem.curve(points, progress)))?;
        let under = |(_, solution): &(Bytes, Solution)| {
            let checkpoints = &solution.checkpoints;
            (self.memory_under(problem, checkpoints), self.pace_under(problem, checkpoints).step)
        };
        let known: Vec<(Option<Memory>, Millis)> = curve.par_iter().map(under).collect();
        let point = |((budget, solution), (memory, step)): ((Bytes, Solution), (Option<Memory>, Millis))| CurvePoint {
            budget_bytes: budget,
            peak_bytes: solution.replayed.peak,
            reserved_bytes: memory.map(|memory| memory.reserved),
            fits: memory.map(|memory| memory.fits()),
            step_ms: step,
            recompute_ms: solution.replayed.recompute,
            lower_bound_ms: solution.lower_bound,
            offload: OffloadPoint::of(&solution.replayed),
        };
        Ok(CurveAnswer {
            setup: self.setup(),
            points: curve.into_iter().zip(known).map(point).collect(),
            device: self.target.device.clone(),
            step: self.pace().step,
            measured: self.costs.measurements().cloned(),
        })
    }

    /// Replays the step under a plan, with the plan's times and peaks as they are here.
    ///
    /// # Errors
    /// If the plan is for another step.
    pub fn replay(&self, document: &PlanDocument) -> Result<PlanAnswer, Error> {
        let problem = self.problem()?;
        let budget = document.budget_bytes;
        let solution = Self::replayed(problem, document, budget)?;
        let memory = self.memory_under(problem, &solution.checkpoints);
        Ok(self.answer(problem, (Verdict::Planned, solution), budget, memory))
    }

    pub(crate) fn answer(
        &self,
        problem: &Problem,
        (verdict, solution): (Verdict, Solution),
        budget: Bytes,
        memory: Option<Memory>,
    ) -> PlanAnswer {
        let document = self.document(problem, &solution, budget);
        let moments = problem.moments(&solution.checkpoints);
        let pace = self.pace_under(problem, &solution.checkpoints);
        let replayed = solution.replayed;
        PlanAnswer {
            trace: Arc::clone(&self.trace),
            verdict,
            document,
            moments,
            recompute_flops: replayed.recomputed.iter().map(|op| self.costs.flops()[*op]).sum(),
            replayed,
            device: self.target.device.clone(),
            memory,
            pace,
            for_device: false,
            measured: self.costs.measurements().cloned(),
            ways: Ways::default(),
            loss: None,
            milp: None,
        }
    }
}
