use std::io;
use std::path::PathBuf;

use rematic_trace::Bytes;

use crate::pickle::PickleError;

/// Why there is nothing to say about a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; give a file that torch.cuda.memory._dump_snapshot wrote", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has nothing in it.
    #[error("{} is empty; the process that wrote it did not get to the end of _dump_snapshot", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is larger than any that is read.
    #[error("{} has {found}, and snapshots of up to {limit} are read; record fewer events (max_entries)", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: Bytes,
        /// The most that is read.
        limit: Bytes,
    },
    /// It is a zip file, as `torch.save` writes them.
    #[error("{} is a zip file, as torch.save writes; give what torch.cuda.memory._dump_snapshot wrote", path.display())]
    Zip {
        /// The file.
        path: PathBuf,
    },
    /// It is no pickle, or a damaged one.
    #[error("{} is not a memory snapshot: {source}; record it again with torch.cuda.memory._dump_snapshot", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PickleError,
    },
    /// It is a pickle of something else.
    #[error("{} is not a memory snapshot: {source}; give what torch.cuda.memory._dump_snapshot wrote", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ContentError,
    },
    /// There is no such GPU in it.
    #[error("{} has nothing of GPU {asked}; it has {}", path.display(), listed(known))]
    NoDevice {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        asked: u32,
        /// What it has.
        known: Vec<u32>,
    },
    /// Nothing was allocated.
    #[error("{} has neither memory nor events; call torch.cuda.memory._record_memory_history before the work begins", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
    },
}

fn listed(known: &[u32]) -> String {
    let known: Vec<String> = known.iter().map(|device| format!("GPU {device}")).collect();
    known.join(", ")
}

/// What is wrong with the content of a pickle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// A value is of another kind.
    #[error("{path} is {found}, and should be {wanted}")]
    Kind {
        /// Which.
        path: String,
        /// What it is.
        found: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// A value is missing.
    #[error("{path} has no '{key}'")]
    Missing {
        /// Of what.
        path: String,
        /// The key.
        key: &'static str,
    },
    /// A value is out of range.
    #[error("{path} is {found}, and should be {wanted}")]
    Range {
        /// Which.
        path: String,
        /// What it is.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A dictionary has more keys than any of a snapshot.
    #[error("{path} has {found} keys, where a snapshot has a few")]
    Keys {
        /// Which.
        path: String,
        /// How many.
        found: usize,
    },
    /// Lists that are used again and again make up more than the file could hold.
    #[error("{path} goes beyond {limit} entries, more than a file of its size can have of its own")]
    TooMany {
        /// Where that was seen.
        path: String,
        /// The most.
        limit: usize,
    },
}
