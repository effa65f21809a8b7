//! A bound by moments.
//!
//! For prices λ ≥ 0 of a byte at each moment, no plan within the budget B takes less than the least of
//! `time + Σ λ (height − B)` over all plans. A plan changes the heights life by life, and a life's change costs the sum of the
//! prices of its moments; what is counted is never more than the lives of the draft:
//!
//! - What a checkpointed region makes lives at least until all outside of it have let go, and to the end of its use if it is
//!   saved; what recomputation makes anew lives as it does.
//! - What a region is given lives at least until its backward is over. Where several hold the same longer than the plain step
//!   does (those that are given it, and the one that makes and saves it), each bears a part of what that costs
//!   ([`Shares`]): one of them alone bears less than it costs, and all together not more.
//!
//! So every region decides by itself, item by item, and regions that contain each other exclude each other: one pass over them.
//!
//! The moments at which a region runs again are there only if it is chosen, and those of its operators only if they are not
//! saved. But no plan is above the budget there either way: where nothing runs, nothing is made, and what is in use was in use
//! after the operator before. (Where something else than an operator makes memory there, the moments do not count.)
//!
//! [`Prices`](super::Prices) are those for which this is highest, and [`Proof`](super::Proof) decides what they leave open.

use std::ops::Range;

use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Category, Event, OpId, StorageId, Table};

use super::prices::{Part, Prices};
use super::shares::{Share, Shares};
use super::{Axis, Lives};
use crate::problem::Problem;

/// How much the plan counts when what is held by several is shared anew, beside how often the cheapest plans hold it.
const SHARINGS: [f64; 3] = [1.0, 0.1, 0.0];
/// Where less than this share is open, it is not.
const WORTH_SHARING: f64 = 0.005;

/// Bytes more (or less) in use from one span of moments to before another.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) from: u32,
    pub(super) until: u32,
    pub(super) bytes: f64,
}

/// What one item costs: if it is saved, and if it is recomputed.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) time: f64,
    pub(super) saved: Range<usize>,
    pub(super) again: Range<usize>,
}

/// What a region costs, beside its items.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) time: f64,
    pub(super) fixed: Range<usize>,
    pub(super) choices: Range<usize>,
}

/// What every plan of a problem changes at which moments.
#[derive(Clone)]
pub(crate) struct Bound {
    /// By node.
    pub(super) offers: Vec<Offer>,
    /// Of all regions, one after the other.
    pub(super) choices: Vec<Choice>,
    pub(super) changes: Vec<Change>,
    /// By span of moments between which no life begins or ends: the most bytes in use in the plain step.
    pub(super) plain: Vec<f64>,
    shares: Shares,
}

impl Bound {
    pub(crate) fn new(problem: &Problem) -> Self {
        let (axis, lives) = problem.moments_of_plans();
        let regions: Vec<Region> = (0..problem.nodes.len()).map(|index| region(problem, axis, lives, index)).collect();
        let parts = regions.iter().flat_map(Region::parts);
        let held = parts.filter_map(|part| Some((part.held?, part.from, part.until)));
        let mut bound = Bound {
            offers: Vec::with_capacity(problem.nodes.len()),
            choices: Vec::new(),
            changes: Vec::new(),
            plain: Vec::new(),
            shares: Shares::new(lives.storages.len(), held),
        };
        regions.into_iter().for_each(|region| bound.add(region));
        bound.shares.sort();
        let restored = after_restore(problem);
        let height = |&(op, before): &(OpId, bool)| match before {
            true if restored[op] => 0.0,
            true => problem.before(op).0 as f64,
            false => problem.after(op).0 as f64,
        };
        bound.join(&axis.ops().iter().map(height).collect::<Vec<_>>());
        bound
    }

    /// Prices with what is held by several shared among those that hold it under a plan, and then as the cheapest plans at the
    /// prices so far hold it; with the bound that they are for.
    pub(crate) fn shared_prices(
        &self,
        problem: &Problem,
        parts: &[Part],
        budget: Bytes,
        (plan, known): (&[Checkpoint], f64),
        thorough: bool,
    ) -> (Bound, Prices) {
        let under_plan = self.holds(problem, plan);
        let near = self.with_shares(problem, |node, choice| f64::from(u8::from(under_plan(node, choice))));
        let mut best = (near.prices(problem, parts, budget, known), near);
        for weight in SHARINGS {
            if !thorough || self.shares.are_none() || best.0.bound >= known * (1.0 - WORTH_SHARING) {
                break;
            }
            let usage = best.0.usage.clone();
            let near = self.with_shares(problem, |node, choice| {
                weight * f64::from(u8::from(under_plan(node, choice))) + usage.of(node, choice)
            });
            let prices = near.prices(problem, parts, budget, known);
            if prices.bound > best.0.bound {
                best = (prices, near);
            }
        }
        (best.1, best.0)
    }

    /// Whether a node is chosen in a plan, and saves a choice.
    fn holds(&self, problem: &Problem, plan: &[Checkpoint]) -> impl Fn(usize, Option<usize>) -> bool {
        let mut chosen = vec![false; self.offers.len()];
        let mut saved = vec![false; self.choices.len()];
        for checkpoint in plan {
            let Ok(index) = problem.nodes.binary_search_by_key(&checkpoint.region, |node| node.region) else {
                continue;
            };
            let node = &problem.nodes[index];
            let is_saved = |op: &usize| checkpoint.saved.binary_search(&OpId::new(node.start + op)).is_ok();
            chosen[index] = true;
            for (choice, item) in self.offers[index].choices.clone().zip(&node.candidate.items) {
                saved[choice] = item.ops.iter().all(is_saved);
            }
        }
        move |node, choice| choice.map_or(chosen[node], |choice| saved[choice])
    }

