//! What was in memory at one moment.

use std::collections::{BTreeMap, HashMap};

use rematic_trace::Bytes;
use serde::Serialize;

use crate::placement::{Live, Placement};
use crate::snapshot::{DeviceRecord, Event};
use crate::stack::{Part, Source, StackId, Stacks};

/// Which moment it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentKind {
    /// A request could not be met.
    OutOfMemory,
    /// Most was allocated.
    Peak,
    /// The snapshot was taken, and there is no record of what came before.
    Snapshot,
}

/// The request that could not be met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What was asked for, rounded.
    pub wanted_bytes: Bytes,
    /// What the device had left.
    pub device_free_bytes: Bytes,
    /// What the process could have of the device: what it had reserved, and what was left.
    pub capacity_bytes: Bytes,
    /// The line that asked.
    pub line: String,
    /// The line of the user's own files, where that is another.
    pub user: Option<String>,
    /// The calls of modules that led there.
    pub module: String,
    /// The stack, the innermost first.
    pub stack: Vec<String>,
    /// How many such events the record has; this is the last.
    pub count: usize,
}

/// Blocks that one line asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What they take.
    pub bytes: Bytes,
    /// How many.
    pub count: usize,
    /// The part of the step.
    pub part: Part,
    /// The innermost line outside of PyTorch.
    pub line: String,
    /// The innermost line of the user's own files, where that is another.
    pub user: Option<String>,
    /// The calls of modules that led there.
    pub module: String,
    /// The stack of the largest, the innermost first.
    pub stack: Vec<String>,
}

/// What the calls of a module hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleBytes {
    /// The lines in which it and those around it were called; empty for the outermost.
    pub module: String,
    /// What it takes.
    pub bytes: Bytes,
    /// How many blocks.
    pub count: usize,
}

/// What a part of the step holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartBytes {
    /// The part.
    pub part: Part,
    /// What it takes.
    pub bytes: Bytes,
    /// How many blocks.
    pub count: usize,
}

/// Memory at a moment of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Which.
    pub kind: MomentKind,
    /// How many events came before.
    pub event: usize,
    /// What was asked for, of blocks in use.
    pub requested_bytes: Bytes,
    /// What blocks that are handed out take.
    pub allocated_bytes: Bytes,
    /// The same, with blocks that other streams still use.
    pub active_bytes: Bytes,
    /// What the allocator had of the device.
    pub reserved_bytes: Bytes,
    /// By part of the step, the largest first.
    pub parts: Vec<PartBytes>,
    /// By module, the largest first.
    pub modules: Vec<ModuleBytes>,
    /// By line, the largest first.
    pub groups: Vec<Group>,
}

/// Where blocks come from, worked out once for each stack.
pub(crate) struct Sources<'a> {
    stacks: &'a Stacks,
    known: HashMap<StackId, Source>,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(stacks: &'a Stacks) -> Self {
        Sources { stacks, known: HashMap::new() }
    }

    /// Where a block comes from.
    pub(crate) fn of(&mut self, live: &Live) -> Source {
        if live.born.is_none() && live.stack == StackId::NONE {
            let line = "before the record begins".to_owned();
            return Source { line, user: None, module: String::new(), called: String::new(), part: Part::Before };
        }
        self.known.entry(live.stack).or_insert_with(|| self.stacks.source(live.stack)).clone()
    }

    pub(crate) fn stack(&self, id: StackId) -> Vec<String> {
        self.stacks.frames(id).map(ToString::to_string).collect()
    }
}

impl Moment {
    pub(crate) fn new(kind: MomentKind, event: usize, placement: &Placement, sources: &mut Sources<'_>) -> Self {
        let totals = placement.totals;
        let mut lines: BTreeMap<Source, (u64, usize, &Live)> = BTreeMap::new();
        let mut modules: BTreeMap<String, (u64, usize)> = BTreeMap::new();
        let mut parts: BTreeMap<Part, (u64, usize)> = BTreeMap::new();
        let count = |(bytes, count): &mut (u64, usize), size: u64| {
            *bytes = bytes.saturating_add(size);
            *count += 1;
        };
        for live in placement.live.values() {
            let source = sources.of(live);
            count(parts.entry(source.part).or_default(), live.size);
            if !source.module.is_empty() {
                count(modules.entry(source.called.clone()).or_default(), live.size);
            }
            let (bytes, number, largest) = lines.entry(source).or_insert((0, 0, live));
            *bytes = bytes.saturating_add(live.size);
            *number += 1;
            if live.size > largest.size {
                *largest = live;
            }
        }
        let group = |(source, (bytes, count, largest)): (Source, (u64, usize, &Live))| Group {
            bytes: Bytes(bytes),
            count,
            part: source.part,
            line: source.line,
            user: source.user,
            module: source.module,
            stack: sources.stack(largest.stack),
        };
        let mut moment = Moment {
            kind,
            event,
            requested_bytes: Bytes(totals.requested),
            allocated_bytes: Bytes(totals.allocated),
            active_bytes: Bytes(totals.active),
            reserved_bytes: Bytes(totals.reserved),
            parts: parts
                .into_iter()
                .map(|(part, (bytes, count))| PartBytes { part, bytes: Bytes(bytes), count })
                .collect(),
            modules: modules
                .into_iter()
                .map(|(module, (bytes, count))| ModuleBytes { module, bytes: Bytes(bytes), count })
                .collect(),
            groups: lines.into_iter().map(group).collect(),
        };
        // Equal ones stay in the order of their names.
        moment.parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        moment.modules.sort_by_key(|module| std::cmp::Reverse(module.bytes));
        moment.groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        moment
    }
}

impl Failure {
    pub(crate) fn new(record: &DeviceRecord, event: &Event, reserved: u64, sources: &Sources<'_>) -> Self {
        let source = sources.stacks.source(event.stack);
        Failure {
            wanted_bytes: Bytes(event.size),
            device_free_bytes: Bytes(event.address),
            capacity_bytes: Bytes(reserved.saturating_add(event.address)),
            line: source.line,
            user: source.user,
            module: source.module,
            stack: sources.stack(event.stack),
            count: record.events.iter().filter(|other| other.action == event.action).count(),
        }
    }
}
