//! The recorded events as requests that can be made again.

use std::collections::{HashMap, HashSet};

use rematic_allocator::EventKind;

use crate::placement::{Live, Placement, Range};
use crate::snapshot::{Action, DeviceRecord, Event};

/// The most streams and private pools of a record that is run again. Real ones have a handful.
const MOST_LANES: usize = 256;

/// Something that a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Asks for memory; the key names it until it is given back.
    Alloc { key: usize, size: u64, stream: u64, pool: usize },
    /// Gives memory back.
    Free { key: usize },
    /// Segments went back to the driver: because the program said so, or because a request could not be met otherwise.
    Release { asked: bool },
    /// Asks for memory that there was not.
    Fail { size: u64, stream: u64, pool: usize },
}

/// A block that was there before the record begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) address: u64,
    pub(crate) key: usize,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: usize,
}

/// What a program asked of the allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) before: Vec<Before>,
    /// The segments of that time, by address.
    pub(crate) segments: Vec<(u64, Range)>,
    pub(crate) acts: Vec<Act>,
    /// How many keys there are.
    pub(crate) keys: usize,
    /// How many private pools there are; 0 in an act is none of them.
    pub(crate) pools: usize,
    /// What the driver was asked for, in order.
    pub(crate) driver: Vec<(EventKind, u64)>,
}

struct Numbers {
    keys: HashMap<u64, usize>,
    pools: HashMap<(u64, u64), usize>,
    streams: HashSet<u64>,
    next: usize,
}

impl Numbers {
    fn key(&mut self, address: u64) -> usize {
        self.keys.insert(address, self.next);
        self.next += 1;
        self.next - 1
    }

    fn pool(&mut self, pool: (u64, u64)) -> usize {
        let next = self.pools.len() + 1;
        if pool == (0, 0) { 0 } else { *self.pools.entry(pool).or_insert(next) }
    }
}

impl Requests {
    /// Everything up to the event that is told about, with it; `None` if there are more streams or pools than programs
    /// have.
    pub(crate) fn new(record: &DeviceRecord, start: &Placement, end: usize) -> Option<Self> {
        let mut numbers = Numbers { keys: HashMap::new(), pools: HashMap::new(), streams: HashSet::new(), next: 0 };
        let mut requests = Requests { segments: start.joined(), ..Requests::default() };
        for (address, live) in &start.live {
            let Live { size, stream, pool, .. } = *live;
            numbers.streams.insert(stream);
            let (key, pool) = (numbers.key(*address), numbers.pool(pool));
            requests.before.push(Before { address: *address, key, size, stream, pool });
        }
        let events = &record.events[..end.min(record.events.len())];
        for (index, event) in events.iter().enumerate() {
            requests.driver.extend(driver_call(event));
            let Event { size, stream, .. } = *event;
            match event.action {
                Action::Alloc => {
                    numbers.streams.insert(stream);
                    let (key, pool) = (numbers.key(event.address), numbers.pool(event.pool));
                    requests.acts.push(Act::Alloc { key, size, stream, pool });
                }
                Action::OutOfMemory => {
                    let pool = numbers.pool(event.pool);
                    requests.acts.push(Act::Fail { size, stream, pool });
                }
                Action::SegmentFree | Action::SegmentUnmap if ends_release(events, index) => {
                    let next = events.get(index + 1).map(|event| event.action);
                    let asked = !matches!(next, Some(Action::SegmentAlloc | Action::SegmentMap | Action::OutOfMemory));
                    requests.acts.push(Act::Release { asked });
                }
                // Until then other streams use it.
                Action::FreeCompleted => {
                    requests.acts.extend(numbers.keys.remove(&event.address).map(|key| Act::Free { key }));
                }
                _ => {}
            }
            if numbers.streams.len().max(numbers.pools.len()) > MOST_LANES {
                return None;
            }
        }
        (requests.keys, requests.pools) = (numbers.next, numbers.pools.len());
        Some(requests)
    }
}

/// Whether it is the last of several segments that went back together.
fn ends_release(events: &[Event], index: usize) -> bool {
    let next = events.get(index + 1).map(|event| event.action);
    !matches!(next, Some(Action::SegmentFree | Action::SegmentUnmap))
}

fn driver_call(event: &Event) -> Option<(EventKind, u64)> {
    let kind = match event.action {
        Action::SegmentAlloc => EventKind::SegmentAlloc,
        Action::SegmentFree => EventKind::SegmentFree,
        Action::SegmentMap => EventKind::SegmentMap,
        Action::SegmentUnmap => EventKind::SegmentUnmap,
        Action::OutOfMemory => EventKind::OutOfMemory,
        _ => return None,
    };
    Some((kind, event.size))
}
