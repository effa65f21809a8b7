//! Multipliers of the needs: λ.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::case::Case;

/// How often the distance between a rate that is too low and one that is high enough is halved.
const HALVINGS: usize = 40;

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

/// The best choices among the nodes of a micro-batch that end up to each rank.
struct Prefixes<'a, 'c> {
    case: &'a Case<'c>,
    /// The ranks of its ends, the one before them included.
    ranks: Range<usize>,
    /// By rank: the usable nodes that end there, each with the rank of its start and the number of its frontier.
    ending: Vec<Vec<(usize, usize, usize)>>,
    /// By frontier that equal nodes share, one of those nodes.
    frontiers: Vec<usize>,
    /// By rank: the least Σ(t − Λd), and the Σd of that choice.
    best: Vec<(f64, f64)>,
    /// Up to which rank that is so.
    known: usize,
    /// The same while another worth is tried.
    tried: Vec<(f64, f64)>,
}

impl<'a, 'c> Prefixes<'a, 'c> {
    fn new(case: &'a Case<'c>, nodes: Range<usize>) -> Self {
        let rank = |position: usize| case.problem.rank(position);
        let first = case.nodes.get(nodes.start).map_or(0, |node| rank(node.start));
        let last = nodes.clone().map(|index| case.end_ranks[index]).max().unwrap_or(first);
        let mut ending = vec![Vec::new(); last + 1 - first];
        let (mut numbers, mut frontiers) = (HashMap::new(), Vec::new());
        for index in nodes.filter(|&index| case.usable[index]) {
            let (node, end) = (&case.nodes[index], case.end_ranks[index]);
            let number = *numbers.entry(Arc::as_ptr(&node.frontier)).or_insert_with(|| {
                frontiers.push(index);
                frontiers.len() - 1
            });
            let start = rank(node.start);
            if start < end {
                ending[end - first].push((index, start, number));
            }
        }
        let nothing = vec![(0.0, 0.0); last + 1 - first];
        Prefixes {
            case,
            ranks: first..last + 1,
            ending,
            frontiers,
            best: nothing.clone(),
            known: first,
            tried: nothing,
        }
    }

    /// Works out the ranks from one on up to another, for what their regions are worth; or, where that is more, for a rate.
    fn work_out(&mut self, worth: &[f64], rate: f64, from: usize, to: usize) {
        let (base, nodes) = (self.ranks.start, self.case.nodes);
        let mut at = (f64::NAN, vec![None; self.frontiers.len()]);
        for (end, worth) in worth.iter().enumerate().take(to + 1).skip(from.max(base + 1)) {
            let rate = rate.max(*worth);
            if rate != at.0 {
                at.0 = rate;
                at.1.fill(None);
            }
            let mut best = if end > from { self.tried[end - 1 - base] } else { self.best[end - 1 - base] };
            for &(_, start, number) in &self.ending[end - base] {
                let cheapest = || nodes[self.frontiers[number]].frontier.cheapest(rate);
                let (freed, time) = *at.1[number].get_or_insert_with(cheapest);
                let before = if start >= from { self.tried[start - base] } else { self.best[start - base] };
                let (reduced, total) = (before.0 + (time - rate * freed), before.1 + freed);
                if reduced < best.0 || reduced == best.0 && total > best.1 {
                    best = (reduced, total);
                }
            }
            self.tried[end - base] = best;
        }
    }

    /// What the nodes up to a rank free.
    fn freed(&mut self, worth: &[f64], rank: usize) -> f64 {
        if self.known < rank {
            let from = self.known + 1;
            self.keep(worth, from, rank);
        }
        self.best[rank - self.ranks.start].1
    }

    /// What they would free if those that are worth less were worth so much. Worth never rises with the rank.
    fn freed_with(&mut self, worth: &[f64], rate: f64, rank: usize) -> f64 {
        let from = self.below(worth, rate, rank);
        self.work_out(worth, rate, from, rank);
        self.tried[rank - self.ranks.start].1
    }

    /// The first rank up to this one that is worth less than so much.
    fn below(&self, worth: &[f64], rate: f64, rank: usize) -> usize {
        let first = self.ranks.start + 1;
        first + worth[first..rank].partition_point(|worth| *worth >= rate)
    }

