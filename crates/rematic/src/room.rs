use std::cell::RefCell;
use std::rc::Rc;

use rematic_plan::{Outcome, Problem, Solution};
use rematic_replay::Checkpoint;
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

/// Who plans for a device.
#[derive(Clone, Copy)]
pub(crate) struct Searches {
    /// Those that are asked for one budget after the other, the better one first.
    pub(crate) asked: &'static [Search],
    /// The one that is asked once for the budget that was found.
    pub(crate) last: Search,
}

/// The plan for a device.
///
/// A budget limits what tensors take. What the allocator reserves for them is more, by a share that only its simulation
/// knows, and a plan with a lower peak may reserve more: so planners are asked for lower and lower budgets until what is
/// reserved fits, and then for some between, each as far away as the last answer was from the device's memory. Plans of all
/// of them are looked at, and the cheapest that fits is taken.
pub(crate) struct Fitting<'a> {
    study: &'a Study,
    problem: &'a Problem,
    searches: Searches,
    room: Bytes,
    /// The cheapest plan that fits.
    best: Option<Kept>,
    /// The cheapest that fits if PyTorch empties its cache.
    just: Option<Kept>,
    questions: usize,
    effort: Effort,
    /// Whether nothing more is asked about a plan than whether it fits.
    only_fits: bool,
    /// What the allocator said of plans so far: neighbouring budgets, and other planners, often have the same.
    seen: Rc<RefCell<Vec<Seen>>>,
}

/// A plan, and what the step takes under it; nothing if it is only known not to fit.
type Seen = (Vec<Checkpoint>, Option<Memory>);

/// A plan with its budget and what the step takes under it.
struct Kept {
    budget: Bytes,
    solution: Solution,
    memory: Option<Memory>,
}

/// How much is asked of the planners. Whether a plan is found is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Until the budgets around the cheapest plan that fits are close to each other.
    Full,
    /// One question more than a plan that fits takes, to planners that mind the time.
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
    /// Its plan fits, and leaves so much.
    Fits(Bytes),
    /// Its plan reserves so much more than there is.
    Exceeds(Bytes),
    /// No plan has a lower peak than this one, which does not fit.
    Least(Solution),
}

impl<'a> Fitting<'a> {
    pub(crate) fn new(study: &'a Study, problem: &'a Problem, searches: Searches, effort: Effort) -> Self {
        let room = study.target.room();
        let seen = Rc::default();
        Fitting { study, problem, searches, room, best: None, just: None, questions: 0, effort, only_fits: false, seen }
    }

    /// The same question to others, who know what this one has seen.
    fn asking(&self, searches: Searches, effort: Effort) -> Self {
        Fitting { seen: Rc::clone(&self.seen), ..Fitting::new(self.study, self.problem, searches, effort) }
    }

    /// The cheapest plan found under which PyTorch's allocator need not empty its cache; if there is none, the cheapest
    /// under which that is enough; else the one with the lowest peak, which does not fit.
    ///
    /// Whether there is one is asked first, in the same way for every effort.
    pub(crate) fn find(mut self) -> Found {
        if self.searches.asked.len() < 2 {
            return self.search();
        }
        let Some(possible) = self.possible() else {
            let least = (self.effort == Effort::Full).then(|| self.problem.least());
            return self.chosen(least);
        };
        if self.effort == Effort::Verdict {
            return possible;
        }
        self.look(possible.budget, possible.outcome);
        // Whoever asks for more has at least what others are told.
        self.ask(possible.budget);
        if self.effort == Effort::Full { self.search() } else { self.chosen(None) }
    }

    /// Some plan that fits, without regard to what it costs: by the greedy planner for lower and lower budgets, and else by a
    /// quick one for some of them. Where the relaxation has no solution there is none.
    fn possible(&self) -> Option<Found> {
        const GREEDY: Searches = Searches { asked: &[Problem::quick_greedy], last: Problem::quick_greedy };
        const QUICK: Searches = Searches { asked: &[Problem::quick], last: Problem::quick };
        let (study, problem, room) = (self.study, self.problem, self.room);
        let is_plain = !study.is_far_too_large() && study.memory().is_some_and(Memory::fits);
        if !is_plain && !problem.may_be_within(room) {
            return None;
        }
        let found = self.asking(GREEDY, Effort::Verdict).search();
        if found.outcome.verdict != Verdict::Infeasible {
            return Some(found);
        }
        let highest = room.0.min(problem.baseline().peak.0.saturating_sub(1));
        let lowest = found.outcome.solution.replayed.peak.0.min(highest);
        let mut quick = Fitting { only_fits: true, ..self.asking(QUICK, Effort::Verdict) };
        for part in 0..BETWEEN {
            quick.ask(Bytes(lowest + (highest - lowest) / BETWEEN * part));
            if quick.is_enough() {
                return Some(quick.chosen(None));
            }
        }
        None
    }

    /// Whether nothing more need be known.
    fn is_enough(&self) -> bool {
        self.effort == Effort::Verdict && (self.best.is_some() || self.just.is_some())
    }

