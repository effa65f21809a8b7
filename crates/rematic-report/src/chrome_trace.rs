use std::io::{self, Write};

use rematic_cost::Costs;
use rematic_replay::{Ran, Recording, Snapshot};
use rematic_trace::{CallId, Event, ModuleId, Phase, StepTrace, Table};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The only process of the file.
const PROCESS: u32 = 1;
/// The track of the modules; those of the operators follow.
const MODULES: Track = Track { id: 1, name: "modules" };
const FORWARD: Track = Track { id: 2, name: "forward" };
const BACKWARD: Track = Track { id: 3, name: "backward" };
const RECOMPUTE: Track = Track { id: 4, name: "recompute" };
const OPTIMIZER: Track = Track { id: 5, name: "optimizer" };

/// A step as it ran, in the Trace Event format, which Perfetto and `chrome://tracing` open.
///
/// Time is the estimate of the cost model, one operator after the other. Every operator is a slice on the track of its
/// phase, those that run again on a track of their own; the calls of modules are nested slices on another one. The counter
/// `memory` has the bytes in use per category while an operator runs, `memory in all` their sum.
#[derive(Clone, Copy, Debug)]
pub struct ChromeTrace<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// Its times.
    pub costs: &'a Costs,
    /// How it ran, plain or under a plan.
    pub recording: &'a Recording,
}

impl ChromeTrace<'_> {
    /// Writes one JSON document, event by event.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        let Recording { start, runs, snapshots, .. } = self.recording;
        let mut events = Events { writer, first: true };
        events.writer.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        self.name_tracks(&mut events)?;
        let mut spans = Spans::new(self.trace);
        let mut clock = Clock::default();
        let mut before = start;
        let mut sample = (Nanos(0), start);
        for (&ran, snapshot) in runs.iter().zip(snapshots) {
            let begin = clock.now();
            spans.move_to(ran, begin, &mut events)?;
            clock.total_ms += self.costs.time(ran.op).0;
            let end = clock.now();
            events.write(&self.slice(ran, begin, end, before, snapshot))?;
            // Memory is taken when an operator begins. Of operators that begin at the same time, as those that take none
            // do, a viewer shows one: the highest.
            if begin != sample.0 {
                events.counter(sample.0, sample.1)?;
                sample = (begin, snapshot);
            } else if snapshot.total() > sample.1.total() {
                sample.1 = snapshot;
            }
            before = snapshot;
        }
        events.counter(sample.0, sample.1)?;
        if clock.now() != sample.0 {
            events.counter(clock.now(), before)?;
        }
        spans.close(0, clock.now(), &mut events)?;
        events.writer.write_all(b"\n]}\n")
    }

    fn name_tracks(&self, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        let name = |kind: &str, track: u32, args: Value| json!({"ph": "M", "name": kind, "pid": PROCESS, "tid": track, "args": args});
        events.write(&name("process_name", 0, json!({ "name": self.trace.origin.model })))?;
        for track in [MODULES, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER] {
            events.write(&name("thread_name", track.id, json!({ "name": track.name })))?;
            events.write(&name("thread_sort_index", track.id, json!({ "sort_index": track.id })))?;
        }
        Ok(())
    }

    fn slice(&self, ran: Ran, begin: Nanos, end: Nanos, before: &Snapshot, after: &Snapshot) -> Slice<'_> {
        let op = self.trace.op(ran.op);
        let (before, after) = (before.total().0, after.total().0);
        Slice {
            ph: "X",
            name: self.trace.op_name(op),
            pid: PROCESS,
            tid: track_of(self.trace, ran).id,
            ts: begin.micros(),
            dur: Nanos(end.0 - begin.0).micros(),
            args: SliceArguments {
                module: self.trace.module_of(op).map(|module| self.trace.path(module)),
                in_use_bytes: after,
                change_bytes: i128::from(after) - i128::from(before),
                touched_bytes: self.costs.bytes()[ran.op].0,
                flops: self.costs.flops()[ran.op].0,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Track {
    id: u32,
    name: &'static str,
}

fn track_of(trace: &StepTrace, ran: Ran) -> Track {
    match trace.op(ran.op).phase {
        _ if ran.again => RECOMPUTE,
        Phase::Forward => FORWARD,
        Phase::Backward => BACKWARD,
        Phase::Optimizer => OPTIMIZER,
    }
}

/// An operator.
#[derive(Serialize)]
struct Slice<'a> {
    ph: &'static str,
    name: &'a str,
    pid: u32,
    tid: u32,
    ts: f64,
    dur: f64,
    args: SliceArguments,
}

#[derive(Serialize)]
struct SliceArguments {
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// Right after it.
    in_use_bytes: u64,
    /// Against the moment after the operator before.
    change_bytes: i128,
    touched_bytes: u64,
    flops: u128,
}

/// Viewers count in nanoseconds; rounded to these, what ends and what begins at one moment do not overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Nanos(u64);

impl Nanos {
    /// The format's unit.
    fn micros(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

#[derive(Default)]
struct Clock {
    total_ms: f64,
}

impl Clock {
    fn now(&self) -> Nanos {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times are not negative")]
        Nanos((self.total_ms * 1e6).round() as u64)
    }
}

/// The list of events.
struct Events<'w, W> {
    writer: &'w mut W,
    first: bool,
}

impl<W: Write> Events<'_, W> {
    fn write(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.writer.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.writer, event)?)
    }

    fn counter(&mut self, at: Nanos, snapshot: &Snapshot) -> io::Result<()> {
        let args: Map<String, Value> =
            snapshot.iter().map(|(category, bytes)| (category.to_string(), bytes.0.into())).collect();
        let total = json!({ "bytes": snapshot.total() });
        self.write(&json!({"ph": "C", "name": "memory", "pid": PROCESS, "ts": at.micros(), "args": args}))?;
        // Some viewers give every category a track of its own.
        self.write(&json!({"ph": "C", "name": "memory in all", "pid": PROCESS, "ts": at.micros(), "args": total}))
    }
}

