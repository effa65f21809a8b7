use rematic_trace::{Bytes, Category, StorageId, StreamId, Table};

use crate::action::{Action, BufferId, Observer, Ran};
use crate::{Ledger, Schedule, Snapshot};

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
    /// Where streams wait for each other: the number of operators that ran before, the stream that waits and the one that it waits for.
    pub waits: Vec<(u32, StreamId, StreamId)>,
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
    /// Writes down all that happens in a step.
    #[must_use]
    pub fn new(schedule: &Schedule<'_>) -> Self {
        let start = schedule.start();
        let mut recorder = Recorder::new(start, schedule.operators());
        schedule.replay(&mut recorder);
        recorder.finish(*start.snapshot())
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

/// Writes down lives as they begin and end.
struct Recorder {
    runs: Vec<Ran>,
    snapshots: Vec<Snapshot>,
    waits: Vec<(u32, StreamId, StreamId)>,
    lives: Vec<Life>,
    /// For every buffer, its life that has not ended.
    open: Table<BufferId, Option<u32>>,
}

impl Recorder {
    /// Begins with what is alive; so many operators run at least.
    fn new(start: &Ledger, operators: usize) -> Self {
        let mut recorder = Recorder {
            runs: Vec::with_capacity(operators),
            snapshots: Vec::with_capacity(operators),
            waits: Vec::new(),
            lives: Vec::with_capacity(start.buffers()),
            open: Table::new(start.buffers(), None),
        };
        for buffer in (0..start.buffers()).map(BufferId::new) {
            if start.is_alive(buffer) {
                recorder.begin(buffer, start);
            }
        }
        recorder
    }

    /// How many operators have run: what happens from now on is seen after the next one.
    fn now(&self) -> u32 {
        u32::try_from(self.runs.len()).unwrap_or(u32::MAX)
    }

    fn begin(&mut self, buffer: BufferId, ledger: &Ledger) {
        if self.open.len() <= buffer.index() {
            // Copies are there only under a plan.
            self.open.items_mut().resize(ledger.buffers(), None);
        }
        self.open[buffer] = u32::try_from(self.lives.len()).ok();
        let (storage, again) = ledger.storage_of(buffer);
        self.lives.push(Life {
            storage,
            again,
            category: ledger.category(buffer).unwrap_or(Category::Other),
            bytes: ledger.footprint(buffer),
            from: self.now(),
            until: u32::MAX,
            held_until: u32::MAX,
        });
        self.refer(buffer, ledger);
    }

    /// A reference that is there lasts, as far as is known yet.
    fn refer(&mut self, buffer: BufferId, ledger: &Ledger) {
        let now = self.now();
        if let Some(life) = self.open[buffer].map(|life| &mut self.lives[life as usize]) {
            life.held_until = if ledger.is_held(buffer) { u32::MAX } else { life.held_until.min(now) };
        }
    }

    fn end(&mut self, buffer: BufferId) {
        let now = self.now();
        if let Some(life) = self.open[buffer].take() {
            self.lives[life as usize].until = now;
        }
    }

    fn finish(self, start: Snapshot) -> Recording {
        let end = self.now();
        let Recorder { runs, snapshots, waits, mut lives, .. } = self;
        for life in &mut lives {
            life.until = life.until.min(end);
            life.held_until = life.held_until.min(life.until);
        }
        // What comes and goes between two moments is never seen.
        lives.retain(|life| life.from < life.until);
        Recording { start, runs, snapshots, waits, lives }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Alloc(buffer) => self.begin(buffer, ledger),
            Action::Free(buffer) => self.end(buffer),
            Action::Refer(buffer) => self.refer(buffer, ledger),
            Action::Recategorize(buffer, _) | Action::Shrink(buffer, _) => {
                self.end(buffer);
                self.begin(buffer, ledger);
            }
            Action::Run(ran) => {
                self.runs.push(ran);
                self.snapshots.push(*ledger.snapshot());
            }
            Action::Wait { stream, on } => self.waits.push((self.now(), stream, on)),
            _ => {}
        }
    }
}
