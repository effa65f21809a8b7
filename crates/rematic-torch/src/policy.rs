//! The best policy for one region: which outputs to save within a share of its memory.
//!
//! ```text
//! maximise Σ runtime_g · x_g   subject to   Σ memory_g · x_g ≤ ⌈fraction · memory⌉,   x_g ∈ {0, 1}
//! ```
//!
//! over the groups `g` of operators that share one fate; `x_g = 1` saves a group, so the sum is the time that need *not*
//! be spent again. This is torch's `get_optimal_checkpointing_policy_per_module`, a knapsack problem. Torch hands it to
//! a general solver that stops at a gap of 5 % or after 10 s; here it is solved exactly.
//!
//! The method is dynamic programming over undominated pairs of memory and time (Nemhauser & Ullmann), with the groups in
//! the order of time per byte. A pair is dropped if even the rest of the budget filled with fractions of the groups to
//! come (Dantzig's bound) cannot bring it to what is already known to be reachable.

use rematic_trace::Decision;

use crate::{Fate, OpGroups, SacStats, TorchError};

/// The policy that keeps at most `fraction` of a region's memory and spends the least time on recomputing, one decision
/// for each operator. Among equally good ones it keeps the fewest bytes.
///
/// # Errors
/// If `fraction` is not from 0 to 1, if what must be saved does not fit, or if the facts do not fit each other.
pub fn optimal_policy(stats: &SacStats, fraction: f64) -> Result<Vec<Decision>, TorchError> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(TorchError::Fraction { found: fraction });
    }
    let groups = OpGroups::new(stats)?;
    let (needed, allowed) = (needed(&groups), allowed(stats, fraction));
    if needed > allowed {
        return Err(TorchError::PolicyTooSmall { needed, allowed, total: stats.total_memory().0 });
    }
    Ok(policy(stats, &groups, allowed))
}

/// As [`optimal_policy`], but where what must be saved takes more than the fraction, just that is saved.
///
/// # Errors
/// If the facts do not fit each other.
pub fn nearest_policy(stats: &SacStats, fraction: f64) -> Result<Vec<Decision>, TorchError> {
    let groups = OpGroups::new(stats)?;
    let allowed = allowed(stats, fraction.clamp(0.0, 1.0)).max(needed(&groups));
    Ok(policy(stats, &groups, allowed))
}

/// Bytes that a share of the region's memory allows.
fn allowed(stats: &SacStats, fraction: f64) -> u64 {
    // Never negative, and at most the total.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let allowed = (fraction * stats.total_memory().0 as f64).ceil() as u64;
    allowed
}

/// Bytes that must be saved.
fn needed(groups: &OpGroups) -> u64 {
    groups.with_fate(Fate::Store).map(|group| group.memory.0).sum()
}

/// The best policy within `allowed` bytes, in which what must be saved fits.
fn policy(stats: &SacStats, groups: &OpGroups, allowed: u64) -> Vec<Decision> {
    let mut items: Vec<Item> = groups
        .with_fate(Fate::Free)
        .filter(|group| group.runtime.0 > 0.0)
        .map(|group| Item { memory: group.memory.0, time: group.runtime.0, ops: &group.ops })
        .collect();
    // Stable: equals stay in the order of the model. Items without memory come first.
    items.sort_by(|a, b| b.time_per_byte().total_cmp(&a.time_per_byte()));
    let mut policy = vec![Decision::Recompute; stats.len()];
    let stored = groups.with_fate(Fate::Store).map(|group| group.ops.as_slice());
    for ops in stored.chain(fill(&items, allowed - needed(groups))) {
        for &op in ops {
            policy[op] = Decision::Save;
        }
    }
    policy
}

struct Item<'a> {
    memory: u64,
    time: f64,
    ops: &'a [usize],
}

impl Item<'_> {
    fn time_per_byte(&self) -> f64 {
        if self.memory == 0 { f64::INFINITY } else { self.time / self.memory as f64 }
    }
}

/// A set of items among those that have been looked at.
#[derive(Clone, Copy)]
struct State {
    memory: u64,
    time: f64,
    /// Where in the list of choices its last item stands.
    last: Option<usize>,
}

/// Below this share a difference of times is rounding, and must not drop a pair that leads to the best one.
const ROUNDING: f64 = 1e-12;

