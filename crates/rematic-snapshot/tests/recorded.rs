//! Snapshots of scripts on a GPU that is not there (`tests/snapshots/record` of the repository), against what torch's own
//! counters said when they were taken.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use rematic_snapshot::{MomentKind, Outcome, Part, Snapshot, Start, Story};
use rematic_trace::Bytes;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

fn story(name: &str) -> Story {
    let path = folder().join(format!("{name}.pickle.zst"));
    let mut bytes = Vec::new();
    zstd::Decoder::new(File::open(&path).unwrap()).unwrap().read_to_end(&mut bytes).unwrap();
    let snapshot = Snapshot::from_bytes(&path, bytes).unwrap();
    Story::new(&snapshot, snapshot.device(&path, None).unwrap())
}

fn counters(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder().join(format!("{name}.json"))).unwrap()).unwrap()
}

fn number(counters: &Value, name: &str) -> Bytes {
    Bytes(counters[name].as_u64().unwrap())
}

const COMPLETE: [&str; 10] = [
    "step",
    "all-stacks",
    "no-stacks",
    "expandable",
    "divisions",
    "streams",
    "pools",
    "runs-out",
    "runs-out-later",
    "fragments",
];

#[test]
fn peaks_are_those_of_torchs_counters() {
    for name in COMPLETE.iter().chain(&["late", "truncated", "runs-out-truncated"]) {
        let (story, counters) = (story(name), counters(name));
        let found = [
            ("requested_peak", story.requested_peak_bytes),
            ("allocated_peak", story.allocated_peak_bytes),
            ("active_peak", story.active_peak_bytes),
            ("reserved_peak", story.reserved_peak_bytes),
        ];
        for (counter, found) in found {
            assert_eq!(found, number(&counters, counter), "{name}: {counter}");
        }
        assert_eq!(story.record.events as u64, counters["entries"][0].as_u64().unwrap(), "{name}");
        assert!(story.record.agrees && story.record.misfits == 0, "{name}: {:?}", story.record);
        assert_eq!(story.record.complete, COMPLETE.contains(name), "{name}");
    }
}

#[test]
fn the_same_requests_lead_to_the_same_segments() {
    for name in COMPLETE.iter().chain(&["late", "truncated", "runs-out-truncated"]) {
        let rerun = story(name).rerun.unwrap();
        assert!(rerun.reproduced, "{name}: {rerun:?}");
        assert_eq!(rerun.reserved_bytes, story(name).reserved_peak_bytes, "{name}");
    }
}

#[test]
fn what_was_in_memory_adds_up() {
    for name in COMPLETE {
        let story = story(name);
        let moment = &story.moment;
        assert_eq!(moment.groups.iter().map(|group| group.bytes).sum::<Bytes>(), moment.active_bytes, "{name}");
        assert_eq!(moment.parts.iter().map(|part| part.bytes).sum::<Bytes>(), moment.active_bytes, "{name}");
        assert!(moment.groups.is_sorted_by(|one, other| one.bytes >= other.bytes), "{name}");
        assert_eq!(story.fragmentation.free_bytes, moment.reserved_bytes.saturating_sub(moment.active_bytes), "{name}");
    }
}

#[test]
fn a_failure_is_told_with_torchs_numbers() {
    for name in ["runs-out", "runs-out-truncated", "fragments"] {
        let (story, counters) = (story(name), counters(name));
        assert_eq!(story.moment.kind, MomentKind::OutOfMemory, "{name}");
        assert_eq!(story.moment.allocated_bytes, number(&counters, "allocated_current"), "{name}");
        assert_eq!(story.moment.reserved_bytes, number(&counters, "reserved_current"), "{name}");
        assert_eq!(story.moment.requested_bytes, number(&counters, "requested_current"), "{name}");
        let failure = story.failure.unwrap();
        assert_eq!(failure.device_free_bytes, number(&counters, "free"), "{name}");
        assert_eq!(failure.capacity_bytes, number(&counters, "total"), "{name}");
    }
}

#[test]
fn a_snapshot_that_is_taken_later_tells_of_the_failure_too() {
    let (then, later) = (story("runs-out"), story("runs-out-later"));
    assert_eq!(later.moment.kind, MomentKind::OutOfMemory);
    assert_eq!(later.moment.allocated_bytes, then.moment.allocated_bytes);
    assert_eq!(later.moment.reserved_bytes, then.moment.reserved_bytes);
    assert_eq!(later.moment.parts, then.moment.parts);
    assert_eq!(number(&counters("runs-out-later"), "allocated_current"), Bytes(0));
}

