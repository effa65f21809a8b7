use crate::{CallId, Category, OpId, StorageId, StreamId};

/// One thing that happens in a step. The order of events is the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operator runs: its new storages are born, and autograd takes hold of what it saves.
    Op(OpId),
    /// The last ordinary reference to a storage goes.
    Drop(StorageId),
    /// The backward function of this forward operator has returned: it does not read again what was saved for it. Stands
    /// only where other operators run before [`Event::Unsave`], to bring the gradients to their shapes and types.
    Return(OpId),
    /// Autograd lets go of everything that this forward operator saved: its backward is over.
    Unsave(OpId),
    /// A storage is from now on counted in another category (a temporary becomes a parameter's gradient).
    Recategorize(StorageId, Category),
    /// The bytes of a storage go while references to it stay, as with PyTorch's `storage.resize_(0)`. If the last reference
    /// goes before [`Event::Restore`], it just dies.
    Release(StorageId),
    /// The bytes of a released storage come back, with nothing in them.
    Restore(StorageId),
    /// The rank keeps only so many of a storage's bytes, as of a gradient that is spread over several.
    Shrink(StorageId, u64),
    /// What is queued on a stream from now on begins after all that was queued on another one so far.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that it waits for.
        on: StreamId,
    },
    /// The forward and backward of the next micro-batch begin; the first is 0.
    MicroBatch(u32),
    /// A module's forward begins.
    Enter(CallId),
    /// A module's forward returns.
    Exit(CallId),
    /// A gradient of one of the call's outputs is there: its backward begins.
    EnterBackward(CallId),
    /// The gradients of all of the call's positional inputs are there, or, if none of them needs one, backward is over.
    ExitBackward(CallId),
}