/// The most valuable set of items, in the order of time per byte, within the capacity.
fn fill<'a>(items: &[Item<'a>], capacity: u64) -> Vec<&'a [usize]> {
    let bound = Bound::new(items);
    // Each choice is an item and the choice before it, so that states share their histories.
    let mut choices: Vec<(usize, Option<usize>)> = Vec::new();
    let mut states = vec![State { memory: 0, time: 0.0, last: None }];
    let mut reachable = greedy(items, capacity);
    for (index, item) in items.iter().enumerate() {
        let mut with: Vec<State> = Vec::new();
        for state in &states {
            let Some(memory) = state.memory.checked_add(item.memory).filter(|memory| *memory <= capacity) else {
                break;
            };
            choices.push((index, state.last));
            with.push(State { memory, time: state.time + item.time, last: Some(choices.len() - 1) });
        }
        states = undominated(&states, &with);
        reachable = states.last().map_or(reachable, |best| best.time.max(reachable));
        states.retain(|state| {
            state.time + bound.rest(index + 1, capacity - state.memory) >= reachable * (1.0 - ROUNDING)
        });
    }
    let mut chosen = Vec::new();
    let mut at = states.last().and_then(|best| best.last);
    while let Some(choice) = at {
        let (item, before) = choices[choice];
        chosen.push(items[item].ops);
        at = before;
    }
    chosen
}

/// Merges two lists in which memory and time ascend, and leaves out what takes no less memory for no more time.
fn undominated(without: &[State], with: &[State]) -> Vec<State> {
    let mut merged: Vec<State> = Vec::with_capacity(without.len() + with.len());
    let (mut left, mut right) = (without.iter().peekable(), with.iter().peekable());
    loop {
        let next = match (left.peek(), right.peek()) {
            // Of equal memory the one with more time comes first and so drops the other; of equals, the one without.
            (Some(a), Some(b)) if (a.memory, -a.time) <= (b.memory, -b.time) => left.next(),
            (_, Some(_)) => right.next(),
            (Some(_), None) => left.next(),
            (None, None) => return merged,
        };
        if let Some(state) = next
            && merged.last().is_none_or(|last| state.time > last.time)
        {
            merged.push(*state);
        }
    }
}

/// What taking the items in order reaches, leaving out those that do not fit.
fn greedy(items: &[Item<'_>], capacity: u64) -> f64 {
    let mut left = capacity;
    let mut time = 0.0;
    for item in items {
        if item.memory <= left {
            left -= item.memory;
            time += item.time;
        }
    }
    time
}

/// Dantzig's bound: items in order, the last one cut to fit.
struct Bound<'a, 'i> {
    items: &'a [Item<'i>],
    /// Memory and time of the first items.
    prefix: Vec<(u64, f64)>,
}

impl<'a, 'i> Bound<'a, 'i> {
    fn new(items: &'a [Item<'i>]) -> Self {
        let mut prefix = vec![(0, 0.0)];
        for item in items {
            let (memory, time) = prefix[prefix.len() - 1];
            prefix.push((memory + item.memory, time + item.time));
        }
        Bound { items, prefix }
    }

    /// The most that the items from `start` on could add within `capacity`.
    fn rest(&self, start: usize, capacity: u64) -> f64 {
        let (memory, time) = self.prefix[start];
        let end = start + self.prefix[start + 1..].partition_point(|(sum, _)| sum - memory <= capacity);
        let (taken, gained) = (self.prefix[end].0 - memory, self.prefix[end].1 - time);
        let cut = self.items.get(end).map_or(0.0, |item| item.time * (capacity - taken) as f64 / item.memory as f64);
        gained + cut
    }
}

#[cfg(test)]
mod tests {
    use rematic_trace::{Bytes, Millis};

    use super::*;

    fn text(policy: &[Decision]) -> String {
        policy.iter().map(|&decision| if decision == Decision::Save { '1' } else { '0' }).collect()
    }

    /// The example of upstream's own test.
    fn upstream() -> SacStats {
        SacStats {
            func_names: ["copy_", "add", "div", "mm", "native_dropout", "linear", "t", "relu_"]
                .map(String::from)
                .to_vec(),
            runtimes: [5.0, 5.0, 8.0, 15.0, 15.0, 9.0, 1.0, 5.0].map(Millis).to_vec(),
            memory: [0, 100, 100, 120, 0, 100, 0, 0].map(Bytes).to_vec(),
            view_like_ops: vec![6],
            rand_ops: vec![4],
            saved_autograd_ops: vec![],
            inplace_ops: vec![(0, 0), (7, 5)],
            force_store_random: true,
        }
    }

