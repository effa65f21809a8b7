//! Every plan of a small problem.
//!
//! The relaxation leaves out moments that only the replay knows, so its solution may fail while the optimum is a plan that
//! the model's dominance has thrown away. Where plans are few, they are replayed in the order of their times: the first
//! one that passes is the optimum.

use rematic_replay::Checkpoint;
use rematic_trace::Bytes;

use crate::problem::Problem;
use crate::replayed::Replayed;

/// More plans than this are not enumerated: at some 10 µs a replay, a fifth of a second.
const MOST_PLANS: usize = 20_000;

/// A chosen node, and a bit for every item that is saved.
type Choice = (usize, u32);

/// Plans in the order of their times.
pub(crate) struct Enumeration(Vec<(f64, Vec<Choice>)>);

impl Enumeration {
    /// All plans, or `None` if there are too many.
    pub(crate) fn of(problem: &Problem) -> Option<Self> {
        let nodes = &problem.nodes;
        // How many plans there are from each node on.
        let mut counts = vec![1_usize; nodes.len() + 1];
        for (index, node) in nodes.iter().enumerate().rev() {
            let policies = 1_usize.checked_shl(u32::try_from(node.candidate.items.len()).ok()?)?;
            counts[index] = counts[index + 1].checked_add(policies.checked_mul(counts[node.next])?)?;
            if counts[index] > MOST_PLANS {
                return None;
            }
        }
        let mut plans = Enumeration(Vec::with_capacity(counts[0]));
        plans.extend(problem, 0, 0.0, &mut Vec::new());
        plans.0.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(plans)
    }

    fn extend(&mut self, problem: &Problem, index: usize, time: f64, chosen: &mut Vec<Choice>) {
        let Some(node) = problem.nodes.get(index) else {
            self.0.push((time, chosen.clone()));
            return;
        };
        self.extend(problem, index + 1, time, chosen);
        let items = &node.candidate.items;
        for saved in 0..1_u32 << items.len() {
            let again = items.iter().enumerate().filter(|(item, _)| saved >> item & 1 == 0);
            let own: f64 = node.candidate.fixed_time.0 + again.map(|(_, item)| item.time.0).sum::<f64>();
            chosen.push((index, saved));
            self.extend(problem, node.next, time + own, chosen);
            chosen.pop();
        }
    }

    /// The first plan whose replay is within the budget.
    pub(crate) fn first_within(&self, problem: &Problem, budget: Bytes) -> Option<(Vec<Checkpoint>, Replayed)> {
        self.replays(problem).find(|(_, replayed)| replayed.peak <= budget)
    }

    /// The plan with the lowest peak, and of these the one with the least time.
    pub(crate) fn least(&self, problem: &Problem) -> Option<(Vec<Checkpoint>, Replayed)> {
        self.replays(problem).min_by_key(|(_, replayed)| replayed.peak)
    }

    fn replays<'a>(&'a self, problem: &'a Problem) -> impl Iterator<Item = (Vec<Checkpoint>, Replayed)> + 'a {
        self.0.iter().map(|(_, choices)| {
            let checkpoint = |&(node, saved): &Choice| {
                let items = problem.nodes[node].candidate.items.len();
                problem.checkpoint(node, (0..items).filter(|item| saved >> item & 1 == 1))
            };
            let checkpoints: Vec<Checkpoint> = choices.iter().map(checkpoint).collect();
            let replayed = problem.replay(&checkpoints);
            (checkpoints, replayed)
        })
    }
}
