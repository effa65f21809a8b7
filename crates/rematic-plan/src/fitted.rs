//! From a solution of the relaxation to a plan that the replay has within the budget.

use rematic_replay::Checkpoint;
use rematic_trace::{Bytes, Millis};

use crate::exact::{self, Care, Pick, Relaxed, Tightening};
use crate::node::Limit;
use crate::planner::{Effort, SAME, Solution};
use crate::problem::Problem;
use crate::region::Pricing;
use crate::replayed::Replayed;

/// Rounds of tightening before the planner aims lower than the budget.
const ROUNDS: usize = 8;
/// How often it aims higher where a plan leaves something of the budget.
const LOOSENINGS: usize = 3;
/// What else is tried where the first aim does not lead to the bound: the model's pricing, and how far below the budget it
/// aims, as a share.
const OTHER_AIMS: [(Pricing, f64); 3] = [(Pricing::High, 0.0), (Pricing::Low, 0.005), (Pricing::Low, 0.02)];

/// Checkpointed regions with what the replay says.
type Plan = (Vec<Checkpoint>, Replayed);

/// What was found for a budget.
#[derive(Default)]
pub(crate) struct Fitted {
    /// The plan that takes least.
    pub(crate) best: Option<Solution>,
    /// Those of the greedy planner and of a large region alone, if they were asked for.
    pub(crate) others: Option<Vec<Plan>>,
}

impl Problem {
    /// Solves, replays, and where the replay is above the budget tightens the model there and solves again.
    pub(crate) fn fit(&self, budget: Bytes, effort: Effort) -> Fitted {
        // Where all plans can be looked at, no model is needed.
        if let Some(plans) = self.enumeration() {
            let promise = |(checkpoints, replayed): Plan| {
                let lower_bound = replayed.recompute;
                Solution { checkpoints, replayed, lower_bound }
            };
            return Fitted { best: plans.first_within(self, budget).map(promise), others: None };
        }
        let none = Tightening::none(self, Pricing::Low);
        let Some(relaxed) = exact::solve(self, budget.0, &none, Care::Exact) else { return Fitted::default() };
        let (lower_bound, aimed, rough) = (relaxed.lower_bound, relaxed.time, relaxed.rough);
        let mut best = self.tightened(budget, budget, Pricing::Low, effort, relaxed);
        let as_aimed = best.as_ref().is_some_and(|(_, found)| found.recompute.0 <= aimed * (1.0 + SAME));
        let mut others = None;
        if effort.aims
            && !(as_aimed && !rough || effort.is_enough(lower_bound, best.as_ref().map(|(_, found)| found.recompute)))
        {
            let is_open = |best: &Option<Plan>| {
                best.as_ref().is_none_or(|(_, best)| best.recompute.0 > lower_bound * (1.0 + SAME))
            };
            let mut elsewhere = || {
                if !as_aimed {
                    self.aim_elsewhere(budget, effort, rough, &mut best);
                }
                is_open(&best)
            };
            let other_plans = || self.other_plans(budget);
            let found = if effort.at_once {
                let (is_open, found) = rayon::join(elsewhere, other_plans);
                is_open.then_some(found)
            } else {
                elsewhere().then(other_plans)
            };
            found.iter().flatten().for_each(|plan| keep_better(&mut best, plan));
            others = found;
        }
        // Sums of the same times in another order differ a little.
        let best = best.map(|(checkpoints, replayed)| {
            let lower_bound = Millis(lower_bound.min(replayed.recompute.0));
            Solution { checkpoints, replayed, lower_bound }
        });
        Fitted { best, others }
    }

    /// The best of several: a tightened model may overshoot, and the solution of another model be better.
    fn aim_elsewhere(&self, budget: Bytes, effort: Effort, rough: bool, best: &mut Option<Plan>) {
        let care = if rough { Care::Rough } else { Care::Exact };
        for (pricing, share) in OTHER_AIMS {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the budget")]
            let aim = Bytes((budget.0 as f64 * (1.0 - share)) as u64);
            let Some(relaxed) = exact::solve(self, aim.0, &Tightening::none(self, pricing), care) else { continue };
            if best.as_ref().is_some_and(|(_, best)| best.recompute.0 <= relaxed.lower_bound) {
                continue;
            }
            if let Some(found) = self.tightened(budget, aim, pricing, effort, relaxed) {
                keep_better(best, &found);
            }
        }
    }

    /// What the greedy planner and a large region by itself make of a budget, if they are within it.
    pub(crate) fn other_plans(&self, budget: Bytes) -> Vec<Plan> {
        let found = std::iter::once(self.greedy_fit(budget)).chain(self.large_fit(budget));
        found.filter(|(_, found)| found.peak <= budget).collect()
    }

