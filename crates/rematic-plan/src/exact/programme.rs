//! The dynamic programme over the regions.

use std::collections::HashMap;

use super::case::Case;
use super::rates::Rates;
use super::{Pick, TIE};
use crate::region::{Frontier, Point};

/// Pairs that one run of the programme may look at. Where operators all take the same time per byte, very many
/// combinations are nearly equal; then the run is repeated with few pairs and policies at each node, and the solution may
/// be a little above the optimum. The bound stays true.
const MOST_WORK: usize = 60_000;
const FEW_PAIRS: usize = 80;
const FEW_POINTS: usize = 8;
/// How often a good solution is tried to better, and by at least which share.
const REFINEMENTS: usize = 2;
const REFINED_SHARE: f64 = 1e-3;
/// How far above the bound the first guess lies, as a share of the bound, and how quickly the distance grows.
const FIRST_GAP: f64 = 1e-3;
const GAP_GROWTH: f64 = 4.0;

/// What one run of the programme finds.
enum Run {
    /// Whether all policies that might matter were there.
    Found {
        time: f64,
        picks: Vec<Pick>,
        exact: bool,
    },
    Nothing {
        exact: bool,
    },
    TooMuch,
}

/// The regions so far.
#[derive(Clone, Copy)]
struct Pair {
    /// Σd.
    freed: i64,
    /// Σt.
    time: f64,
    choice: u32,
}

const NO_CHOICE: u32 = u32::MAX;

impl Case<'_> {
    /// A bound on the time of all solutions, and the best one if it takes less than the limit.
    pub(super) fn solve(&self, limit: f64, rough: &mut bool) -> (f64, Option<(f64, Vec<Pick>)>) {
        if self.at_start > 0 || !self.is_feasible() {
            return (f64::INFINITY, None);
        }
        let rates = self.rates();
        let lower_bound = rates.bound(0, 0);
        if lower_bound >= limit {
            return (lower_bound, None);
        }
        if *rough {
            return (lower_bound, self.good_solution(&rates, limit));
        }
        let mut gap = FIRST_GAP * lower_bound + f64::MIN_POSITIVE;
        loop {
            let guess = (lower_bound + gap).min(limit);
            match self.programme(&rates, guess * (1.0 + TIE), false) {
                Run::Found { time, picks, exact } => {
                    return (if exact { time } else { lower_bound }, Some((time, picks)));
                }
                Run::TooMuch => {
                    *rough = true;
                    return (lower_bound, self.good_solution(&rates, limit));
                }
                Run::Nothing { exact } if guess >= limit => return (if exact { limit } else { lower_bound }, None),
                Run::Nothing { .. } => gap = if gap > 1e12 { f64::INFINITY } else { (gap * GAP_GROWTH).max(1e-9) },
            }
        }
    }

    /// With few pairs and policies at each node: each run looks only below the last one's solution, where the few lie
    /// closer together.
    fn good_solution(&self, rates: &Rates, mut limit: f64) -> Option<(f64, Vec<Pick>)> {
        let mut best = None;
        for _ in 0..REFINEMENTS {
            let Run::Found { mut picks, .. } = self.programme(rates, limit, true) else { break };
            self.polish(&mut picks);
            let time = picks.iter().map(|pick| pick.policy.time.0).sum();
            limit = time * (1.0 - REFINED_SHARE);
            best = Some((time, picks));
        }
        best
    }

    /// The dynamic programme, without pairs whose bound lies above the guess.
    fn programme(&self, rates: &Rates, guess: f64, thin: bool) -> Run {
        self.problem.cancel.check();
        let nodes = self.nodes;
        // The least Σ(t − Λd) of all that can come before.
        let mut before = vec![f64::INFINITY; nodes.len() + 1];
        before[0] = 0.0;
        let mut choices: Vec<(u32, u32, u32)> = Vec::new();
        let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); nodes.len() + 1];
        pairs[0].push(Pair { freed: 0, time: 0.0, choice: NO_CHOICE });
        let mut work = 0;
        // For nodes without an exact frontier, the policies that matter.
        let mut near: HashMap<usize, Vec<(Point, Vec<usize>)>> = HashMap::new();
        let mut exact = true;
        for (index, node) in nodes.iter().enumerate() {
            before[index + 1] = before[index + 1].min(before[index]);
            let mut here = std::mem::take(&mut pairs[index]);
            keep_undominated(&mut here);
            if thin {
                let credit = rates.credit[index];
                thin_out(&mut here, FEW_PAIRS, |pair| (pair.freed, pair.time - credit * pair.freed as f64));
            }
            if self.usable[index] {
                let rate = rates.worth[self.end_ranks[index]];
                // t − Λd.
                let reduced = |point: &Point| point.time.0 - rate * self.freed(index, point) as f64;
                let (freed, time) = node.frontier.cheapest(rate);
                before[node.next] = before[node.next].min(before[index] + time - rate * freed);
                let others = before[index] + rates.to_come[node.next] + rates.owed[0];
                if !thin && !node.frontier.is_exact() {
                    let slack = guess - others - (time - rate * freed);
                    // How near a policy is goes by all that it keeps, which does not count for the others.
                    let counts = node.rebuilt_last.then(|| Frontier::near(&node.candidate, rate, slack.max(0.0)));
                    match counts.flatten() {
                        Some(policies) => _ = near.insert(index, policies),
                        None => exact = false,
                    }
                }
                let mut points: Vec<(usize, &Point)> = match near.get(&index) {
                    Some(policies) => policies.iter().map(|(point, _)| point).enumerate().collect(),
                    None => node.frontier.points().iter().enumerate().collect(),
                };
                points.retain(|(_, point)| others + reduced(point) <= guess);
                if thin {
                    thin_out(&mut points, FEW_POINTS, |(_, point)| (self.freed(index, point), reduced(point)));
                }
                work += points.len() * here.len();
                if !thin && work > MOST_WORK {
                    return Run::TooMuch;
                }
                // A policy that frees nothing is good for nothing where the node and all in it can be passed over.
                let passing = here.partition_point(|pair| pair.freed >= self.to_skip_all[index]);
                for (position, point) in points {
                    let required = self.required(index, point.kept.0);
                    let allowed = here.partition_point(|pair| pair.freed >= required);
                    let gain = self.freed(index, point);
                    let from = if gain <= 0 { passing.min(allowed) } else { 0 };
                    for pair in &here[from..allowed] {
                        let (freed, time) = (pair.freed + gain, pair.time + point.time.0);
                        if freed < self.after[index] || time + rates.bound(node.next, freed) > guess {
                            continue;
                        }
                        choices.push((
                            pair.choice,
                            u32::try_from(index).unwrap_or(NO_CHOICE),
                            u32::try_from(position).unwrap_or(NO_CHOICE),
                        ));
                        let choice = u32::try_from(choices.len() - 1).unwrap_or(NO_CHOICE);
                        pairs[node.next].push(Pair { freed, time, choice });
                    }
                }
            }
            here.retain(|pair| {
                pair.freed >= self.to_skip[index] && pair.time + rates.bound(index + 1, pair.freed) <= guess
            });
            pairs[index + 1].append(&mut here);
        }
        let last = pairs[nodes.len()].iter().min_by(|a, b| a.time.total_cmp(&b.time).then(b.freed.cmp(&a.freed)));
        let Some(last) = last else { return Run::Nothing { exact } };
        let mut picks = Vec::new();
        let mut choice = last.choice;
        while choice != NO_CHOICE {
            let (earlier, node, point) = choices[choice as usize];
            let (node, point) = (node as usize, point as usize);
            picks.push(match near.get(&node) {
                Some(policies) => Pick { node, policy: policies[point].0, saved: policies[point].1.clone() },
                None => Pick::new(self.nodes, node, self.nodes[node].frontier.points()[point]),
            });
            choice = earlier;
        }
        picks.reverse();
        Run::Found { time: last.time, picks, exact }
    }
}

