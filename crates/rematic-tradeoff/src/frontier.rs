use rematic_trace::{Bytes, Millis};

use crate::Candidate;

/// More undominated policies than this are not kept one by one: see [`Frontier::is_exact`].
const MOST_POINTS: usize = 3000;

/// One policy of a region: what it frees between forward and backward, and what recomputation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes freed.
    pub freed: Bytes,
    /// Time of recomputation.
    pub time: Millis,
    /// The last item that this policy saves, and the rest of its choices.
    choice: u32,
}

/// The undominated policies of a region: no other frees as much in less time.
///
/// A policy saves some of the region's items and recomputes the rest, so the policies are those of a knapsack: each item
/// that is saved costs its bytes and gains its time. The pairs of (bytes kept, time gained) are built up item by item;
/// a pair that another one dominates can never become part of a better policy, and goes at once.
#[derive(Clone, Debug)]
pub struct Frontier {
    points: Vec<Point>,
    /// Chosen item and the choice before it.
    choices: Vec<(u32, u32)>,
    /// The lower convex hull of all policies, fractional ones included, as steps: (freed, time) differences, the
    /// cheapest first, from the policy that saves everything.
    steps: Vec<Step>,
    start: (i64, f64),
    exact: bool,
}

/// One item dropped on the way along the hull.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    freed: u64,
    time: f64,
}

const NO_CHOICE: u32 = u32::MAX;

impl Frontier {
    /// The frontier of one region.
    #[must_use]
    pub fn new(candidate: &Candidate) -> Self {
        let mut frontier = Frontier::hull_of(candidate);
        // Kept bytes ascending, time gained strictly ascending.
        let mut list: Vec<(u64, f64, u32)> = vec![(0, 0.0, NO_CHOICE)];
        let mut order: Vec<usize> = (0..candidate.items.len()).collect();
        // The best gain per byte first: early lists are good ones when a list has to be thinned.
        order.sort_by(|&a, &b| {
            let rate = |index: usize| candidate.items[index].time.0 / candidate.items[index].bytes.0.max(1) as f64;
            rate(b).total_cmp(&rate(a)).then(a.cmp(&b))
        });
        for index in order {
            let item = &candidate.items[index];
            // Keeping more than can be dropped frees nothing.
            let most = candidate.droppable.0;
            let mut with: Vec<(u64, f64, u32)> = Vec::with_capacity(list.len());
            for &(bytes, gain, choice) in &list {
                let kept = bytes.saturating_add(item.bytes.0);
                if kept > most {
                    break;
                }
                with.push((kept, gain + item.time.0, choice));
            }
            list = frontier.merge(list, &with, index);
            if list.len() > MOST_POINTS {
                frontier.exact = false;
                thin(&mut list);
            }
        }
        let all: f64 = candidate.fixed_time.0 + candidate.items.iter().map(|item| item.time.0).sum::<f64>();
        frontier.points = list
            .into_iter()
            .map(|(kept, gain, choice)| Point {
                freed: candidate.droppable.saturating_sub(Bytes(kept)),
                time: Millis((all - gain).max(0.0)),
                choice,
            })
            .collect();
        frontier.points.reverse();
        frontier
    }

    fn hull_of(candidate: &Candidate) -> Self {
        let mut steps: Vec<Step> =
            candidate.items.iter().map(|item| Step { freed: item.bytes.0, time: item.time.0 }).collect();
        steps.sort_by(|a, b| (a.time * b.freed as f64).total_cmp(&(b.time * a.freed as f64)));
        let kept: u64 = candidate.items.iter().map(|item| item.bytes.0).sum();
        let start = candidate.droppable.0.cast_signed() - kept.cast_signed();
        Frontier { points: Vec::new(), choices: Vec::new(), steps, start: (start, candidate.fixed_time.0), exact: true }
    }

