//! The greedy order with torch's own rules, also where they are wrong.
//!
//! [`crate::GreedyOrder`] is what torch means to do. Scripts that ask for torch's answer get it from here; the two differ
//! where an operator is random and in place (torch counts it twice), and where an even number of random operators of
//! a group must be stored (torch's test is a bit mask, and lets the group go).

use std::collections::{BTreeMap, BTreeSet};

use rematic_trace::{Bytes, Millis};

use crate::{DISCARD_OFFSET, Msps, PiecewiseFit, SacStats, TorchError};

/// Torch's `SACGreedyOrderMeta`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TorchOrder {
    /// Always recomputed.
    pub recomputed_ops: BTreeSet<usize>,
    /// Always stored.
    pub stored_ops: BTreeSet<usize>,
    /// The first operator of a group of in-place ones, with all of it.
    pub inplace_op_groups: BTreeMap<usize, BTreeSet<usize>>,
    /// The first random operator, with all of them.
    pub random_ops_group: BTreeMap<usize, BTreeSet<usize>>,
    /// What may be recomputed, the most bytes per time first; of equal ones, the first operator.
    pub msps_meta: Vec<Msps>,
}

impl TorchOrder {
    /// The order of a region's operators.
    ///
    /// # Errors
    /// If the facts do not fit each other; see [`SacStats::check`].
    pub fn new(stats: &SacStats) -> Result<Self, TorchError> {
        stats.check()?;
        let mut order = TorchOrder::default();
        // Torch makes a dictionary of the pairs: of two parents, the last counts.
        let parent_of: BTreeMap<usize, usize> = stats.inplace_ops.iter().copied().collect();
        let random: BTreeSet<usize> = stats.rand_ops.iter().copied().collect();
        for (&op, &head) in &parent_of {
            order.inplace_op_groups.entry(head).or_insert_with(|| BTreeSet::from([head])).insert(op);
        }
        if let Some(&head) = random.first() {
            order.random_ops_group.insert(head, random.clone());
            if stats.force_store_random {
                order.stored_ops.insert(head);
            }
        }
        order.recomputed_ops.extend(&stats.view_like_ops);
        for (&head, group) in &order.inplace_op_groups {
            let odd = group.intersection(&random).count() % 2 == 1;
            if parent_of.contains_key(&head) || (stats.force_store_random && odd) {
                order.stored_ops.insert(head);
            }
        }
        let mut candidates: BTreeSet<usize> = order.random_ops_group.keys().copied().collect();
        candidates.extend(order.inplace_op_groups.keys());
        let taken = |op: &usize| order.recomputed_ops.contains(op) || parent_of.contains_key(op) || random.contains(op);
        candidates.extend((0..stats.len()).filter(|op| !taken(op)));
        candidates.retain(|op| !order.stored_ops.contains(op));
        order.msps_meta = candidates.into_iter().map(|head| order.group(stats, head)).collect();
        order.msps_meta.sort_by(|a, b| b.msps.total_cmp(&a.msps));
        Ok(order)
    }

    fn group(&self, stats: &SacStats, head: usize) -> Msps {
        let mut ops = BTreeSet::from([head]);
        for groups in [&self.inplace_op_groups, &self.random_ops_group] {
            ops.extend(groups.get(&head).into_iter().flatten());
        }
        let memory: Bytes = Bytes(ops.iter().map(|&op| stats.memory[op].0).sum());
        let runtime: Millis = ops.iter().map(|&op| stats.runtimes[op]).sum();
        let msps = if runtime.0 > 0.0 { memory.0 as f64 / runtime.0 } else { f64::MAX };
        Msps { op_idx: head, ops: ops.into_iter().collect(), memory, runtime, msps }
    }
}

/// A curve of discarded memory against recomputed time, with the lines fitted to it: torch's `SACTradeOffStats`.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchTradeoff {
    /// `(discarded fraction + DISCARD_OFFSET, recomputed fraction)`.
    pub curve: Vec<(f64, f64)>,
    /// The lines.
    pub fit: PiecewiseFit,
}