/// Keeps `most` of many: the range of bytes is cut into equal parts, and of each part the one with the least reduced time
/// stays. The one with the most bytes always does.
fn thin_out<T>(many: &mut Vec<T>, most: usize, place: impl Fn(&T) -> (i64, f64)) {
    if many.len() <= most {
        return;
    }
    let places: Vec<(i64, f64)> = many.iter().map(place).collect();
    let (low, high) = places.iter().fold((i64::MAX, i64::MIN), |(low, high), (at, _)| (low.min(*at), high.max(*at)));
    let part = |bytes: i64| {
        let share = (bytes - low) as f64 / (high - low).max(1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small number")]
        let part = (share * (most - 1) as f64) as usize;
        part
    };
    let mut best: Vec<Option<usize>> = vec![None; most];
    for (index, &(bytes, reduced)) in places.iter().enumerate() {
        let slot = &mut best[part(bytes)];
        if slot.is_none_or(|other| reduced < places[other].1) || bytes == high {
            *slot = Some(index);
        }
    }
    let mut kept = vec![false; many.len()];
    best.into_iter().flatten().for_each(|index| kept[index] = true);
    let mut kept = kept.into_iter();
    many.retain(|_| kept.next().unwrap_or(false));
}

/// Sorts by bytes freed, the most first, and keeps those that take less time than all before.
fn keep_undominated(pairs: &mut Vec<Pair>) {
    pairs.sort_by(|a, b| b.freed.cmp(&a.freed).then(a.time.total_cmp(&b.time)));
    let mut least = f64::INFINITY;
    pairs.retain(|pair| {
        let better = pair.time < least;
        least = least.min(pair.time);
        better
    });
}
