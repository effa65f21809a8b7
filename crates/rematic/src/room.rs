use rematic_plan::{Outcome, Problem, Solution};
use rematic_report::Memory;
use rematic_trace::{Bytes, Millis, Verdict};

use crate::study::Study;

/// How often the planners are asked: the first answers find a plan that fits, the others one that costs less.
const QUESTIONS: usize = 12;
/// Where no plan was found on the way down, so many budgets more are tried in between.
const OTHERS: u64 = 8;
/// Budgets that differ by a smaller share of the device are one.
const SAME: u64 = 512;
/// The share of the device by which a budget is lowered where PyTorch's cache would be emptied.
const EMPTIED: u64 = 64;

/// A planner of [`Problem`].
pub(crate) type Search = fn(&Problem, Bytes) -> Outcome;

/// The plan for a device.
///
/// A budget limits what tensors take. What the allocator reserves for them is more, by a share that only its simulation
/// knows, and a plan with a lower peak may reserve more: so planners are asked for lower and lower budgets until what is
/// reserved fits, and then for some between. Plans of all of them are looked at, and the cheapest that fits is taken.
pub(crate) struct Fitting<'a> {
    study: &'a Study,
    problem: &'a Problem,
    searches: &'a [Search],
    room: Bytes,
    /// The cheapest plan that fits, with its budget.
    best: Option<(Bytes, Solution)>,
    /// The cheapest that fits if PyTorch empties its cache.
    just: Option<(Bytes, Solution)>,
    questions: usize,
    effort: Effort,
}

/// How much is asked of the planners. Whether a plan is found is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Until the budgets around the cheapest plan that fits are close to each other.
    Full,
    /// One question more than a plan that fits takes, to a planner that minds the time.
    Some,
    /// Until a plan fits.
    Verdict,
}

