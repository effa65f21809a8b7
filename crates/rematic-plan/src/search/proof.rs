//! What prices leave open is decided by looking.
//!
//! Prices show that no plan takes less than L. To show that none takes less than T > L, only plans matter that are cheaper than
//! T at these prices: few regions and items may be decided otherwise than in the cheapest plan, and all others are settled
//! (an item whose other way costs as much more as lies between L and T).
//!
//! The plans that are left are built up node by node. A [`Label`] is a beginning: what it costs, and how far it is above the
//! budget at the few moments that are watched, which have no price. One that costs no more than another and is nowhere higher
//! takes its place, as one whose cheapest end is not below T, or that no end brings below the budget, goes. If nothing is
//! left, no plan takes less than T. Otherwise the cheapest that is left is looked at: where it is above the budget, or below it
//! where bytes have a price, that moment is watched too.

mod labels;

use std::ops::Range;

use rematic_replay::Checkpoint;
use rematic_trace::Bytes;

use super::prices::{Cheapest, Part, Prices};
use super::{Bound, bound::Change};
use crate::problem::Problem;
use labels::{Heights, Label};

/// The most moments that are watched.
const MOST_WATCHED: usize = 8;
/// Costs closer than this share are equal: sums in another order differ by less.
const TIE: f64 = 1e-12;
/// With too many labels, for the work that is left, those that are nearly the same become one, which costs no more than any of them and is nowhere
/// higher: what is shown is then a little less, and true.
const FEWEST_LABELS: usize = 100;
const MOST_LABELS: usize = 8000;
const MOST_POLICIES: usize = 100;
/// How much of what is open is asked for, one after the other.
const SHARES: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

const NONE: u32 = u32::MAX;

/// What was decided last, and before.
#[derive(Clone, Copy)]
enum Decision {
    /// A choice the other way than is cheapest.
    Otherwise { before: u32, choice: usize },
    /// A node with the last of its decisions.
    Take { before: u32, node: usize, inside: u32 },
}

/// What a plan does: the nodes that it takes, and the choices that are not the cheapest.
#[derive(Default)]
struct Decided {
    nodes: Vec<usize>,
    otherwise: Vec<usize>,
}

/// What is shown about a budget.
pub(crate) struct Proven {
    /// No plan within the budget takes less.
    pub(crate) bound: f64,
    /// Plans that take less than what was known, unless the replay says otherwise.
    pub(crate) plans: Vec<Vec<Checkpoint>>,
}

/// How a look ends.
enum Look {
    /// Nothing is left.
    Nothing,
    /// The cheapest that is left.
    Left(f64, Decided),
    TooMuch,
}

struct Proof<'a> {
    bound: &'a Bound,
    problem: &'a Problem,
    part: &'a [Part],
    budget: f64,
    prices: &'a [f64],
    cheapest: Cheapest,
    /// By node: the least of all that comes before it.
    before: Vec<f64>,
    watched: Vec<usize>,
    decisions: Vec<Decision>,
    /// Whether labels that are nearly the same become one where there are too many.
    joins: bool,
    work: usize,
}

impl Bound {
    /// A time that no plan within the budget takes less than, at least that of the prices and at most `known`, that of a plan
    /// within it. What is not above `bound` is known already.
    pub(crate) fn prove(
        &self,
        problem: &Problem,
        part: &[Part],
        budget: Bytes,
        prices: &Prices,
        (bound, known): (f64, f64),
        most_work: usize,
    ) -> Proven {
        let mut proof = Proof::new(self, problem, part, budget.0 as f64, &prices.of);
        let mut proven = Proven { bound: prices.bound, plans: Vec::new() };
        for share in SHARES {
            let target = prices.bound + share * (known - prices.bound);
            if target <= proven.bound.max(bound) {
                continue;
            }
            // More is more work: little is asked for first.
            let mut shown = proof.search(target, most_work / 2, &mut proven);
            if shown.is_none() && !proof.joins {
                proof.joins = true;
                shown = proof.search(target, most_work / 2, &mut proven);
            }
            let Some(shown) = shown else { break };
            proven.bound = proven.bound.max(shown);
            if shown < target {
                break;
            }
        }
        proven
    }
}

