//! Prices of a byte at each moment, for which the cheapest plan takes most.
//!
//! First one after the other, where the cheapest plan is highest: a search along one price. Then all together: they are raised
//! where the cheapest plan is above the budget and lowered where it is below, by Polyak's steps.

use std::ops::Range;

use rematic_trace::Bytes;

use super::Bound;
use super::bound::Change;
use crate::problem::Problem;

/// The part of a node in some of the plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Not,
    May,
    Must,
}

/// How many prices are found one by one, and how often lines on both sides of the best price meet at most.
const ALONE: usize = 4;
const MEETINGS: usize = 16;
/// Costs closer than this share are equal.
const TIE: f64 = 1e-9;
/// How often all prices are changed.
const ROUNDS: usize = 160;
/// After so many rounds without a better bound, steps are halved; when they are this small, prices are as good as they get.
const PATIENCE: usize = 6;
const SMALLEST: f64 = 1.0 / 128.0;
/// What is taken less often than this share of the rounds is seldom taken.
const SELDOM: f64 = 0.02;
/// A node with more nodes inside is large.
const MANY_INSIDE: usize = 8;

/// Prices by span of moments, and the bound that follows.
pub(crate) struct Prices {
    pub(super) of: Vec<f64>,
    pub(crate) bound: f64,
    pub(super) usage: Usage,
}

impl Prices {
    /// The same parts with the large node that decides most left out, and with it; nothing if there is none.
    pub(crate) fn split(&self, problem: &Problem, part: &[Part]) -> Option<[Vec<Part>; 2]> {
        let node = self.usage.undecided(problem).filter(|&node| part[node] == Part::May)?;
        let (mut without, mut with) = (part.to_vec(), part.to_vec());
        without[node] = Part::Not;
        for (index, other) in problem.nodes.iter().enumerate() {
            if other.start < problem.nodes[node].end && problem.nodes[node].start < other.end {
                with[index] = Part::Not;
            }
        }
        with[node] = Part::Must;
        Some([without, with])
    }
}

/// How often the cheapest plans on the way took each node, and saved each choice of those.
#[derive(Clone)]
pub(super) struct Usage {
    pub(super) taken: Vec<f64>,
    pub(super) saved: Vec<f64>,
    rounds: f64,
}

impl Usage {
    /// As a share of all rounds.
    pub(super) fn of(&self, node: usize, choice: Option<usize>) -> f64 {
        choice.map_or(self.taken[node], |choice| self.saved[choice]) / self.rounds.max(1.0)
    }

    /// The node with most inside that is now taken and now not, if that is many.
    pub(super) fn undecided(&self, problem: &Problem) -> Option<usize> {
        let inside = |index: &usize| problem.nodes[*index].next - index;
        let now_and_then = |index: &usize| (SELDOM..=1.0 - SELDOM).contains(&self.of(*index, None));
        let large = (0..self.taken.len()).filter(|index| inside(index) > MANY_INSIDE).filter(now_and_then);
        large.max_by_key(|index| (inside(index), std::cmp::Reverse(*index)))
    }
}

/// The cheapest plan at some prices.
pub(super) struct Cheapest {
    /// The sum of the prices before each span.
    sums: Vec<f64>,
    /// By node: what it costs by itself, and the least of all that comes from there on.
    pub(super) own: Vec<f64>,
    pub(super) best: Vec<f64>,
    /// By node, whether it is chosen for that if nothing around it is.
    takes: Vec<bool>,
    /// The nodes that are chosen.
    taken: Vec<usize>,
    /// By choice: what it costs if it is saved, and if it is recomputed.
    pub(super) costs: Vec<[f64; 2]>,
    /// Σ λ (plain − B).
    pub(super) constant: f64,
    /// By span, how the memory changes there.
    rises: Vec<f64>,
    /// By span, how far the cheapest plan is above the budget.
    over: Vec<f64>,
}