    fn with_shares(&self, problem: &Problem, holds: impl Fn(usize, Option<usize>) -> f64) -> Bound {
        let mut shared = self.clone();
        self.shares.share(problem, holds, |change, bytes| shared.changes[change].bytes = bytes);
        shared
    }

    fn add(&mut self, region: Region) {
        let node = self.offers.len();
        let (fixed, first) = (self.list(region.fixed, node, None), self.choices.len());
        for item in region.items {
            let choice = self.choices.len();
            let saved = self.list(item.saved, node, Some(choice));
            let again = self.list(item.again, node, None);
            self.choices.push(Choice { time: item.time, saved, again });
        }
        self.offers.push(Offer { time: region.time, fixed, choices: first..self.choices.len() });
    }

    fn list(&mut self, parts: Vec<Piece>, node: usize, choice: Option<usize>) -> Range<usize> {
        let start = self.changes.len();
        let moment = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for part in parts.into_iter().filter(|part| part.from < part.until) {
            let bytes = part.bytes as f64;
            let Some(storage) = part.held.filter(|storage| self.shares.are_shared(*storage)) else {
                self.changes.push(Change { from: moment(part.from), until: moment(part.until), bytes });
                continue;
            };
            for (from, until) in self.shares.pieces(storage, part.from, part.until) {
                self.shares.add(Share { storage, until, node, choice, change: self.changes.len(), bytes });
                self.changes.push(Change { from: moment(from), until: moment(until), bytes: 0.0 });
            }
        }
        start..self.changes.len()
    }

    /// Joins moments between which no life begins or ends: of those only the highest matters.
    fn join(&mut self, heights: &[f64]) {
        let mut begins = vec![false; heights.len() + 1];
        for change in &self.changes {
            begins[change.from as usize] = true;
            begins[change.until as usize] = true;
        }
        let mut span_of = Vec::with_capacity(begins.len());
        for (moment, begins) in begins.iter().enumerate() {
            match (heights.get(moment), self.plain.last_mut()) {
                (Some(height), Some(last)) if !begins => *last = last.max(*height),
                (Some(height), _) => self.plain.push(*height),
                // Past the last moment.
                (None, _) => {
                    span_of.push(self.plain.len());
                    break;
                }
            }
            span_of.push(self.plain.len() - 1);
        }
        let span = |moment: u32| u32::try_from(span_of[moment as usize]).unwrap_or(u32::MAX);
        for change in &mut self.changes {
            (change.from, change.until) = (span(change.from), span(change.until));
        }
    }
}

/// By operator: whether memory came back between the one before and it.
fn after_restore(problem: &Problem) -> Table<OpId, bool> {
    let mut after = problem.trace.ops().filled(false);
    let mut restored = false;
    for &event in problem.trace.events() {
        match event {
            Event::Restore(_) => restored = true,
            Event::Op(op) => after[op] = std::mem::replace(&mut restored, false),
            _ => {}
        }
    }
    after
}

/// What a region costs, and each of its items.
struct Region {
    time: f64,
    fixed: Vec<Piece>,
    items: Vec<Item>,
}

struct Item {
    time: f64,
    saved: Vec<Piece>,
    again: Vec<Piece>,
}

/// Bytes more (or less) in use from one moment to before another.
struct Piece {
    from: usize,
    until: usize,
    bytes: i64,
    /// If others may hold them too: what they are.
    held: Option<StorageId>,
}

impl Region {
    fn parts(&self) -> impl Iterator<Item = &Piece> {
        self.fixed.iter().chain(self.items.iter().flat_map(|item| &item.saved))
    }
}

fn region(problem: &Problem, axis: &Axis, lives: &Lives, index: usize) -> Region {
    let node = &problem.nodes[index];
    let (block, own) = (&axis.blocks[index], &lives.nodes[index]);
    let mut region = Region { time: 0.0, fixed: Vec::new(), items: Vec::new() };
    for &input in &own.inputs {
        let life = &lives.storages[input.index()];
        if own.over > life.plain {
            region.fixed.push(Piece { from: life.plain, until: own.over, bytes: life.bytes, held: Some(input) });
        }
    }
    // What is done with each operator: an item of it, never run again, or always.
    let mut item_of = vec![None; node.end - node.start];
    for (at, item) in node.candidate.items.iter().enumerate() {
        item.ops.iter().chain(&item.skipped).for_each(|&op| item_of[op] = Some(at));
        region.items.push(Item { time: 0.0, saved: Vec::new(), again: Vec::new() });
    }
    let mut always = vec![false; node.end - node.start];
    node.candidate.always_saved.iter().chain(&node.candidate.unread).for_each(|&op| always[op] = true);
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
        let kept = released.max(if birth.reached { birth.until } else { own.over });
        let kept = if birth.is_skipped { released } else { kept };
        let saved = Piece { held: (kept > life.plain).then_some(birth.storage), ..part(life.plain, kept, life.bytes) };
        let mut again = vec![part(life.plain, released, life.bytes)];
        if birth.reached {
            let until = birth.until.max(birth.from);
            again.push(Piece { from: birth.from, until, bytes: life.bytes, held: None });
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
fn part(plain: usize, until: usize, bytes: i64) -> Piece {
    let (from, until, bytes) = if until < plain { (until, plain, -bytes) } else { (plain, until, bytes) };
    Piece { from, until, bytes, held: None }
}