    fn search(mut self) -> Found {
        let plain = Outcome { verdict: Verdict::Fits, solution: self.problem.unplanned() };
        if !self.study.is_far_too_large() && matches!(self.look(self.room, plain), Tried::Fits(_)) {
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
                Tried::Fits(left) => return self.narrow(budget, above, left),
                Tried::Exceeds(bytes) if self.questions < QUESTIONS => {
                    above = budget;
                    budget = Bytes(budget.0.saturating_sub(bytes.0.max(self.step())));
                }
                Tried::Exceeds(_) => {
                    let least = (self.searches.asked[0])(self.problem, Bytes(1)).solution;
                    if least.replayed.peak <= self.room {
                        let outcome = Outcome { verdict: Verdict::Planned, solution: least.clone() };
                        self.look(least.replayed.peak, outcome);
                    }
                    return self.others(least, highest);
                }
                Tried::Least(least) => return self.others(least, highest),
            }
        }
    }

    /// Looks between a budget whose plan fits, and leaves so much, and one whose plan does not.
    fn narrow(mut self, mut low: Bytes, mut high: Bytes, left: Bytes) -> Found {
        let mut next = low + left;
        while self.questions < QUESTIONS && high.0.saturating_sub(low.0) > self.step() {
            let edge = self.step() / 2;
            if next.0 <= low.0 + edge || next.0 + edge >= high.0 {
                next = Bytes(low.0 + (high.0 - low.0) / 2);
            }
            match self.ask(next) {
                Tried::Fits(left) => (low, next) = (next, next + left),
                Tried::Exceeds(bytes) => (high, next) = (next, next.saturating_sub(bytes)),
                Tried::Least(_) => high = next,
            }
        }
        let settled = (self.searches.last)(self.problem, low);
        self.look(low, settled);
        self.chosen(None)
    }

    /// Looks at some plans between the lowest peak, which was looked at, and all that there is, since one of them may reserve less.
    fn others(mut self, least: Solution, highest: Bytes) -> Found {
        let low = least.replayed.peak;
        if low > self.room {
            return self.chosen(Some(least));
        }
        self.only_fits = true;
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
        for search in self.searches.asked {
            let outcome = search(self.problem, budget);
            // Once a plan for the budget fits, one that costs more than the best says nothing new.
            if matches!(led, Some(Tried::Fits(_))) && !is_cheaper(&outcome.solution, &self.best) {
                continue;
            }
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
        let memory = self.memory(&solution.checkpoints);
        if memory.is_none() && self.study.is_cuda() {
            return Tried::Exceeds(Bytes(0));
        }
        let peak = solution.replayed.peak;
        let cheaper = |kept: &Option<Kept>| is_cheaper(&solution, kept);
        match memory.map(|memory| (memory.retries, memory.reserved)) {
            None | Some((Some(0), _)) => {
                if cheaper(&self.best) {
                    self.best = Some(Kept { budget: peak.max(budget), solution, memory });
                }
                let reserved = memory.map_or(peak, |memory| memory.reserved);
                Tried::Fits(self.room.saturating_sub(reserved))
            }
            Some((Some(_), _)) => {
                if cheaper(&self.just) {
                    self.just = Some(Kept { budget: peak.max(budget), solution, memory });
                }
                // What it would reserve if the cache were not emptied is not known.
                Tried::Exceeds(Bytes(self.room.0 / EMPTIED))
            }
            Some((None, _)) if verdict == Verdict::Infeasible => Tried::Least(solution),
            Some((None, reserved)) => Tried::Exceeds(reserved.saturating_sub(self.room)),
        }
    }

    /// What the step takes under a plan; nothing on the CPU, or if all that is asked is whether it fits and it does not.
    fn memory(&self, checkpoints: &[Checkpoint]) -> Option<Memory> {
        let seen = self.seen.borrow().iter().find(|(plan, _)| plan == checkpoints).map(|(_, memory)| *memory);
        if let Some(memory) = seen.filter(|memory| memory.is_some() || self.only_fits) {
            return memory;
        }
        let found = if self.only_fits {
            self.study.memory_within(self.problem, checkpoints)
        } else {
            self.study.memory_under(self.problem, checkpoints)
        };
        let mut known = self.seen.borrow_mut();
        known.retain(|(plan, _)| plan != checkpoints);
        known.push((checkpoints.to_vec(), found));
        found
    }

    /// What was found, or else the plan with the lowest peak.
    fn chosen(self, least: Option<Solution>) -> Found {
        if let Some(Kept { budget, solution, memory }) = self.best.or(self.just) {
            let verdict = if solution.checkpoints.is_empty() { Verdict::Fits } else { Verdict::Planned };
            let bound = match verdict {
                // Where only the verdict is asked for, nobody reads it.
                Verdict::Planned if self.effort != Effort::Verdict => {
                    self.problem.lower_bound(budget).unwrap_or(Millis(0.0))
                }
                _ => Millis(0.0),
            };
            let lower_bound = Millis(bound.0.min(solution.replayed.recompute.0));
            let solution = Solution { lower_bound, ..solution };
            return Found { outcome: Outcome { verdict, solution }, budget, memory };
        }
        let solution = least.unwrap_or_else(|| self.problem.unplanned());
        // Nor what a step takes that does not fit.
        let asks = self.effort != Effort::Verdict;
        let memory = asks.then(|| self.study.memory_under(self.problem, &solution.checkpoints)).flatten();
        Found { outcome: Outcome { verdict: Verdict::Infeasible, solution }, budget: self.room, memory }
    }
}

fn is_cheaper(solution: &Solution, kept: &Option<Kept>) -> bool {
    kept.as_ref().is_none_or(|kept| solution.replayed.recompute < kept.solution.replayed.recompute)
}
