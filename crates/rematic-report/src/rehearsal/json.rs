//! The JSON document of a rehearsal.

use rematic_rehearsal::{Assumption, Line, Reads, Resident};
use rematic_trace::Bytes;
use serde::Serialize;

use super::places;
use crate::memory::Memory;

#[derive(Serialize)]
pub(super) struct Json<'a> {
    pub(super) command: &'a [String],
    pub(super) device: &'a str,
    pub(super) torch: Option<&'a str>,
    pub(super) world_size: u32,
    pub(super) rank: u32,
    pub(super) steps: u64,
    pub(super) memory: Memory,
    pub(super) requested_bytes: u64,
    pub(super) retries: u64,
    pub(super) fits: bool,
    pub(super) streams: Option<JsonStreams<'a>>,
    pub(super) out_of_memory: Option<JsonOutOfMemory<'a>>,
    pub(super) largest: &'a [Resident],
    pub(super) reads: &'a Reads,
    pub(super) assumed: &'a [Assumption],
    pub(super) snapshot: Option<String>,
}

/// Between what the reserved bytes lie, by how far other streams are behind, and the lines that made it so.
#[derive(Serialize)]
pub(super) struct JsonStreams<'a> {
    pub(super) lowest_reserved_bytes: u64,
    pub(super) highest_reserved_bytes: Option<u64>,
    pub(super) lines: &'a [Line],
}

#[derive(Serialize)]
pub(super) struct JsonOutOfMemory<'a> {
    pub(super) line: Option<&'a Line>,
    pub(super) module: Option<&'a str>,
    pub(super) phase: Option<&'a str>,
    pub(super) step: u64,
    pub(super) asked_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) reserved_bytes: u64,
}

impl JsonStreams<'_> {
    /// The range and its cause; nothing where both ends are the same.
    pub(super) fn note(&self) -> Option<String> {
        let lowest = Bytes(self.lowest_reserved_bytes);
        let at = places(" (at ", self.lines.iter(), ")");
        let kept = format!("a block that record_stream keeps{at} is free when the other stream is done with it");
        match self.highest_reserved_bytes.map(Bytes) {
            Some(highest) if highest == lowest => None,
            Some(highest) => Some(format!("{lowest} to {highest} are reserved, by how far streams are behind: {kept}")),
            None => Some(format!("At least {lowest} are reserved: {kept}")),
        }
    }
}
