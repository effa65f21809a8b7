//! An annealer that knows nothing but the public replay: what it finds, the planner must find too.

use std::ops::Range;
use std::time::{Duration, Instant};

use rematic_cost::Costs;
use rematic_plan::{Candidate, Candidates, Facts, Limits, Pricing, Problem, Replayed};
use rematic_replay::{Checkpoint, Ledger, RegionId};
use rematic_trace::{Bytes, OpId, StepTrace};

/// Dice that fall the same way for the same seed (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides.max(1) as u64).unwrap_or(0)
    }

    /// A number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How long an attack lasts.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// The same on every machine.
    #[allow(dead_code, reason = "for the test")]
    Replays(usize),
    #[allow(dead_code, reason = "for the command")]
    Time(Duration),
}

/// The processor's time of this process where the system tells it, so that a busy machine attacks as hard as an idle one.
struct Clock {
    begin: Instant,
    ran: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Clock { begin: Instant::now(), ran: ran() }
    }

    fn elapsed(&self) -> Duration {
        match (self.ran, ran()) {
            (Some(begin), Some(now)) => now.saturating_sub(begin),
            _ => self.begin.elapsed(),
        }
    }
}

/// How long this thread has run so far.
fn ran() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// What is attacked.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// The least time within a budget.
    Time(Bytes),
    /// The lowest peak.
    Peak,
}

/// For each region, whether it is checkpointed, and what of it is saved.
#[derive(Clone)]
struct State {
    chosen: Vec<bool>,
    saved: Vec<Vec<bool>>,
}

/// The regions of a step, and what may be saved of each.
pub(crate) struct Annealer<'a> {
    problem: &'a Problem,
    trace: &'a StepTrace,
    costs: &'a Costs,
    ledger: Ledger,
    regions: Vec<Known>,
    skips: bool,
}

/// A region that the annealer knows.
#[derive(Clone)]
struct Known {
    id: RegionId,
    ops: Range<usize>,
    candidate: Option<Candidate>,
    /// The innermost one around it.
    around: Option<usize>,
}

impl<'a> Annealer<'a> {
    pub(crate) fn new(problem: &'a Problem, trace: &'a StepTrace, costs: &'a Costs, limits: &Limits) -> Self {
        let ledger = Ledger::new(trace, limits.allocator);
        let (regions, skips) = (Vec::new(), limits.may_skip());
        let mut annealer = Annealer { problem, trace, costs, ledger, regions, skips };
        annealer.regions = annealer.look(problem.regions().all().ids());
        annealer
    }

    fn look(&self, ids: impl Iterator<Item = RegionId>) -> Vec<Known> {
        let regions = self.problem.regions();
        let facts = Facts::new(self.trace);
        let mut candidates =
            Candidates::new(self.trace, &facts, regions, &self.ledger, self.costs).skipping(self.skips);
        let known = |id: RegionId| {
            let region = regions.region(id);
            let (ops, candidate) = (region.ops.clone(), candidates.candidate(region, Pricing::Low));
            Known { id, ops, candidate, around: region.parent.map(RegionId::index) }
        };
        ids.map(known).collect()
    }

    /// Knows the runs of a plan too. Those of calls beside each other stand around the calls.
    fn knowing(&self, plan: &[Checkpoint]) -> Self {
        let singles = self.regions.len();
        let ids = plan.iter().map(|checkpoint| checkpoint.region).filter(|id| id.index() >= singles);
        let mut regions = self.regions.clone();
        for run in self.look(ids) {
            let (at, is_inside) = (regions.len(), |region: &Known| contains(&run.ops, &region.ops));
            let outermost = |region: &Known| region.around.is_none_or(|around| !is_inside(&self.regions[around]));
            for region in regions[..singles].iter_mut().filter(|region| is_inside(region) && outermost(region)) {
                region.around = Some(at);
            }
            regions.push(run);
        }
        let &Annealer { problem, trace, costs, skips, .. } = self;
        Annealer { problem, trace, costs, ledger: self.ledger.clone(), regions, skips }
    }

    /// The best plan that an attack finds, from the plan of a planner and from the step as it is.
    pub(crate) fn attack(&self, goal: Goal, start: &[Checkpoint], effort: Effort, seed: u64) -> Option<Replayed> {
        let annealer = self.knowing(start);
        let mut dice = Dice::new(seed);
        let begin = Clock::start();
        let mut best: Option<Replayed> = None;
        let runs = 4;
        for run in 0..runs {
            let state = if run % 2 == 0 { annealer.read(start) } else { annealer.read(&[]) };
            let part = match effort {
                Effort::Replays(all) => Effort::Replays(all / runs),
                Effort::Time(all) => {
                    Effort::Time((all * (u32::try_from(run).unwrap_or(0) + 1) / 4).saturating_sub(begin.elapsed()))
                }
            };
            annealer.anneal(goal, state, part, &mut dice, &mut best);
        }
        best
    }

