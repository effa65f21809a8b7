use rematic_trace::Bytes;

use crate::Snapshot;

/// The state after every operator, and the highest one of any window that reaches up to now.
///
/// For the second, `skyline` holds the positions that no later total exceeds: positions ascend, totals never ascend. A
/// position leaves it as soon as a *strictly* higher total follows, so what stands in it at or after the start of a
/// window begins with the first of that window's highest totals. Each position enters and leaves once, so a step with any
/// number of windows takes linear time, plus a binary search where a window ends.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) totals: Vec<Bytes>,
    pub(crate) snapshots: Vec<Snapshot>,
    skyline: Vec<usize>,
}

impl History {
    pub(crate) fn with_capacity(ops: usize) -> Self {
        History {
            totals: Vec::with_capacity(ops),
            snapshots: Vec::with_capacity(ops),
            skyline: Vec::with_capacity(ops),
        }
    }

    /// How many operators have run.
    pub(crate) fn now(&self) -> usize {
        self.totals.len()
    }

    /// Writes down the state after an operator.
    pub(crate) fn push(&mut self, snapshot: &Snapshot) {
        let total = snapshot.total();
        while self.skyline.last().is_some_and(|&position| self.totals[position] < total) {
            self.skyline.pop();
        }
        self.skyline.push(self.totals.len());
        self.totals.push(total);
        self.snapshots.push(*snapshot);
    }

    /// The first of the highest states after the operators from position `since` on; `None` if none ran since.
    pub(crate) fn highest_since(&self, since: usize) -> Option<(Bytes, Snapshot)> {
        let first = self.skyline.partition_point(|&position| position < since);
        self.skyline.get(first).map(|&position| (self.totals[position], self.snapshots[position]))
    }
}
