use rematic_plan::{Outcome, Problem, Solution};
use rematic_report::Memory;
use rematic_trace::{Bytes, Verdict};

use crate::study::Study;

/// How often the planner is asked: the first answers find a plan that fits, the others one that costs less.
const QUESTIONS: usize = 12;
/// Budgets that differ by a smaller share of the device are one.
const SAME: u64 = 512;
/// The share of the device by which a budget is lowered where PyTorch's cache would be emptied.
const EMPTIED: u64 = 64;

/// A planner of [`Problem`].
pub(crate) type Search = fn(&Problem, Bytes) -> Outcome;

/// The plan for a device.
///
/// A budget limits what tensors take. What the allocator reserves for them is more, by a share that only its simulation
/// knows: so the planner is asked for lower and lower budgets until what is reserved fits, and then for some between.
pub(crate) struct Fitting<'a> {
    study: &'a Study,
    problem: &'a Problem,
    search: Search,
    room: Bytes,
    /// The cheapest plan that fits, and the budget that it was found for.
    best: Option<(Bytes, Solution)>,
    questions: usize,
}

/// The answer for a device.
pub(crate) struct Found {
    pub(crate) outcome: Outcome,
    /// What tensors may take so that what is reserved for them fits.
    pub(crate) budget: Bytes,
    /// What the step takes then; `None` on the CPU.
    pub(crate) memory: Option<Memory>,
}

/// What came of a budget.
enum Tried {
    /// A plan with this peak fits.
    Fits(Bytes),
    /// Its plan reserves so much more than there is.
    Exceeds(Bytes),
    /// No plan has a lower peak than this one, which does not fit.
    Least(Solution),
}

impl<'a> Fitting<'a> {
    pub(crate) fn new(study: &'a Study, problem: &'a Problem, search: Search) -> Self {
        Fitting { study, problem, search, room: study.target.room(), best: None, questions: 0 }
    }

    /// The cheapest plan found under which PyTorch's allocator need not empty its cache; if there is none, the one with
    /// the lowest peak, which fits or does not.
    pub(crate) fn find(mut self) -> Found {
        let memory = self.study.memory_under(self.problem, &[]);
        if memory.is_none_or(|memory| memory.retries == Some(0)) {
            let outcome = Outcome { verdict: Verdict::Fits, solution: self.problem.unplanned() };
            return Found { outcome, budget: self.room, memory };
        }
        // Tensors alone may not take more than there is, or than they do.
        let mut budget = self.room.min(Bytes(self.problem.baseline().peak.0.saturating_sub(1)));
        let mut above = budget;
        loop {
            match self.ask(budget) {
                Tried::Fits(peak) => return self.narrow(peak, above),
                Tried::Exceeds(bytes) if self.questions < QUESTIONS => {
                    above = budget;
                    budget = Bytes(budget.0.saturating_sub(bytes.0.max(self.step())));
                }
                Tried::Exceeds(_) => {
                    let least = (self.search)(self.problem, Bytes(1)).solution;
                    return self.least(least);
                }
                Tried::Least(least) => return self.least(least),
            }
        }
    }

    /// Looks between a budget whose plan fits and one whose plan does not.
    fn narrow(mut self, mut low: Bytes, mut high: Bytes) -> Found {
        while self.questions < QUESTIONS && high.0.saturating_sub(low.0) > self.step() {
            let between = Bytes(low.0 + (high.0 - low.0) / 2);
            match self.ask(between) {
                Tried::Fits(_) => low = between,
                Tried::Exceeds(_) | Tried::Least(_) => high = between,
            }
        }
        let (budget, best) = self.best.take().unwrap_or_else(|| (self.room, self.problem.unplanned()));
        self.planned(budget, best)
    }

    fn step(&self) -> u64 {
        self.room.0 / SAME
    }

    fn ask(&mut self, budget: Bytes) -> Tried {
        self.questions += 1;
        let Outcome { verdict, solution } = (self.search)(self.problem, budget);
        let memory = self.study.memory_under(self.problem, &solution.checkpoints);
        let peak = solution.replayed.peak;
        match memory.map(|memory| (memory.retries, memory.reserved)) {
            None | Some((Some(0), _)) => {
                let cheaper = |(_, best): &(Bytes, Solution)| solution.replayed.recompute < best.replayed.recompute;
                if self.best.as_ref().is_none_or(cheaper) {
                    self.best = Some((peak.max(budget), solution));
                }
                Tried::Fits(peak.min(budget))
            }
            _ if verdict == Verdict::Infeasible => Tried::Least(solution),
            // What it would reserve if the cache were not emptied is not known.
            Some((Some(_), _)) => Tried::Exceeds(Bytes(self.room.0 / EMPTIED)),
            Some((None, reserved)) => Tried::Exceeds(reserved.saturating_sub(self.room)),
        }
    }

    /// The plan with the lowest peak, if none fits without the cache being emptied.
    fn least(self, least: Solution) -> Found {
        match self.study.memory_under(self.problem, &least.checkpoints) {
            Some(memory) if !memory.fits() => {
                let outcome = Outcome { verdict: Verdict::Infeasible, solution: least };
                Found { outcome, budget: self.room, memory: Some(memory) }
            }
            _ => self.planned(least.replayed.peak, least),
        }
    }

    fn planned(self, budget: Bytes, solution: Solution) -> Found {
        let memory = self.study.memory_under(self.problem, &solution.checkpoints);
        let verdict = if solution.checkpoints.is_empty() { Verdict::Fits } else { Verdict::Planned };
        Found { outcome: Outcome { verdict, solution }, budget, memory }
    }
}
