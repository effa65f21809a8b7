//! What `torch.cuda.memory._dump_snapshot` writes, as types.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rematic_allocator::Settings;
use rematic_trace::Bytes;

use crate::error::SnapshotError;
use crate::stack::{StackId, Stacks};
use crate::{content, pickle};

/// The largest file that is read. A million events with their stacks take 0.2 GB.
const LARGEST_FILE: u64 = 1 << 30;

/// What happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block was given back.
    FreeRequested,
    /// A block that was given back can be used again.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// A segment went back to the driver.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory of an expandable segment went back to the driver.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request could not be met.
    OutOfMemory,
    /// Something that changes no memory.
    Other,
}

/// One event of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where; of [`Action::OutOfMemory`], what the device had left.
    pub address: u64,
    /// To how many bytes: what was asked for of blocks, the real size of segments.
    pub size: u64,
    /// On which stream.
    pub stream: u64,
    /// In which private pool; 0 and 0 is none.
    pub pool: (u64, u64),
    /// When, in microseconds; 0 if unknown.
    pub time: u64,
    /// From where.
    pub stack: StackId,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// It is handed out.
    Allocated,
    /// It was given back, and other streams still use it.
    PendingFree,
    /// It is free.
    Free,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes that were asked for.
    pub requested: u64,
    /// What it is used for.
    pub state: BlockState,
    /// Who asked for it.
    pub stack: StackId,
}

/// Memory in one piece that the driver gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The stream whose blocks it has.
    pub stream: u64,
    /// Whether it has the blocks up to 1 MiB.
    pub is_small: bool,
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// The private pool that it belongs to; 0 and 0 is none.
    pub pool: (u64, u64),
    /// Its blocks, by address.
    pub blocks: Vec<Block>,
}

/// What the snapshot has of one GPU.
#[derive(Clone, Debug, Default)]
pub struct DeviceRecord {
    /// Its number.
    pub device: u32,
    /// Its memory when the snapshot was taken, by address.
    pub segments: Vec<Segment>,
    /// What happened before, the oldest first.
    pub events: Vec<Event>,
}

impl DeviceRecord {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.events.is_empty()
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.size))
    }
}

/// The allocator's settings when the snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// As `PYTORCH_CUDA_ALLOC_CONF` would have them.
    pub text: String,
    /// The same, read.
    pub settings: Settings,
    /// Why some of them could not be read.
    pub unread: Option<String>,
    /// Whether the driver placed the blocks (`backend:cudaMallocAsync`), so that no setting of the allocator says where.
    pub by_driver: bool,
}

/// A memory snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The GPUs of which it has anything, by number.
    pub devices: Vec<DeviceRecord>,
    /// The settings.
    pub recorded: Recorded,
    /// The stacks that events and blocks refer to.
    pub stacks: Stacks,
}

impl Snapshot {
    /// Whether a file begins as a snapshot does, or is named as one.
    #[must_use]
    pub fn recognizes(path: &Path) -> bool {
        let mut start = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
        pickle::is_pickle(&start[..read]) || read > 0 && start.starts_with(b"PK\x03\x04") || is_named(path)
    }

    /// Reads a file, and runs nothing of it.
    ///
    /// # Errors
    /// If it cannot be read, is larger than any snapshot, is damaged, or has anything but plain data.
    pub fn read(path: &Path) -> Result<Self, SnapshotError> {
        let owned = || path.to_owned();
        let failed = |source| SnapshotError::Read { path: owned(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found <= LARGEST_FILE {
            file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
        }
        if found.max(bytes.len() as u64) > LARGEST_FILE {
            return Err(SnapshotError::TooLarge { path: owned(), found: Bytes(found), limit: Bytes(LARGEST_FILE) });
        }
        Self::from_bytes(path, bytes)
    }

    /// The same from what is in the file.
    ///
    /// # Errors
    /// As for [`Snapshot::read`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        let path: PathBuf = path.to_owned();
        if bytes.is_empty() {
            return Err(SnapshotError::Empty { path });
        }
        if bytes.starts_with(b"PK\x03\x04") {
            return Err(SnapshotError::Zip { path });
        }
        let document = match pickle::read(bytes) {
            Ok(document) => document,
            Err(source) => return Err(SnapshotError::Pickle { path, source }),
        };
        match content::snapshot(&document) {
            Ok(snapshot) if snapshot.devices.is_empty() => Err(SnapshotError::Nothing { path }),
            Ok(snapshot) => Ok(snapshot),
            Err(source) => Err(SnapshotError::Content { path, source }),
        }
    }

    /// The GPU that was asked for; else the one that ran out, or else the one with most events and memory.
    ///
    /// # Errors
    /// If the snapshot has nothing of it.
    pub fn device(&self, path: &Path, asked: Option<u32>) -> Result<&DeviceRecord, SnapshotError> {
        let ran_out = |record: &DeviceRecord| record.events.iter().any(|event| event.action == Action::OutOfMemory);
        let rank = |record: &&DeviceRecord| {
            (ran_out(record), record.events.len(), record.reserved(), std::cmp::Reverse(record.device))
        };
        let found = match asked {
            Some(asked) => self.devices.iter().find(|record| record.device == asked),
            None => self.devices.iter().max_by_key(rank),
        };
        found.ok_or_else(|| match asked {
            Some(asked) => {
                let known = self.devices.iter().map(|record| record.device).collect();
                SnapshotError::NoDevice { path: path.to_owned(), asked, known }
            }
            None => SnapshotError::Nothing { path: path.to_owned() },
        })
    }

    pub(crate) fn keep(&mut self, record: DeviceRecord) {
        if !record.is_empty() {
            self.devices.push(record);
        }
    }
}

/// Whether the name says that it is meant to be a snapshot, which then decides what is said about a damaged one.
fn is_named(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "pickle" || extension == "pkl")
}
