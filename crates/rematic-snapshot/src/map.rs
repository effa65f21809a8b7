//! The segments at a moment with the blocks in them, for a picture.

use std::collections::HashMap;

use rematic_trace::Bytes;
use serde::Serialize;

use crate::moment::{Group, Sources};
use crate::placement::Placement;

/// A block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MapBlock {
    /// Where it begins in its segment.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Its group, by its place among those of the moment.
    pub group: usize,
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapSegment {
    /// Its bytes.
    pub bytes: Bytes,
    /// The stream whose blocks it has.
    pub stream: u64,
    /// Whether it is expandable.
    pub expandable: bool,
    /// The blocks in use, by address.
    pub blocks: Vec<MapBlock>,
}

/// All segments, the largest first.
pub(crate) fn map(placement: &Placement, groups: &[Group], sources: &mut Sources<'_>) -> Vec<MapSegment> {
    type Key<'a> = (&'a str, Option<&'a str>, &'a str, crate::stack::Part);
    let numbers: HashMap<Key<'_>, usize> = groups
        .iter()
        .enumerate()
        .map(|(number, group)| {
            ((group.line.as_str(), group.user.as_deref(), group.module.as_str(), group.part), number)
        })
        .collect();
    let mut segments = Vec::new();
    for (address, range) in placement.joined() {
        let end = address.saturating_add(range.size).max(address);
        let mut blocks = Vec::new();
        for (start, live) in placement.live.range(address..end) {
            let source = sources.of(live);
            let key = (source.line.as_str(), source.user.as_deref(), source.module.as_str(), source.part);
            let group = numbers.get(&key).copied().unwrap_or(0);
            blocks.push(MapBlock { offset: start - address, size: live.size.min(end - start), group });
        }
        let (stream, expandable) = (range.stream, range.expandable);
        segments.push(MapSegment { bytes: Bytes(range.size), stream, expandable, blocks });
    }
    // Equal ones stay in the order of their addresses.
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes));
    segments
}
