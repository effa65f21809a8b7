use std::io::{self, Write};

use rematic_cost::Costs;
use rematic_replay::{Ran, Recording, Snapshot};
use rematic_trace::{CallId, Event, ModuleId, Phase, StepTrace, StreamId, Table};
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
/// Time is the estimate of the cost model, one operator after the other on each stream, where streams wait for each other as they do in
/// the step. Every operator is a slice on the track of its phase, those that run again and those of other streams than the one that
/// computes on tracks of their own; the calls of modules are nested slices on another one. The counter `memory` has the bytes in use per category while an operator runs, `memory in all` their sum.
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
        let mut clock = Clock::new(self);
        let mut before = start;
        let mut sample = (Nanos(0), start);
        for (&ran, snapshot) in runs.iter().zip(snapshots) {
            let own = clock.run(ran);
            let begin = clock.latest;
            if self.trace.op(ran.op).stream == StreamId::COMPUTE {
                spans.move_to(ran, begin, &mut events)?;
            }
            events.write(&self.slice(ran, own, before, snapshot))?;
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
        let end = clock.end();
        if end != sample.0 {
            events.counter(end, before)?;
        }
        spans.close(0, end, &mut events)?;
        events.writer.write_all(b"\n]}\n")
    }

    fn name_tracks(&self, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        let name = |kind: &str, track: u32, args: Value| json!({"ph": "M", "name": kind, "pid": PROCESS, "tid": track, "args": args});
        events.write(&name("process_name", 0, json!({ "name": self.trace.origin.model })))?;
        for track in [MODULES, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER] {
            events.write(&name("thread_name", track.id, json!({ "name": track.name })))?;
            events.write(&name("thread_sort_index", track.id, json!({ "sort_index": track.id })))?;
        }
        for (stream, title) in self.trace.streams().entries().filter(|(stream, _)| *stream != StreamId::COMPUTE) {
            let track = stream_track(stream);
            events.write(&name("thread_name", track, json!({ "name": title })))?;
            events.write(&name("thread_sort_index", track, json!({ "sort_index": track })))?;
        }
        Ok(())
    }

    fn slice(&self, ran: Ran, (begin, end): (Nanos, Nanos), before: &Snapshot, after: &Snapshot) -> Slice<'_> {
        let op = self.trace.op(ran.op);
        let (before, after) = (before.total().0, after.total().0);
        Slice {
            ph: "X",
            name: self.trace.op_name(op),
            pid: PROCESS,
            tid: if op.stream == StreamId::COMPUTE { track_of(self.trace, ran).id } else { stream_track(op.stream) },
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

/// Those of the streams come last.
fn stream_track(stream: StreamId) -> u32 {
    u32::try_from(stream.index()).unwrap_or(u32::MAX).saturating_add(OPTIMIZER.id)
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

/// A clock for every stream.
struct Clock<'a> {
    chrome: &'a ChromeTrace<'a>,
    done_ms: Table<StreamId, f64>,
    runs: u32,
    waits: usize,
    /// When the last operator that computes began. What happens on other streams is queued by then.
    latest: Nanos,
}

impl<'a> Clock<'a> {
    fn new(chrome: &'a ChromeTrace<'a>) -> Self {
        let done_ms = chrome.trace.streams().filled(0.0);
        Clock { chrome, done_ms, runs: 0, waits: 0, latest: Nanos(0) }
    }

    /// When the next operator begins and ends.
    fn run(&mut self, ran: Ran) -> (Nanos, Nanos) {
        while let Some(&(before, stream, on)) = self.chrome.recording.waits.get(self.waits)
            && before <= self.runs
        {
            self.waits += 1;
            self.done_ms[stream] = self.done_ms[stream].max(self.done_ms[on]);
        }
        self.runs = self.runs.saturating_add(1);
        let stream = self.chrome.trace.op(ran.op).stream;
        let begin = nanos(self.done_ms[stream]);
        self.done_ms[stream] += self.chrome.costs.time(ran.op).0;
        if stream == StreamId::COMPUTE {
            self.latest = begin;
        }
        (begin, nanos(self.done_ms[stream]))
    }

    fn end(&self) -> Nanos {
        nanos(self.done_ms.iter().copied().fold(0.0, f64::max))
    }
}

fn nanos(ms: f64) -> Nanos {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times are not negative")]
    Nanos((ms * 1e6).round() as u64)
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
