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

use rematic_trace::{Bytes, Category, OpId};

use super::{Axis, Lives};
use crate::problem::Problem;

/// How often prices are changed.
const ROUNDS: usize = 120;
/// After so many rounds without a better bound, steps are halved.
const PATIENCE: usize = 6;

/// Bytes more (or less) in use from one moment to before another.
type Change = (usize, usize, i64);

/// What one item costs: if it is saved, and if it is recomputed.
struct Choice {
    time: f64,
    saved: Vec<Change>,
    again: Vec<Change>,
}

/// What a region costs, beside its items.
struct Offer {
    time: f64,
    fixed: Vec<Change>,
    choices: Vec<Choice>,
}

/// Prices every plan of a problem.
pub(crate) struct Bound {
    offers: Vec<Offer>,
    /// By moment, the bytes in use in the plain step; nothing for those of recomputation.
    plain: Vec<Option<i64>>,
}

impl Bound {
    pub(crate) fn new(problem: &Problem) -> Self {
        let (axis, lives) = problem.moments_of_plans();
        let height = |&(op, before): &(OpId, bool)| (!before).then(|| signed(problem.after(op)));
        let counted = counted_readers(problem, lives);
        let offers = (0..problem.nodes.len()).map(|index| offer(problem, axis, lives, &counted, index)).collect();
        Bound { offers, plain: axis.ops().iter().map(height).collect() }
    }

    /// A time that no plan within the budget stays below, near to the highest that can be shown this way; `known` is that
    /// of a plan that is.
    pub(crate) fn within(&self, problem: &Problem, budget: Bytes, known: f64) -> f64 {
        let budget = signed(budget);
        let mut prices = vec![0.0; self.plain.len()];
        let (mut best, mut step, mut since) = (0.0_f64, 1.0, 0);
        for _ in 0..ROUNDS {
            problem.cancel.check();
            let (value, over) = self.cheapest(problem, budget, &prices);
            since += 1;
            if value > best {
                (best, since) = (value, 0);
            } else if since > PATIENCE {
                (step, since) = (step / 2.0, 0);
            }
            if best >= known {
                break;
            }
            let moves = |price: f64, over: f64| price > 0.0 || over > 0.0;
            let length: f64 = prices.iter().zip(&over).filter(|(p, o)| moves(**p, **o)).map(|(_, o)| o * o).sum();
            if length == 0.0 {
                break;
            }
            let stride = step * (known - value) / length;
            for (price, over) in prices.iter_mut().zip(&over) {
                *price = (*price + stride * over).max(0.0);
            }
        }
        best
    }

    /// The least of all plans at these prices, and how far it is above the budget at each moment.
    fn cheapest(&self, problem: &Problem, budget: i64, prices: &[f64]) -> (f64, Vec<f64>) {
        let mut sums = Vec::with_capacity(prices.len() + 1);
        let mut sum = 0.0;
        sums.push(0.0);
        for price in prices {
            sum += price;
            sums.push(sum);
        }
        let cost = |changes: &[Change]| -> f64 {
            changes.iter().map(|&(from, until, bytes)| bytes as f64 * (sums[until] - sums[from])).sum()
        };
        let nodes = &problem.nodes;
        let mut best = vec![0.0; nodes.len() + 1];
        let mut takes = vec![false; nodes.len()];
        for (index, offer) in self.offers.iter().enumerate().rev() {
            let items = offer.choices.iter().map(|item| cost(&item.saved).min(item.time + cost(&item.again)));
            let with = offer.time + cost(&offer.fixed) + items.sum::<f64>() + best[nodes[index].next];
            takes[index] = with < best[index + 1];
            best[index] = if takes[index] { with } else { best[index + 1] };
        }
        let mut rises = vec![0_i64; prices.len() + 1];
        let mut note = |changes: &[Change]| {
            for &(from, until, bytes) in changes {
                rises[from] += bytes;
                rises[until] -= bytes;
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
            for item in &offer.choices {
                let again = item.time + cost(&item.again) < cost(&item.saved);
                note(if again { &item.again } else { &item.saved });
            }
            index = nodes[index].next;
        }
        let mut value = best[0];
        let mut now = 0;
        let mut over = Vec::with_capacity(prices.len());
        for ((plain, rise), price) in self.plain.iter().zip(&rises).zip(prices) {
            now += rise;
            let Some(plain) = plain else {
                over.push(0.0);
                continue;
            };
            value += price * (plain - budget) as f64;
            over.push((plain + now - budget) as f64);
        }
        (value, over)
    }
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

fn offer(problem: &Problem, axis: &Axis, lives: &Lives, counted: &[bool], index: usize) -> Offer {
    let node = &problem.nodes[index];
    let (block, own) = (&axis.blocks[index], &lives.nodes[index]);
    let mut offer = Offer { time: 0.0, fixed: Vec::new(), choices: Vec::new() };
    for input in own.inputs.iter().filter(|input| counted[input.index()]) {
        let life = &lives.storages[input.index()];
        if own.over > life.plain {
            offer.fixed.push((life.plain, own.over, life.bytes));
        }
    }
    // What is done with each operator: an item of it, always saved, or always recomputed.
    let mut item_of = vec![None; node.end - node.start];
    for (at, item) in node.candidate.items.iter().enumerate() {
        item.ops.iter().for_each(|&op| item_of[op] = Some(at));
        offer.choices.push(Choice { time: 0.0, saved: Vec::new(), again: Vec::new() });
    }
    let mut always = vec![false; node.end - node.start];
    node.candidate.always_saved.iter().for_each(|&op| always[op] = true);
    for op in 0..block.length {
        let time = problem.costs.time(OpId::new(block.first_op + op)).0;
        match item_of[op] {
            Some(item) => offer.choices[item].time += time,
            None if always[op] => {}
            None => offer.time += time,
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
                offer.choices[item].saved.push(saved);
                offer.choices[item].again.extend(again);
            }
            None if always[op] => offer.fixed.push(saved),
            None => offer.fixed.extend(again),
        }
    }
    offer
}

/// What lives until another moment than in the plain step.
fn change(plain: usize, until: usize, bytes: i64) -> Change {
    if until < plain { (until, plain, -bytes) } else { (plain, until, bytes) }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX / 8)
}
