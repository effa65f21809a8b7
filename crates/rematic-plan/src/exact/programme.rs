//! The dynamic programme over the regions.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::case::Case;
use super::rates::Rates;
use super::{Care, Pick, TIE};
use crate::region::{Frontier, Point};

/// Pairs that one run of the programme may look at. Where operators all take the same time per byte, very many
/// combinations are nearly equal; then the run is repeated with few pairs and policies at each node, and the solution may
/// be a little above the optimum. The bound stays true.
const MOST_WORK: usize = 60_000;
const FEW_PAIRS: usize = 80;
const FEW_POINTS: usize = 8;
/// How many times as many are looked at one by one.
const SORTED: usize = 4;
/// How often a good solution is tried to better, and by at least which share.
const REFINEMENTS: usize = 2;
const REFINED_SHARE: f64 = 1e-3;
/// How far above the bound solutions with few pairs and policies are looked for first, as shares of it.
const NEAR_BOUND: [f64; 2] = [5e-3, 5e-2];
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
    /// The last choice that was written down, and the node and policy that were chosen since, if any.
    choice: u32,
    node: u32,
    point: u32,
}

const NO_CHOICE: u32 = u32::MAX;
const NO_NODE: u32 = u32::MAX;

impl Case<'_> {
    /// A bound on the time of all solutions, and the best one if it takes less than the limit.
    pub(super) fn solve(&self, limit: f64, care: &mut Care) -> (f64, Option<(f64, Vec<Pick>)>) {
        if !self.is_feasible() {
            return (f64::INFINITY, None);
        }
        let rates = self.rates();
        let lower_bound = rates.bound(0, 0);
        if lower_bound >= limit {
            return (lower_bound, None);
        }
        if *care != Care::Exact {
            return (lower_bound, self.good_solution(&rates, limit, *care));
        }
        let mut gap = FIRST_GAP * lower_bound + f64::MIN_POSITIVE;
        loop {
            let guess = (lower_bound + gap).min(limit);
            match self.programme(&rates, guess * (1.0 + TIE), false) {
                Run::Found { time, picks, exact } => {
                    return (if exact { time } else { lower_bound }, Some((time, picks)));
                }
                Run::TooMuch => {
                    *care = Care::Rough;
                    return (lower_bound, self.good_solution(&rates, limit, *care));
                }
                Run::Nothing { exact } if guess >= limit => return (if exact { limit } else { lower_bound }, None),
                Run::Nothing { .. } => gap = if gap > 1e12 { f64::INFINITY } else { (gap * GAP_GROWTH).max(1e-9) },
            }
        }
    }

    /// With few pairs and policies at each node: first near the bound, where there are not many, and if nothing is there anywhere; each
    /// run then looks only below the last one's solution, where the few lie closer together.
    fn good_solution(&self, rates: &Rates, mut limit: f64, care: Care) -> Option<(f64, Vec<Pick>)> {
        for gap in NEAR_BOUND {
            let guess = rates.bound(0, 0) * (1.0 + gap);
            if guess < limit
                && let Run::Found { mut picks, .. } = self.programme(rates, guess, true)
            {
                self.polish(&mut picks);
                return Some((picks.iter().map(|pick| pick.policy.time.0).sum(), picks));
            }
        }
        let mut best = None;
        for _ in 0..if care == Care::Quick { 1 } else { REFINEMENTS } {
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
        let mut programme = Programme::new(self, rates, guess, thin);
        for index in 0..self.nodes.len() {
            let here = programme.pairs_at(index);
            if self.usable[index] && !programme.choose(index, &here) {
                return Run::TooMuch;
            }
            programme.pass_over(index, here);
        }
        programme.finish()
    }
}

/// A run of the dynamic programme.
struct Programme<'a> {
    case: &'a Case<'a>,
    rates: &'a Rates,
    guess: f64,
    thin: bool,
    /// The least Σ(t − Λd) of all that can come before each node.
    before: Vec<f64>,
    /// The pairs that reach each node.
    pairs: Vec<Vec<Pair>>,
    choices: Vec<Choice>,
    /// For nodes without an exact frontier, the policies that matter.
    near: HashMap<usize, Vec<(Point, Vec<usize>)>>,
    /// The policies of equal nodes at equal rates that may lead to a solution below the guess.
    shared: HashMap<SharedBy, Rc<[(usize, Point)]>>,
    /// Whether all policies that might matter were there.
    exact: bool,
    work: usize,
}

/// What nodes have in common that have the same policies: the frontier, whether what a policy keeps beyond all that it could
/// drop counts, the rate, and how far above the least a policy may be.
type SharedBy = (*const Frontier, bool, u64, u64);

/// Distances are rounded up to this share of the guess: those of equal nodes differ by how they were summed up.
const GRAIN: f64 = 1e-9;