    /// Merges two lists that are sorted by bytes, and leaves out what is dominated.
    fn merge(&mut self, without: Vec<(u64, f64, u32)>, with: &[(u64, f64, u32)], item: usize) -> Vec<(u64, f64, u32)> {
        let mut merged: Vec<(u64, f64, u32)> = Vec::with_capacity(without.len() + with.len());
        let mut left = without.into_iter().peekable();
        let mut right = with.iter().copied().peekable();
        loop {
            let from_left = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                // Of two with equal bytes the one with the greater gain comes first, and dominates the other.
                (Some(a), Some(b)) => a.0 < b.0 || a.0 == b.0 && a.1 >= b.1,
            };
            let next = if from_left { left.next() } else { right.next() };
            let Some((bytes, gain, choice)) = next else { break };
            if merged.last().is_some_and(|last| gain <= last.1) {
                continue;
            }
            let choice = if from_left {
                choice
            } else {
                self.choices.push((u32::try_from(item).unwrap_or(NO_CHOICE), choice));
                u32::try_from(self.choices.len() - 1).unwrap_or(NO_CHOICE)
            };
            merged.push((bytes, gain, choice));
        }
        merged
    }

    /// The policies, the one that frees least first; time rises with what is freed.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Whether all undominated policies are there. For a region with very many operators only a dense choice is kept;
    /// bounds then come from the hull, which is always that of all policies.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// The items that a policy saves, in ascending order.
    #[must_use]
    pub fn saved_items(&self, point: &Point) -> Vec<usize> {
        let mut items = Vec::new();
        let mut choice = point.choice;
        while choice != NO_CHOICE {
            let (item, before) = self.choices[choice as usize];
            items.push(item as usize);
            choice = before;
        }
        items.sort_unstable();
        items
    }

    /// The highest time per byte of any item.
    #[must_use]
    pub fn steepest(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.time / step.freed.max(1) as f64)
    }

    /// The least of `time - rate * freed` over all policies, fractional ones included: what the region can contribute to
    /// a Lagrangian bound.
    #[must_use]
    pub fn least_reduced_time(&self, rate: f64) -> f64 {
        let (mut freed, mut time) = (self.start.0 as f64, self.start.1);
        for step in &self.steps {
            if step.time > rate * step.freed as f64 {
                break;
            }
            freed += step.freed as f64;
            time += step.time;
        }
        time - rate * freed
    }
}

/// Keeps every other point, and the first and the last.
fn thin(list: &mut Vec<(u64, f64, u32)>) {
    let last = list.len() - 1;
    let mut position: usize = 0;
    list.retain(|_| {
        position += 1;
        (position - 1).is_multiple_of(2) || position - 1 == last
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Item;

    fn candidate(droppable: u64, items: &[(u64, f64)]) -> Candidate {
        Candidate {
            held_by_autograd: Bytes(droppable),
            droppable: Bytes(droppable),
            fixed_time: Millis(0.5),
            items: items
                .iter()
                .enumerate()
                .map(|(index, &(bytes, time))| Item { ops: vec![index], bytes: Bytes(bytes), time: Millis(time) })
                .collect(),
            always_saved: vec![],
            rebuilt: Bytes(0),
            settled: 0,
        }
    }

    #[test]
    fn the_frontier_is_that_of_all_policies() {
        let items = [(30, 3.0), (10, 2.0), (25, 1.0), (10, 0.5), (7, 4.0), (40, 0.1)];
        let candidate = candidate(100, &items);
        let frontier = Frontier::new(&candidate);
        assert!(frontier.is_exact());
        let mut all: Vec<(u64, f64)> = (0..1 << items.len())
            .filter_map(|saved: u32| {
                let is_saved = |index: usize| saved >> index & 1 == 1;
                let kept: u64 = items.iter().enumerate().filter(|(i, _)| is_saved(*i)).map(|(_, item)| item.0).sum();
                let time: f64 = items.iter().enumerate().filter(|(i, _)| !is_saved(*i)).map(|(_, item)| item.1).sum();
                (kept <= 100).then(|| (100 - kept, time + 0.5))
            })
            .collect();
        all.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.total_cmp(&b.1)));
        let mut best = Vec::new();
        for (freed, time) in all {
            if best.last().is_none_or(|&(_, least): &(u64, f64)| time < least - 1e-12) {
                best.push((freed, time));
            }
        }
        best.reverse();
        let found: Vec<(u64, f64)> = frontier.points().iter().map(|point| (point.freed.0, point.time.0)).collect();
        assert_eq!(found.len(), best.len());
        for (found, expected) in found.iter().zip(&best) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-9, "{found:?} {expected:?}");
        }
        for point in frontier.points() {
            let kept: u64 = frontier.saved_items(point).iter().map(|&item| items[item].0).sum();
            assert_eq!(point.freed.0, 100 - kept);
        }
    }

    #[test]
    fn the_hull_lies_below_every_policy() {
        let frontier = Frontier::new(&candidate(90, &[(30, 3.0), (10, 2.0), (25, 1.0), (10, 0.5), (7, 4.0)]));
        for rate in [0.0, 0.01, 0.05, 0.1, 0.2, 1.0] {
            let bound = frontier.least_reduced_time(rate);
            for point in frontier.points() {
                assert!(point.time.0 - rate * point.freed.0 as f64 >= bound - 1e-9);
            }
        }
    }
}
