//! The same regions with other items saved: a knapsack at the moment of the peak.

use rematic_trace::{Bytes, Millis};

use super::annealing::{Goal, Search};
use crate::region::{Candidate, Frontier, Item};

/// How often the knapsack is solved.
const REFILLS: usize = 8;
/// How much of the room is left where a moment stays above the budget.
const LESS: f64 = 0.999;
/// With more items the knapsack is not solved: the last few bytes of the room matter little.
const MOST_ITEMS: usize = 400;

/// A moment at which there is not room for everything.
struct Tight {
    moment: usize,
    weight: f64,
    room: i64,
    /// By item: what saving it costs there.
    costs: Vec<i64>,
}

impl Search<'_> {
    /// Gives the chosen regions the items that are worth most of all that fit at the moments at which plans peak. Where the
    /// solution for some moments peaks at another, that one counts from then on, and one that is still above the budget counts
    /// more.
    pub(super) fn refill(&mut self) {
        let Goal::Time(budget) = self.goal else { return };
        let nodes = &self.problem.nodes;
        let mut items: Vec<(usize, usize)> = Vec::new();
        for &node in &self.chosen {
            items.extend((0..nodes[node].candidate.items.len()).map(|item| (node, item)));
        }
        items.sort_unstable();
        if items.len() > MOST_ITEMS {
            return;
        }
        let mut tight: Vec<Tight> = Vec::new();
        let mut less = 1.0;
        for _ in 0..REFILLS {
            let moment = self.draft.highest_moment();
            match tight.iter_mut().find(|tight| tight.moment == moment) {
                Some(known) => (known.weight, less) = (known.weight * 2.0, less * LESS),
                None => tight.push(self.tight(moment, budget, &items)),
            }
            let Some(saved) = self.solve(&items, &tight, less) else { break };
            for (&(node, item), saved) in items.iter().zip(saved) {
                self.draft.save(node, item, saved);
            }
            if self.draft.peak() <= budget.0 {
                self.note();
                break;
            }
        }
        self.done.clear();
    }

    /// What every item costs at a moment; nothing is saved afterwards.
    fn tight(&mut self, moment: usize, budget: Bytes, items: &[(usize, usize)]) -> Tight {
        for &(node, item) in items {
            self.draft.save(node, item, false);
        }
        let bottom = self.draft.height(moment);
        let mut costs = Vec::with_capacity(items.len());
        for &(node, item) in items {
            self.draft.save(node, item, true);
            costs.push(self.draft.height(moment) - bottom);
            self.draft.save(node, item, false);
        }
        Tight { moment, weight: 1.0, room: i64::try_from(budget.0).unwrap_or(i64::MAX) - bottom, costs }
    }

    /// The items to save, if the moments count by their weights, and only a share of their room may be used.
    fn solve(&self, items: &[(usize, usize)], tight: &[Tight], share: f64) -> Option<Vec<bool>> {
        let weights: f64 = tight.iter().map(|tight| tight.weight).sum();
        let weigh = |bytes: &dyn Fn(&Tight) -> i64| -> f64 {
            tight.iter().map(|tight| tight.weight * bytes(tight) as f64).sum::<f64>() / weights
        };
        let costs: Vec<f64> = (0..items.len()).map(|at| weigh(&|tight| tight.costs[at])).collect();
        // What costs nothing is saved, and the rest competes.
        let dear: Vec<usize> = (0..items.len()).filter(|&at| costs[at] >= 1.0).collect();
        let free: f64 = costs.iter().filter(|cost| **cost < 1.0).sum();
        let room = (weigh(&|tight| tight.room) - free) * share;
        if room < 0.0 {
            return None;
        }
        let item = |&at: &usize| {
            let (node, item) = items[at];
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, at least 1")]
            let bytes = Bytes(costs[at] as u64);
            Item {
                ops: vec![at],
                skipped: Vec::new(),
                bytes,
                time: self.problem.nodes[node].candidate.items[item].time,
            }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, not negative")]
        let room = Bytes(room as u64);
        let best = Frontier::best_within(&knapsack(dear.iter().map(item).collect()), room)?;
        let mut saved: Vec<bool> = costs.iter().map(|cost| *cost < 1.0).collect();
        best.into_iter().for_each(|at| saved[dear[at]] = true);
        Some(saved)
    }
}

fn knapsack(items: Vec<Item>) -> Candidate {
    Candidate {
        held_by_autograd: Bytes(0),
        kept_inputs: Bytes(0),
        droppable: Bytes(0),
        fixed_time: Millis(0.0),
        items,
        always_saved: Vec::new(),
        unread: Vec::new(),
        rebuilt: Bytes(0),
        settled: 0,
    }
}
