use rematic_trace::{Bytes, Millis};

use super::{Candidate, Item};

/// More undominated policies than this are not kept one by one: see [`Frontier::is_exact`].
const MOST_POINTS: usize = 3000;
/// More policies than this near a rate are too many.
const MOST_NEAR: usize = 400;
/// The same, where the best policy for a given room is looked for.
const MOST_WITHIN: usize = 30_000;
/// Regions with more items than this (whole models) get only the policies on the hull.
const MOST_ITEMS: usize = 96;

/// One policy of a region: what it frees between forward and backward, and what recomputation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes that it keeps between forward and backward.
    pub kept: Bytes,
    /// Bytes that it frees: what can be dropped, less what it keeps. Nothing if it keeps more.
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
        let all: f64 = candidate.fixed_time.0 + candidate.items.iter().map(|item| item.time.0).sum::<f64>();
        let mut list: Vec<Entry> = vec![(0, all, NO_CHOICE)];
        let mut order: Vec<usize> = (0..candidate.items.len()).collect();
        // The best gain per byte first: early lists are good ones when a list has to be thinned.
        order.sort_by(|&a, &b| {
            let rate = |index: usize| candidate.items[index].time.0 / candidate.items[index].bytes.0.max(1) as f64;
            rate(b).total_cmp(&rate(a)).then(a.cmp(&b))
        });
        for index in order {
            let item = &candidate.items[index];
            let saving: Vec<Entry> = list
                .iter()
                .map(|&(kept, time, choice)| (kept + signed(item.bytes.0), time - item.time.0, choice))
                .collect();
            list = undominated(list, saving, |before| push(&mut frontier.choices, (as_choice(index), before)));
            if list.len() > MOST_POINTS {
                frontier.exact = false;
                thin(&mut list);
            }
        }
        let point = |(kept, time, choice): Entry| point(candidate, kept, time, choice);
        frontier.points = list.into_iter().map(point).collect();
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
        for item in Frontier::cheapest_first(candidate) {
            let Item { bytes, time, .. } = &candidate.items[item];
            at = Vertex { freed: at.freed + bytes.0 as f64, time: at.time + time.0, rate: time.0 / bytes.0 as f64 };
            hull.push(at);
        }
        Frontier { points: Vec::new(), choices: Vec::new(), hull, exact: true }
    }

    /// The policies that drop the cheapest items up to a certain one.
    fn take_hull_points(&mut self, candidate: &Candidate) {
        self.exact = false;
        let order = Frontier::cheapest_first(candidate);
        // The policy that saves everything behind a place in the order continues the one for the place behind it.
        let mut rest = NO_CHOICE;
        for &item in order.iter().rev() {
            rest = push(&mut self.choices, (as_choice(item), rest));
        }
        let mut kept: u64 = candidate.items.iter().map(|item| item.bytes.0).sum();
        for dropped in 1..=order.len() {
            let choice = (order.len() - dropped).checked_sub(1).map_or(NO_CHOICE, as_choice);
            kept -= candidate.items[order[dropped - 1]].bytes.0;
            self.points.push(point(candidate, signed(kept), self.hull[dropped].time, choice));
        }
    }

    /// All undominated policies whose `time - rate * freed` is at most `slack` above the least there is, the one that keeps
    /// most first, each with the items that it saves; `None` if there are too many.
    ///
    /// At a rate every item has a side, saved or recomputed, that is cheaper; a policy is dearer than the least by the sum
    /// of the differences of its items that lie on the other side. So few of them do that even a region with very many
    /// items has few such policies.
    #[must_use]
    pub fn near(candidate: &Candidate, rate: f64, slack: f64) -> Option<Vec<(Point, Vec<usize>)>> {
        let near = Near::new(candidate, rate, slack, MOST_NEAR)?;
        Some(near.list.iter().rev().map(|entry| near.policy(entry)).collect())
    }

    /// The items in the order in which it pays to drop them: the least time per byte first.
    #[must_use]
    pub fn cheapest_first(candidate: &Candidate) -> Vec<usize> {
        let mut order: Vec<usize> = (0..candidate.items.len()).collect();
        let cost = |index: usize| (candidate.items[index].time.0, candidate.items[index].bytes.0 as f64);
        order.sort_by(|&a, &b| {
            let ((time_a, bytes_a), (time_b, bytes_b)) = (cost(a), cost(b));
            (time_a * bytes_b).total_cmp(&(time_b * bytes_a)).then(a.cmp(&b))
        });
        order
    }

    /// The items to save so that no more than so much is kept, at the least time; `None` if that is too hard.
    #[must_use]
    pub fn best_within(candidate: &Candidate, room: Bytes) -> Option<Vec<usize>> {
        let order = Self::cheapest_first(candidate);
        // The rate of the item at which, from the dearest on, the room is full.
        let mut kept = 0_u64;
        let critical = order.iter().rev().find(|&&item| {
            kept = kept.saturating_add(candidate.items[item].bytes.0);
            kept > room.0
        });
        let Some(&critical) = critical else { return Some((0..candidate.items.len()).collect()) };
        let rate = candidate.items[critical].time.0 / candidate.items[critical].bytes.0 as f64;
        let reduced = |kept: u64, time: f64| time + rate * kept as f64;
        let mut slack = candidate.items[critical].time.0 / 64.0;
        loop {
            let near = Near::new(candidate, rate, slack, MOST_WITHIN)?;
            let of = |entry: &Entry| (u64::try_from(entry.0).unwrap_or(0), entry.1.max(0.0));
            let least = near.list.iter().map(of).map(|(kept, time)| reduced(kept, time)).fold(f64::INFINITY, f64::min);
            // Time falls with what is kept: the last that is within the room takes least.
            match near.list.iter().rfind(|entry| of(entry).0 <= room.0) {
                // A better one would be nearer, and so among them.
                Some(best) if reduced(room.0, of(best).1) <= least + slack => return Some(near.policy(best).1),
                _ => slack *= 2.0,
            }
        }
    }

    /// The policies, the one that keeps most first; time rises with what is freed. Those that keep more than can be dropped
    /// free nothing between forward and backward, and still shorten lives within the region's own forward.
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