#[test]
fn lines_and_parts_are_those_of_the_script() {
    let story = story("runs-out");
    // It ran out in backward, which has no Python frames.
    assert_eq!(story.failure.as_ref().unwrap().line, "backward, on autograd's thread");
    assert_eq!(story.moment.groups[0].line, "train.py:49 loss");
    let scores = story.moment.groups.iter().find(|group| group.line == "train.py:18 forward").unwrap();
    assert_eq!((scores.module.as_str(), scores.part), ("train.py:44 › 30 › 18", Part::Forward));
    let linear = story.moment.groups.iter().find(|group| group.module.ends_with(" › linear")).unwrap();
    assert!(linear.line.starts_with("train.py:"), "{linear:?}");
    assert!(story.part(Part::Model) > Bytes(10 << 20), "{:?}", story.moment.parts);
}

#[test]
fn what_was_there_before_the_record_is_said() {
    let late = story("late");
    assert!(late.record.before_count > 30, "{:?}", late.record);
    assert_eq!(late.part(Part::Before), late.record.before_bytes);
    assert!(late.part(Part::Optimizer) > Bytes(0) && late.part(Part::Backward) > Bytes(0), "{:?}", late.moment.parts);
}

#[test]
fn fragmentation_is_named_with_what_pins_it_and_what_would_have_helped() {
    let story = story("fragments");
    let fragmentation = &story.fragmentation;
    assert_eq!(fragmentation.free_bytes, Bytes((6 * 116) << 20));
    assert_eq!(fragmentation.largest_free_bytes, Bytes(116 << 20));
    assert_eq!((fragmentation.pieces, fragmentation.partly_empty), (6, 6));
    let worst = &fragmentation.pinned[0];
    assert_eq!((worst.bytes, worst.free_bytes, worst.live), (Bytes(128 << 20), Bytes(116 << 20), 1));
    assert!(worst.blocks[0].line.starts_with("train.py:") && worst.blocks[0].line.ends_with(" empty"), "{worst:?}");
    let failure = story.failure.as_ref().unwrap();
    assert!(failure.line.starts_with("train.py:") && failure.line.ends_with(" empty"), "{failure:?}");
    assert!(failure.stack.iter().any(|frame| frame.ends_with(" fragments")), "{failure:?}");
    let expandable = story.trials.iter().find(|trial| trial.settings == "expandable_segments:True").unwrap();
    assert_eq!((expandable.outcome, expandable.start), (Outcome::Saved, Start::Empty));
    assert!(expandable.reserved_bytes <= number(&counters("fragments"), "total"));
}

#[test]
fn settings_that_do_not_help_are_told_so() {
    let story = story("runs-out");
    let capacity = story.failure.as_ref().unwrap().capacity_bytes;
    let (saved, others): (Vec<_>, Vec<_>) = story.trials.iter().partition(|trial| trial.outcome == Outcome::Saved);
    assert!(saved.iter().all(|trial| trial.reserved_bytes <= capacity), "{saved:?}");
    assert!(others.iter().all(|trial| trial.outcome != Outcome::Runs), "{others:?}");
    assert!(story.trials.is_sorted_by_key(|trial| trial.outcome != Outcome::Saved), "{:?}", story.trials);
    assert!(others.iter().any(|trial| trial.reserved_bytes > capacity), "{others:?}");
}

/// What another setting would have reserved is what torch reserved under it.
#[test]
fn a_trial_is_what_torch_does_under_that_setting() {
    let trials = story("step").trials;
    let expandable = trials.iter().find(|trial| trial.settings == "expandable_segments:True").unwrap();
    assert_eq!(expandable.reserved_bytes, number(&counters("expandable"), "reserved_peak"));
    let trials = story("expandable").trials;
    let plain = trials.iter().find(|trial| trial.settings.ends_with("expandable_segments:False")).unwrap();
    assert_eq!(plain.reserved_bytes, number(&counters("step"), "reserved_peak"));
}

#[test]
fn without_events_the_segments_are_told() {
    let (story, counters) = (story("state"), counters("state"));
    assert_eq!(story.moment.kind, MomentKind::Snapshot);
    assert_eq!(story.moment.allocated_bytes, number(&counters, "allocated_current"));
    assert!(story.moment.groups.iter().all(|group| group.line.starts_with("train.py:")), "{:?}", story.moment.groups);
}

#[test]
fn every_protocol_says_the_same() {
    let newest = serde_json::to_value(story("streams")).unwrap();
    for protocol in 0..4 {
        assert_eq!(serde_json::to_value(story(&format!("streams-{protocol}"))).unwrap(), newest, "protocol {protocol}");
    }
}

#[test]
fn of_several_gpus_the_busiest_is_told() {
    let story = story("two-gpus");
    assert_eq!((story.device, story.devices), (1, vec![0, 1]));
    assert_eq!(story.moment.allocated_bytes, Bytes(90 << 20));
}