/// The last of the regions that a pair has chosen.
struct Choice {
    /// The one before.
    earlier: u32,
    node: u32,
    /// Its policy, by position.
    point: u32,
}

impl<'a> Programme<'a> {
    fn new(case: &'a Case<'a>, rates: &'a Rates, guess: f64, thin: bool) -> Self {
        let count = case.nodes.len();
        let mut before = vec![f64::INFINITY; count + 1];
        before[0] = 0.0;
        let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); count + 1];
        pairs[0].push(Pair { freed: 0, time: 0.0, choice: NO_CHOICE, node: NO_NODE, point: 0 });
        Programme {
            case,
            rates,
            guess,
            thin,
            before,
            pairs,
            choices: Vec::new(),
            near: HashMap::new(),
            shared: HashMap::new(),
            exact: true,
            work: 0,
        }
    }

    /// The pairs that reach a node and that no other beats.
    fn pairs_at(&mut self, index: usize) -> Vec<Pair> {
        self.before[index + 1] = self.before[index + 1].min(self.before[index]);
        let mut here = std::mem::take(&mut self.pairs[index]);
        here.iter_mut().for_each(|pair| pair.freed = self.case.carried(index, pair.freed));
        if self.thin {
            let credit = self.rates.credit[index];
            let place = |pair: &Pair| (pair.freed, pair.time - credit * pair.freed as f64);
            // Some are beaten by others, which is known when they are sorted: that few are.
            thin_out(&mut here, SORTED * FEW_PAIRS, place);
            keep_undominated(&mut here);
            thin_out(&mut here, FEW_PAIRS, place);
        } else {
            keep_undominated(&mut here);
        }
        self.write_down(&mut here);
        here
    }

    /// Writes down what was chosen last: of the pairs that stay, and not of the many that go.
    fn write_down(&mut self, pairs: &mut [Pair]) {
        for pair in pairs.iter_mut().filter(|pair| pair.node != NO_NODE) {
            let choice = u32::try_from(self.choices.len()).unwrap_or(NO_CHOICE);
            self.choices.push(Choice { earlier: pair.choice, node: pair.node, point: pair.point });
            (pair.choice, pair.node) = (choice, NO_NODE);
        }
    }

    /// Chooses a node with each of its policies, after each pair; false if that is too much.
    fn choose(&mut self, index: usize, here: &[Pair]) -> bool {
        let (case, rates, guess) = (self.case, self.rates, self.guess);
        let node = &case.nodes[index];
        let points = self.policies(index);
        self.work += points.len() * here.len();
        if !self.thin && self.work > MOST_WORK {
            return false;
        }
        // A policy that frees nothing is good for nothing where the node and all in it can be passed over.
        let passing = here.partition_point(|pair| pair.freed >= case.to_skip_all[index]);
        let next = &mut self.pairs[node.next];
        next.reserve(points.len() * here.len());
        for &(position, point) in &*points {
            let required = case.required(index, point.kept.0);
            let allowed = here.partition_point(|pair| pair.freed >= required);
            let gain = case.freed(index, &point);
            let from = if gain <= 0 { passing.min(allowed) } else { 0 };
            for pair in &here[from..allowed] {
                let (freed, time) = (pair.freed + gain, pair.time + point.time.0);
                let carried = case.carried(node.next, freed);
                if freed < case.after[index] || time + rates.bound(node.next, carried) > guess {
                    continue;
                }
                let chosen = |index: usize| u32::try_from(index).unwrap_or(NO_NODE - 1);
                let (node_index, point) = (chosen(index), chosen(position));
                next.push(Pair { freed, time, choice: pair.choice, node: node_index, point });
            }
        }
        true
    }

    /// The policies of a node that may lead to a solution below the guess, with their positions.
    fn policies(&mut self, index: usize) -> Rc<[(usize, Point)]> {
        let (case, rates, guess) = (self.case, self.rates, self.guess);
        let node = &case.nodes[index];
        let rate = rates.worth[case.end_ranks[index]];
        let (freed, time) = node.frontier.cheapest(rate);
        self.before[node.next] = self.before[node.next].min(self.before[index] + time - rate * freed);
        let others = self.before[index] + rates.to_come[node.next] + rates.owed[0];
        // How far t − Λd may be from nothing.
        let most = (guess - others) + GRAIN * guess;
        if !self.thin && !node.frontier.is_exact() {
            let slack = guess - others - (time - rate * freed);
            // How near a policy is goes by all that it keeps, which does not count for the others.
            let counts = node.rebuilt_last.then(|| Frontier::near(&node.candidate, rate, slack.max(0.0)));
            match counts.flatten() {
                Some(policies) => {
                    let points: Vec<Point> = policies.iter().map(|(point, _)| *point).collect();
                    self.near.insert(index, policies);
                    return self.leading(index, &points, rate, most);
                }
                None => self.exact = false,
            }
        }
        let grain = if guess.is_finite() { GRAIN * guess } else { f64::INFINITY };
        let most = if grain > 0.0 && grain.is_finite() { (most / grain).ceil() * grain } else { most };
        let shared = (Arc::as_ptr(&node.frontier), node.rebuilt_last, rate.to_bits(), most.to_bits());
        if let Some(known) = self.shared.get(&shared) {
            return Rc::clone(known);
        }
        let points = self.leading(index, node.frontier.points(), rate, most);
        self.shared.insert(shared, Rc::clone(&points));
        points
    }

    /// Of these policies of a node, those whose t − Λd is so little.
    fn leading(&self, index: usize, points: &[Point], rate: f64, most: f64) -> Rc<[(usize, Point)]> {
        let case = self.case;
        let reduced = |point: &Point| point.time.0 - rate * case.freed(index, point) as f64;
        let may_lead = |(_, point): &(usize, Point)| reduced(point) <= most;
        let mut leading: Vec<(usize, Point)> = points.iter().copied().enumerate().filter(may_lead).collect();
        if self.thin {
            thin_out(&mut leading, FEW_POINTS, |(_, point)| (case.freed(index, point), reduced(point)));
        }
        leading.into()
    }

    /// The pairs that may pass over a node go on to the next.
    fn pass_over(&mut self, index: usize, mut here: Vec<Pair>) {
        here.retain(|pair| {
            let carried = self.case.carried(index + 1, pair.freed);
            pair.freed >= self.case.to_skip[index] && pair.time + self.rates.bound(index + 1, carried) <= self.guess
        });
        let next = &mut self.pairs[index + 1];
        if next.is_empty() { *next = here } else { next.append(&mut here) }
    }

    fn finish(mut self) -> Run {
        let nodes = self.case.nodes;
        let mut ends = std::mem::take(&mut self.pairs[nodes.len()]);
        self.write_down(&mut ends);
        let last = ends.iter().min_by(|a, b| a.time.total_cmp(&b.time).then(b.freed.cmp(&a.freed)));
        let Some(last) = last else { return Run::Nothing { exact: self.exact } };
        let mut picks = Vec::new();
        let mut choice = last.choice;
        while choice != NO_CHOICE {
            let Choice { earlier, node, point } = self.choices[choice as usize];
            let (node, point) = (node as usize, point as usize);
            picks.push(match self.near.get(&node) {
                Some(policies) => Pick { node, policy: policies[point].0, saved: policies[point].1.clone() },
                None => Pick::new(nodes, node, nodes[node].frontier.points()[point]),
            });
            choice = earlier;
        }
        picks.reverse();
        Run::Found { time: last.time, picks, exact: self.exact }
    }
}

