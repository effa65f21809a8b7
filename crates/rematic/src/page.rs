use rayon::prelude::*;
use rematic_plan::{Outcome, PlanDocument, Problem, Solution};
use rematic_replay::Recording;
use rematic_report::{OnDevice, Origins, Page, PlanView};
use rematic_trace::{Bytes, Verdict};

use crate::error::Error;
use crate::planning::EXACT;
use crate::room::{Effort, Found};
use crate::study::Study;

/// What a page is to show.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// The most memory that tensors may take; `None` for what fits the device.
    pub budget: Option<Bytes>,
    /// A plan to show; `None` for the planner's own.
    pub plan: Option<PlanDocument>,
    /// How many budgets to plan for, at least 2.
    pub points: usize,
    /// The command that plans this step, but for the budget, to be copied; `None` if there is none.
    pub command: Option<String>,
}

/// A page, and the step that it shows.
pub struct PageAnswer {
    /// The file.
    pub html: String,
    /// The plan that it shows; without regions if the step fits as it is, and the one with the lowest peak if no plan fits.
    pub document: PlanDocument,
    /// The step under that plan.
    pub recording: Recording,
    /// Whether it fits: the budget, or the device if there is none.
    pub fits: bool,
}

impl Study {
    /// Makes one HTML file that shows a step, its plan, and the plans for other budgets; `progress` is told after each of
    /// those.
    ///
    /// # Errors
    /// If the limits leave nothing to plan or are cancelled, the budget is zero, or the plan is for another step.
    pub fn page(&self, options: PageOptions, progress: impl Fn() + Sync) -> Result<PageAnswer, Error> {
        if options.budget == Some(Bytes(0)) {
            return Err(Error::NoBudget { found: Bytes(0) });
        }
        let (trace, problem) = (&*self.trace, self.problem()?);
        let for_device = options.budget.is_none() && options.plan.is_none() && self.is_cuda();
        let command = options.command.clone();
        self.limits.cancel.catch(|| {
            let (points, explanation) = rayon::join(|| problem.curve(options.points, &progress), || self.explain());
            let (budget, solution) = self.chosen(problem, &points, options)?;
            let origins = Origins::new(trace);
            let view = |(budget, solution): &(Bytes, Solution)| {
                let document = self.document(problem, solution, *budget);
                let recording = problem.record(&solution.checkpoints);
                PlanView::new(trace, problem.regions(), &document, &solution.checkpoints, &recording, &origins)
            };
            let document = self.document(problem, &solution, budget);
            let recording = problem.record(&solution.checkpoints);
            let memory = self.memory_under(problem, &solution.checkpoints);
            let device = &self.target.device;
            let on_device = memory.as_ref().map(|memory| OnDevice { device, memory, decides: for_device });
            let fits = match &memory {
                Some(memory) if for_device => memory.fits(),
                _ => document.peak_bytes <= document.budget_bytes,
            };
            let pace = self.pace_under(problem, &solution.checkpoints);
            let page = Page {
                trace,
                costs: &self.costs,
                regions: problem.regions(),
                device,
                command: command.as_deref(),
                on_device,
                paces: (self.pace(), &pace),
                allocator: self.allocator(),
                origins: &origins,
                plain: &problem.record(&[]),
                chosen: (&document, &solution.checkpoints, &recording),
                explanation: &explanation?,
                curve: points.par_iter().map(view).collect(),
            };
            Ok(PageAnswer { html: page.html(), document, recording, fits })
        })?
    }

    /// The budget, and the plan for it.
    fn chosen(
        &self,
        problem: &Problem,
        curve: &[(Bytes, Solution)],
        options: PageOptions,
    ) -> Result<(Bytes, Solution), Error> {
        if let Some(document) = options.plan {
            let budget = options.budget.unwrap_or(document.budget_bytes);
            return Ok((budget, Self::replayed(problem, &document, budget)?));
        }
        let (budget, Outcome { verdict, solution }) = match options.budget {
            Some(budget) => (budget, problem.exact(budget)),
            None => {
                let Found { outcome, budget, .. } = self.for_device(problem, EXACT, Effort::Full);
                (budget, outcome)
            }
        };
        Ok(match (verdict, curve.last()) {
            // The curve ends where no plan goes any lower.
            (Verdict::Infeasible, Some((_, least))) => (budget, least.clone()),
            _ => (budget, solution),
        })
    }
}
