use rematic_trace::{Bytes, Millis};

use crate::{Candidate, Item};

/// More undominated policies than this are not kept one by one: see [`Frontier::is_exact`].
const MOST_POINTS: usize = 3000;
/// Regions with more items than this (whole models) get only the policies on the hull.
const MOST_ITEMS: usize = 96;

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
    /// The lower convex hull of all policies, fractional ones included: what is freed, and when, as the cheapest items are
    /// dropped one after the other, from the policy that saves everything.
    hull: Vec<Vertex>,
    exact: bool,
}

/// A corner of the hull.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Vertex {
    freed: f64,
    time: f64,
    /// Time per byte of the item that leads here.
    rate: f64,
}

const NO_CHOICE: u32 = u32::MAX;

impl Frontier {
    /// The frontier of one region.
    #[must_use]
    pub fn new(candidate: &Candidate) -> Self {
        let mut frontier = Frontier::hull_of(candidate);
        if candidate.items.len() > MOST_ITEMS {
            frontier.take_hull_points(candidate);
            return frontier;
        }
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
        let kept: u64 = candidate.items.iter().map(|item| item.bytes.0).sum();
        let mut at = Vertex {
            freed: candidate.droppable.0 as f64 - kept as f64,
            time: candidate.fixed_time.0,
            rate: f64::NEG_INFINITY,
        };
        let mut hull = vec![at];
        for item in cheapest_first(candidate) {
            let Item { bytes, time, .. } = &candidate.items[item];
            at = Vertex { freed: at.freed + bytes.0 as f64, time: at.time + time.0, rate: time.0 / bytes.0 as f64 };
            hull.push(at);
        }
        Frontier { points: Vec::new(), choices: Vec::new(), hull, exact: true }
    }

    /// The policies that drop the cheapest items up to a certain one.
    fn take_hull_points(&mut self, candidate: &Candidate) {
        self.exact = false;
        let order = cheapest_first(candidate);
        // The policy that saves everything behind a place in the order continues the one for the place behind it.
        for &item in order.iter().rev() {
            let rest =
                self.choices.len().checked_sub(1).map_or(NO_CHOICE, |last| u32::try_from(last).unwrap_or(NO_CHOICE));
            self.choices.push((u32::try_from(item).unwrap_or(NO_CHOICE), rest));
        }
        for dropped in 1..=order.len() {
            let saved = order.len() - dropped;
            let choice = saved.checked_sub(1).map_or(NO_CHOICE, |last| u32::try_from(last).unwrap_or(NO_CHOICE));
            let kept: u64 = order[dropped..].iter().map(|&item| candidate.items[item].bytes.0).sum();
            if let Some(freed) = candidate.droppable.0.checked_sub(kept) {
                self.points.push(Point { freed: Bytes(freed), time: Millis(self.hull[dropped].time), choice });
            }
        }
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
        self.hull.iter().map(|vertex| vertex.rate).filter(|rate| rate.is_finite()).fold(0.0, f64::max)
    }

    /// What is freed, and when, by the policy with the least `time - rate * freed`, fractional policies included: what
    /// the region can contribute to a Lagrangian bound.
    #[must_use]
    pub fn cheapest(&self, rate: f64) -> (f64, f64) {
        let behind = self.hull.partition_point(|vertex| vertex.rate <= rate);
        let vertex = &self.hull[behind - 1];
        (vertex.freed, vertex.time)
    }
}

/// The items in the order in which it pays to drop them: the least time per byte first.
fn cheapest_first(candidate: &Candidate) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidate.items.len()).collect();
    let cost = |index: usize| (candidate.items[index].time.0, candidate.items[index].bytes.0 as f64);
    order.sort_by(|&a, &b| {
        let ((time_a, bytes_a), (time_b, bytes_b)) = (cost(a), cost(b));
        (time_a * bytes_b).total_cmp(&(time_b * bytes_a)).then(a.cmp(&b))
    });
    order
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

    fn candidate(droppable: u64, items: &[(u64, f64)]) -> Candidate {
        Candidate {
            held_by_autograd: Bytes(droppable),
            kept_inputs: Bytes(0),
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
            let (freed, time) = frontier.cheapest(rate);
            let bound = time - rate * freed;
            for point in frontier.points() {
                assert!(point.time.0 - rate * point.freed.0 as f64 >= bound - 1e-9);
            }
        }
    }
}