impl Cheapest {
    pub(super) fn new(bound: &Bound) -> Self {
        let (spans, nodes) = (bound.plain.len(), bound.offers.len());
        Cheapest {
            sums: vec![0.0; spans + 1],
            own: vec![0.0; nodes],
            best: vec![0.0; nodes + 1],
            takes: vec![false; nodes],
            taken: Vec::new(),
            costs: vec![[0.0; 2]; bound.choices.len()],
            constant: 0.0,
            rises: vec![0.0; spans + 1],
            over: vec![0.0; spans],
        }
    }

    /// Prices every plan; the least.
    pub(super) fn price(
        &mut self,
        bound: &Bound,
        problem: &Problem,
        part: &[Part],
        budget: f64,
        prices: &[f64],
    ) -> f64 {
        let mut sum = 0.0;
        self.constant = 0.0;
        for ((price, plain), slot) in prices.iter().zip(&bound.plain).zip(&mut self.sums[1..]) {
            sum += price;
            *slot = sum;
            self.constant += price * (plain - budget);
        }
        let sums = &self.sums;
        let cost = |changes: &Range<usize>| -> f64 {
            let cost = |change: &Change| change.bytes * (sums[change.until as usize] - sums[change.from as usize]);
            bound.changes[changes.clone()].iter().map(cost).sum()
        };
        for (index, offer) in bound.offers.iter().enumerate().rev() {
            self.takes[index] = false;
            self.best[index] = if part[index] == Part::Must { f64::INFINITY } else { self.best[index + 1] };
            if part[index] == Part::Not {
                continue;
            }
            let mut own = offer.time + cost(&offer.fixed);
            for at in offer.choices.clone() {
                let choice = &bound.choices[at];
                self.costs[at] = [cost(&choice.saved), choice.time + cost(&choice.again)];
                own += self.costs[at][0].min(self.costs[at][1]);
            }
            self.own[index] = own;
            let with = own + self.best[problem.nodes[index].next];
            self.takes[index] = with < self.best[index];
            self.best[index] = with.min(self.best[index]);
        }
        self.best[0] + self.constant
    }

    /// How far the cheapest plan is above the budget, span by span.
    fn look(&mut self, bound: &Bound, problem: &Problem, budget: f64) {
        self.rises.fill(0.0);
        let rises = &mut self.rises;
        let mut note = |changes: &Range<usize>| {
            for change in &bound.changes[changes.clone()] {
                rises[change.from as usize] += change.bytes;
                rises[change.until as usize] -= change.bytes;
            }
        };
        self.taken.clear();
        let mut index = 0;
        while index < bound.offers.len() {
            if !self.takes[index] {
                index += 1;
                continue;
            }
            self.taken.push(index);
            let offer = &bound.offers[index];
            note(&offer.fixed);
            for at in offer.choices.clone() {
                let [saved, again] = self.costs[at];
                note(if again < saved { &bound.choices[at].again } else { &bound.choices[at].saved });
            }
            index = problem.nodes[index].next;
        }
        let mut now = 0.0;
        for ((plain, rise), over) in bound.plain.iter().zip(&self.rises).zip(&mut self.over) {
            now += rise;
            *over = plain + now - budget;
        }
    }
}

/// What a plan costs by the price of one span: at one price, and per price.
struct Line {
    price: f64,
    value: f64,
    slope: f64,
}

impl Line {
    fn at(&self, price: f64) -> f64 {
        self.value + self.slope * (price - self.price)
    }

    /// The price at which both cost the same.
    fn meets(&self, other: &Line) -> f64 {
        self.price + (other.at(self.price) - self.value) / (self.slope - other.slope)
    }
}

/// A way to better and better prices.
struct Climb<'a> {
    bound: &'a Bound,
    problem: &'a Problem,
    part: &'a [Part],
    budget: f64,
    cheapest: Cheapest,
    prices: Vec<f64>,
    best: Prices,
}

