//! Events, and when the work before them is over.
//!
//! Nothing runs, so that everything is over at once. A card may be behind, by as much as the host does not wait for: then blocks
//! that `record_stream` keeps stay in use for longer. With `REMATIC_REHEARSAL_LATE` an event is over when the host has waited for
//! it, for later work of its stream, or for a stream that has waited for either; so a second rehearsal says how much that can
//! be.

use std::collections::HashMap;
use std::ffi::{c_float, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::put;
use super::status::{OK, Status};
use super::streams::{handle, makes, nothing};

type Handle = *mut c_void;

/// `cudaErrorNotReady`, which is no error to remember.
const NOT_READY: Status = 600;

/// How often an event is asked for before it is over after all: a script may wait by asking.
const PATIENCE: u32 = 1 << 20;

/// How far streams have come: for each, the number of its last event that is meant.
type Front = HashMap<usize, u64>;

fn join(front: &mut Front, other: &Front) {
    for (&stream, &number) in other {
        let known = front.entry(stream).or_insert(0);
        *known = number.max(*known);
    }
}

struct Event {
    stream: usize,
    number: u64,
    /// What is over when this is.
    front: Front,
    asked: u32,
}

/// What streams have been given, what they wait for, and what the host knows to be over.
#[derive(Default)]
struct Order {
    queued: Front,
    before: HashMap<usize, Front>,
    over: Front,
    events: HashMap<usize, Event>,
}

impl Order {
    fn record(&mut self, event: usize, stream: usize) {
        let number = self.queued.entry(stream).or_insert(0);
        *number += 1;
        let mut front = self.before.get(&stream).cloned().unwrap_or_default();
        front.insert(stream, *number);
        self.events.insert(event, Event { stream, number: *number, front, asked: 0 });
    }

    /// A stream waits for an event.
    fn wait(&mut self, stream: usize, event: usize) {
        if let Some(event) = self.events.get(&event) {
            join(self.before.entry(stream).or_default(), &event.front);
        }
    }

    /// The host waits for a stream.
    fn synchronize(&mut self, stream: usize) {
        if let Some(front) = self.before.get(&stream) {
            join(&mut self.over, front);
        }
        if let Some(&number) = self.queued.get(&stream) {
            self.over.insert(stream, number);
        }
    }

    fn synchronize_all(&mut self) {
        self.over = self.queued.clone();
    }

    fn synchronize_event(&mut self, event: usize) {
        if let Some(event) = self.events.get(&event) {
            join(&mut self.over, &event.front);
        }
    }

    fn is_over(&mut self, event: usize) -> bool {
        let Some(event) = self.events.get_mut(&event) else { return true };
        event.asked += 1;
        event.asked > PATIENCE || self.over.get(&event.stream).is_some_and(|&over| over >= event.number)
    }
}

/// The order of things, if anybody wants to know.
fn order() -> Option<MutexGuard<'static, Order>> {
    static LATE: OnceLock<bool> = OnceLock::new();
    static ORDER: OnceLock<Mutex<Order>> = OnceLock::new();
    if !*LATE.get_or_init(|| std::env::var_os("REMATIC_REHEARSAL_LATE").is_some()) {
        return None;
    }
    Some(ORDER.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner))
}

/// The host waits for all that was queued.
pub fn synchronized() {
    if let Some(mut order) = order() {
        order.synchronize_all();
    }
}

makes! {
    cudaEventCreate();
    cudaEventCreateWithFlags(c_uint);
}
nothing! {
    cudaIpcGetEventHandle
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventDestroy(event: Handle) -> Status {
    if let Some(mut order) = order() {
        order.events.remove(&(event as usize));
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventRecord(event: Handle, stream: Handle) -> Status {
    if let Some(mut order) = order() {
        order.record(event as usize, stream as usize);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) -> Status {
    cudaEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventQuery(event: Handle) -> Status {
    let is_over = order().is_none_or(|mut order| order.is_over(event as usize));
    if is_over { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventSynchronize(event: Handle) -> Status {
    if let Some(mut order) = order() {
        order.synchronize_event(event as usize);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Status {
    if let Some(mut order) = order() {
        order.wait(stream as usize, event as usize);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamSynchronize(stream: Handle) -> Status {
    if let Some(mut order) = order() {
        order.synchronize(stream as usize);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceSynchronize() -> Status {
    synchronized();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventElapsedTime(milliseconds: *mut c_float, _start: Handle, _end: Handle) -> Status {
    // A script that divides by it must not divide by zero.
    // SAFETY: the caller's variable.
    unsafe { put(milliseconds, 1.0) };
    OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_over_when_the_host_has_waited_for_what_follows_it() {
        const COMPUTE: usize = 1;
        const COPY: usize = 2;
        let mut order = Order::default();
        order.record(10, COPY);
        assert!(!order.is_over(10));
        // Compute waits for the copy, and the host for compute.
        order.wait(COMPUTE, 10);
        order.record(11, COPY);
        order.synchronize(COMPUTE);
        assert!(order.is_over(10) && !order.is_over(11), "what was queued since is not");
        order.record(12, COMPUTE);
        order.record(13, COMPUTE);
        order.synchronize_event(12);
        assert!(order.is_over(12) && !order.is_over(13));
        order.synchronize_all();
        assert!(order.is_over(11) && order.is_over(13) && order.is_over(99));
    }

    #[test]
    fn who_waits_by_asking_is_answered_in_the_end() {
        let mut order = Order::default();
        order.record(1, 0);
        assert_eq!((0..=PATIENCE).filter(|_| order.is_over(1)).count(), 1);
    }
}
