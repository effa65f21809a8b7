//! A bound by moments.
//!
//! For prices λ ≥ 0 of a byte at each moment of the plain step, no plan within the budget B takes less than the least of
//! `time + Σ λ (height − B)` over all plans. A plan changes the heights life by life, and a life's change costs the sum of the
//! prices of its moments; what is counted is never more than the lives of the draft:
//!
//! - What a checkpointed region makes lives at least until all outside of it have let go, and to the end of its use if it is
//!   saved; what recomputation makes anew lives as it does.
//! - What a region is given lives at least until its backward is over. That counts only where no two regions beside each other
//!   are given the same, and then the maker's saving it does not count beyond the plain life.
//!
//! So every region decides by itself, item by item, and regions that contain each other exclude each other: one pass over them.
//! The prices are raised where the cheapest plan is above the budget and lowered where it is below (Polyak's steps).

use std::ops::Range;

use rematic_trace::{Bytes, Category, OpId};

use super::{Axis, Lives};
use crate::problem::Problem;

/// How often prices are changed.
const ROUNDS: usize = 120;
/// After so many rounds without a better bound, steps are halved; when they are this small, prices are as good as they get.
const PATIENCE: usize = 6;
const SMALLEST: f64 = 1.0 / 64.0;

/// Bytes more (or less) in use from one moment to before another.
#[derive(Clone, Copy)]
struct Change {
    from: u32,
    until: u32,
    bytes: f64,
}

/// What one item costs: if it is saved, and if it is recomputed.
struct Choice {
    time: f64,
    saved: Range<usize>,
    again: Range<usize>,
}

/// What a region costs, beside its items.
struct Offer {
    time: f64,
    fixed: Range<usize>,
    choices: Range<usize>,
}

/// Prices every plan of a problem.
pub(crate) struct Bound {
    /// By node.
    offers: Vec<Offer>,
    /// Of all regions, one after the other.
    choices: Vec<Choice>,
    changes: Vec<Change>,
    /// By moment, the bytes in use in the plain step; nothing for those of recomputation.
    plain: Vec<Option<f64>>,
}

/// What a round of prices works with.
struct Round {
    /// The sum of the prices before each moment.
    sums: Vec<f64>,
    /// By node, the least of all that comes from there on, and whether the node is chosen for it.
    best: Vec<f64>,
    takes: Vec<bool>,
    /// By choice, whether it is recomputed.
    again: Vec<bool>,
    /// By moment, how the memory changes there.
    rises: Vec<f64>,
    /// By moment, how far the cheapest plan is above the budget.
    over: Vec<f64>,
}

impl Bound {
    pub(crate) fn new(problem: &Problem) -> Self {
        let (axis, lives) = problem.moments_of_plans();
        let height = |&(op, before): &(OpId, bool)| (!before).then(|| problem.after(op).0 as f64);
        let counted = counted_readers(problem, lives);
        let mut bound = Bound {
            offers: Vec::with_capacity(problem.nodes.len()),
            choices: Vec::new(),
            changes: Vec::new(),
            plain: axis.ops().iter().map(height).collect(),
        };
        for index in 0..problem.nodes.len() {
            bound.add(region(problem, axis, lives, &counted, index));
        }
        bound
    }

    fn add(&mut self, region: Region) {
        let changes = &mut self.changes;
        let mut list = |more: Vec<(usize, usize, i64)>| {
            let start = changes.len();
            let moment = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let change =
                |(from, until, bytes)| Change { from: moment(from), until: moment(until), bytes: bytes as f64 };
            changes.extend(more.into_iter().map(change));
            start..changes.len()
        };
        let (fixed, first) = (list(region.fixed), self.choices.len());
        for item in region.items {
            self.choices.push(Choice { time: item.time, saved: list(item.saved), again: list(item.again) });
        }
        self.offers.push(Offer { time: region.time, fixed, choices: first..self.choices.len() });
    }

    /// A time that no plan within the budget stays below, near to the highest that can be shown this way; `known` is that
    /// of a plan that is.
    pub(crate) fn within(&self, problem: &Problem, budget: Bytes, known: f64) -> f64 {
        let budget = budget.0 as f64;
        let mut prices = vec![0.0; self.plain.len()];
        let mut round = Round::new(self);
        let (mut best, mut step, mut since) = (0.0_f64, 1.0, 0);
        for _ in 0..ROUNDS {
            problem.cancel.check();
            let value = self.cheapest(problem, budget, &prices, &mut round);
            since += 1;
            if value > best {
                (best, since) = (value, 0);
            } else if since > PATIENCE {
                (step, since) = (step / 2.0, 0);
            }
            if best >= known || step < SMALLEST {
                break;
            }
            let moves = |price: f64, over: f64| price > 0.0 || over > 0.0;
            let length: f64 = prices.iter().zip(&round.over).filter(|(p, o)| moves(**p, **o)).map(|(_, o)| o * o).sum();
            if length == 0.0 {
                break;
            }
            let stride = step * (known - value) / length;
            for (price, over) in prices.iter_mut().zip(&round.over) {
                *price = (*price + stride * over).max(0.0);
            }
        }
        best
    }

