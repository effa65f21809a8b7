//! What a watched script left behind.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A line of Python.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Line {
    /// The file, as Python names it.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The function.
    pub function: String,
    /// The text of the line, where the file could be read.
    #[serde(default)]
    pub text: String,
}

/// The highest that PyTorch's allocator counted on the device that took most.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Counters {
    /// Bytes that were asked for.
    pub requested: u64,
    /// Bytes of blocks handed out.
    pub allocated: u64,
    /// Bytes of segments.
    pub reserved: u64,
    /// How often the cache was emptied for want of room.
    pub retries: u64,
    /// The device.
    pub device: u64,
}

/// What is in memory because of one line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Resident {
    /// The file; none for what PyTorch's backward allocates itself, empty for all smaller ones together.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u64>,
    /// The function.
    pub function: Option<String>,
    /// The bytes.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

/// PyTorch raised `OutOfMemoryError`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OutOfMemory {
    /// The script's line.
    pub line: Option<Line>,
    /// The innermost module.
    pub module: Option<String>,
    /// `forward` or `backward`, inside of a module.
    pub phase: Option<String>,
    /// Steps done before.
    pub steps: u64,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes that the device had left.
    pub free: u64,
    /// Bytes handed out then.
    pub allocated: u64,
    /// Bytes reserved then.
    pub reserved: u64,
    /// What was in memory, the largest first.
    pub there: Vec<Resident>,
}

/// Reads of values that nobody computed, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReadsAt {
    /// The line.
    #[serde(flatten)]
    pub line: Line,
    /// How many.
    pub reads: u64,
    /// Bytes of all.
    pub bytes: u64,
}

/// What the script read from the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Reads {
    /// Reads that got zeros, because kernels do not run.
    pub unknown: u64,
    /// Reads that got the values that had been uploaded.
    pub known: u64,
    /// The lines of the former that read most often.
    pub lines: Vec<ReadsAt>,
}

/// Something that was assumed because a value was not known.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Assumption {
    /// What.
    pub text: String,
    /// The script's lines that needed it, the first ones; none where it is about the whole run.
    pub lines: Vec<Line>,
}

/// A PyTorch that cannot be rehearsed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refused {
    /// Its version.
    pub torch: String,
    /// The version of CUDA that it is for.
    pub cuda: Option<String>,
}

/// An error that nobody caught.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Uncaught {
    /// Its kind and message.
    pub text: String,
    /// The script's line.
    pub line: Option<Line>,
}

/// What became of PyTorch's snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Snapshot {
    /// Why it was not written; none if it was.
    pub problem: Option<String>,
}

/// What one process of the command left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Record {
    /// PyTorch's version, if it was imported.
    pub torch: Option<String>,
    /// Optimizer steps.
    pub steps: u64,
    /// Whether the rehearsal ended the script after enough steps.
    pub finished: bool,
    /// The counters, if CUDA was used.
    pub memory: Option<Counters>,
    /// When it ran out of memory, the last ones.
    pub out_of_memory: Vec<OutOfMemory>,
    /// How often it ran out of memory in all.
    pub times_out_of_memory: u64,
    /// What was in memory at the peak, the largest first.
    pub peak: Vec<Resident>,
    /// What was read from the device.
    pub reads: Reads,
    /// What was assumed where values would decide.
    pub assumed: Vec<Assumption>,
    /// The script's lines that told the allocator of another stream (`record_stream`), the first ones.
    pub kept_for_streams: Vec<Line>,
    /// PyTorch cannot be rehearsed.
    pub refused: Option<Refused>,
    /// What ended the script, if it was an error.
    pub error: Option<Uncaught>,
    /// Whether the script came to an end by itself, with an error or without.
    pub ended: bool,
    /// What became of the snapshot; none if there was no moment to write it.
    pub snapshot: Option<Snapshot>,
    /// Why the runtime is not there.
    pub unloaded: Option<String>,
    /// Whether the command ended with exit code 0.
    #[serde(skip)]
    pub succeeded: bool,
}

impl Record {
    /// The script ran out of memory, made no step after that, and did not end well.
    #[must_use]
    pub fn ran_out(&self) -> Option<&OutOfMemory> {
        let went_on = self.finished || (self.succeeded && self.ended && self.error.is_none());
        self.out_of_memory.last().filter(|last| self.steps <= last.steps && !went_on)
    }

    /// The record that matters most: of several processes, the one that trains.
    pub(crate) fn best(directory: &Path, succeeded: bool) -> Option<Record> {
        let mut files: Vec<_> = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        // Names of files do not depend on the order in which a folder lists them.
        files.sort();
        let records = files.iter().filter_map(|path| serde_json::from_slice::<Record>(&fs::read(path).ok()?).ok());
        records.map(|record| Record { succeeded, ..record }).max_by_key(Record::weight)
    }

    fn weight(&self) -> (bool, bool, u64, u64, bool) {
        let reserved = self.memory.as_ref().map_or(0, |memory| memory.reserved);
        let unusable = self.refused.is_some() || self.unloaded.is_some();
        (unusable, self.ran_out().is_some(), self.steps, reserved, self.torch.is_some())
    }
}
