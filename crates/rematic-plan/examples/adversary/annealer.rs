//! An annealer that knows nothing but the public replay: what it finds, the planner must find too.

use std::time::{Duration, Instant};

use rematic_cost::Costs;
use rematic_plan::{Candidate, Candidates, Limits, Pricing, Problem, Replayed};
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
    candidates: Vec<Option<Candidate>>,
    /// The regions inside each one, children alone.
    children: Vec<Vec<usize>>,
}

impl<'a> Annealer<'a> {
    pub(crate) fn new(problem: &'a Problem, trace: &StepTrace, costs: &Costs, limits: &Limits) -> Self {
        let regions = problem.regions();
        let ledger = Ledger::new(trace, limits.allocator);
        let mut look = Candidates::new(trace, regions, &ledger, costs);
        let candidates: Vec<_> = regions.all().iter().map(|region| look.candidate(region, Pricing::Low)).collect();
        let mut children = vec![Vec::new(); candidates.len()];
        for (id, region) in regions.all().entries() {
            if let Some(parent) = region.parent {
                children[parent.index()].push(id.index());
            }
        }
        Annealer { problem, candidates, children }
    }

    /// The best plan that an attack finds, from the plan of a planner and from the step as it is.
    pub(crate) fn attack(&self, goal: Goal, start: &[Checkpoint], effort: Effort, seed: u64) -> Option<Replayed> {
        let mut dice = Dice::new(seed);
        let begin = Instant::now();
        let mut best: Option<Replayed> = None;
        let runs = 4;
        for run in 0..runs {
            let state = if run % 2 == 0 { self.read(start) } else { self.read(&[]) };
            let part = match effort {
                Effort::Replays(all) => Effort::Replays(all / runs),
                Effort::Time(all) => {
                    Effort::Time((all * (u32::try_from(run).unwrap_or(0) + 1) / 4).saturating_sub(begin.elapsed()))
                }
            };
            self.anneal(goal, state, part, &mut dice, &mut best);
        }
        best
    }

    fn anneal(&self, goal: Goal, mut state: State, effort: Effort, dice: &mut Dice, best: &mut Option<Replayed>) {
        let baseline = self.problem.baseline().peak.0 as f64;
        let scale = self.candidates.iter().flatten().flat_map(|one| &one.items).map(|item| item.time.0).sum::<f64>();
        let energy = |replayed: &Replayed, weight: f64| match goal {
            Goal::Time(budget) => {
                let over = replayed.peak.0.saturating_sub(budget.0) as f64 / baseline;
                replayed.recompute.0 / scale.max(1e-12) + weight * over
            }
            Goal::Peak => replayed.peak.0 as f64 / baseline,
        };
        let mut now = self.problem.replay(&self.write(&state));
        note(goal, &now, best);
        let begin = Instant::now();
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
            let usable = |region: &usize| self.candidates[*region].is_some();
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
                    let region = RegionId::new(chosen[dice.roll(chosen.len())]);
                    let around = self.problem.regions().all()[region].parent.map(RegionId::index);
                    if let Some(around) = around.filter(usable) {
                        self.choose(state, around);
                    }
                }
                // Descends: those inside take its place.
                7 if !chosen.is_empty() => {
                    let region = chosen[dice.roll(chosen.len())];
                    state.chosen[region] = false;
                    for &child in self.children[region].iter().filter(|child| usable(child)) {
                        state.chosen[child] = true;
                    }
                }
                8 if !chosen.is_empty() => state.chosen[chosen[dice.roll(chosen.len())]] = false,
                _ => {
                    let region = dice.roll(self.candidates.len());
                    if usable(&region) && !state.chosen[region] {
                        self.choose(state, region);
                    }
                }
            }
        }
    }

    /// Checkpoints a region, and none around it or inside it.
    fn choose(&self, state: &mut State, region: usize) {
        let all = self.problem.regions().all();
        let ops = all[RegionId::new(region)].ops.clone();
        for (other, chosen) in state.chosen.iter_mut().enumerate() {
            let others = &all[RegionId::new(other)].ops;
            *chosen &= others.end <= ops.start || ops.end <= others.start;
        }
        state.chosen[region] = true;
    }

    fn read(&self, checkpoints: &[Checkpoint]) -> State {
        let items = |one: &Option<Candidate>| vec![false; one.as_ref().map_or(0, |one| one.items.len())];
        let mut state =
            State { chosen: vec![false; self.candidates.len()], saved: self.candidates.iter().map(items).collect() };
        for Checkpoint { region, saved, .. } in checkpoints {
            // It knows nothing of runs of calls.
            let Some(Some(candidate)) = self.candidates.get(region.index()) else { continue };
            let start = self.problem.regions().all()[*region].ops.start;
            state.chosen[region.index()] = true;
            for (item, flag) in candidate.items.iter().zip(&mut state.saved[region.index()]) {
                *flag = item.ops.iter().all(|op| saved.binary_search(&OpId::new(start + op)).is_ok());
            }
        }
        state
    }

    fn write(&self, state: &State) -> Vec<Checkpoint> {
        let mut checkpoints = Vec::new();
        for (index, candidate) in self.candidates.iter().enumerate().filter(|(index, _)| state.chosen[*index]) {
            let Some(Candidate { items, always_saved, .. }) = candidate else { continue };
            let start = self.problem.regions().all()[RegionId::new(index)].ops.start;
            let kept = items.iter().zip(&state.saved[index]).filter(|(_, saved)| **saved);
            let ops = kept.flat_map(|(item, _)| &item.ops).chain(always_saved);
            let mut saved: Vec<OpId> = ops.map(|op| OpId::new(start + op)).collect();
            saved.sort_unstable();
            checkpoints.push(Checkpoint::new(RegionId::new(index), saved));
        }
        checkpoints
    }
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
