//! A step as a Chrome trace and as CSV: read back, both say what the replay says.

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Outcome, Problem};
use rematic_replay::{Allocator, Ledger, Recording, Schedule};
use rematic_report::{ChromeTrace, timeline_csv};
use rematic_trace::{
    Bytes, Category, Dtype, Event, Flags, Layout, Millis, Module, OpRecord, Phase, StepTrace, Tensor, Verdict,
};
use serde_json::Value;

/// A step that was recorded, with what its replay says.
struct Step {
    trace: StepTrace,
    costs: Costs,
    recording: Recording,
    peak: Bytes,
    recompute: Millis,
}

/// Plain, or with the plan for a share of the peak.
fn step(model: &str, options: &Options, share: Option<f64>) -> Step {
    let trace = Model::builtin(model).unwrap().with(options).unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let (recording, replayed) = {
        let problem = Problem::new(trace.clone(), costs.clone(), Limits::default()).unwrap();
        let checkpoints = share.map_or_else(Vec::new, |share| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a size")]
            let budget = Bytes((problem.baseline().peak.0 as f64 * share) as u64);
            let Outcome { verdict: Verdict::Planned, solution } = problem.exact(budget) else {
                panic!("no plan for {model} at {share}")
            };
            solution.checkpoints
        });
        (problem.record(&checkpoints), problem.replay(&checkpoints))
    };
    assert_eq!(share.is_some(), recording.runs.iter().any(|ran| ran.again));
    Step { trace, costs, recording, peak: replayed.peak, recompute: replayed.recompute }
}

fn steps() -> Vec<Step> {
    let llama = Options { batch: Some(2), seq: Some(8192), ..Options::default() };
    vec![
        step("seed-transformer", &Options::default(), None),
        step("seed-transformer", &Options::default(), Some(0.64)),
        step("llama-3-8b", &llama, Some(0.6)),
    ]
}

fn events(step: &Step) -> Vec<Value> {
    let mut text = Vec::new();
    ChromeTrace { trace: &step.trace, costs: &step.costs, recording: &step.recording }.write(&mut text).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

fn of_kind<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == kind)
}

/// A time of an event; viewers count in nanoseconds.
#[expect(clippy::cast_possible_truncation, reason = "times of a step")]
fn nanos(event: &Value, field: &str) -> i64 {
    (event[field].as_f64().unwrap() * 1e3).round() as i64
}

#[test]
fn the_highest_sample_of_the_counter_is_the_peak() {
    for step in steps() {
        let events = events(&step);
        let samples = |name: &str| -> Vec<(i64, u64)> {
            let named = of_kind(&events, "C").filter(|event| event["name"] == name);
            let sum =
                |event: &Value| event["args"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
            named.map(|event| (nanos(event, "ts"), sum(event))).collect()
        };
        let memory = samples("memory");
        assert_eq!(memory, samples("memory in all"));
        let categories = of_kind(&events, "C").find(|event| event["name"] == "memory").unwrap();
        assert_eq!(categories["args"].as_object().unwrap().len(), Category::ALL.len());
        // One sample a moment, so that the highest is seen; and all but the last of them last.
        assert!(memory.is_sorted_by(|(earlier, _), (later, _)| earlier < later));
        let seen = &memory[..memory.len() - 1];
        assert_eq!(seen.iter().map(|(_, bytes)| *bytes).max(), Some(step.peak.0));
        let operators: Vec<(i64, u64)> = of_kind(&events, "X")
            .map(|event| (nanos(event, "ts"), event["args"]["in_use_bytes"].as_u64().unwrap()))
            .collect();
        // Every sample is the highest of the operators that begin then.
        for &(at, bytes) in &seen[1..] {
            assert_eq!(operators.iter().filter(|(begin, _)| *begin == at).map(|(_, bytes)| *bytes).max(), Some(bytes));
        }
        let change: i64 = of_kind(&events, "X").map(|event| event["args"]["change_bytes"].as_i64().unwrap()).sum();
        let (start, end) = (step.recording.start.total().0, operators[operators.len() - 1].1);
        assert_eq!(i128::from(change), i128::from(end) - i128::from(start));
    }
}

#[test]
fn operators_lie_on_the_tracks_of_their_phases_one_after_the_other() {
    for step in steps() {
        let events = events(&step);
        let mut tracks: Vec<(u64, String)> = of_kind(&events, "M")
            .filter(|event| event["name"] == "thread_name")
            .map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned()))
            .collect();
        tracks.sort();
        let names: Vec<&str> = tracks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["modules", "forward", "backward", "recompute", "optimizer"]);
        let mut end = 0;
        let mut recomputed = 0;
        for (event, ran) in of_kind(&events, "X").zip(&step.recording.runs) {
            let op = step.trace.op(ran.op);
            let track = tracks.iter().find(|(id, _)| event["tid"] == *id).unwrap();
            let phase = if ran.again { "recompute".to_owned() } else { op.phase.to_string() };
            assert_eq!(track.1, phase);
            assert_eq!(event["name"], step.trace.op_name(op));
            let module = step.trace.module_of(op).map(|module| step.trace.path(module));
            assert_eq!(event["args"]["module"].as_str(), module.as_deref());
            assert_eq!(nanos(event, "ts"), end, "no gap and no overlap");
            end += nanos(event, "dur");
            recomputed += if ran.again { nanos(event, "dur") } else { 0 };
        }
        let expected = step.costs.step().time.0 + step.recompute.0;
        assert!((end as f64 / 1e6 - expected).abs() < 1e-6 * expected, "{end} ns for {expected} ms");
        // Every operator is rounded by at most a nanosecond.
        let tolerance = step.recording.runs.len() as f64 / 1e6;
        assert!((recomputed as f64 / 1e6 - step.recompute.0).abs() <= tolerance);
    }
}