impl Climb<'_> {
    /// What the cheapest plan costs at the present prices.
    fn value(&mut self) -> f64 {
        self.problem.cancel.check();
        let value = self.cheapest.price(self.bound, self.problem, self.part, self.budget, &self.prices);
        if value > self.best.bound {
            self.best.bound = value;
            self.best.of.copy_from_slice(&self.prices);
        }
        self.cheapest.look(self.bound, self.problem, self.budget);
        value
    }

    /// Finds the price of one span at which the cheapest plan is within the budget there.
    ///
    /// What that plan costs is concave in the price, and made of straight pieces: those on both sides of the highest point meet in a
    /// price that is nearer to it, or is it.
    fn alone(&mut self, span: usize, known: f64) {
        let mut low = self.line(span, self.prices[span]);
        let mut price = low.price + known / low.slope;
        let mut high = loop {
            let line = self.line(span, price);
            if line.value >= known {
                return;
            }
            if line.slope <= 0.0 {
                break line;
            }
            (low, price) = (line, price * 4.0);
        };
        for _ in 0..MEETINGS {
            let price = low.meets(&high);
            if !(low.price < price && price < high.price) {
                break;
            }
            let line = self.line(span, price);
            if line.value >= known {
                return;
            }
            // Where they meet on the line itself, no price is better.
            let is_highest = line.value >= low.at(price) * (1.0 - TIE);
            if line.slope > 0.0 {
                low = line
            } else {
                high = line
            }
            if is_highest {
                break;
            }
        }
        self.prices.copy_from_slice(&self.best.of);
    }

    /// What the cheapest plan costs if one span has a price, and how that changes with it.
    fn line(&mut self, span: usize, price: f64) -> Line {
        self.prices[span] = price;
        let value = self.value();
        Line { price, value, slope: self.cheapest.over[span] }
    }

    fn note(&mut self) {
        let usage = &mut self.best.usage;
        usage.rounds += 1.0;
        for &index in &self.cheapest.taken {
            usage.taken[index] += 1.0;
            for at in self.bound.offers[index].choices.clone() {
                let [saved, again] = self.cheapest.costs[at];
                usage.saved[at] += f64::from(u8::from(saved <= again));
            }
        }
    }

    fn together(&mut self, known: f64) {
        let (mut step, mut since) = (1.0, 0);
        for _ in 0..ROUNDS {
            let before = self.best.bound;
            let value = self.value();
            since += 1;
            if self.best.bound > before {
                since = 0;
            } else if since > PATIENCE {
                (step, since) = (step / 2.0, 0);
            }
            if self.best.bound >= known || step < SMALLEST {
                return;
            }
            self.note();
            let moves = |price: f64, over: f64| price > 0.0 || over > 0.0;
            let pairs = self.prices.iter().zip(&self.cheapest.over);
            let length: f64 = pairs.filter(|(price, over)| moves(**price, **over)).map(|(_, over)| over * over).sum();
            if length == 0.0 {
                return;
            }
            let stride = step * (known - value) / length;
            for (price, over) in self.prices.iter_mut().zip(&self.cheapest.over) {
                *price = (*price + stride * over).max(0.0);
            }
        }
    }
}

impl Bound {
    /// Prices that show a time which no plan with these parts within the budget stays below, near to the highest that can be
    /// shown this way; `known` is that of a plan that is within it.
    pub(crate) fn prices(&self, problem: &Problem, part: &[Part], budget: Bytes, known: f64) -> Prices {
        let prices = vec![0.0; self.plain.len()];
        let usage = Usage { taken: vec![0.0; self.offers.len()], saved: vec![0.0; self.choices.len()], rounds: 0.0 };
        let best = Prices { of: prices.clone(), bound: 0.0, usage };
        let (budget, cheapest) = (budget.0 as f64, Cheapest::new(self));
        let mut climb = Climb { bound: self, problem, part, budget, cheapest, prices, best };
        climb.value();
        for _ in 0..ALONE {
            let over = &climb.cheapest.over;
            let Some(highest) = (0..over.len()).max_by(|&a, &b| over[a].total_cmp(&over[b])) else { break };
            if over[highest] <= 0.0 || climb.best.bound >= known {
                break;
            }
            climb.alone(highest, known);
            climb.value();
        }
        climb.together(known);
        climb.best
    }
}
