use std::collections::{BTreeMap, BTreeSet};

use rematic_trace::{Bytes, Millis};

use crate::{Fate, OpGroups, SacStats};

/// A group that may be recomputed, with what that frees and costs; torch's `MSPS`.
#[derive(Clone, Debug, PartialEq)]
pub struct Msps {
    /// The first operator of the group.
    pub op_idx: usize,
    /// All of them.
    pub ops: Vec<usize>,
    /// Bytes that recomputing frees.
    pub memory: Bytes,
    /// Time that it costs.
    pub runtime: Millis,
    /// Bytes per millisecond; the largest number where the time is zero.
    pub msps: f64,
}

/// The order in which a region's operators are best recomputed one after the other; torch's `SACGreedyOrderMeta`.
///
/// It differs from torch's where torch's is wrong. Torch stores an in-place group with a random operator in it, where
/// randomness must be stored, only if it has an *odd* number of them (`flag & count > 0` is `(flag & count) > 0`); here
/// any number will do. And groups that share an operator are one group; see [`OpGroups`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GreedyOrder {
    /// Operators that are always recomputed.
    pub recomputed_ops: Vec<usize>,
    /// The first operators of the groups that are always stored.
    pub stored_ops: Vec<usize>,
    /// From the operator that makes a storage to the operators that make and change it.
    pub inplace_op_groups: BTreeMap<usize, BTreeSet<usize>>,
    /// From the first random operator to all of them.
    pub random_ops_group: BTreeMap<usize, BTreeSet<usize>>,
    /// The groups that may be recomputed: the most bytes per time first, equals (up to rounding) in the order of their
    /// first operators. Torch leaves equals in the order of a Python set.
    pub msps_meta: Vec<Msps>,
}

impl GreedyOrder {
    /// The order for a region whose groups are known.
    #[must_use]
    pub fn new(stats: &SacStats, groups: &OpGroups) -> Self {
        let mut order = GreedyOrder {
            recomputed_ops: groups.with_fate(Fate::Recompute).flat_map(|group| group.ops.iter().copied()).collect(),
            stored_ops: groups.with_fate(Fate::Store).map(|group| group.head()).collect(),
            ..GreedyOrder::default()
        };
        for &(op, parent) in &stats.inplace_ops {
            order.inplace_op_groups.entry(parent).or_insert_with(|| BTreeSet::from([parent])).insert(op);
        }
        if let Some(&head) = stats.rand_ops.iter().min() {
            order.random_ops_group.insert(head, stats.rand_ops.iter().copied().collect());
        }
        order.msps_meta = groups
            .with_fate(Fate::Free)
            .map(|group| Msps {
                op_idx: group.head(),
                ops: group.ops.clone(),
                memory: group.memory,
                runtime: group.runtime,
                msps: if group.runtime.0 > 0.0 { group.memory.0 as f64 / group.runtime.0 } else { f64::MAX },
            })
            .collect();
        sort_by_msps(&mut order.msps_meta);
        order
    }
}

/// Ratios that differ by less than this share are equal: operators with the same bytes per time but different sizes get
/// ratios that rounding tells apart, one way or the other.
const EQUAL: f64 = 1e-12;

fn sort_by_msps(groups: &mut [Msps]) {
    groups.sort_by(|a, b| b.msps.total_cmp(&a.msps));
    for equals in groups.chunk_by_mut(|a, b| a.msps - b.msps <= EQUAL * a.msps) {
        equals.sort_by_key(|group| group.op_idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_bytes_per_time_come_first_and_free_ones_before_all() {
        let stats = SacStats {
            func_names: vec!["op".into(); 5],
            runtimes: [2.0, 1.0, 1.0, 0.0, 1.0].map(Millis).to_vec(),
            memory: [10, 10, 10, 1, 0].map(Bytes).to_vec(),
            view_like_ops: vec![4],
            ..SacStats::default()
        };
        let order = GreedyOrder::new(&stats, &OpGroups::new(&stats).unwrap());
        let heads: Vec<usize> = order.msps_meta.iter().map(|group| group.op_idx).collect();
        assert_eq!(heads, [3, 1, 2, 0]);
        assert_eq!(order.recomputed_ops, [4]);
    }

    #[test]
    fn rounding_does_not_decide() {
        let time = 3e-3 / 7.0;
        let stats = SacStats {
            func_names: vec!["op".into(); 3],
            runtimes: [time * 7.0, time * 3.0, time * 49.0].map(Millis).to_vec(),
            memory: [7, 3, 49].map(Bytes).to_vec(),
            ..SacStats::default()
        };
        let order = GreedyOrder::new(&stats, &OpGroups::new(&stats).unwrap());
        assert!(order.msps_meta.iter().any(|group| group.msps != order.msps_meta[0].msps), "the test needs rounding");
        assert_eq!(order.msps_meta.iter().map(|group| group.op_idx).collect::<Vec<_>>(), [0, 1, 2]);
    }

    /// Upstream's `force_store_random & len(...) > 0` would let this group of two random operators go.
    #[test]
    fn an_even_number_of_random_operators_is_stored_too() {
        let stats = SacStats {
            func_names: vec!["empty".into(), "bernoulli_".into(), "div_".into(), "bernoulli_".into()],
            runtimes: vec![Millis(1.0); 4],
            memory: vec![Bytes(10); 4],
            rand_ops: vec![1, 3],
            inplace_ops: vec![(1, 0), (2, 0), (3, 0)],
            force_store_random: true,
            ..SacStats::default()
        };
        let order = GreedyOrder::new(&stats, &OpGroups::new(&stats).unwrap());
        assert_eq!(order.stored_ops, [0]);
        assert!(order.msps_meta.is_empty());
        assert_eq!(order.inplace_op_groups[&0], BTreeSet::from([0, 1, 2, 3]));
        assert_eq!(order.random_ops_group[&1], BTreeSet::from([1, 3]));
    }
}
