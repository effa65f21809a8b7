//! One large region by itself.
//!
//! A region with very many operators, a whole model, has too many policies for a frontier. If nothing else is
//! checkpointed its policy is a knapsack, and that is nearly solved by dropping the cheapest operators first; how many, the
//! replay says. The knapsack for what that leaves is then solved exactly.

use rematic_replay::Checkpoint;
use rematic_trace::Bytes;

use crate::greedy::first_within;
use crate::problem::Problem;
use crate::region::{Candidate, Frontier, Pricing};
use crate::replayed::Replayed;

/// More large regions than this are not tried.
const MOST_LARGE: usize = 3;
/// For larger regions the knapsack is not solved: the last few bytes of the room matter little.
const MOST_ITEMS: usize = 400;
/// The part of the budget by which a region may miss it and still be tried: a checkpointed one lets go of some things a little sooner.
const MARGIN: u64 = 16;
/// How often the knapsack is solved, with less room where the replay is above the budget.
const REFILLS: usize = 4;

impl Problem {
    /// The best plan within the budget that checkpoints a single large region.
    pub(crate) fn large_fit(&self, budget: Bytes) -> Option<(Vec<Checkpoint>, Replayed)> {
        let large = (0..self.nodes.len()).filter(|&index| !self.nodes[index].frontier.is_exact());
        let found = large.take(MOST_LARGE).filter_map(|node| self.alone(node, budget));
        found.min_by(|(_, a), (_, b)| a.recompute.0.total_cmp(&b.recompute.0))
    }

    fn alone(&self, node: usize, budget: Bytes) -> Option<(Vec<Checkpoint>, Replayed)> {
        // It frees no more than autograd holds of it.
        let held = self.nodes[node].candidate.held_by_autograd;
        if self.baseline().peak.saturating_sub(held) > Bytes(budget.0.saturating_add(budget.0 / MARGIN)) {
            return None;
        }
        let candidate = &self.priced(Pricing::High)[node].candidate;
        let order = Frontier::cheapest_first(candidate);
        let saving = |items: &[usize]| vec![self.checkpoint(node, items.iter().copied())];
        let replayed = |dropped: usize| {
            let checkpoints = saving(&order[dropped..]);
            let replayed = self.replay(&checkpoints);
            (checkpoints, replayed)
        };
        let freed = freed(candidate, &order);
        let dropped = first_within(budget, self.baseline().peak, &freed, |dropped| replayed(dropped).1.peak);
        let mut best = replayed(dropped);
        if best.1.peak > budget {
            return None;
        }
        let kept = |saved: &[usize]| -> u64 { saved.iter().map(|&item| candidate.items[item].bytes.0).sum() };
        let mut room = kept(&order[dropped..]).saturating_add(budget.saturating_sub(best.1.peak).0);
        let refills = if order.len() > MOST_ITEMS { 0 } else { REFILLS };
        for _ in 0..refills {
            let Some(saved) = Frontier::best_within(candidate, Bytes(room)) else { break };
            let checkpoints = saving(&saved);
            let replayed = self.replay(&checkpoints);
            let over = replayed.peak.saturating_sub(budget).0;
            if over == 0 {
                if replayed.recompute.0 < best.1.recompute.0 {
                    best = (checkpoints, replayed);
                }
                break;
            }
            room = kept(&saved).saturating_sub(over);
        }
        Some(best)
    }
}

/// By number of items that are dropped, in this order, what that frees.
fn freed(candidate: &Candidate, order: &[usize]) -> Vec<Bytes> {
    let all: Bytes = candidate.items.iter().map(|item| item.bytes).sum();
    let mut freed = vec![candidate.droppable.saturating_sub(all)];
    for &item in order {
        freed.push(freed[freed.len() - 1] + candidate.items[item].bytes);
    }
    freed
}