    /// From the solution for an aim to a plan within the budget.
    fn tightened(
        &self,
        budget: Bytes,
        aim: Bytes,
        pricing: Pricing,
        effort: Effort,
        mut relaxed: Relaxed,
    ) -> Option<Plan> {
        let mut tightening = Tightening::none(self, pricing);
        let lower_bound = relaxed.lower_bound;
        for round in 0..ROUNDS {
            let checkpoints = exact::checkpoints(self, &relaxed.picks);
            let replayed = self.tighten(aim, &relaxed.picks, &checkpoints, &mut tightening);
            if replayed.peak <= budget {
                let mut best = (checkpoints, replayed);
                if best.1.recompute.0 <= lower_bound * (1.0 + effort.enough) {
                    return Some(best);
                }
                if relaxed.rough && round > 0 {
                    self.better(budget, aim, &tightening, Care::Rough, &mut best);
                }
                return Some(self.loosened(budget, aim, &tightening, relaxed.rough, best));
            }
            // Most of these are above the budget too.
            let care = if relaxed.rough { Care::Quick } else { Care::Exact };
            relaxed = exact::solve(self, aim.0, &tightening, care)?;
        }
        None
    }

    /// A tightened model may overshoot: as long as that helps, aims higher by what the replay leaves of the budget.
    fn loosened(&self, budget: Bytes, mut aim: Bytes, tightening: &Tightening, rough: bool, mut best: Plan) -> Plan {
        let care = if rough { Care::Rough } else { Care::Exact };
        for _ in 0..LOOSENINGS {
            aim += budget.saturating_sub(best.1.peak);
            if !self.better(budget, aim, tightening, care, &mut best) {
                break;
            }
        }
        best
    }

    /// Puts the solution for an aim in a plan's place if that is within the budget and takes less.
    fn better(&self, budget: Bytes, aim: Bytes, tightening: &Tightening, care: Care, best: &mut Plan) -> bool {
        let Some(relaxed) = exact::solve(self, aim.0, tightening, care) else { return false };
        let checkpoints = exact::checkpoints(self, &relaxed.picks);
        let replayed = self.replay(&checkpoints);
        let is_better = replayed.peak <= budget && replayed.recompute.0 < best.1.recompute.0;
        if is_better {
            *best = (checkpoints, replayed);
        }
        is_better
    }

    /// Replays a plan. Where it is above the aim, what the replay says beyond what the model said is noted: from now on
    /// the model counts it too.
    fn tighten(&self, aim: Bytes, picks: &[Pick], checkpoints: &[Checkpoint], tightening: &mut Tightening) -> Replayed {
        let nodes = self.priced(tightening.pricing);
        // What the picks that end up to each one free together.
        let mut freed = vec![0];
        for pick in picks {
            freed.push(freed[freed.len() - 1] + pick.policy.freed.0);
        }
        let up_to = |position: usize| freed[picks.partition_point(|pick| nodes[pick.node].end <= position)];
        // What a micro-batch drops is there again before the next one begins.
        let freed_before = |position: usize| up_to(position) - up_to(self.beginning(position));
        let node_of = |op: usize| {
            let at = picks.partition_point(|pick| nodes[pick.node].end <= op);
            picks.get(at).filter(|pick| nodes[pick.node].start <= op)
        };
        self.replay_watched(checkpoints, |ran, total| {
            if total <= aim.0 {
                return;
            }
            let (model, slot) = match node_of(ran.op.index()) {
                Some(pick) => {
                    let node = &nodes[pick.node];
                    let before = freed_before(node.start);
                    if ran.again {
                        (node.rebuilding().saturating_sub(before), &mut tightening.own[pick.node])
                    } else {
                        let with =
                            (node.own_forward_with + pick.policy.kept.0).saturating_sub(node.candidate.droppable.0);
                        (with.saturating_sub(before), &mut tightening.keep[pick.node])
                    }
                }
                None => match self.limit_of_op[ran.op] {
                    Limit::First(node) => {
                        let before = freed_before(nodes[node].start);
                        (nodes[node].first_forward.saturating_sub(before), &mut tightening.first[node])
                    }
                    Limit::Ceiling(rank) => {
                        let ceiling = self.ceilings[rank].forward.max(self.ceilings[rank].backward);
                        let before = rank.checked_sub(1).map_or(0, |end| freed_before(self.ends[end]));
                        (ceiling.saturating_sub(before), &mut tightening.ceilings[rank])
                    }
                },
            };
            *slot = (*slot).max(total.saturating_sub(model));
        })
    }
}

/// A plan in the other's place if it takes less.
fn keep_better(best: &mut Option<Plan>, found: &Plan) {
    if best.as_ref().is_none_or(|(_, best)| found.1.recompute < best.recompute) {
        *best = Some(found.clone());
    }
}
