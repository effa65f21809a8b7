use std::sync::Arc;

use rematic_replay::{Allocator, Checkpoint, Highest, Ledger, Ran, Regions, Schedule};
use rematic_trace::{Bytes, Category, Phase, StepTrace, StorageId, Table};

/// How a step differs from the one that was traced.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Storages that become smaller.
    pub(super) scales: Vec<(StorageId, Scale)>,
    /// Another step in its place, to which nothing else of the change applies.
    pub(super) other: Option<Arc<StepTrace>>,
    /// Forward and backward run more than once before the optimizer, and gradients add up.
    pub(super) accumulates: bool,
    /// Regions that are recomputed.
    pub(super) checkpoints: Vec<Checkpoint>,
}

impl Change {
    /// Several changes at once, none of which is another step. At most one of them has checkpoints.
    pub(super) fn all(changes: &[&Change]) -> Self {
        let mut all = Change::default();
        for change in changes {
            all.scales.extend(&change.scales);
            all.accumulates |= change.accumulates;
            all.checkpoints.extend(change.checkpoints.iter().cloned());
        }
        all
    }
}

/// A part of a storage's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) part: u64,
    pub(super) of: u64,
}

impl Scale {
    /// Nothing is left.
    pub(super) const NOTHING: Scale = Scale { part: 0, of: 1 };

    /// Rounded up.
    fn apply(self, bytes: Bytes) -> Bytes {
        let scaled = (u128::from(bytes.0) * u128::from(self.part)).div_ceil(u128::from(self.of.max(1)));
        Bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// Replays the whole step with a change.
pub(super) fn replay(trace: &StepTrace, regions: &Regions, allocator: Allocator, change: &Change) -> Highest {
    let mut sizes: Table<StorageId, Bytes> =
        trace.storages().iter().map(|storage| Bytes(storage.own_bytes())).collect();
    for &(storage, scale) in &change.scales {
        sizes[storage] = scale.apply(sizes[storage]);
    }
    let start = Ledger::with_sizes(trace, allocator, |storage| sizes[storage]);
    let mut plain = Highest::from(&start);
    // Forward and backward without the gradients that are there so far: all of them come from the pass before.
    let mut without_gradients = Highest { bytes: Bytes(0), ..plain };
    let mut gradients = start.snapshot()[Category::Gradient];
    let schedule = Schedule::planned(trace, &start, regions, &change.checkpoints);
    let end = schedule.replay(&mut |ran: Ran, ledger: &Ledger| {
        let snapshot = ledger.snapshot();
        plain.raise(snapshot.total(), snapshot, ran);
        gradients = gradients.max(snapshot[Category::Gradient]);
        if trace.op(ran.op).phase != Phase::Optimizer {
            let rest = snapshot.total().saturating_sub(snapshot[Category::Gradient]);
            without_gradients.raise(rest, snapshot, ran);
        }
    });
    // Without an optimizer, the last gradient is there only now.
    gradients = gradients.max(end.snapshot()[Category::Gradient]);
    without_gradients.bytes = Bytes(without_gradients.bytes.0.saturating_add(gradients.0));
    if change.accumulates && without_gradients.bytes > plain.bytes { without_gradients } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_up_and_multiply() {
        let eighth = Scale { part: 1, of: 8 };
        assert_eq!(eighth.apply(Bytes(1024)), Bytes(128));
        assert_eq!(eighth.apply(Bytes(9)), Bytes(2));
        assert_eq!(Scale::NOTHING.apply(Bytes(9)), Bytes(0));
        assert_eq!(Scale { part: 1, of: 1 }.apply(Bytes(u64::MAX)), Bytes(u64::MAX));
    }
}
