//! Files that were damaged, or made to do harm: an answer or a clear error, soon, with little memory, and nothing run.

mod writer;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rematic_snapshot::{Snapshot, SnapshotError, Story};
use writer::Plain::{Dict, Float, Int, List, Raw, Text};
use writer::{Plain, block, event, frame, pickle, segment, snapshot};

/// How long a file may take.
const SOON: Duration = Duration::from_secs(1);

/// The time that this thread had a processor, where the system says so: others may use the machine too.
struct Clock {
    began: Instant,
    busy: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Clock { began: Instant::now(), busy: Self::busy() }
    }

    fn busy() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
    }

    fn spent(&self) -> Duration {
        match (self.busy, Self::busy()) {
            (Some(before), Some(after)) => after - before,
            _ => self.began.elapsed(),
        }
    }
}

/// What there is to say about a file.
fn tell(bytes: Vec<u8>) -> Result<Story, SnapshotError> {
    let path = Path::new("file.pickle");
    let clock = Clock::start();
    let snapshot = Snapshot::from_bytes(path, bytes);
    let story = snapshot.and_then(|snapshot| {
        let record = snapshot.device(path, None)?;
        Ok(Story::new(&snapshot, record))
    });
    let spent = clock.spent();
    assert!(spent < SOON, "it took {spent:?}");
    story
}

fn words(bytes: Vec<u8>) -> String {
    tell(bytes).unwrap_err().to_string()
}