    fn keep(&mut self, worth: &[f64], from: usize, rank: usize) {
        let base = self.ranks.start;
        let from = from.max(base + 1);
        self.work_out(worth, 0.0, from, rank);
        self.best[from - base..=rank - base].copy_from_slice(&self.tried[from - base..=rank - base]);
        self.known = rank;
    }
}

impl Case<'_> {
    /// The least reduced time of all that comes from each node on.
    fn to_come(&self, worth: &[f64]) -> Vec<f64> {
        let nodes = self.nodes;
        let mut best = vec![0.0; nodes.len() + 1];
        for (index, node) in nodes.iter().enumerate().rev() {
            best[index] = best[index + 1];
            if self.usable[index] {
                let rate = worth[self.end_ranks[index]];
                let (freed, time) = node.frontier.cheapest(rate);
                best[index] = f64::min(best[index], time - rate * freed + best[node.next]);
            }
        }
        best
    }

    /// The nodes of each micro-batch.
    fn micro_batches(&self) -> Vec<Range<usize>> {
        let firsts: Vec<usize> = (0..self.nodes.len()).filter(|&index| self.begins[index]).collect();
        let ends = firsts.iter().skip(1).copied().chain([self.nodes.len()]);
        firsts.iter().zip(ends).map(|(&first, end)| first..end).collect()
    }

    /// Multipliers that make the bound nearly as high as it gets.
    ///
    /// For one need, the best multiplier is the rate at which the regions up to it free just enough. A region counts
    /// towards all needs behind it in its micro-batch, so what it is worth only falls along the way: each need raises the rate of
    /// the regions before it until they free enough, the largest need first.
    pub(super) fn rates(&self) -> Rates {
        let nodes = self.nodes;
        let steepest = nodes.iter().map(|node| node.frontier.steepest()).fold(0.0, f64::max) * 2.0;
        let mut worth = vec![0.0_f64; self.problem.ceilings.len() + 1];
        let none = || vec![0.0; nodes.len() + 1];
        let mut rates = Rates { to_come: Vec::new(), owed: none(), credit: none(), worth: Vec::new() };
        let mut lambdas = Vec::new();
        for batch in self.micro_batches() {
            let ranks = self.raise(batch.clone(), steepest, &mut worth);
            for rank in ranks.clone() {
                let next = if rank + 1 < ranks.end { worth[rank + 1] } else { 0.0 };
                // λ.
                lambdas.push((rank, batch.start, worth[rank] - next));
            }
        }
        for (rank, first, multiplier) in lambdas.into_iter().filter(|(.., multiplier)| *multiplier > 0.0) {
            for index in 0..nodes.partition_point(|node| node.start < self.problem.ends[rank - 1]) {
                rates.owed[index] += multiplier * self.need(rank, index) as f64;
                if index >= first {
                    rates.credit[index] += multiplier;
                }
            }
        }
        Rates { to_come: self.to_come(&worth), worth, ..rates }
    }

    /// Raises what the regions of a micro-batch are worth until they free enough. Returns the ranks at which they end.
    fn raise(&self, batch: Range<usize>, steepest: f64, worth: &mut [f64]) -> Range<usize> {
        let mut prefixes = Prefixes::new(self, batch);
        let ranks = prefixes.ranks.start + 1..prefixes.ranks.end;
        let mut order: Vec<usize> = ranks.clone().filter(|&rank| self.needs[rank] > 0).collect();
        let first = order.iter().copied().min_by_key(|&rank| (std::cmp::Reverse(self.needs[rank]), rank));
        order.sort_by_key(|&rank| (Some(rank) != first, rank));
        for rank in order {
            self.problem.cancel.check();
            let need = self.needs[rank] as f64;
            if prefixes.freed(worth, rank) >= need {
                continue;
            }
            let (mut low, mut high) = (worth[rank], steepest);
            for _ in 0..HALVINGS {
                let middle = low + (high - low) / 2.0;
                if prefixes.freed_with(worth, middle, rank) >= need { high = middle } else { low = middle }
            }
            // The bound is continuous in the rates; at the upper end the need counts as met for the ranks still to come.
            let from = prefixes.below(worth, high, rank);
            worth[ranks.start..=rank].iter_mut().for_each(|worth| *worth = worth.max(high));
            prefixes.keep(worth, from, rank);
        }
        ranks
    }
}