/// The calls of modules that are open, outermost first.
struct Spans<'a> {
    trace: &'a StepTrace,
    parents: Table<CallId, Option<CallId>>,
    open: Vec<CallId>,
    /// Where the operators run: forward, backward and recomputation of a call are slices of their own.
    track: Option<Track>,
}

impl<'a> Spans<'a> {
    fn new(trace: &'a StepTrace) -> Self {
        let mut parents = trace.calls().filled(None);
        let mut running: Vec<CallId> = Vec::new();
        for event in trace.events() {
            match *event {
                Event::Enter(call) => {
                    parents[call] = running.last().copied();
                    running.push(call);
                }
                Event::Exit(_) => {
                    running.pop();
                }
                _ => {}
            }
        }
        Spans { trace, parents, open: Vec::new(), track: None }
    }

    /// Closes the calls that an operator is not part of, and opens those that it is.
    fn move_to(&mut self, ran: Ran, now: Nanos, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        let track = track_of(self.trace, ran);
        if self.track != Some(track) {
            self.close(0, now, events)?;
            self.track = Some(track);
        }
        let call = self.trace.op(ran.op).call;
        if call.is_some() && call == self.open.last().copied() {
            return Ok(());
        }
        let mut path: Vec<CallId> = std::iter::successors(call, |call| self.parents[*call]).collect();
        path.reverse();
        let common = self.open.iter().zip(&path).take_while(|(open, call)| open == call).count();
        self.close(common, now, events)?;
        for &call in &path[common..] {
            self.begin(self.trace.call(call).module, now, track, events)?;
            self.open.push(call);
        }
        Ok(())
    }

    fn begin(&self, id: ModuleId, now: Nanos, track: Track, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        let module = self.trace.module(id);
        let args = json!({"module": self.trace.path(id), "class": module.class, "phase": track.name});
        let (name, ts) = (&module.name, now.micros());
        events.write(&json!({"ph": "B", "name": name, "pid": PROCESS, "tid": MODULES.id, "ts": ts, "args": args}))
    }

    /// Closes all but the outermost so many calls.
    fn close(&mut self, left: usize, now: Nanos, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        while self.open.len() > left {
            self.open.pop();
            events.write(&json!({"ph": "E", "pid": PROCESS, "tid": MODULES.id, "ts": now.micros()}))?;
        }
        Ok(())
    }
}
