//! What a snapshot means.

use rematic_trace::Bytes;
use serde::Serialize;

use crate::fragments::Fragmentation;
use crate::map::{MapSegment, map};
use crate::moment::{Failure, Moment, MomentKind, Sources};
use crate::placement::{Placement, Totals};
use crate::requests::Requests;
use crate::rerun::Rerun;
use crate::snapshot::{Action, DeviceRecord, Snapshot};
use crate::stack::Part;
use crate::trials::{Trial, Trials};

/// How many points memory over time has.
const POINTS: usize = 1_000;

/// What there is to go by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// How many events there are.
    pub events: usize,
    /// Whether it begins with the first request of the process.
    pub complete: bool,
    /// How many blocks were there before it begins, and what they take.
    pub before_count: usize,
    /// What they take.
    pub before_bytes: Bytes,
    /// Whether stacks were recorded.
    pub stacks: bool,
    /// Events that contradict others.
    pub misfits: usize,
    /// Whether the events lead to the segments that were there at the end.
    pub agrees: bool,
}

/// Memory at one moment of many; of several events the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The number of the event.
    pub event: usize,
    /// What was allocated.
    pub allocated_bytes: Bytes,
    /// What was reserved.
    pub reserved_bytes: Bytes,
}

/// Why it ran out, or what took most.
#[derive(Clone, Debug, Serialize)]
pub struct Story {
    /// The GPU.
    pub device: u32,
    /// All GPUs of the snapshot.
    pub devices: Vec<u32>,
    /// What there is to go by.
    pub record: Record,
    /// The request that failed.
    pub failure: Option<Failure>,
    /// What was in memory then, or at the peak.
    pub moment: Moment,
    /// The most that was requested, in the record.
    pub requested_peak_bytes: Bytes,
    /// The most that was allocated.
    pub allocated_peak_bytes: Bytes,
    /// The most that was active.
    pub active_peak_bytes: Bytes,
    /// The most that was reserved.
    pub reserved_peak_bytes: Bytes,
    /// What was reserved and not in use at that moment.
    pub fragmentation: Fragmentation,
    /// The recorded settings.
    pub settings: String,
    /// Why some of those could not be read.
    pub settings_unread: Option<String>,
    /// Whether the same requests lead to the same segments again.
    pub rerun: Option<Rerun>,
    /// Other settings, the best first.
    pub trials: Vec<Trial>,
    /// Whether some were left out, as they would take too long.
    pub trials_left_out: bool,
    /// Memory over time.
    #[serde(skip)]
    pub timeline: Vec<Point>,
    /// The segments at that moment, the largest first.
    #[serde(skip)]
    pub map: Vec<MapSegment>,
}

/// What one pass over the events finds.
struct Pass {
    peak: Totals,
    /// How many events came before the first moment at which most was allocated.
    peak_at: usize,
    timeline: Vec<Point>,
    end: Placement,
}

