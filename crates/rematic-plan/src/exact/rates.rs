//! Multipliers of the needs: λ.

use super::case::Case;

/// Multipliers of the needs, and what follows from them for every node.
pub(super) struct Rates {
    /// Λ: time per byte that a region is worth which ends at a rank, the sum of the λ of all needs from there on.
    pub(super) worth: Vec<f64>,
    /// min Σ(t − Λd) over all that is still to come, by node.
    pub(super) to_come: Vec<f64>,
    /// Σλ·need over the needs still to come, by node.
    pub(super) owed: Vec<f64>,
    /// Σλ of them: time per byte freed so far, by node.
    pub(super) credit: Vec<f64>,
}

impl Rates {
    /// A bound on the time of every completion of a pair that frees so much.
    pub(super) fn bound(&self, index: usize, freed: i64) -> f64 {
        (self.to_come[index] + self.owed[index] - self.credit[index] * freed as f64).max(0.0)
    }
}

impl Case<'_> {
    /// The least reduced time of the nodes that end at or before a position, and what that choice frees.
    fn least_reduced(&self, worth: &[f64], position: usize, mut note: impl FnMut(usize, f64)) -> f64 {
        let nodes = self.nodes;
        let last = nodes.partition_point(|node| node.start < position);
        // Reduced time and bytes freed of the best choice from each node on.
        let mut best = vec![(0.0, 0.0); nodes.len() + 1];
        for index in (0..last).rev() {
            let node = &nodes[index];
            best[index] = best[index + 1];
            if self.usable[index] && node.end <= position {
                let rate = worth[self.end_ranks[index]];
                let (freed, time) = node.frontier.cheapest(rate);
                let (reduced, total) = (time - rate * freed + best[node.next].0, freed + best[node.next].1);
                if reduced < best[index].0 || reduced == best[index].0 && total > best[index].1 {
                    best[index] = (reduced, total);
                }
            }
            note(index, best[index].0);
        }
        best[0].1
    }

    /// Multipliers that make the bound nearly as high as it gets.
    ///
    /// For one need, the best multiplier is the rate at which the regions up to it free just enough. A region counts
    /// towards all needs behind it, so what it is worth only falls along the way: each need raises the rate of the
    /// regions before it until they free enough, the largest need first.
    pub(super) fn rates(&self) -> Rates {
        let problem = self.problem;
        let ranks = problem.ceilings.len();
        let steepest = self.nodes.iter().map(|node| node.frontier.steepest()).fold(0.0, f64::max) * 2.0;
        let mut worth = vec![0.0_f64; ranks + 1];
        let mut order: Vec<usize> = (1..ranks).filter(|&rank| self.needs[rank] > 0).collect();
        order.sort_by_key(|&rank| (std::cmp::Reverse(self.needs[rank]), rank));
        let first = order.first().copied();
        order.sort_by_key(|&rank| (Some(rank) != first, rank));
        for rank in order {
            problem.cancel.check();
            let need = self.needs[rank] as f64;
            let position = problem.ends[rank - 1];
            let raised = |rate: f64, worth: &[f64]| -> Vec<f64> {
                worth.iter().enumerate().map(|(at, old)| if at <= rank { old.max(rate) } else { *old }).collect()
            };
            let frees = |worth: &[f64]| self.least_reduced(worth, position, |_, _| {});
            if frees(&worth) >= need {
                continue;
            }
            let (mut low, mut high) = (worth[rank], steepest);
            for _ in 0..40 {
                let middle = low + (high - low) / 2.0;
                if frees(&raised(middle, &worth)) >= need { high = middle } else { low = middle }
            }
            // The bound is continuous in the rates; at the upper end the need counts as met for the ranks still to come.
            worth = raised(high, &worth);
        }
        let nodes = self.nodes;
        let mut to_come = vec![0.0; nodes.len() + 1];
        self.least_reduced(&worth, usize::MAX, |index, reduced| to_come[index] = reduced);
        let mut rates = Rates { to_come, owed: vec![0.0; nodes.len() + 1], credit: vec![0.0; nodes.len() + 1], worth };
        for rank in 1..ranks {
            // λ.
            let multiplier = rates.worth[rank] - rates.worth[rank + 1];
            if multiplier <= 0.0 {
                continue;
            }
            for index in 0..nodes.partition_point(|node| node.start < problem.ends[rank - 1]) {
                rates.owed[index] += multiplier * self.need(rank, index) as f64;
                rates.credit[index] += multiplier;
            }
        }
        rates
    }
}