/// So many budgets are tried between the lowest peak and all that there is, where a greedy plan was not found.
const BETWEEN: u64 = 4;

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
    pub(crate) fn new(study: &'a Study, problem: &'a Problem, searches: &'a [Search], effort: Effort) -> Self {
        let room = study.target.room();
        Fitting { study, problem, searches, room, best: None, just: None, questions: 0, effort }
    }

    /// The cheapest plan found under which PyTorch's allocator need not empty its cache; if there is none, the cheapest
    /// under which that is enough; else the one with the lowest peak, which does not fit.
    ///
    /// Whether there is one is asked first, in the same way for every effort.
    pub(crate) fn find(self) -> Found {
        let Fitting { study, problem, searches, effort, .. } = self;
        if searches.len() < 2 {
            return self.search();
        }
        let Some(possible) = self.possible() else {
            let found = Fitting::new(study, problem, searches, effort);
            return if effort == Effort::Full { found.chosen(Some(problem.least())) } else { found.chosen(None) };
        };
        let mut found = Fitting::new(study, problem, searches, effort);
        match effort {
            Effort::Verdict => possible,
            Effort::Some => {
                found.look(possible.budget, possible.outcome);
                found.ask(possible.budget);
                found.chosen(None)
            }
            Effort::Full => {
                found.look(possible.budget, possible.outcome);
                found.search()
            }
        }
    }

    /// Some plan that fits, without regard to what it costs: by the greedy planner for lower and lower budgets, and else by the
    /// relaxation's plans for some budgets. Below what is in memory whatever is planned there is none.
    fn possible(&self) -> Option<Found> {
        const GREEDY: [Search; 1] = [Problem::greedy];
        const QUICK: [Search; 1] = [Problem::quick];
        let (study, problem, room) = (self.study, self.problem, self.room);
        let is_plain = self.study.memory().is_some_and(|memory| memory.fits());
        if problem.floor() > room && !is_plain {
            return None;
        }
        let found = Fitting::new(study, problem, &GREEDY, Effort::Verdict).search();
        if found.outcome.verdict != Verdict::Infeasible {
            return Some(found);
        }
        let lowest = found.outcome.solution.replayed.peak.0.max(problem.floor().0);
        let highest = room.0.min(problem.baseline().peak.0.saturating_sub(1));
        let mut quick = Fitting::new(study, problem, &QUICK, Effort::Verdict);
        for part in 0..BETWEEN {
            quick.ask(Bytes(lowest.saturating_add(highest.saturating_sub(lowest) / BETWEEN * part)));
            if quick.is_enough() {
                return Some(quick.chosen(None));
            }
        }
        None
    }

    fn search(mut self) -> Found {
        let plain = self.problem.unplanned();
        if let Tried::Fits(_) = self.look(self.room, Outcome { verdict: Verdict::Fits, solution: plain }) {
            return self.chosen(None);
        }
        // Tensors alone may not take more than there is, or than they do.
        let highest = self.room.min(Bytes(self.problem.baseline().peak.0.saturating_sub(1)));
        let (mut budget, mut above) = (highest, highest);
        loop {
            let tried = self.ask(budget);
            if self.is_enough() {
                return self.chosen(None);
            }
            match tried {
                Tried::Fits(peak) => return self.narrow(peak, above),
                Tried::Exceeds(bytes) if self.questions < QUESTIONS => {
                    above = budget;
                    budget = Bytes(budget.0.saturating_sub(bytes.0.max(self.step())));
                }
                Tried::Exceeds(_) => {
                    let least = (self.searches[0])(self.problem, Bytes(1)).solution;
                    return self.others(least, highest);
                }
                Tried::Least(least) => return self.others(least, highest),
            }
        }
    }

    /// Whether nothing more need be known.
    fn is_enough(&self) -> bool {
        self.effort == Effort::Verdict && (self.best.is_some() || self.just.is_some())
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
        self.chosen(None)
    }

    /// Looks at some plans between the lowest peak and all that there is, since one of them may reserve less.
    fn others(mut self, least: Solution, highest: Bytes) -> Found {
        let low = least.replayed.peak;
        if low > self.room {
            return self.chosen(Some(least));
        }
        self.look(low, Outcome { verdict: Verdict::Planned, solution: least.clone() });
        for part in 1..OTHERS {
            let between = highest.0.saturating_sub(low.0) / OTHERS * part;
            if self.is_enough() {
                break;
            }
            self.ask(Bytes(low.0.saturating_add(between)));
        }
        self.chosen(Some(least))
    }

    fn step(&self) -> u64 {
        self.room.0 / SAME
    }

    /// Asks all planners for a budget; the first is the one whose answer leads on.
    fn ask(&mut self, budget: Bytes) -> Tried {
        self.questions += 1;
        let mut led = None;
        for search in self.searches {
            let outcome = search(self.problem, budget);
            let tried = self.look(budget, outcome);
            if matches!(tried, Tried::Fits(_)) {
                led = Some(tried);
            } else {
                led.get_or_insert(tried);
            }
        }
        led.unwrap_or(Tried::Exceeds(Bytes(0)))
    }

    /// Runs a plan through the allocator, and keeps it if it is the cheapest so far.
    fn look(&mut self, budget: Bytes, Outcome { verdict, solution }: Outcome) -> Tried {
        let memory = self.study.memory_under(self.problem, &solution.checkpoints);
        let peak = solution.replayed.peak;
        let cheaper = |kept: &Option<(Bytes, Solution)>| {
            kept.as_ref().is_none_or(|(_, kept)| solution.replayed.recompute < kept.replayed.recompute)
        };
        match memory.map(|memory| (memory.retries, memory.reserved)) {
            None | Some((Some(0), _)) => {
                if cheaper(&self.best) {
                    self.best = Some((peak.max(budget), solution));
                }
                Tried::Fits(peak.min(budget))
            }
            Some((Some(_), _)) => {
                if cheaper(&self.just) {
                    self.just = Some((peak.max(budget), solution));
                }
                // What it would reserve if the cache were not emptied is not known.
                Tried::Exceeds(Bytes(self.room.0 / EMPTIED))
            }
            Some((None, _)) if verdict == Verdict::Infeasible => Tried::Least(solution),
            Some((None, reserved)) => Tried::Exceeds(reserved.saturating_sub(self.room)),
        }
    }

    /// What was found, or else the plan with the lowest peak.
    fn chosen(self, least: Option<Solution>) -> Found {
        if let Some((budget, solution)) = self.best.or(self.just) {
            let memory = self.study.memory_under(self.problem, &solution.checkpoints);
            let verdict = if solution.checkpoints.is_empty() { Verdict::Fits } else { Verdict::Planned };
            let bound = match verdict {
                Verdict::Planned => self.problem.lower_bound(budget).unwrap_or(Millis(0.0)),
                _ => Millis(0.0),
            };
            let lower_bound = Millis(bound.0.min(solution.replayed.recompute.0));
            let solution = Solution { lower_bound, ..solution };
            return Found { outcome: Outcome { verdict, solution }, budget, memory };
        }
        let solution = least.unwrap_or_else(|| self.problem.unplanned());
        let memory = self.study.memory_under(self.problem, &solution.checkpoints);
        Found { outcome: Outcome { verdict: Verdict::Infeasible, solution }, budget: self.room, memory }
    }
}