impl TorchTradeoff {
    /// The curve that discards these amounts one after the other, of so much in all, and so many lines fitted to it.
    #[must_use]
    pub fn new(steps: &[(u64, f64)], memory: u64, runtime: f64, segments: usize) -> Self {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let mut curve: Vec<(f64, f64)> = Vec::new();
        let (mut discarded, mut recomputed) = (0_u64, 0.0);
        for &(bytes, millis) in steps {
            discarded = discarded.saturating_add(bytes);
            recomputed += millis;
            let point = (share(discarded as f64, memory as f64) + DISCARD_OFFSET, share(recomputed, runtime));
            match curve.last_mut() {
                Some(last) if last.0 == point.0 => last.1 = point.1,
                _ => curve.push(point),
            }
        }
        // The time of a fraction between two steps is that of the next.
        let mut shifted: Vec<(f64, f64)> = curve.windows(2).map(|pair| (pair[0].0, pair[1].1)).collect();
        if shifted.is_empty() {
            shifted.clone_from(&curve);
        }
        let fit = PiecewiseFit::new(&shifted, segments).unwrap_or_default();
        TorchTradeoff { curve, fit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> SacStats {
        SacStats {
            func_names: ["empty", "bernoulli_", "div_", "bernoulli_", "t", "mm"].map(String::from).to_vec(),
            runtimes: [1.0, 1.0, 1.0, 1.0, 0.0, 2.0].map(Millis).to_vec(),
            memory: [10, 10, 10, 10, 0, 30].map(Bytes).to_vec(),
            view_like_ops: vec![4],
            rand_ops: vec![1, 3],
            inplace_ops: vec![(1, 0), (2, 0), (3, 0)],
            ..SacStats::default()
        }
    }

    #[test]
    fn random_operators_in_place_count_twice() {
        let order = TorchOrder::new(&stats()).unwrap();
        let found: Vec<(usize, Vec<usize>)> = order.msps_meta.iter().map(|m| (m.op_idx, m.ops.clone())).collect();
        assert_eq!(found, [(5, vec![5]), (0, vec![0, 1, 2, 3]), (1, vec![1, 3])]);
        assert_eq!(order.recomputed_ops, BTreeSet::from([4]));
        assert!(order.stored_ops.is_empty());
    }

    #[test]
    fn an_even_number_of_random_operators_is_let_go() {
        let mut stats = SacStats { force_store_random: true, ..stats() };
        assert_eq!(TorchOrder::new(&stats).unwrap().stored_ops, BTreeSet::from([1]));
        stats.rand_ops = vec![1];
        assert_eq!(TorchOrder::new(&stats).unwrap().stored_ops, BTreeSet::from([0, 1]));
    }

    #[test]
    fn an_operator_in_place_on_an_argument_is_stored() {
        let mut stats = stats();
        stats.inplace_ops = vec![(2, 2)];
        assert_eq!(TorchOrder::new(&stats).unwrap().stored_ops, BTreeSet::from([2]));
        stats.inplace_ops = vec![(9, 2)];
        assert!(TorchOrder::new(&stats).unwrap_err().to_string().contains("inplace_ops names operator 9"));
    }

    #[test]
    fn the_curve_ends_where_all_is_discarded() {
        let tradeoff = TorchTradeoff::new(&[(0, 1.0), (50, 1.0), (50, 5.0), (0, 1.0)], 100, 8.0, 2);
        assert_eq!(tradeoff.curve, [(0.01, 0.125), (0.51, 0.25), (1.01, 1.0)]);
        assert_eq!(tradeoff.fit.n_segments(), 1);
        let nothing = TorchTradeoff::new(&[(0, 0.0), (0, 0.0)], 0, 0.0, 2);
        assert_eq!((nothing.curve.as_slice(), nothing.fit.slopes.as_slice()), (&[(0.01, 0.0)][..], &[0.0][..]));
    }
}
