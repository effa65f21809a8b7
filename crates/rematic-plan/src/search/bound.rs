//! A bound by moments.
//!
//! For prices λ ≥ 0 of a byte at each moment, no plan within the budget B takes less than the least of
//! `time + Σ λ (height − B)` over all plans. A plan changes the heights life by life, and a life's change costs the sum of the
//! prices of its moments; what is counted is never more than the lives of the draft:
//!
//! - What a checkpointed region makes lives at least until all outside of it have let go, and to the end of its use if it is
//!   saved; what recomputation makes anew lives as it does.
//! - What a region is given lives at least until its backward is over. That counts only where no two regions beside each other
//!   are given the same, and the maker's saving it counts from where that ends.
//!
//! So every region decides by itself, item by item, and regions that contain each other exclude each other: one pass over them.
//!
//! The moments at which a region runs again are there only if it is chosen, and those of its operators only if they are not
//! saved. But no plan is above the budget there either way: where nothing runs, nothing is made, and what is in use was in use
//! after the operator before. (Where something else than an operator makes memory there, the moments do not count.)
//!
//! [`Prices`](super::Prices) are those for which this is highest, and [`Proof`](super::Proof) decides what they leave open.

use std::ops::Range;

use rematic_trace::{Category, Event, OpId, Table};

use super::{Axis, Lives};
use crate::problem::Problem;

/// Bytes more (or less) in use from one span of moments to before another.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) from: u32,
    pub(super) until: u32,
    pub(super) bytes: f64,
}

/// What one item costs: if it is saved, and if it is recomputed.
pub(super) struct Choice {
    pub(super) time: f64,
    pub(super) saved: Range<usize>,
    pub(super) again: Range<usize>,
}

/// What a region costs, beside its items.
pub(super) struct Offer {
    pub(super) time: f64,
    pub(super) fixed: Range<usize>,
    pub(super) choices: Range<usize>,
}

/// What every plan of a problem changes at which moments.
pub(crate) struct Bound {
    /// By node.
    pub(super) offers: Vec<Offer>,
    /// Of all regions, one after the other.
    pub(super) choices: Vec<Choice>,
    pub(super) changes: Vec<Change>,
    /// By span of moments between which no life begins or ends: the most bytes in use in the plain step.
    pub(super) plain: Vec<f64>,
}

impl Bound {
    pub(crate) fn new(problem: &Problem) -> Self {
        let (axis, lives) = problem.moments_of_plans();
        let counted = counted_readers(problem, lives);
        let mut bound = Bound {
            offers: Vec::with_capacity(problem.nodes.len()),
            choices: Vec::new(),
            changes: Vec::new(),
            plain: Vec::new(),
        };
        for index in 0..problem.nodes.len() {
            bound.add(region(problem, axis, lives, &counted, index));
        }
        let restored = after_restore(problem);
        let height = |&(op, before): &(OpId, bool)| match before {
            true if restored[op] => 0.0,
            true => problem.before(op).0 as f64,
            false => problem.after(op).0 as f64,
        };
        bound.join(&axis.ops().iter().map(height).collect::<Vec<_>>());
        bound
    }

    fn add(&mut self, region: Region) {
        let changes = &mut self.changes;
        let mut list = |more: Vec<(usize, usize, i64)>| {
            let start = changes.len();
            let moment = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let change =
                |(from, until, bytes)| Change { from: moment(from), until: moment(until), bytes: bytes as f64 };
            changes.extend(more.into_iter().filter(|(from, until, _)| from < until).map(change));
            start..changes.len()
        };
        let (fixed, first) = (list(region.fixed), self.choices.len());
        for item in region.items {
            self.choices.push(Choice { time: item.time, saved: list(item.saved), again: list(item.again) });
        }
        self.offers.push(Offer { time: region.time, fixed, choices: first..self.choices.len() });
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
    fixed: Vec<(usize, usize, i64)>,
    items: Vec<Item>,
}

struct Item {
    time: f64,
    saved: Vec<(usize, usize, i64)>,
    again: Vec<(usize, usize, i64)>,
}

/// By storage: whether those that are given it all overlap, so that only one of them is checkpointed.
fn counted_readers(problem: &Problem, lives: &Lives) -> Vec<bool> {
    let mut counted = vec![true; lives.storages.len()];
    let mut first_end = vec![usize::MAX; lives.storages.len()];
    // In the order in which they begin.
    for (node, own) in problem.nodes.iter().zip(&lives.nodes) {
        for input in &own.inputs {
            let end = &mut first_end[input.index()];
            counted[input.index()] &= node.start < *end;
            *end = node.end.min(*end);
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
        let kept = released.max(if birth.reached { birth.until } else { own.over });
        // Where those beside it that are given the storage count what that adds, it counts only what comes behind.
        let beside = |reader: &&u32| {
            let reader = &problem.nodes[**reader as usize];
            reader.end <= node.start || node.end <= reader.start
        };
        let readers = lives.readers(birth.storage).iter().filter(beside).filter(|_| counted[birth.storage.index()]);
        let added = readers.map(|reader| lives.nodes[*reader as usize].over).fold(life.plain, usize::max);
        let saved = if kept > life.plain { (added, kept, life.bytes) } else { change(life.plain, kept, life.bytes) };
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