#[test]
fn modules_nest_around_their_operators() {
    for step in steps() {
        let mut open: Vec<(String, i64)> = Vec::new();
        let mut now = 0;
        let mut spans = 0;
        for event in events(&step) {
            match event["ph"].as_str().unwrap() {
                "B" => {
                    assert!(nanos(&event, "ts") >= now);
                    now = nanos(&event, "ts");
                    let path = event["args"]["module"].as_str().unwrap().to_owned();
                    if let Some((outer, _)) = open.last() {
                        assert!(path.starts_with(&format!("{outer}.")), "{path} in {outer}");
                    }
                    assert!(path.ends_with(event["name"].as_str().unwrap()));
                    open.push((path, now));
                    spans += 1;
                }
                "E" => {
                    assert!(nanos(&event, "ts") >= now);
                    now = nanos(&event, "ts");
                    assert!(open.pop().is_some());
                }
                "X" => {
                    let module = event["args"]["module"].as_str();
                    assert_eq!(open.last().map(|(path, _)| path.as_str()), module);
                }
                _ => {}
            }
        }
        assert!(open.is_empty());
        assert!(spans > step.trace.calls().len(), "forward and backward of every call");
    }
}

#[test]
fn rows_of_the_table_are_the_recording() {
    for step in steps() {
        let mut text = Vec::new();
        timeline_csv(&step.trace, &step.costs, &step.recording, &mut text).unwrap();
        let mut table = csv::Reader::from_reader(text.as_slice());
        let header: Vec<String> = table.headers().unwrap().iter().map(str::to_owned).collect();
        let categories = Category::ALL.map(|category| format!("{category}_bytes"));
        assert_eq!(header[..7], ["index", "op", "module", "phase", "again", "time_ms", "total_bytes"]);
        assert_eq!(header[7..], categories);
        let mut highest = 0;
        let rows: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), step.recording.runs.len());
        for (index, (row, ran)) in rows.iter().zip(&step.recording.runs).enumerate() {
            let number = |at: usize| row[at].parse::<u64>().unwrap();
            assert_eq!(number(0), index as u64);
            assert_eq!(&row[1], step.trace.op_name(step.trace.op(ran.op)));
            assert_eq!(row[4].parse::<bool>().unwrap(), ran.again);
            assert_eq!(row[5].parse::<f64>().unwrap(), step.costs.time(ran.op).0);
            assert_eq!(number(6), (7..row.len()).map(number).sum::<u64>());
            highest = highest.max(number(6));
        }
        assert_eq!(highest, step.peak.0);
    }
}

const EVIL: &str = "a\"b,c\r\n<script>alert(1)</script>\\\u{0}\u{2028}'é";

/// One operator in one module, all of them with names to fear.
fn evil() -> Step {
    let mut trace = StepTrace::new(EVIL);
    let root = Module {
        name: EVIL.to_owned(),
        class: EVIL.to_owned(),
        parent: None,
        parameters: Vec::new(),
        buffers: Vec::new(),
    };
    let root = trace.add_module(root);
    let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[4, 8]));
    let input = Tensor { storage: trace.storage_before_step(128, Category::Other), layout };
    let call = trace.enter(root, vec![input.storage]);
    let output = Tensor { storage: trace.next_storage(), layout };
    trace.run(OpRecord {
        name: EVIL,
        phase: Phase::Forward,
        call: Some(call),
        differentiates: None,
        flags: Flags::default(),
        mutates: &[],
        inputs: &[input],
        outputs: &[output],
        saves: &[],
        births: &[(128, Category::Activation)],
    });
    trace.exit(call, vec![output.storage]);
    trace.push(Event::Drop(output.storage));
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let recording = Recording::new(&Schedule::plain(&trace, &Ledger::new(&trace, Allocator::Cuda)));
    Step { trace, costs, recording, peak: Bytes(1024), recompute: Millis(0.0) }
}

#[test]
fn names_survive() {
    let step = evil();
    let events = events(&step);
    let op = of_kind(&events, "X").next().unwrap();
    assert_eq!((op["name"].as_str(), op["args"]["module"].as_str()), (Some(EVIL), Some(EVIL)));
    assert_eq!(of_kind(&events, "B").next().unwrap()["name"], EVIL);
    assert_eq!(of_kind(&events, "M").next().unwrap()["args"]["name"], EVIL);
    let mut text = Vec::new();
    timeline_csv(&step.trace, &step.costs, &step.recording, &mut text).unwrap();
    let rows: Vec<csv::StringRecord> =
        csv::Reader::from_reader(text.as_slice()).records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0][1], &rows[0][2], &rows[0][6]), (EVIL, EVIL, "1024"));
    assert_eq!(step.peak, Bytes(1024));
}

/// A disk that fills up.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_fails_is_an_error() {
    let step = evil();
    for room in [0, 50, 600] {
        let trace = ChromeTrace { trace: &step.trace, costs: &step.costs, recording: &step.recording };
        assert_eq!(trace.write(&mut Full(room)).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }
    let error = timeline_csv(&step.trace, &step.costs, &step.recording, &mut Full(10)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}