impl Story {
    /// Works it out for one GPU of a snapshot.
    #[must_use]
    pub fn new(snapshot: &Snapshot, record: &DeviceRecord) -> Self {
        let settings = &snapshot.recorded.settings;
        let start = Placement::at_start(record, settings);
        let pass = Pass::new(record, &start, settings);
        let failed = record.events.iter().rposition(|event| event.action == Action::OutOfMemory);
        let (kind, at) = match failed {
            Some(index) => (MomentKind::OutOfMemory, index),
            None if has_requests(record) => (MomentKind::Peak, pass.peak_at),
            None => (MomentKind::Snapshot, record.events.len()),
        };
        let mut there = start.clone();
        for (index, event) in record.events.iter().enumerate().take(at) {
            there.apply(index, event, settings);
        }
        let mut sources = Sources::new(&snapshot.stacks);
        let moment = Moment::new(kind, at, &there, &mut sources);
        let fragmentation = Fragmentation::new(&there, &mut sources);
        let map = map(&there, &moment.groups, &mut sources);
        let failure = failed.map(|index| Failure::new(record, &record.events[index], there.totals.reserved, &sources));
        let end = failed.map_or(record.events.len(), |index| index + 1);
        let capacity = failure.as_ref().map(|failure| failure.capacity_bytes.0);
        let trials = match Requests::new(record, &start, end) {
            Some(requests) if has_requests(record) => Trials::new(&requests, &snapshot.recorded, capacity),
            Some(_) => Trials::default(),
            None => Trials { left_out: true, ..Trials::default() },
        };
        Story {
            device: record.device,
            devices: snapshot.devices.iter().map(|record| record.device).collect(),
            record: Record::new(snapshot, record, &start, &pass.end),
            failure,
            moment,
            requested_peak_bytes: Bytes(pass.peak.requested),
            allocated_peak_bytes: Bytes(pass.peak.allocated),
            active_peak_bytes: Bytes(pass.peak.active),
            reserved_peak_bytes: Bytes(pass.peak.reserved),
            fragmentation,
            settings: snapshot.recorded.text.clone(),
            settings_unread: snapshot.recorded.unread.clone(),
            rerun: trials.rerun,
            trials: trials.trials,
            trials_left_out: trials.left_out,
            timeline: pass.timeline,
            map,
        }
    }

    /// What a part of the step holds at the moment.
    #[must_use]
    pub fn part(&self, part: Part) -> Bytes {
        self.moment.parts.iter().filter(|found| found.part == part).map(|found| found.bytes).sum()
    }
}

/// Whether the record has requests. Where only the state is recorded, torch keeps the last event all the same.
fn has_requests(record: &DeviceRecord) -> bool {
    let is_request = |action: Action| matches!(action, Action::Alloc | Action::OutOfMemory);
    record.events.len() > 1 && record.events.iter().any(|event| is_request(event.action))
}

impl Record {
    fn new(snapshot: &Snapshot, record: &DeviceRecord, start: &Placement, end: &Placement) -> Self {
        let told = Placement::at_end(record);
        let sizes = |placement: &Placement| (placement.totals.active, placement.totals.reserved, placement.live.len());
        Record {
            events: record.events.len(),
            complete: start.live.is_empty() && start.ranges.is_empty() && has_requests(record),
            before_count: start.live.len(),
            before_bytes: Bytes(start.totals.active),
            stacks: snapshot.stacks.any(),
            misfits: end.misfits,
            agrees: sizes(&told) == sizes(end),
        }
    }
}

impl Pass {
    fn new(record: &DeviceRecord, start: &Placement, settings: &rematic_allocator::Settings) -> Self {
        let mut end = start.clone();
        let mut pass = Pass { peak: start.totals, peak_at: 0, timeline: Vec::new(), end: Placement::default() };
        let width = record.events.len().div_ceil(POINTS).max(1);
        let point = |event: usize, totals: Totals| Point {
            event,
            allocated_bytes: Bytes(totals.allocated),
            reserved_bytes: Bytes(totals.reserved),
        };
        pass.timeline.push(point(0, start.totals));
        for (index, event) in record.events.iter().enumerate() {
            end.apply(index, event, settings);
            let totals = end.totals;
            if totals.allocated > pass.peak.allocated {
                pass.peak_at = index + 1;
            }
            pass.peak.allocated = pass.peak.allocated.max(totals.allocated);
            pass.peak.requested = pass.peak.requested.max(totals.requested);
            pass.peak.active = pass.peak.active.max(totals.active);
            pass.peak.reserved = pass.peak.reserved.max(totals.reserved);
            match pass.timeline.last_mut() {
                Some(last) if index % width != 0 => {
                    last.allocated_bytes = last.allocated_bytes.max(Bytes(totals.allocated));
                    last.reserved_bytes = last.reserved_bytes.max(Bytes(totals.reserved));
                }
                _ => pass.timeline.push(point(index + 1, totals)),
            }
        }
        pass.end = end;
        pass
    }
}
