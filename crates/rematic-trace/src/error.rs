use std::io;
use std::path::PathBuf;

use crate::file::event_json;
use crate::{CallId, CollectiveKind, Event, OpId, ShapeTooLarge, StorageId, StreamId};

/// A trace breaks a rule that every consumer relies on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trace is not valid: {at}{fault}")]
pub struct InvalidTrace {
    pub(crate) at: Spot,
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
pub(crate) enum Spot {
    /// Row of a table.
    Row(&'static str, usize),
    /// An operator, by position and name.
    Op(OpId, String),
    /// An event, by position.
    Event(usize, Event),
    /// After the last event.
    End,
}

impl std::fmt::Display for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Spot::Row(table, row) => write!(f, "{table}[{row}]: "),
            Spot::Op(op, name) => write!(f, "op {op} ({name}): "),
            Spot::Event(row, event) => write!(f, "events[{row}] ({}): ", event_json(*event)),
            Spot::End => write!(f, "at the end of the step: "),
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
    /// Something needs the bytes of a storage while they are released.
    #[error("storage {storage} is released here, so its bytes are not there; restore it first")]
    Released {
        /// The storage.
        storage: StorageId,
    },
    /// A storage that is made in the step, but released before it.
    #[error("it is released when the step begins, but op {op} makes it only then")]
    ReleasedBeforeBirth {
        /// The operator.
        op: OpId,
    },
    /// Bytes come back that never went.
    #[error("storage {storage} is not released here, so there is nothing to restore")]
    NotReleased {
        /// The storage.
        storage: StorageId,
    },
    /// A rank that has more of a storage than there is.
    #[error("the rank's share of it is {share} bytes, but it has only {bytes}")]
    ShareTooLarge {
        /// The rank's share.
        share: u64,
        /// The storage's bytes.
        bytes: u64,
    },
    /// A storage that shrinks to more than it was.
    #[error("storage {storage} shrinks to {bytes} bytes, but the rank has only {own} of it")]
    Grows {
        /// The storage.
        storage: StorageId,
        /// What it shrinks to.
        bytes: u64,
        /// What the rank has.
        own: u64,
    },
    /// A stream that waits for itself.
    #[error("stream {stream} waits for itself; work on one stream is in order anyway")]
    WaitsForItself {
        /// The stream.
        stream: StreamId,
    },
    /// Micro-batches that are not counted up from 0.
    #[error("micro-batch {found} begins where micro-batch {expected} should")]
    MicroBatchOrder {
        /// The one whose turn it is.
        expected: u32,
        /// The one that begins.
        found: u32,
    },
    /// A micro-batch that begins while a module's forward runs.
    #[error("a micro-batch begins while call {call} has not returned")]
    MicroBatchInside {
        /// The call.
        call: CallId,
    },
    /// A stream or an axis without a name, or with another one's.
    #[error("its name is `{name}`; {rule}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// A coordinate that the axis does not have.
    #[error("the rank stands at {coordinate} of axis `{axis}`, which has {size} ranks, counted from 0")]
    Coordinate {
        /// The axis.
        axis: String,
        /// The coordinate.
        coordinate: u32,
        /// How many ranks there are.
        size: u32,
    },
    /// More axes than any mesh.
    #[error("the mesh has {axes} axes; the most is {limit}")]
    TooManyAxes {
        /// How many there are.
        axes: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A mesh too large to count.
    #[error("the mesh has 2^64 ranks or more")]
    MeshTooLarge,
    /// A collective along an axis that the mesh does not have.
    #[error("`{axis}` is no axis of the rank's place; {known}")]
    UnknownAxis {
        /// The axis.
        axis: String,
        /// What there is.
        known: String,
    },
    /// A group that is not that of its axis.
    #[error("{group} ranks take part, but axis `{axis}` has {size}")]
    GroupSize {
        /// The axis.
        axis: String,
        /// The ranks of the group.
        group: u32,
        /// The ranks of the axis.
        size: u64,
    },
    /// A collective whose kind is not known says more than that, or one that is known says less.
    #[error("{kind} with {group} ranks along `{axis}`; {rule}")]
    CollectiveDetail {
        /// The kind.
        kind: CollectiveKind,
        /// The ranks of the group.
        group: u32,
        /// The axis.
        axis: String,
        /// What should be.
        rule: &'static str,
    },
    /// More bytes in a message than can be counted.
    #[error("a message of {bytes} bytes; the most is 2^62")]
    MessageTooLarge {
        /// The bytes.
        bytes: u64,
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
    #[error("{} holds more than {limit} bytes of text; that is no trace: trace it again", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// Packed data that unpack to far more than those of any real trace.
    #[error(
        "{} unpacks to more than {limit} times its size ({packed} bytes to {text} and more), where traces stay below 20 times; \
         trace it again, or, if you trust it, unpack it with `zstd -d` and give the plain file", path.display()
    )]
    Swollen {
        /// The file.
        path: PathBuf,
        /// Bytes read.
        packed: u64,
        /// Bytes unpacked from them so far.
        text: u64,
        /// The most that is read, as a multiple.
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
    /// A word that the file's own version does not have.
    #[error("{} says that it has format version {found}, but has `{word}`, which only version {needs} has; write \
             version {needs}, or as docs/trace-format.md says for version {found}", path.display())]
    WordOfVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The word.
        word: &'static str,
        /// The version that has it.
        needs: u32,
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