fn kept(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/snapshots/{name}.pickle.zst"));
    let mut bytes = Vec::new();
    zstd::Decoder::new(File::open(path).unwrap()).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The most memory that this process ever had, where the system says so.
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[test]
fn files_that_are_no_snapshots_are_told_so() {
    assert_eq!(
        words(Vec::new()),
        "file.pickle is empty; the process that wrote it did not get to the end of _dump_snapshot"
    );
    assert_eq!(
        words(b"PK\x03\x04archive/data.pkl".to_vec()),
        "file.pickle is a zip file, as torch.save writes; give what torch.cuda.memory._dump_snapshot wrote"
    );
    assert_eq!(
        words(pickle(&Int(3))),
        "file.pickle is not a memory snapshot: the snapshot is an int, and should be a dict; give what \
         torch.cuda.memory._dump_snapshot wrote"
    );
    assert_eq!(
        words(pickle(&Dict(vec![("model", Int(3))]))),
        "file.pickle is not a memory snapshot: the snapshot has no 'segments'; give what \
         torch.cuda.memory._dump_snapshot wrote"
    );
    assert_eq!(
        words(pickle(&snapshot(List(vec![]), List(vec![])))),
        "file.pickle has neither memory nor events; call torch.cuda.memory._record_memory_history before the work begins"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_path() {
    let wrong =
        |segment: Plain, events: Vec<Plain>| words(pickle(&snapshot(List(vec![segment]), List(vec![List(events)]))));
    let good = || segment(4096, 2 << 20, vec![]);
    assert!(
        wrong(good(), vec![Int(3)]).contains("the snapshot['device_traces'][0][0] is an int, and should be a dict")
    );
    let missing = Dict(vec![("action", Text("alloc")), ("addr", Text("x"))]);
    assert!(wrong(good(), vec![missing]).contains("['device_traces'][0][0]['addr'] is a str, and should be an int"));
    assert!(wrong(good(), vec![event("alloc", -1, 5)]).contains("['addr'] is -1, and should be 0 or more"));
    assert!(
        wrong(good(), vec![event("alloc", 1, 1 << 60)]).contains("['size'] is 1152921504606846976, and should be less")
    );
    assert!(wrong(good(), vec![event("alloc", 1, 1 << 90)]).contains("['size'] is an int of more than 64 bits"));
    let bad = segment(4096, 2 << 20, vec![Dict(vec![("size", Float(1.5))])]);
    assert!(wrong(bad, vec![]).contains("the snapshot['segments'][0]['blocks'][0]['size'] is a float"));
    let many = Dict((0..65).map(|_| ("x", Int(0))).collect());
    assert!(wrong(good(), vec![many]).contains("['device_traces'][0][0] has 65 keys, where a snapshot has a few"));
}

#[test]
fn a_gpu_that_is_not_there_is_told_with_those_that_are() {
    let path = Path::new("file.pickle");
    let snapshot = Snapshot::from_bytes(path, kept("streams")).unwrap();
    let error = snapshot.device(path, Some(3)).unwrap_err().to_string();
    assert_eq!(error, "file.pickle has nothing of GPU 3; it has GPU 0");
}

/// Nothing that a pickle names is looked up, wherever in it the name stands.
#[test]
fn foreign_classes_are_refused_and_not_run() {
    let touch = b"cposix\nsystem\n(S'touch /tmp/rematic-was-here'\ntR".to_vec();
    for plain in [
        Raw(touch.clone()),
        snapshot(Raw(touch.clone()), List(vec![])),
        snapshot(List(vec![]), List(vec![List(vec![Dict(vec![("frames", Raw(touch.clone()))])])])),
    ] {
        let error = words(pickle(&plain));
        assert!(error.contains("it holds an object of class posix.system"), "{error}");
    }
    assert!(!Path::new("/tmp/rematic-was-here").exists());
}

#[test]
fn cycles_come_to_an_end() {
    // A list of traces that is its own trace and event; segments that hold themselves.
    let itself = Raw(b"]\x94h\x00a".to_vec());
    assert!(words(pickle(&snapshot(List(vec![]), itself.clone()))).contains("is a list, and should be a dict"));
    assert!(words(pickle(&snapshot(itself, List(vec![])))).contains("is a list, and should be a dict"));
    // A segment whose blocks are the list of segments.
    let mut cycle = b"\x80\x04}\x94\x8c\x08segments]\x94(}(\x8c\x07addressK\x01\x8c\x0atotal_sizeK\x01".to_vec();
    cycle.extend(b"\x8c\x06blocksh\x01ues.");
    assert!(words(cycle).contains("['segments'][0]['blocks'][0] has no 'size'"));
}

#[test]
fn nesting_takes_no_stack() {
    let depth = 300_000;
    let mut tuples = vec![0x80, 4, b'N'];
    tuples.extend(std::iter::repeat_n(0x85, depth));
    tuples.push(b'.');
    assert!(words(tuples).contains("the snapshot is a tuple"));
    let mut lists = vec![0x80, 4];
    lists.extend(std::iter::repeat_n(b'(', depth));
    lists.extend(std::iter::repeat_n(b'l', depth));
    lists.push(b'.');
    assert!(words(lists).contains("the snapshot[0] is a list, and should be a dict"));
}

/// Ten lists, each of ten times the one before: ten billion in a hundred bytes.
fn bomb(innermost: &Plain) -> Plain {
    let mut bytes = pickle(innermost);
    bytes.truncate(bytes.len() - 1);
    bytes.drain(..2);
    bytes.push(0x94);
    for level in 0..10u8 {
        bytes.push(b'0');
        bytes.push(b'(');
        for _ in 0..10 {
            bytes.extend([b'h', level]);
        }
        bytes.extend([b'l', 0x94]);
    }
    Raw(bytes)
}

/// A list that holds one thing a million times, by its number.
fn million(of: &Plain) -> Plain {
    let mut bytes = pickle(of);
    bytes.truncate(bytes.len() - 1);
    bytes.drain(..2);
    bytes.extend([0x94, b'0', b'(']);
    for _ in 0..1_000_000 {
        bytes.extend(b"h\x00");
    }
    bytes.push(b'l');
    Raw(bytes)
}

#[test]
fn what_is_shared_again_and_again_is_bounded() {
    let cases = [
        snapshot(bomb(&segment(0, 1, vec![])), List(vec![])),
        snapshot(List(vec![]), bomb(&event("alloc", 1, 1))),
        snapshot(List(vec![]), List(vec![bomb(&event("alloc", 1, 1))])),
        snapshot(List(vec![]), List(vec![million(&event("alloc", 1, 1))])),
        snapshot(
            List(vec![]),
            List(vec![List(vec![Dict(vec![
                ("action", Text("alloc")),
                ("addr", Int(5)),
                ("size", Int(5)),
                ("frames", bomb(&frame())),
            ])])]),
        ),
        snapshot(List(vec![segment(0, 1, vec![million(&block(0, 1, "inactive"))])]), List(vec![])),
    ];
    for plain in cases {
        let error = words(pickle(&plain));
        assert!(error.contains("entries, more than") || error.contains("should be a dict"), "{error}");
    }
    // A frame that a stack has a million times is legal, and harmless.
    let shared =
        Dict(vec![("action", Text("alloc")), ("addr", Int(5)), ("size", Int(5)), ("frames", million(&frame()))]);
    assert_eq!(tell(pickle(&snapshot(List(vec![]), List(vec![List(vec![shared])])))).unwrap().record.events, 1);
    if let Some(most) = most_memory() {
        assert!(most < 1 << 30, "{most} bytes");
    }
}

#[test]
fn values_that_only_fill_memory_are_refused() {
    let mut lists = vec![0x80, 4];
    lists.extend(std::iter::repeat_n(b']', 8_000_000));
    lists.push(b'.');
    let error = words(lists);
    assert!(error.contains("its values take more than"), "{error}");
    assert!(error.ends_with("record it again with torch.cuda.memory._dump_snapshot"), "{error}");
}

#[test]
fn numbers_at_the_edge_are_borne() {
    let edge = i128::from(u64::MAX);
    let most = (1 << 60) - 1;
    let events = || {
        vec![
            event("segment_alloc", edge, most),
            event("alloc", edge, most),
            event("alloc", edge - 1, most),
            event("segment_map", edge - 5, most),
            event("segment_unmap", 0, most),
            event("free_requested", edge, 0),
            event("free_completed", edge, 0),
            event("free_completed", 7, most),
            event("segment_free", edge, most),
            event("oom", edge, most),
            event("alloc", 0, 0),
        ]
    };
    let blocks = vec![block(edge, most, "active_allocated"), block(0, most, "active_pending_free")];
    let plain = snapshot(
        List((0..40).map(|_| segment(edge, most, blocks.clone())).collect()),
        List(vec![List((0..40).flat_map(|_| events()).collect())]),
    );
    let story = tell(pickle(&plain)).unwrap();
    assert!(story.record.misfits > 0 && story.failure.is_some());
}

/// Every snapshot that is kept, cut at many places.
#[test]
fn what_is_cut_is_told_so() {
    for name in ["streams", "fragments"] {
        let whole = kept(name);
        for length in (1..whole.len() - 1).step_by(97) {
            let error = words(whole[..length].to_vec());
            assert!(error.contains("it ends too early"), "{name} cut at {length}: {error}");
        }
    }
}

/// How many cases a property has: a few, or as many as are asked for.
fn cases(few: u32) -> Config {
    let asked = std::env::var("REMATIC_SNAPSHOT_CASES").ok().and_then(|text| text.parse().ok());
    Config { cases: asked.unwrap_or(few), failure_persistence: None, ..Config::default() }
}

#[test]
fn damaged_bytes_give_an_answer_or_an_error() {
    let files = ["streams", "fragments", "state", "runs-out-truncated"].map(kept);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    let mut runner = TestRunner::new(cases(1_500));
    runner
        .run(&(0..files.len(), damage), |(file, damage)| {
            let mut bytes = files[file].clone();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Err(error) = tell(bytes) {
                prop_assert!(error.to_string().starts_with("file.pickle"), "{error}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_events_in_any_order_give_an_answer() {
    const ACTIONS: [&str; 9] = [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "annotate",
    ];
    let one = (0..ACTIONS.len(), 0..40i128, prop_oneof![0..3000i128, 0..(1i128 << 34)]);
    let segments = prop::collection::vec((0..40i128, 0..(1i128 << 28)), 0..4);
    let mut runner = TestRunner::new(cases(500));
    runner
        .run(&(prop::collection::vec(one, 0..120), segments), |(events, segments)| {
            let events = events.iter().map(|(action, place, size)| event(ACTIONS[*action], place << 21, *size));
            let segments = segments.iter().map(|(place, size)| {
                segment(place << 21, *size, vec![block(place << 21, size / 2, "active_allocated")])
            });
            let plain = snapshot(List(segments.collect()), List(vec![List(events.collect())]));
            match tell(pickle(&plain)) {
                Ok(story) => prop_assert!(story.moment.groups.len() <= story.record.events + 8),
                Err(error) => prop_assert!(matches!(error, SnapshotError::Nothing { .. }), "{error}"),
            }
            Ok(())
        })
        .unwrap();
}