impl<'a> Proof<'a> {
    fn new(bound: &'a Bound, problem: &'a Problem, part: &'a [Part], budget: f64, prices: &'a [f64]) -> Self {
        let mut cheapest = Cheapest::new(bound);
        cheapest.price(bound, problem, part, budget, prices);
        let nodes = &problem.nodes;
        let mut before = vec![f64::INFINITY; nodes.len() + 1];
        before[0] = 0.0;
        for (index, node) in nodes.iter().enumerate() {
            if part[index] != Part::Must {
                before[index + 1] = before[index + 1].min(before[index]);
            }
            if part[index] != Part::Not {
                before[node.next] = before[node.next].min(before[index] + cheapest.own[index]);
            }
        }
        // Where a byte costs most, and if it costs nothing anywhere, the highest.
        let key = |span: usize| (prices[span], bound.plain[span]);
        let first = (0..prices.len()).max_by(|&a, &b| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let watched = first.into_iter().collect();
        Proof {
            bound,
            problem,
            part,
            budget,
            prices,
            cheapest,
            before,
            watched,
            decisions: Vec::new(),
            joins: false,
            work: 0,
        }
    }

    /// The highest time up to the target that is shown; `None` if that is too much work.
    fn search(&mut self, target: f64, most_work: usize, proven: &mut Proven) -> Option<f64> {
        self.work = 0;
        loop {
            self.problem.cancel.check();
            match self.look(target, most_work) {
                Look::TooMuch => return None,
                Look::Nothing => return Some(target),
                Look::Left(cost, decisions) => {
                    proven.bound = proven.bound.max(cost.min(target));
                    let (time, over) = self.heights(&decisions);
                    if over.iter().all(|over| *over <= 0.0) && time < target * (1.0 - TIE) {
                        proven.plans.push(self.plan(&decisions));
                    }
                    let rate = self.rate();
                    let worst = |span: &usize| over[*span].max(0.0) * rate + self.prices[*span] * over[*span].abs();
                    let open = (0..over.len()).filter(|span| !self.watched.contains(span) && worst(span) > 0.0);
                    let next = open.max_by(|a, b| worst(a).total_cmp(&worst(b)));
                    match next.filter(|_| self.watched.len() < MOST_WATCHED) {
                        Some(next) => self.watched.push(next),
                        None => return Some(cost.min(target)),
                    }
                }
            }
        }
    }

    /// What a byte costs where it costs most.
    fn rate(&self) -> f64 {
        self.prices.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Looks at all plans that may take less than the target.
    fn look(&mut self, target: f64, most_work: usize) -> Look {
        let nodes = &self.problem.nodes;
        self.decisions.clear();
        let mut policies = Vec::with_capacity(nodes.len());
        for index in 0..nodes.len() {
            let Some(found) = self.policies(index, target, most_work) else { return Look::TooMuch };
            policies.push(found);
        }
        let lowest = self.lowest(&policies);
        let pairs = policies.iter().map(Vec::len).sum::<usize>().max(1);
        let most = (most_work / pairs).clamp(FEWEST_LABELS, MOST_LABELS);
        let mut labels: Vec<Vec<Label>> = vec![Vec::new(); nodes.len() + 1];
        labels[0].push(self.start());
        for index in 0..nodes.len() {
            let mut here = std::mem::take(&mut labels[index]);
            self.keep_undominated(&mut here, most, target);
            let next = nodes[index].next;
            if !policies[index].is_empty() {
                let room = target - self.cheapest.best[next];
                self.take(index, &here, &policies[index], (room, &lowest[next]), &mut labels[next]);
            }
            if self.part[index] == Part::Must {
                here.clear();
            }
            let room = target - self.cheapest.best[index + 1];
            here.retain(|label| label.reduced < room && self.may_end(label, &lowest[index + 1]));
            labels[index + 1].append(&mut here);
            if self.work > most_work {
                return Look::TooMuch;
            }
        }
        let last = labels.pop().unwrap_or_default();
        match last.iter().filter(|label| label.cost < target).min_by(|a, b| a.cost.total_cmp(&b.cost)) {
            None => Look::Nothing,
            Some(best) => Look::Left(best.cost, self.decided(best.decision)),
        }
    }

    /// Nothing is decided yet.
    fn start(&self) -> Label {
        let mut start = Label { cost: 0.0, reduced: self.cheapest.constant, over: Heights::default(), decision: NONE };
        for (over, &span) in start.over.iter_mut().zip(&self.watched) {
            *over = self.bound.plain[span] - self.budget;
        }
        self.settle(&mut start);
        start
    }

    /// What is left of the cost without the moments that are watched.
    fn settle(&self, label: &mut Label) {
        let watched = self.watched.iter().zip(&label.over).map(|(&span, over)| self.prices[span] * over);
        label.cost = label.reduced - watched.sum::<f64>();
    }

    fn effect(&self, reduced: f64, changes: &Range<usize>) -> Label {
        let mut effect = Label { cost: 0.0, reduced, over: Heights::default(), decision: NONE };
        for &Change { from, until, bytes } in &self.bound.changes[changes.clone()] {
            for (over, &span) in effect.over.iter_mut().zip(&self.watched) {
                if (from as usize..until as usize).contains(&span) {
                    *over += bytes;
                }
            }
        }
        self.settle(&mut effect);
        effect
    }

    /// What may be done with a node in plans that take less than the target, nothing if it is in none; `None` if that is too
    /// much work.
    fn policies(&mut self, index: usize, target: f64, most_work: usize) -> Option<Vec<Label>> {
        let (offer, cheapest) = (&self.bound.offers[index], &self.cheapest);
        let others = self.before[index] + cheapest.best[self.problem.nodes[index].next] + cheapest.constant;
        let room = target - others - cheapest.own[index];
        if self.part[index] == Part::Not || room <= 0.0 {
            return Some(Vec::new());
        }
        let settled: f64 = offer.choices.clone().map(|at| cheapest.costs[at][0].min(cheapest.costs[at][1])).sum();
        let mut taken = self.effect(cheapest.own[index] - settled, &offer.fixed);
        let mut open = Vec::new();
        for at in offer.choices.clone() {
            let choice = &self.bound.choices[at];
            let [saved, again] = self.cheapest.costs[at];
            let mut ways = [self.effect(saved, &choice.saved), self.effect(again, &choice.again)];
            if again < saved {
                ways.swap(0, 1);
            }
            taken = taken.and(&ways[0], NONE);
            if (again - saved).abs() < room {
                let mut instead = ways[1];
                instead.cost -= ways[0].cost;
                instead.reduced -= ways[0].reduced;
                instead.over.iter_mut().zip(&ways[0].over).for_each(|(one, other)| *one -= other);
                open.push((at, instead));
            }
        }
        let mut policies = vec![taken];
        for (choice, instead) in open {
            for at in 0..policies.len() {
                let policy = policies[at];
                if others + policy.reduced + instead.reduced < target {
                    let decision = self.decide(Decision::Otherwise { before: policy.decision, choice });
                    policies.push(policy.and(&instead, decision));
                }
            }
            self.keep_undominated(&mut policies, MOST_POLICIES, target);
            if self.work > most_work {
                return None;
            }
        }
        policies.sort_by(|a, b| a.reduced.total_cmp(&b.reduced));
        Some(policies)
    }

    /// By node: the lowest that all that comes from there on brings each watched moment.
    fn lowest(&self, policies: &[Vec<Label>]) -> Vec<Heights> {
        let mut lowest = vec![Heights::default(); policies.len() + 1];
        for (index, policies) in policies.iter().enumerate().rev() {
            let must = self.part[index] == Part::Must;
            lowest[index] = if must { [f64::INFINITY; MOST_WATCHED] } else { lowest[index + 1] };
            let next = lowest[self.problem.nodes[index].next];
            for policy in policies {
                for (at, lowest) in lowest[index].iter_mut().enumerate() {
                    *lowest = lowest.min(policy.over[at] + next[at]);
                }
            }
        }
        lowest
    }

    /// Whether what comes may bring a label below the budget.
    fn may_end(&self, label: &Label, lowest: &Heights) -> bool {
        (0..self.watched.len()).all(|at| label.over[at] + lowest[at] <= 0.0)
    }

    /// Takes a node after each label, in all ways that leave room.
    fn take(
        &mut self,
        index: usize,
        here: &[Label],
        policies: &[Label],
        (room, lowest): (f64, &Heights),
        next: &mut Vec<Label>,
    ) {
        for label in here {
            // The cheapest first.
            for policy in policies.iter().take_while(|policy| label.reduced + policy.reduced < room) {
                self.work += 1;
                let taken = label.and(policy, NONE);
                if self.may_end(&taken, lowest) {
                    let (before, inside) = (label.decision, policy.decision);
                    let decision = self.decide(Decision::Take { before, node: index, inside });
                    next.push(Label { decision, ..taken });
                }
            }
        }
    }

    fn decide(&mut self, decision: Decision) -> u32 {
        self.work += 1;
        self.decisions.push(decision);
        u32::try_from(self.decisions.len() - 1).unwrap_or(NONE)
    }

    fn decided(&self, mut at: u32) -> Decided {
        let mut decided = Decided::default();
        while let Some(Decision::Take { before, node, inside }) = self.decisions.get(at as usize) {
            decided.nodes.push(*node);
            let mut inner = *inside;
            while let Some(Decision::Otherwise { before, choice }) = self.decisions.get(inner as usize) {
                decided.otherwise.push(*choice);
                inner = *before;
            }
            at = *before;
        }
        decided.nodes.reverse();
        decided
    }

    /// By choice, whether it is recomputed.
    fn again(&self, decided: &Decided) -> Vec<bool> {
        let mut again: Vec<bool> = self.cheapest.costs.iter().map(|[saved, again]| again < saved).collect();
        decided.otherwise.iter().for_each(|&choice| again[choice] = !again[choice]);
        again
    }

    /// The time of a plan, and how far it is above the budget at every moment.
    fn heights(&self, decided: &Decided) -> (f64, Vec<f64>) {
        let again = self.again(decided);
        let mut rises = vec![0.0; self.bound.plain.len() + 1];
        let mut time = 0.0;
        let mut note = |changes: &Range<usize>| {
            for change in &self.bound.changes[changes.clone()] {
                rises[change.from as usize] += change.bytes;
                rises[change.until as usize] -= change.bytes;
            }
        };
        for &node in &decided.nodes {
            let offer = &self.bound.offers[node];
            time += offer.time;
            note(&offer.fixed);
            for at in offer.choices.clone() {
                let choice = &self.bound.choices[at];
                if again[at] {
                    time += choice.time;
                }
                note(if again[at] { &choice.again } else { &choice.saved });
            }
        }
        let mut now = 0.0;
        let over = self.bound.plain.iter().zip(&rises).map(|(plain, rise)| {
            now += rise;
            plain + now - self.budget
        });
        (time, over.collect())
    }

    fn plan(&self, decided: &Decided) -> Vec<Checkpoint> {
        let again = self.again(decided);
        let checkpoint = |&node: &usize| {
            let choices = self.bound.offers[node].choices.clone();
            let first = choices.start;
            self.problem.checkpoint(node, choices.filter(|&at| !again[at]).map(|at| at - first))
        };
        decided.nodes.iter().map(checkpoint).collect()
    }
}
