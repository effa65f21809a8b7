use crate::trace::Category;
use crate::{CallId, OpId, StorageId};

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
    /// A module's forward begins.
    Enter(CallId),
    /// A module's forward returns.
    Exit(CallId),
    /// A gradient of one of the call's outputs is there: its backward begins.
    EnterBackward(CallId),
    /// The gradients of all of the call's positional inputs are there, or, if none of them needs one, backward is over.
    ExitBackward(CallId),
}