    fn anneal(&self, goal: Goal, mut state: State, effort: Effort, dice: &mut Dice, best: &mut Option<Replayed>) {
        let baseline = self.problem.baseline().peak.0 as f64;
        let candidates = self.regions.iter().filter_map(|region| region.candidate.as_ref());
        let scale = candidates.flat_map(|one| &one.items).map(|item| item.time.0).sum::<f64>();
        let energy = |replayed: &Replayed, weight: f64| match goal {
            Goal::Time(budget) => {
                let over = replayed.peak.0.saturating_sub(budget.0) as f64 / baseline;
                replayed.recompute.0 / scale.max(1e-12) + weight * over
            }
            Goal::Peak => replayed.peak.0 as f64 / baseline,
        };
        let mut now = self.problem.replay(&self.write(&state));
        note(goal, &now, best);
        let begin = Clock::start();
        let mut done = 0;
        loop {
            done += 1;
            let share = match effort {
                Effort::Replays(all) => done as f64 / all as f64,
                Effort::Time(all) => begin.elapsed().as_secs_f64() / all.as_secs_f64().max(1e-9),
            };
            if share >= 1.0 {
                return;
            }
            let heat = 0.03 * (1e-4_f64).powf(share);
            let weight = 2.0 + 60.0 * share;
            let mut tried = state.clone();
            self.change(&mut tried, dice);
            let replayed = self.problem.replay(&self.write(&tried));
            note(goal, &replayed, best);
            let rise = energy(&replayed, weight) - energy(&now, weight);
            if rise <= 0.0 || dice.share() < (-rise / heat).exp() {
                (state, now) = (tried, replayed);
            }
        }
    }

    /// One or two steps to a neighbour.
    fn change(&self, state: &mut State, dice: &mut Dice) {
        for _ in 0..1 + dice.roll(3) / 2 {
            let usable = |region: &usize| self.regions[*region].candidate.is_some();
            let chosen: Vec<usize> = (0..state.chosen.len()).filter(|&region| state.chosen[region]).collect();
            match dice.roll(10) {
                // Saves something, or recomputes it.
                0..=5 if !chosen.is_empty() => {
                    let region = chosen[dice.roll(chosen.len())];
                    let items = &mut state.saved[region];
                    if !items.is_empty() {
                        let item = dice.roll(items.len());
                        items[item] = !items[item];
                    }
                }
                // Lifts: the region around takes its place.
                6 if !chosen.is_empty() => {
                    let around = self.regions[chosen[dice.roll(chosen.len())]].around;
                    if let Some(around) = around.filter(usable) {
                        self.choose(state, around);
                    }
                }
                // Descends: those inside take its place.
                7 if !chosen.is_empty() => {
                    let region = chosen[dice.roll(chosen.len())];
                    state.chosen[region] = false;
                    let children = (0..self.regions.len()).filter(|child| self.regions[*child].around == Some(region));
                    for child in children.filter(usable) {
                        state.chosen[child] = true;
                    }
                }
                8 if !chosen.is_empty() => state.chosen[chosen[dice.roll(chosen.len())]] = false,
                _ => {
                    let region = dice.roll(self.regions.len());
                    if usable(&region) && !state.chosen[region] {
                        self.choose(state, region);
                    }
                }
            }
        }
    }

    /// Checkpoints a region, and none around it or inside it.
    fn choose(&self, state: &mut State, region: usize) {
        let ops = &self.regions[region].ops;
        for (other, chosen) in self.regions.iter().zip(&mut state.chosen) {
            *chosen &= other.ops.end <= ops.start || ops.end <= other.ops.start;
        }
        state.chosen[region] = true;
    }

    fn read(&self, checkpoints: &[Checkpoint]) -> State {
        let items = |one: &Known| vec![false; one.candidate.as_ref().map_or(0, |one| one.items.len())];
        let mut state =
            State { chosen: vec![false; self.regions.len()], saved: self.regions.iter().map(items).collect() };
        for Checkpoint { region, saved, .. } in checkpoints {
            let Some(at) = self.regions.iter().position(|known| known.id == *region) else { continue };
            let Known { ops, candidate: Some(candidate), .. } = &self.regions[at] else { continue };
            state.chosen[at] = true;
            for (item, flag) in candidate.items.iter().zip(&mut state.saved[at]) {
                *flag = item.ops.iter().all(|op| saved.binary_search(&OpId::new(ops.start + op)).is_ok());
            }
        }
        state
    }

    fn write(&self, state: &State) -> Vec<Checkpoint> {
        let mut checkpoints = Vec::new();
        for (index, known) in self.regions.iter().enumerate().filter(|(index, _)| state.chosen[*index]) {
            let Some(candidate) = &known.candidate else { continue };
            let items = (0..candidate.items.len()).filter(|&item| state.saved[index][item]);
            checkpoints.push(candidate.checkpoint(known.id, known.ops.start, items));
        }
        checkpoints.sort_by_key(|checkpoint| self.problem.regions().region(checkpoint.region).ops.start);
        checkpoints
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn note(goal: Goal, replayed: &Replayed, best: &mut Option<Replayed>) {
    let (is_good, better): (bool, fn(&Replayed, &Replayed) -> bool) = match goal {
        Goal::Time(budget) => (replayed.peak <= budget, |one, other| one.recompute.0 < other.recompute.0),
        Goal::Peak => (true, |one, other| one.peak < other.peak),
    };
    if is_good && best.as_ref().is_none_or(|best| better(replayed, best)) {
        *best = Some(replayed.clone());
    }
}