    /// The least of all plans at these prices; the round then says how far it is above the budget at each moment.
    fn cheapest(&self, problem: &Problem, budget: f64, prices: &[f64], round: &mut Round) -> f64 {
        let Round { sums, best, takes, again, rises, over } = round;
        let mut sum = 0.0;
        for (price, slot) in prices.iter().zip(&mut sums[1..]) {
            sum += price;
            *slot = sum;
        }
        let cost = |changes: &Range<usize>| -> f64 {
            let cost = |change: &Change| change.bytes * (sums[change.until as usize] - sums[change.from as usize]);
            self.changes[changes.clone()].iter().map(cost).sum()
        };
        let nodes = &problem.nodes;
        for (index, offer) in self.offers.iter().enumerate().rev() {
            let mut with = offer.time + cost(&offer.fixed) + best[nodes[index].next];
            for at in offer.choices.clone() {
                let choice = &self.choices[at];
                let (saved, recomputed) = (cost(&choice.saved), choice.time + cost(&choice.again));
                again[at] = recomputed < saved;
                with += saved.min(recomputed);
            }
            takes[index] = with < best[index + 1];
            best[index] = if takes[index] { with } else { best[index + 1] };
        }
        rises.fill(0.0);
        let mut note = |changes: &Range<usize>| {
            for change in &self.changes[changes.clone()] {
                rises[change.from as usize] += change.bytes;
                rises[change.until as usize] -= change.bytes;
            }
        };
        let mut index = 0;
        while index < nodes.len() {
            if !takes[index] {
                index += 1;
                continue;
            }
            let offer = &self.offers[index];
            note(&offer.fixed);
            for at in offer.choices.clone() {
                let choice = &self.choices[at];
                note(if again[at] { &choice.again } else { &choice.saved });
            }
            index = nodes[index].next;
        }
        let (mut value, mut now) = (best[0], 0.0);
        for (((plain, rise), price), over) in self.plain.iter().zip(&*rises).zip(prices).zip(over) {
            now += rise;
            *over = plain.map_or(0.0, |plain| plain + now - budget);
            value += plain.map_or(0.0, |plain| price * (plain - budget));
        }
        value
    }
}

impl Round {
    fn new(bound: &Bound) -> Self {
        let (moments, nodes) = (bound.plain.len(), bound.offers.len());
        Round {
            sums: vec![0.0; moments + 1],
            best: vec![0.0; nodes + 1],
            takes: vec![false; nodes],
            again: vec![false; bound.choices.len()],
            rises: vec![0.0; moments + 1],
            over: vec![0.0; moments],
        }
    }
}

/// What a region costs, and each of its items.
struct Region {
    time: f64,
    fixed: Vec<(usize, usize, i64)>,
    items: Vec<Item>,
}

struct Item {
    time: f64,
    saved: Vec<(usize, usize, i64)>,
    again: Vec<(usize, usize, i64)>,
}

/// By storage: whether those that are given it contain each other, so that only one of them is checkpointed.
fn counted_readers(problem: &Problem, lives: &Lives) -> Vec<bool> {
    let nodes = &problem.nodes;
    let mut counted = vec![true; lives.storages.len()];
    let mut last: Vec<Option<usize>> = vec![None; lives.storages.len()];
    for (index, node) in lives.nodes.iter().enumerate() {
        for input in &node.inputs {
            let before = last[input.index()].replace(index);
            counted[input.index()] &= before.is_none_or(|before| nodes[before].next > index);
        }
    }
    counted
}

fn region(problem: &Problem, axis: &Axis, lives: &Lives, counted: &[bool], index: usize) -> Region {
    let node = &problem.nodes[index];
    let (block, own) = (&axis.blocks[index], &lives.nodes[index]);
    let mut region = Region { time: 0.0, fixed: Vec::new(), items: Vec::new() };
    for input in own.inputs.iter().filter(|input| counted[input.index()]) {
        let life = &lives.storages[input.index()];
        if own.over > life.plain {
            region.fixed.push((life.plain, own.over, life.bytes));
        }
    }
    // What is done with each operator: an item of it, always saved, or always recomputed.
    let mut item_of = vec![None; node.end - node.start];
    for (at, item) in node.candidate.items.iter().enumerate() {
        item.ops.iter().for_each(|&op| item_of[op] = Some(at));
        region.items.push(Item { time: 0.0, saved: Vec::new(), again: Vec::new() });
    }
    let mut always = vec![false; node.end - node.start];
    node.candidate.always_saved.iter().for_each(|&op| always[op] = true);
    for op in 0..block.length {
        let time = problem.costs.time(OpId::new(block.first_op + op)).0;
        match item_of[op] {
            Some(item) => region.items[item].time += time,
            None if always[op] => {}
            None => region.time += time,
        }
    }
    for birth in &own.births {
        let life = &lives.storages[birth.storage.index()];
        let outside = lives.savers(birth.storage).iter().filter(|op| !(node.start..node.end).contains(&op.index()));
        // What no region counts among what it is given is let go as soon as a backward function returns.
        let permanent =
            matches!(problem.trace.storages()[birth.storage].category, Category::Parameter | Category::Buffer);
        let end = |op: &OpId| if permanent { 0 } else { lives.unsaved[op.index()] };
        let released = outside.map(end).fold(life.dropped, usize::max);
        let mut kept = released.max(if birth.reached { birth.until } else { own.over });
        if !lives.readers(birth.storage).is_empty() {
            kept = kept.min(life.plain.max(released));
        }
        let saved = change(life.plain, kept, life.bytes);
        let mut again = vec![change(life.plain, released, life.bytes)];
        if birth.reached {
            again.push((birth.from, birth.until.max(birth.from), life.bytes));
        }
        let op = birth.op - node.start;
        match item_of[op] {
            Some(item) => {
                region.items[item].saved.push(saved);
                region.items[item].again.extend(again);
            }
            None if always[op] => region.fixed.push(saved),
            None => region.fixed.extend(again),
        }
    }
    region
}

/// What lives until another moment than in the plain step.
fn change(plain: usize, until: usize, bytes: i64) -> (usize, usize, i64) {
    if until < plain { (until, plain, -bytes) } else { (plain, until, bytes) }
}