/// Keeps `most` of many: the range of bytes is cut into equal parts, and of each part the one with the least reduced time
/// stays. The one with the most bytes always does. They end up in order, the most bytes first; fewer stay as they are.
fn thin_out<T: Copy>(many: &mut Vec<T>, most: usize, place: impl Fn(&T) -> (i64, f64)) {
    if many.len() <= most {
        return;
    }
    let bytes = many.iter().map(|one| place(one).0);
    let (low, high) = bytes.fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
    let per_byte = (most - 1) as f64 / (high - low).max(1) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small number")]
    let part = |bytes: i64| ((bytes - low) as f64 * per_byte) as usize;
    let mut best: Vec<(f64, u32)> = vec![(f64::INFINITY, NOBODY); most];
    for (one, index) in many.iter().zip(0..) {
        let (bytes, reduced) = place(one);
        let slot = &mut best[part(bytes).min(most - 1)];
        if reduced < slot.0 || bytes == high || slot.1 == NOBODY {
            // Nothing takes the place of the one with the most bytes but another.
            *slot = (if bytes == high { f64::NEG_INFINITY } else { reduced }, index);
        }
    }
    let kept = best.iter().rev().filter(|(_, index)| *index != NOBODY).map(|(_, index)| many[*index as usize]);
    *many = kept.collect();
}

/// None of those that are thinned out.
const NOBODY: u32 = u32::MAX;

/// Sorts by bytes freed, the most first, and keeps those that take less time than all before.
fn keep_undominated(pairs: &mut Vec<Pair>) {
    let in_order = |a: &Pair, b: &Pair| b.freed.cmp(&a.freed).then_with(|| a.time.total_cmp(&b.time));
    if !pairs.is_sorted_by(|a, b| in_order(a, b).is_le()) {
        pairs.sort_by(in_order);
    }
    let mut least = f64::INFINITY;
    pairs.retain(|pair| {
        let better = pair.time < least;
        least = least.min(pair.time);
        better
    });
}
