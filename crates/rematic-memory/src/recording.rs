use rematic_trace::{Bytes, Category, StepTrace, StorageId};

use crate::ledger::Journal;
use crate::{Checkpoint, Ledger, Ran, Regions, Snapshot, replay_checkpointed};

/// A step as it ran, plain or under a plan: every operator in the order of execution, the memory right after it, and what
/// lived from when to when.
///
/// A *moment* is a position in [`Recording::runs`]: right after that operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The state before the first operator.
    pub start: Snapshot,
    /// The operators that ran.
    pub runs: Vec<Ran>,
    /// The state right after each of them.
    pub snapshots: Vec<Snapshot>,
    /// Everything that is in use at some moment, in the order in which it came to be.
    pub lives: Vec<Life>,
}

/// A time during which one storage is in use and counted in one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The storage.
    pub storage: StorageId,
    /// Whether recomputation has made it anew.
    pub again: bool,
    /// What it is counted as.
    pub category: Category,
    /// The bytes that count.
    pub bytes: Bytes,
    /// The first moment at which it is in use.
    pub from: u32,
    /// The first moment at which it is not any more; the number of runs if it outlives the step.
    pub until: u32,
    /// The first moment at which no ordinary reference to it is left. From then on only autograd, or a checkpoint, holds
    /// it.
    pub held_until: u32,
}

impl Recording {
    /// Replays the step under a plan; without checkpoints, the plain step.
    ///
    /// The checkpointed regions must not contain each other; the ledger must be fresh and have room for copies
    /// ([`Ledger::with_copies`]).
    #[must_use]
    pub fn new(trace: &StepTrace, regions: &Regions, checkpoints: &[Checkpoint], mut ledger: Ledger) -> Self {
        ledger.journal = Some(Journal::new(&ledger));
        let start = *ledger.snapshot();
        let mut runs = Vec::with_capacity(trace.ops().len());
        let mut snapshots = Vec::with_capacity(trace.ops().len());
        replay_checkpointed(trace, regions, checkpoints, &mut ledger, |ran, snapshot| {
            runs.push(ran);
            snapshots.push(*snapshot);
        });
        let end = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        let first_copy = ledger.copy_of(StorageId::new(0)).index();
        let mut lives: Vec<Life> = ledger.journal.map(|journal| journal.lives).unwrap_or_default();
        for life in &mut lives {
            life.until = life.until.min(end);
            life.held_until = life.held_until.min(life.until);
            if life.storage.index() >= first_copy {
                life.again = true;
                life.storage = StorageId::new(life.storage.index() - first_copy);
            }
        }
        // What comes and goes between two moments is never seen.
        lives.retain(|life| life.from < life.until);
        Recording { start, runs, snapshots, lives }
    }

    /// The first of the highest moments, with its total; `None` if nothing rises above the start of the step.
    #[must_use]
    pub fn peak(&self) -> Option<(usize, Bytes)> {
        let mut peak = None;
        let mut highest = self.start.total();
        for (moment, snapshot) in self.snapshots.iter().enumerate() {
            let total = snapshot.total();
            if total > highest {
                highest = total;
                peak = Some((moment, total));
            }
        }
        peak
    }
}