/// The undominated policies near a rate: see [`Frontier::near`].
struct Near<'a> {
    candidate: &'a Candidate,
    rate: f64,
    list: Vec<Entry>,
    /// Moved item and the moves before it.
    moves: Vec<(u32, u32)>,
}

impl<'a> Near<'a> {
    /// `None` if there are more than so many.
    fn new(candidate: &'a Candidate, rate: f64, slack: f64, most: usize) -> Option<Self> {
        let mut near = Near { candidate, rate, list: Vec::new(), moves: Vec::new() };
        let difference = |item: &Item| (item.time.0 - rate * item.bytes.0 as f64).abs();
        let (mut kept, mut time) = (0_i64, candidate.fixed_time.0);
        for item in &candidate.items {
            if near.is_saved(item) { kept += signed(item.bytes.0) } else { time += item.time.0 }
        }
        let least = time + rate * kept as f64;
        let mut movable: Vec<usize> =
            (0..candidate.items.len()).filter(|&index| difference(&candidate.items[index]) <= slack).collect();
        movable.sort_by(|&a, &b| {
            difference(&candidate.items[b]).total_cmp(&difference(&candidate.items[a])).then(a.cmp(&b))
        });
        near.list.push((kept, time, NO_CHOICE));
        for index in movable {
            let item = &candidate.items[index];
            let sign = if near.is_saved(item) { -1 } else { 1 };
            let (bytes, more) = (sign * signed(item.bytes.0), -(sign as f64) * item.time.0);
            let list = std::mem::take(&mut near.list);
            let moved: Vec<Entry> = list
                .iter()
                .map(|&(kept, time, before)| (kept + bytes, time + more, before))
                .filter(|&(kept, time, _)| time + rate * kept as f64 <= least + slack)
                .collect();
            near.list = undominated(list, moved, |before| push(&mut near.moves, (as_choice(index), before)));
            if near.list.len() > most {
                return None;
            }
        }
        Some(near)
    }

    /// Whether it is cheaper to save an item.
    fn is_saved(&self, item: &Item) -> bool {
        item.time.0 > self.rate * item.bytes.0 as f64
    }

    /// One of them with the items that it saves.
    fn policy(&self, &(kept, time, mut choice): &Entry) -> (Point, Vec<usize>) {
        let items = &self.candidate.items;
        let mut saved: Vec<bool> = items.iter().map(|item| self.is_saved(item)).collect();
        while choice != NO_CHOICE {
            let (item, before) = self.moves[choice as usize];
            saved[item as usize] = !saved[item as usize];
            choice = before;
        }
        let saved = (0..saved.len()).filter(|&item| saved[item]).collect();
        (point(self.candidate, kept, time, NO_CHOICE), saved)
    }
}

