use rematic_trace::{Bytes, Millis};

use crate::{SacStats, TorchError};

/// What may be done with the outputs of a group of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They must be saved: an in-place operator changes something from outside the region, or a random operator runs
    /// where randomness must be saved. This goes before [`Fate::Recompute`].
    Store,
    /// They are always recomputed: a view is among them.
    Recompute,
    /// Either.
    Free,
}

/// Operators that are saved or recomputed together.
#[derive(Clone, Debug, PartialEq)]
pub struct OpGroup {
    /// Indices into the region's operators, ascending.
    pub ops: Vec<usize>,
    /// What may be done with them.
    pub fate: Fate,
    /// Their bytes.
    pub memory: Bytes,
    /// Their time.
    pub runtime: Millis,
}

impl OpGroup {
    /// The first operator.
    #[must_use]
    pub fn head(&self) -> usize {
        self.ops[0]
    }
}

/// A region's operators, split into the groups that have one fate, in the order of the groups' first operators.
///
/// Two rules join operators: an in-place operator goes with the operator whose output it changes, and all random
/// operators go together, because each moves the state of the generator for the next. Both rules can meet in one
/// operator; it then joins two groups into one. (Torch's greedy order keeps them apart and counts the operator twice.)
#[derive(Clone, Debug, PartialEq)]
pub struct OpGroups(Vec<OpGroup>);

impl OpGroups {
    /// Groups a region's operators.
    ///
    /// # Errors
    /// If the facts do not fit each other; see [`SacStats::check`].
    pub fn new(stats: &SacStats) -> Result<Self, TorchError> {
        stats.check()?;
        let mut heads = Heads((0..stats.len()).collect());
        for &(op, parent) in &stats.inplace_ops {
            heads.join(op, parent);
        }
        for pair in stats.rand_ops.windows(2) {
            heads.join(pair[0], pair[1]);
        }
        let mut fates = vec![Fate::Free; stats.len()];
        for &op in &stats.view_like_ops {
            fates[heads.of(op)] = Fate::Recompute;
        }
        for &(op, parent) in &stats.inplace_ops {
            if op == parent {
                fates[heads.of(op)] = Fate::Store;
            }
        }
        if stats.force_store_random {
            for &op in &stats.rand_ops {
                fates[heads.of(op)] = Fate::Store;
            }
        }
        let mut groups: Vec<OpGroup> = Vec::new();
        let mut group_of_head = vec![usize::MAX; stats.len()];
        for op in 0..stats.len() {
            let head = heads.of(op);
            if head == op {
                group_of_head[head] = groups.len();
                groups.push(OpGroup { ops: Vec::new(), fate: fates[head], memory: Bytes(0), runtime: Millis(0.0) });
            }
            // A head is the smallest index of its group, so the group exists.
            let group = &mut groups[group_of_head[head]];
            group.ops.push(op);
            group.memory += stats.memory[op];
            group.runtime += stats.runtimes[op];
        }
        Ok(OpGroups(groups))
    }

    /// The groups.
    pub fn iter(&self) -> std::slice::Iter<'_, OpGroup> {
        self.0.iter()
    }

    /// The groups with one fate.
    pub fn with_fate(&self, fate: Fate) -> impl Iterator<Item = &OpGroup> {
        self.0.iter().filter(move |group| group.fate == fate)
    }
}

impl<'a> IntoIterator for &'a OpGroups {
    type Item = &'a OpGroup;
    type IntoIter = std::slice::Iter<'a, OpGroup>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Disjoint sets; the smallest index of a set stands for it.
struct Heads(Vec<usize>);

impl Heads {
    fn of(&mut self, op: usize) -> usize {
        let mut at = op;
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        let (low, high) = (a.min(b), a.max(b));
        self.0[high] = low;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(ops: usize) -> SacStats {
        SacStats {
            func_names: vec!["op".into(); ops],
            runtimes: vec![Millis(1.0); ops],
            memory: vec![Bytes(10); ops],
            ..SacStats::default()
        }
    }

    fn split(stats: &SacStats) -> Vec<(Vec<usize>, Fate)> {
        OpGroups::new(stats).unwrap().iter().map(|group| (group.ops.clone(), group.fate)).collect()
    }

    #[test]
    fn operators_without_ties_stand_alone() {
        assert_eq!(split(&stats(2)), [(vec![0], Fate::Free), (vec![1], Fate::Free)]);
    }

    #[test]
    fn in_place_operators_go_with_their_parent_or_are_saved() {
        let mut stats = stats(4);
        stats.inplace_ops = vec![(1, 1), (3, 0)];
        assert_eq!(split(&stats), [(vec![0, 3], Fate::Free), (vec![1], Fate::Store), (vec![2], Fate::Free)]);
    }

    #[test]
    fn random_operators_go_together_and_are_saved_if_they_must() {
        let mut stats = stats(3);
        stats.rand_ops = vec![0, 2];
        assert_eq!(split(&stats), [(vec![0, 2], Fate::Free), (vec![1], Fate::Free)]);
        stats.force_store_random = true;
        assert_eq!(split(&stats)[0], (vec![0, 2], Fate::Store));
    }

    #[test]
    fn an_operator_under_both_rules_is_counted_once() {
        let mut stats = stats(4);
        stats.rand_ops = vec![1, 3];
        stats.inplace_ops = vec![(3, 2)];
        let groups = OpGroups::new(&stats).unwrap();
        assert_eq!(split(&stats), [(vec![0], Fate::Free), (vec![1, 2, 3], Fate::Free)]);
        assert_eq!(groups.iter().map(|group| group.memory.0).sum::<u64>(), 40);
    }

    #[test]
    fn saving_goes_before_recomputing() {
        let mut stats = stats(1);
        stats.view_like_ops = vec![0];
        assert_eq!(split(&stats), [(vec![0], Fate::Recompute)]);
        stats.inplace_ops = vec![(0, 0)];
        assert_eq!(split(&stats), [(vec![0], Fate::Store)]);
    }
}
