use rematic_trace::{Bytes, ModuleId, OpId, StepTrace, Table};

use crate::window::Windows;
use crate::{Allocator, Highest, Ledger, ModuleMemory, Moment, Peak, Resident, Schedule, Snapshot};

/// Memory over one step: what a replay of its trace says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    allocator: Allocator,
    start: Snapshot,
    totals: Vec<Bytes>,
    snapshots: Vec<Snapshot>,
    end: Snapshot,
    peak: Peak,
    modules: Table<ModuleId, Option<ModuleMemory>>,
}

impl Timeline {
    /// Replays the plain step, in time linear in the trace; the loop over the events allocates nothing.
    ///
    /// The trace must be one that [`StepTrace::validate`] accepts, as all that are read from files are. For another one
    /// the numbers mean nothing, but it does not panic.
    #[must_use]
    pub fn replay(trace: &StepTrace, allocator: Allocator) -> Self {
        let start = Ledger::new(trace, allocator);
        let mut seen = (Windows::new(trace, &start), Highest::from(&start));
        let end = Schedule::plain(trace, &start).replay(&mut seen);
        let (windows, highest) = seen;
        let (modules, history) = windows.finish(&end);
        Timeline {
            allocator,
            start: *start.snapshot(),
            totals: history.totals,
            snapshots: history.snapshots,
            end: *end.snapshot(),
            peak: Peak { at: highest.at.and_then(|ran| Moment::after(trace, ran.op)), snapshot: highest.snapshot },
            modules,
        }
    }

    /// Whose bytes are counted.
    #[must_use]
    pub fn allocator(&self) -> Allocator {
        self.allocator
    }

    /// The state before the first event.
    #[must_use]
    pub fn start(&self) -> &Snapshot {
        &self.start
    }

    /// The state after the last event.
    #[must_use]
    pub fn end(&self) -> &Snapshot {
        &self.end
    }

    /// The bytes in use right after each operator, in all categories together.
    #[must_use]
    pub fn totals(&self) -> &[Bytes] {
        &self.totals
    }

    /// The bytes in use right after each operator, per category.
    #[must_use]
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// The bytes in use right after one operator.
    #[must_use]
    pub fn after(&self, op: OpId) -> Option<&Snapshot> {
        self.snapshots.get(op.index())
    }

    /// The highest point of the step.
    #[must_use]
    pub fn peak(&self) -> &Peak {
        &self.peak
    }

    /// The `most` largest storages that are alive at the peak, the largest first; see [`Resident::after`].
    ///
    /// `trace` must be the one that was replayed.
    #[must_use]
    pub fn alive_at_peak(&self, trace: &StepTrace, most: usize) -> Vec<Resident> {
        Resident::after(trace, self.allocator, self.peak.at.map(|moment| moment.op), most)
    }

    /// Every module's memory; `None` for modules that are never called, such as a list of layers.
    #[must_use]
    pub fn modules(&self) -> &Table<ModuleId, Option<ModuleMemory>> {
        &self.modules
    }

    /// One module's memory; `None` if it is never called.
    #[must_use]
    pub fn module(&self, module: ModuleId) -> Option<&ModuleMemory> {
        self.modules.get(module)?.as_ref()
    }
}
