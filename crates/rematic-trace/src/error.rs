use std::io;
use std::path::PathBuf;

use crate::file::event_json;
use crate::{CallId, Event, OpId, ShapeTooLarge, StorageId};

/// A trace breaks a rule that every consumer relies on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trace is not valid: {at}{fault}")]
pub struct InvalidTrace {
    pub(crate) at: Place,
    pub(crate) fault: Fault,
}

impl InvalidTrace {
    /// The rule that is broken.
    #[must_use]
    pub fn fault(&self) -> &Fault {
        &self.fault
    }
}

/// Where in the trace the fault is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Row of a table.
    Row(&'static str, usize),
    /// An operator, by position and name.
    Op(OpId, String),
    /// An event, by position.
    Event(usize, Event),
    /// After the last event.
    End,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Row(table, row) => write!(f, "{table}[{row}]: "),
            Place::Op(op, name) => write!(f, "op {op} ({name}): "),
            Place::Event(row, event) => write!(f, "events[{row}] ({}): ", event_json(*event)),
            Place::End => write!(f, "at the end of the step: "),
        }
    }
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An id points past the end of its table.
    #[error("unknown {kind} {id}; there are {len}")]
    UnknownId {
        /// The kind of thing that it should name.
        kind: &'static str,
        /// The id.
        id: usize,
        /// How many there are.
        len: usize,
    },
    /// A module's parent does not stand before it, so the modules do not form a tree.
    #[error("its parent {parent} does not stand before it, so the modules are not a tree")]
    ModuleCycle {
        /// The parent's position.
        parent: usize,
    },
    /// A second module without a parent.
    #[error("it has no parent, but module 0 is the root already")]
    SecondRoot,
    /// Modules inside modules without end.
    #[error("it lies more than {limit} modules deep")]
    TooDeep {
        /// The deepest that is allowed.
        limit: usize,
    },
    /// Two children of one module share a name.
    #[error("a sibling is called `{name}` too")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A layout with another number of strides than of extents.
    #[error("{extents} extents but {strides} strides")]
    RaggedLayout {
        /// Number of extents.
        extents: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A layout too large for 64-bit arithmetic.
    #[error(transparent)]
    ShapeTooLarge(#[from] ShapeTooLarge),
    /// The storages do not fit 64-bit arithmetic.
    #[error("the storages add up to 2^62 bytes or more")]
    StoragesTooLarge,
    /// A tensor needs more bytes than its storage has.
    #[error("a tensor needs {needed} bytes, but storage {storage} has {bytes}")]
    TensorPastStorage {
        /// The storage.
        storage: StorageId,
        /// Bytes from the first to the last element.
        needed: u64,
        /// Bytes of the storage.
        bytes: u64,
    },
    /// An operator says that it makes a storage, but does not return it.
    #[error("storage {storage} names it as its birth, but it is not among its outputs")]
    BirthNotReturned {
        /// The storage.
        storage: StorageId,
    },
    /// Something uses a storage before its birth or after its death.
    #[error("storage {storage} is not alive here")]
    NotAlive {
        /// The storage.
        storage: StorageId,
    },
    /// The last ordinary reference goes twice.
    #[error("storage {storage} has no ordinary reference left to drop")]
    DoubleDrop {
        /// The storage.
        storage: StorageId,
    },
    /// Autograd lets go twice, or before the operator ran.
    #[error("op {op} holds nothing for autograd here")]
    NothingSaved {
        /// The operator.
        op: OpId,
    },
    /// The operators do not run each once and in order.
    #[error("op {found} runs where op {expected} should")]
    OpOutOfOrder {
        /// The one whose turn it is.
        expected: usize,
        /// The one that runs.
        found: usize,
    },
    /// Not every operator runs.
    #[error("only {ran} of {len} ops have run")]
    OpsMissing {
        /// How many ran.
        ran: usize,
        /// How many there are.
        len: usize,
    },
    /// An operator differentiates one that comes later.
    #[error("it differentiates op {later}, which runs later")]
    DifferentiatesLater {
        /// The later one.
        later: OpId,
    },
    /// Calls do not begin in order, or do not nest.
    #[error("call {call} cannot begin or end here")]
    CallNesting {
        /// The call.
        call: CallId,
    },
    /// A call's forward never returns.
    #[error("call {call} has not returned")]
    CallOpen {
        /// The call.
        call: CallId,
    },
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

impl FileAction {
    /// What to do if it fails.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            FileAction::Read => "check the path",
            FileAction::Write => "name a file in a folder that exists and has room",
        }
    }
}

impl std::fmt::Display for FileAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            FileAction::Read => "read",
            FileAction::Write => "write",
        })
    }
}

/// A trace file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refuses.
    #[error("cannot {action} {}: {source}; {}", path.display(), action.advice())]
    Io {
        /// What was tried.
        action: FileAction,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Compressed data that do not unpack.
    #[error("{} is not a whole zstd file: {source}; was it cut off? trace it again", path.display())]
    Zstd {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// More text than any real trace.
    #[error("{} unpacks to more than {limit} bytes; that is no trace", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The text ends too early.
    #[error("{} ends in the middle (line {line}, column {column}): the file was cut off; trace it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// The text is not a trace.
    #[error("{} is not a trace: {place}{}{source}", path.display(), if place.is_empty() { "" } else { ": " })]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The row and field (`ops[57].flags[0]`); empty for the whole.
        place: String,
        /// What was expected, and where.
        source: serde_json::Error,
    },
    /// JSON, but something else.
    #[error("{} says that it is `{found}`, not `{expected}`", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A version that there never was.
    #[error("{} has format version 0, which does not exist; write version {known}", path.display())]
    NoVersion {
        /// The file.
        path: PathBuf,
        /// The newest that is known.
        known: u32,
    },
    /// A version that this program does not know.
    #[error("{} has format version {found}; this rematic reads up to {known}: update rematic", path.display())]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that is known.
        known: u32,
    },
    /// A trace, but a broken one.
    #[error("{}: {source}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The first broken rule.
        source: InvalidTrace,
    },
}