/// A policy while frontiers are built: bytes kept, time, and the last of its choices. Lists of them are sorted, bytes
/// ascending and time descending.
type Entry = (i64, f64, u32);

/// Merges two lists and leaves out what is dominated. What comes from the second gets a new choice, made from its last.
fn undominated(first: Vec<Entry>, second: Vec<Entry>, mut choose: impl FnMut(u32) -> u32) -> Vec<Entry> {
    let mut merged: Vec<Entry> = Vec::with_capacity(first.len() + second.len());
    let (mut left, mut right) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        let from_left = match (left.peek(), right.peek()) {
            (None, None) => return merged,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // Of two with equal bytes the one that takes less comes first, and dominates the other.
            (Some(a), Some(b)) => a.0 < b.0 || a.0 == b.0 && a.1 <= b.1,
        };
        let Some((kept, time, choice)) = (if from_left { left.next() } else { right.next() }) else { return merged };
        if merged.last().is_none_or(|last| time < last.1) {
            merged.push((kept, time, if from_left { choice } else { choose(choice) }));
        }
    }
}

fn point(candidate: &Candidate, kept: i64, time: f64, choice: u32) -> Point {
    let kept = Bytes(u64::try_from(kept).unwrap_or(0));
    Point { kept, freed: candidate.droppable.saturating_sub(kept), time: Millis(time.max(0.0)), choice }
}

/// Appends a choice, and says where it stands.
fn push(choices: &mut Vec<(u32, u32)>, choice: (u32, u32)) -> u32 {
    choices.push(choice);
    as_choice(choices.len() - 1)
}

fn as_choice(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NO_CHOICE)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Keeps every other point, and the first and the last.
fn thin(list: &mut Vec<Entry>) {
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
                .map(|(index, &(bytes, time))| Item {
                    ops: vec![index],
                    skipped: vec![],
                    bytes: Bytes(bytes),
                    time: Millis(time),
                })
                .collect(),
            always_saved: vec![],
            unread: vec![],
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
            .map(|saved: u32| {
                let is_saved = |index: usize| saved >> index & 1 == 1;
                let kept: u64 = items.iter().enumerate().filter(|(i, _)| is_saved(*i)).map(|(_, item)| item.0).sum();
                let time: f64 = items.iter().enumerate().filter(|(i, _)| !is_saved(*i)).map(|(_, item)| item.1).sum();
                (kept, time + 0.5)
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut best = Vec::new();
        for (kept, time) in all {
            if best.last().is_none_or(|&(_, least): &(u64, f64)| time < least - 1e-12) {
                best.push((kept, time));
            }
        }
        best.reverse();
        let found: Vec<(u64, f64)> = frontier.points().iter().map(|point| (point.kept.0, point.time.0)).collect();
        assert_eq!(found.len(), best.len());
        for (found, expected) in found.iter().zip(&best) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-9, "{found:?} {expected:?}");
        }
        for point in frontier.points() {
            let kept: u64 = frontier.saved_items(point).iter().map(|&item| items[item].0).sum();
            assert_eq!((point.kept.0, point.freed.0), (kept, 100_u64.saturating_sub(kept)));
        }
    }

    #[test]
    fn policies_near_a_rate_are_those_of_the_frontier() {
        let candidate = candidate(100, &[(30, 3.0), (10, 2.0), (25, 1.0), (10, 0.5), (7, 4.0), (40, 0.1), (30, 3.0)]);
        let frontier = Frontier::new(&candidate);
        for (rate, slack) in [(0.0, 1.0), (0.05, 0.5), (0.05, 3.0), (0.1, 2.0), (0.2, 1.5), (1.0, 100.0)] {
            let reduced = |point: &Point| point.time.0 + rate * point.kept.0 as f64;
            let least = frontier.points().iter().map(reduced).fold(f64::INFINITY, f64::min);
            let expected: Vec<&Point> =
                frontier.points().iter().filter(|point| reduced(point) <= least + slack - 1e-9).collect();
            let found = Frontier::near(&candidate, rate, slack - 1e-9).unwrap();
            assert_eq!(found.len(), expected.len(), "{rate} {slack}");
            for ((point, saved), expected) in found.iter().zip(expected) {
                assert!(point.kept == expected.kept && (point.time.0 - expected.time.0).abs() < 1e-9);
                let kept: u64 = saved.iter().map(|&item| candidate.items[item].bytes.0).sum();
                assert_eq!(kept, point.kept.0);
            }
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
