use rematic_trace::{Bytes, CallId, Category, OpId, StorageId, StreamId, id};

use crate::Ledger;

id!(
    /// A block of memory of the step as it runs: a storage, or the copy of one that recomputation makes anew.
    BufferId
);

/// The storages are the first buffers.
impl From<StorageId> for BufferId {
    fn from(storage: StorageId) -> Self {
        BufferId::new(storage.index())
    }
}

/// An operator that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The operator.
    pub op: OpId,
    /// Whether it runs for the second time.
    pub again: bool,
}

/// One thing that happens while a step runs under a plan, or plain. The order is that of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A buffer takes its bytes.
    Alloc(BufferId),
    /// A buffer gives its bytes back.
    Free(BufferId),
    /// The ordinary reference to a buffer comes or goes, while its bytes stay.
    Refer(BufferId),
    /// A buffer that was counted in this category is counted in another from now on.
    Recategorize(BufferId, Category),
    /// A buffer that took so many bytes keeps fewer of them.
    Shrink(BufferId, Bytes),
    /// An operator begins; what it makes is allocated next.
    Launch(Ran),
    /// The operator that runs copies a buffer into one of another pool: from the device to the host, or back.
    Copy {
        /// What is read.
        from: BufferId,
        /// What is written.
        to: BufferId,
    },
    /// An operator has run.
    Run(Ran),
    /// A copy of a buffer to the host is queued; it begins when what runs so far on the compute stream is over.
    Offload(BufferId),
    /// The compute stream waits until a buffer has been copied to the host; then its bytes may go.
    Offloaded(BufferId),
    /// A copy from the host into a new buffer is queued; it begins when what runs so far on the compute stream is over.
    Fetch(BufferId),
    /// The compute stream waits until a buffer has come back from the host: it is needed now.
    Fetched(BufferId),
    /// What is queued on a stream from now on begins after all that was queued on another one so far.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that it waits for.
        on: StreamId,
    },
    /// The next micro-batch begins.
    MicroBatch(u32),
    /// A module's forward begins.
    Enter(CallId),
    /// A module's forward returns.
    Exit(CallId),
    /// A module's backward begins.
    EnterBackward(CallId),
    /// A module's backward is over.
    ExitBackward(CallId),
}

/// Reads a schedule once, in order, and answers one question.
pub trait Observer {
    /// Something has happened; the ledger is the state right after it.
    fn observe(&mut self, action: Action, ledger: &Ledger);
}

/// Both watch.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        self.0.observe(action, ledger);
        self.1.observe(action, ledger);
    }
}

/// A look at the state after every operator.
impl<F: FnMut(Ran, &Ledger)> Observer for F {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        if let Action::Run(ran) = action {
            self(ran, ledger);
        }
    }
}
