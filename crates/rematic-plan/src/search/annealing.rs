use std::sync::Arc;

use rematic_replay::Checkpoint;
use rematic_trace::Bytes;

use super::Draft;
use crate::problem::Problem;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The least time within a budget.
    Time(Bytes),
    /// The lowest peak.
    Peak,
}

/// At first, a rise of the time by this share of it is often taken; in the end hardly one of the second share is.
const FIRST_HEAT: f64 = 0.01;
const LAST_HEAT: f64 = 3e-5;
/// What a byte above the budget costs, as a multiple of what a byte costs on average: at first and in the end.
const FIRST_WEIGHT: f64 = 2.0;
const LAST_WEIGHT: f64 = 30.0;

/// What being above the budget at all costs in the end, as a share of the time: a few bytes too much are too much.
const FINE: f64 = 0.01;

/// Up to so many items in all regions, plans are searched from the step as it is too.
const SMALL: usize = 300;

/// Dice that fall the same way every time (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides.max(1) as u64).unwrap_or(0)
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// What was done to a draft, so that it can be taken back.
pub(super) enum Done {
    Flip(usize, usize),
    Choose(usize, bool),
    /// What was saved of a range of operators.
    Saved(usize, Vec<bool>),
}

/// A search among plans.
pub(crate) struct Search<'a> {
    pub(super) problem: &'a Problem,
    pub(super) draft: Draft<'a>,
    pub(super) goal: Goal,
    dice: Dice,
    /// The chosen nodes, and where each stands among them.
    pub(super) chosen: Vec<usize>,
    place: Vec<usize>,
    pub(super) done: Vec<Done>,
    /// Lives changed by steps of whole regions.
    rebuilding: usize,
    /// The best plan so far, by what is looked for.
    best: Option<(f64, Vec<Checkpoint>)>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(problem: &'a Problem, goal: Goal) -> Self {
        let (axis, lives) = problem.moments_of_plans();
        Search {
            problem,
            draft: Draft::new(problem, axis, lives),
            goal,
            dice: Dice(0x0007_e3a7_1c00),
            chosen: Vec::new(),
            place: vec![usize::MAX; problem.nodes.len()],
            done: Vec::new(),
            rebuilding: 0,
            best: None,
        }
    }

    /// The best plan that is found from these, if any is within the budget.
    pub(crate) fn run(&mut self, starts: &[Vec<Checkpoint>], changes: usize) -> Option<Vec<Checkpoint>> {
        if self.problem.nodes.is_empty() {
            return None;
        }
        for start in starts {
            self.read(start);
            self.refill();
        }
        if let Some(best) = self.best_plan().or_else(|| starts.first().cloned()) {
            self.read(&best);
            self.anneal(changes);
        }
        if self.is_small() {
            self.read(&[]);
            self.anneal(changes / 2);
            if let Some(best) = self.best_plan() {
                self.read(&best);
                self.anneal(changes / 2);
            }
        }
        if let Some(best) = self.best_plan() {
            self.read(&best);
            self.fill();
            self.refill();
        }
        self.best.take().map(|(_, plan)| plan)
    }

    /// Whether so much work is enough to begin with nothing too.
    fn is_small(&self) -> bool {
        let items = self.problem.nodes.iter().map(|node| node.candidate.items.len());
        items.sum::<usize>() <= SMALL
    }

    fn best_plan(&self) -> Option<Vec<Checkpoint>> {
        self.best.as_ref().map(|(_, plan)| plan.clone())
    }

    fn read(&mut self, plan: &[Checkpoint]) {
        self.draft.read(plan);
        self.done.clear();
        self.chosen = (0..self.problem.nodes.len()).filter(|&node| self.draft.is_chosen(node)).collect();
        self.place.fill(usize::MAX);
        for (at, &node) in self.chosen.iter().enumerate() {
            self.place[node] = at;
        }
        self.note();
    }

    /// What is looked for, in time or in bytes; `None` if the plan is above the budget.
    fn value(&self) -> Option<f64> {
        match self.goal {
            Goal::Time(budget) => (self.draft.peak() <= budget.0).then(|| self.draft.time()),
            // Of equal peaks the one that takes less.
            Goal::Peak => Some(self.draft.peak() as f64 + self.draft.time() / (1.0 + self.draft.time())),
        }
    }

    pub(super) fn note(&mut self) {
        if let Some(value) = self.value()
            && self.best.as_ref().is_none_or(|(best, _)| value < best - 1e-9 * best.abs())
        {
            self.best = Some((value, self.draft.write()));
        }
    }

    /// What the search brings down, at a share of its way.
    fn energy(&self, (weight, fine): (f64, f64)) -> f64 {
        match self.goal {
            Goal::Time(budget) => {
                let over = self.draft.peak().saturating_sub(budget.0);
                self.draft.time() + if over > 0 { fine + weight * over as f64 } else { 0.0 }
            }
            Goal::Peak => self.draft.peak() as f64,
        }
    }

    fn anneal(&mut self, changes: usize) {
        let baseline = self.problem.baseline().peak.0;
        let (unit, rate) = match self.goal {
            Goal::Time(budget) => {
                let least = self.best.as_ref().map_or(self.draft.time(), |(best, _)| *best);
                let all: f64 = self.problem.nodes.iter().map(|node| node.candidate.fixed_time.0).sum();
                let unit = if least > 0.0 { least } else { all.max(1e-9) };
                (unit, unit / baseline.saturating_sub(budget.0).max(1) as f64)
            }
            Goal::Peak => (0.1 * baseline as f64, 0.0),
        };
        let begin = self.draft.changes();
        // A step that changes no life is work too.
        for steps in 0.. {
            let share = (self.draft.changes() - begin + steps) as f64 / changes as f64;
            if share >= 1.0 {
                return;
            }
            self.problem.cancel.check();
            let heat = unit * FIRST_HEAT * (LAST_HEAT / FIRST_HEAT).powf(share);
            let weight = (rate * (FIRST_WEIGHT + (LAST_WEIGHT - FIRST_WEIGHT) * share), unit * FINE * share);
            let before = self.energy(weight);
            self.done.clear();
            self.change();
            let rise = self.energy(weight) - before;
            if rise <= 0.0 || self.dice.share() < (-rise / heat).exp() {
                self.note();
            } else {
                self.undo();
            }
        }
    }

    /// Takes a step to any neighbour, and sometimes back.
    #[cfg(test)]
    pub(crate) fn wander(&mut self) -> &Draft<'a> {
        self.done.clear();
        self.change();
        if self.dice.roll(3) == 0 {
            self.undo();
        }
        &self.draft
    }

    fn flip(&mut self, node: usize, item: usize) {
        self.draft.flip(node, item);
        self.done.push(Done::Flip(node, item));
    }

    fn choose(&mut self, node: usize, chosen: bool) {
        if self.draft.is_chosen(node) == chosen {
            return;
        }
        self.mark(node, chosen);
        self.done.push(Done::Choose(node, chosen));
    }

    fn mark(&mut self, node: usize, chosen: bool) {
        self.draft.choose(node, chosen);
        if chosen {
            self.place[node] = self.chosen.len();
            self.chosen.push(node);
        } else {
            let at = std::mem::replace(&mut self.place[node], usize::MAX);
            self.chosen.swap_remove(at);
            if let Some(&moved) = self.chosen.get(at) {
                self.place[moved] = at;
            }
        }
    }

    /// Takes back what was done since the last step.
    fn undo(&mut self) {
        while let Some(done) = self.done.pop() {
            match done {
                Done::Flip(node, item) => self.draft.flip(node, item),
                Done::Choose(node, chosen) => self.mark(node, !chosen),
                Done::Saved(start, saved) => self.draft.set_saved(start, &saved),
            }
        }
    }

    /// Chooses a node instead of all around it and inside it.
    fn choose_instead(&mut self, node: usize) {
        let nodes = &self.problem.nodes;
        let mut around = self.problem.around(node);
        while let Some(outer) = around {
            self.choose(outer, false);
            around = self.problem.around(outer);
        }
        for inner in node + 1..nodes[node].next {
            self.choose(inner, false);
        }
        self.remember(node);
        self.choose(node, true);
    }

    fn remember(&mut self, node: usize) {
        let node = &self.problem.nodes[node];
        self.done.push(Done::Saved(node.start, self.draft.saved(node.start, node.end)));
    }

    /// A step to a neighbour.
    fn change(&mut self) {
        let nodes = &self.problem.nodes;
        if self.chosen.is_empty() {
            let node = self.dice.roll(nodes.len());
            return self.choose_with_policy(node);
        }
        let node = self.chosen[self.dice.roll(self.chosen.len())];
        // A whole region is much more work than an item: regions get a quarter of it.
        if 4 * self.rebuilding > self.draft.changes() {
            self.flip_any(node);
            if self.dice.roll(2) == 0 {
                let other = self.chosen[self.dice.roll(self.chosen.len())];
                self.flip_any(other);
            }
            return;
        }
        let before = self.draft.changes();
        self.rebuild(node);
        // If it is taken back, that is as much work again.
        self.rebuilding += 2 * (self.draft.changes() - before);
    }

    /// A step to a neighbour with other regions, or other policies of regions.
    fn rebuild(&mut self, node: usize) {
        let nodes = &self.problem.nodes;
        match self.dice.roll(8) {
            0 => self.choose(node, false),
            1 => {
                if let Some(around) = self.problem.around(node) {
                    self.choose_instead(around);
                }
            }
            2 => self.descend(node),
            3 | 4 => self.take_policy(node),
            5 => self.exchange(node),
            6 => {
                // One instead of another.
                let other = self.dice.roll(nodes.len());
                self.choose(node, false);
                self.choose_with_policy(other);
            }
            _ => {
                let other = self.dice.roll(nodes.len());
                self.choose_with_policy(other);
            }
        }
    }

    fn flip_any(&mut self, node: usize) {
        let items = self.problem.nodes[node].candidate.items.len();
        if items > 0 {
            let item = self.dice.roll(items);
            self.flip(node, item);
        }
    }

    /// Those inside take the place of a node.
    fn descend(&mut self, node: usize) {
        let nodes = &self.problem.nodes;
        self.choose(node, false);
        let mut child = node + 1;
        while child < nodes[node].next {
            self.remember(child);
            self.choose(child, true);
            child = nodes[child].next;
        }
    }

    /// Chooses a node as it is, or with one of its policies.
    fn choose_with_policy(&mut self, node: usize) {
        if self.draft.is_chosen(node) {
            return;
        }
        self.choose_instead(node);
        if self.dice.roll(2) == 0 {
            self.take_policy(node);
        }
    }

    /// Gives a node one of the policies of its frontier.
    fn take_policy(&mut self, node: usize) {
        let frontier = Arc::clone(&self.problem.nodes[node].frontier);
        let Some(point) = frontier.points().get(self.dice.roll(frontier.points().len())) else { return };
        let saved = frontier.saved_items(point);
        for item in 0..self.problem.nodes[node].candidate.items.len() {
            if self.draft.is_saved(node, item) != saved.binary_search(&item).is_ok() {
                self.flip(node, item);
            }
        }
    }

    /// A node and another that is equal to it get each other's policies, or one gets the other's.
    fn exchange(&mut self, node: usize) {
        let other = self.chosen[self.dice.roll(self.chosen.len())];
        let nodes = &self.problem.nodes;
        if other == node || !Arc::ptr_eq(&nodes[node].candidate, &nodes[other].candidate) {
            return;
        }
        let both = self.dice.roll(2) == 0;
        for item in 0..nodes[node].candidate.items.len() {
            if self.draft.is_saved(node, item) != self.draft.is_saved(other, item) {
                self.flip(node, item);
                if both {
                    self.flip(other, item);
                }
            }
        }
    }

    /// Leaves out and saves whatever there is room for, what takes most first.
    fn fill(&mut self) {
        let Goal::Time(budget) = self.goal else { return };
        for node in self.chosen.clone() {
            self.done.clear();
            self.choose(node, false);
            if self.draft.peak() > budget.0 {
                self.undo();
            }
        }
        let nodes = &self.problem.nodes;
        let items =
            |node: &usize| (0..nodes[*node].candidate.items.len()).map(|item| (*node, item)).collect::<Vec<_>>();
        let time = |(node, item): &(usize, usize)| nodes[*node].candidate.items[*item].time.0;
        let mut order: Vec<(usize, usize)> = self.chosen.iter().flat_map(items).collect();
        order.sort_by(|a, b| time(b).total_cmp(&time(a)).then(a.cmp(b)));
        for (node, item) in order {
            if !self.draft.is_saved(node, item) {
                self.done.clear();
                self.flip(node, item);
                if self.draft.peak() > budget.0 {
                    self.undo();
                }
            }
        }
        self.note();
    }
}