    #[test]
    fn upstreams_seven_policies() {
        for (budget, expected) in [
            (0, "10001000"),
            (100, "10001101"),
            (120, "10011000"),
            (200, "10101101"),
            (220, "10011101"),
            (320, "10111101"),
            (420, "11111101"),
        ] {
            let policy = optimal_policy(&upstream(), f64::from(budget) / 420.0).unwrap();
            assert_eq!(text(&policy), expected, "{budget} of 420");
        }
    }

    #[test]
    fn fractions_that_are_none_are_refused() {
        for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = optimal_policy(&upstream(), fraction).unwrap_err().to_string();
            assert!(error.contains(&fraction.to_string()) && error.ends_with("give a number from 0 to 1"), "{error}");
        }
    }

    #[test]
    fn what_must_be_saved_must_fit() {
        let mut stats = upstream();
        stats.memory[4] = Bytes(50);
        let error = optimal_policy(&stats, 0.1).unwrap_err().to_string();
        assert!(error.contains("may keep 47 of the region's 470, but 50 must be kept"), "{error}");
        assert!(optimal_policy(&stats, 0.11).is_ok());
        assert_eq!(text(&nearest_policy(&stats, 0.1).unwrap()), "10001000");
        assert_eq!(nearest_policy(&stats, 0.5).unwrap(), optimal_policy(&stats, 0.5).unwrap());
    }

    #[test]
    fn an_empty_region_has_an_empty_policy() {
        assert_eq!(optimal_policy(&SacStats::default(), 0.5).unwrap(), []);
    }

    #[test]
    fn no_subset_does_better() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let ops = usize::try_from(random(12)).unwrap();
            let mut stats = SacStats {
                func_names: vec!["op".into(); ops],
                runtimes: (0..ops).map(|_| Millis(random(6) as f64)).collect(),
                memory: (0..ops).map(|_| Bytes(random(8))).collect(),
                force_store_random: random(2) == 0,
                ..SacStats::default()
            };
            for op in 0..ops {
                match random(6) {
                    0 => stats.view_like_ops.push(op),
                    1 => stats.rand_ops.push(op),
                    2 => {
                        let parent = usize::try_from(random(op as u64 + 1)).unwrap();
                        // Saved and recomputed at once is impossible in torch's model; see `Fate`.
                        if !stats.view_like_ops.contains(&parent) {
                            stats.inplace_ops.push((op, parent));
                        }
                    }
                    _ => {}
                }
            }
            let fraction = random(11) as f64 / 10.0;
            compare(&stats, fraction);
        }
    }

    fn compare(stats: &SacStats, fraction: f64) {
        let time = |saved: u32| -> f64 {
            (0..stats.len()).filter(|op| saved >> op & 1 == 1).map(|op| stats.runtimes[op].0).sum()
        };
        let memory = |saved: u32| -> u64 {
            (0..stats.len()).filter(|op| saved >> op & 1 == 1).map(|op| stats.memory[op].0).sum()
        };
        let allowed = fraction * stats.total_memory().0 as f64;
        let legal = |saved: u32| {
            let bit = |op: usize| saved >> op & 1 == 1;
            memory(saved) as f64 <= allowed.ceil()
                && stats.view_like_ops.iter().all(|&op| !bit(op))
                && stats.inplace_ops.iter().all(|&(op, parent)| bit(op) == bit(parent) && (op != parent || bit(op)))
                && stats.rand_ops.windows(2).all(|pair| bit(pair[0]) == bit(pair[1]))
                && (!stats.force_store_random || stats.rand_ops.iter().all(|&op| bit(op)))
        };
        let best = (0..1_u32 << stats.len()).filter(|&saved| legal(saved)).map(time).reduce(f64::max);
        match optimal_policy(stats, fraction) {
            Ok(policy) => {
                let saved = policy
                    .iter()
                    .enumerate()
                    .fold(0, |bits, (op, &decision)| bits | u32::from(decision == Decision::Save) << op);
                assert!(legal(saved), "{} of {stats:?} at {fraction}", text(&policy));
                assert_eq!(Some(time(saved)), best, "{} of {stats:?} at {fraction}", text(&policy));
            }
            Err(error) => assert_eq!(best, None, "{error} for {stats:?} at {fraction}"),
        }
    }
}
