use rematic_cost::Costs;
use rematic_plan::{Explanation, Limits, Outcome, PlanDocument, Problem, Solution};
use rematic_replay::Recording;
use rematic_report::{Origins, Page, PlanView};
use rematic_trace::{Bytes, StepTrace};

use crate::error::Error;
use crate::target::Target;

/// What a page is to show.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// The most memory that may be in use; `None` for what the device has.
    pub budget: Option<Bytes>,
    /// A plan to show; `None` for the planner's own.
    pub plan: Option<PlanDocument>,
    /// How many budgets to plan for, at least 2.
    pub points: usize,
}

/// A page, and the step that it shows.
pub struct PageAnswer {
    /// The file.
    pub html: String,
    /// The plan that it shows; without regions if the step fits as it is, and the one with the lowest peak if no plan fits.
    pub document: PlanDocument,
    /// The step under that plan.
    pub recording: Recording,
    /// The time of its operators.
    pub costs: Costs,
}

impl Target {
    /// Makes one HTML file that shows a step, its plan, and the plans for other budgets; `progress` is told after each of
    /// those.
    ///
    /// # Errors
    /// If the step cannot be costed, the limits leave nothing to plan or are cancelled, the budget is zero, or the plan is
    /// for another step.
    pub fn page(
        &self,
        trace: &StepTrace,
        limits: Limits,
        options: PageOptions,
        progress: impl Fn() + Sync,
    ) -> Result<PageAnswer, Error> {
        if options.budget == Some(Bytes(0)) {
            return Err(Error::NoBudget { found: Bytes(0) });
        }
        let whole = trace;
        let trace = &*self.of_rank(whole)?;
        let costs = self.costs(trace)?;
        let cancel = limits.cancel.clone();
        let allocator = self.allocator(trace);
        cancel.catch(|| {
            let page_limits = Limits { allocator, ..limits.clone() };
            let problem = self.problem(trace, &costs, limits)?;
            let points = problem.curve(options.points, progress);
            let (budget, solution) = self.chosen(&problem, &points, options)?;
            let origins = Origins::new(trace);
            let view = |(budget, solution): &(Bytes, Solution)| {
                let document = PlanDocument::new(&problem, solution, *budget, &self.device.name);
                let recording = problem.record(&solution.checkpoints);
                PlanView::new(trace, problem.regions(), &document, &solution.checkpoints, &recording, &origins)
            };
            let explanation = Explanation::new(whole, self.ranks, &costs, &self.device, page_limits)?;
            let document = PlanDocument::new(&problem, &solution, budget, &self.device.name);
            let recording = problem.record(&solution.checkpoints);
            let page = Page {
                trace,
                costs: &costs,
                regions: problem.regions(),
                device: &self.device,
                allocator,
                origins: &origins,
                plain: &problem.record(&[]),
                chosen: (&document, &solution.checkpoints, &recording),
                explanation: &explanation,
                curve: points.iter().map(view).collect(),
            };
            Ok(PageAnswer { html: page.html(), document, recording, costs: costs.clone() })
        })?
    }

    /// The budget, and the plan for it.
    fn chosen(
        &self,
        problem: &Problem<'_>,
        curve: &[(Bytes, Solution)],
        options: PageOptions,
    ) -> Result<(Bytes, Solution), Error> {
        if let Some(document) = options.plan {
            let budget = options.budget.unwrap_or(document.budget_bytes);
            return Ok((budget, Self::replayed(problem, &document, budget)?));
        }
        let budget = options.budget.unwrap_or(self.device.memory);
        Ok((
            budget,
            match problem.exact(budget) {
                Outcome::Fits => problem.unplanned(),
                Outcome::Planned(solution) => solution,
                // The curve ends where no plan goes any lower.
                Outcome::Infeasible(infeasible) => curve.last().map_or(infeasible.least, |(_, least)| least.clone()),
            },
        ))
    }
}
