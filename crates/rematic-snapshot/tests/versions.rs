//! Snapshots of other versions of torch, and records that leave something out.

#[path = "hostile/writer.rs"]
#[allow(dead_code, reason = "the hostile files need more")]
mod writer;

use std::path::Path;

use rematic_snapshot::{MomentKind, Part, Snapshot, Story};
use rematic_trace::Bytes;
use writer::Plain::{Dict, Int, List, Text};
use writer::{Plain, block, event, frame, pickle, segment, snapshot};

const MIB: i128 = 1 << 20;

fn story(plain: &Plain) -> Story {
    let path = Path::new("file.pickle");
    let snapshot = Snapshot::from_bytes(path, pickle(plain)).unwrap();
    Story::new(&snapshot, snapshot.device(path, None).unwrap())
}

/// Before 2.1 blocks had neither addresses nor requested sizes, and their stacks lay in a history.
#[test]
fn blocks_of_the_first_versions_follow_each_other() {
    let history = List(vec![Dict(vec![("addr", Int(0)), ("real_size", Int(5)), ("frames", List(vec![frame()]))])]);
    let old = |state, history: Option<Plain>| {
        let mut entries = vec![("size", Int(2 * MIB)), ("state", Text(state))];
        entries.extend(history.map(|history| ("history", history)));
        Dict(entries)
    };
    let blocks = vec![old("active_allocated", Some(history)), old("inactive", None), old("active_pending_free", None)];
    let segments =
        List(vec![Dict(vec![("address", Int(64 * MIB)), ("total_size", Int(20 * MIB)), ("blocks", List(blocks))])]);
    // The list alone, as `torch.cuda.memory_snapshot` gives it.
    for plain in [segments.clone(), Dict(vec![("segments", segments)])] {
        let story = story(&plain);
        assert_eq!(story.moment.kind, MomentKind::Snapshot);
        assert_eq!((story.moment.allocated_bytes, story.moment.active_bytes), (Bytes(2 << 20), Bytes(4 << 20)));
        assert_eq!(story.fragmentation.pieces, 2);
        assert!(story.moment.groups.iter().any(|group| group.line == "train.py:3 step"), "{:?}", story.moment.groups);
    }
}

/// The same requests, with both events of a block that goes, or with one.
fn record(frees: &[&'static str]) -> Story {
    let mut events = vec![event("segment_alloc", 64 * MIB, 20 * MIB)];
    events.push(event("alloc", 64 * MIB, 3 * MIB));
    events.push(event("alloc", 67 * MIB, 4 * MIB));
    events.extend(frees.iter().map(|action| event(action, 64 * MIB, 3 * MIB)));
    events.push(event("alloc", 64 * MIB, 2 * MIB));
    let blocks = vec![
        block(64 * MIB, 3 * MIB, "active_allocated"),
        block(67 * MIB, 4 * MIB, "active_allocated"),
        block(71 * MIB, 13 * MIB, "inactive"),
    ];
    story(&snapshot(List(vec![segment(64 * MIB, 20 * MIB, blocks)]), List(vec![List(events)])))
}

#[test]
fn one_of_the_two_events_of_a_free_is_enough() {
    let whole = record(&["free_requested", "free_completed"]);
    assert_eq!(whole.allocated_peak_bytes, Bytes(7 << 20));
    assert!(whole.record.complete && whole.record.agrees && whole.rerun.as_ref().unwrap().reproduced);
    for frees in [&["free_requested"], &["free_completed"]] {
        let part = record(frees);
        assert_eq!(part.allocated_peak_bytes, whole.allocated_peak_bytes);
        assert_eq!((part.record, part.rerun), (whole.record.clone(), whole.rerun.clone()));
    }
}

/// The third block of the record has 2 MiB, and gets 3: what is left would be too small to be split off.
#[test]
fn a_block_has_what_is_too_small_to_be_split_off() {
    let story = record(&["free_requested", "free_completed"]);
    assert_eq!(story.requested_peak_bytes, Bytes(7 << 20));
    assert!(story.record.agrees, "{:?}", story.record);
}

#[test]
fn what_was_freed_and_never_made_was_there_before() {
    let events = vec![
        event("alloc", 80 * MIB, 2 * MIB),
        event("free_requested", 64 * MIB, 3 * MIB - 5),
        event("free_completed", 64 * MIB, 3 * MIB - 5),
    ];
    let blocks = vec![block(64 * MIB, 16 * MIB, "inactive"), block(80 * MIB, 2 * MIB, "active_allocated")];
    let story = story(&snapshot(List(vec![segment(64 * MIB, 20 * MIB, blocks)]), List(vec![List(events)])));
    assert!(!story.record.complete);
    assert_eq!((story.record.before_count, story.record.before_bytes), (1, Bytes(3 << 20)));
    assert_eq!(story.part(Part::Before), Bytes(3 << 20));
    assert_eq!(story.allocated_peak_bytes, Bytes(5 << 20));
}

/// Two blocks in a segment, as the recorded settings would have them or not.
fn under(settings: &'static str, first_segment: i128) -> Story {
    let events = vec![
        event("segment_alloc", 64 * MIB, first_segment),
        event("alloc", 64 * MIB, 3 * MIB),
        event("alloc", 67 * MIB, 4 * MIB),
    ];
    let blocks = vec![
        block(64 * MIB, 3 * MIB, "active_allocated"),
        block(67 * MIB, 4 * MIB, "active_allocated"),
        block(71 * MIB, first_segment - 7 * MIB, "inactive"),
    ];
    let settings = Dict(vec![("PYTORCH_CUDA_ALLOC_CONF", Text(settings))]);
    story(&Dict(vec![
        ("segments", List(vec![segment(64 * MIB, first_segment, blocks)])),
        ("device_traces", List(vec![List(events)])),
        ("allocator_settings", settings),
    ]))
}

#[test]
fn nothing_is_tried_where_the_driver_places_blocks() {
    let story = under("backend:cudaMallocAsync", 20 * MIB);
    assert_eq!((story.trials.len(), story.rerun, story.trials_left_out), (0, None, false));
    assert!(story.settings_unread.unwrap().starts_with("backend:cudaMallocAsync is not modelled"));
}

/// A setting of a later version is kept, and does no harm where the requests lead to the recorded segments without it.
#[test]
fn settings_that_are_not_known_are_no_harm_if_the_record_is_made_again() {
    let harmless = under("later:1,max_split_size_mb:512", 20 * MIB);
    assert!(harmless.settings_unread.is_some() && harmless.rerun.unwrap().reproduced);
    assert!(
        harmless.trials.iter().any(|trial| trial.settings == "later:1,max_split_size_mb:512,expandable_segments:True"),
        "{:?}",
        harmless.trials
    );
    let other = under("later:1,max_split_size_mb:512", 24 * MIB);
    assert!(!other.rerun.unwrap().reproduced);
    assert_eq!(other.trials, []);
}

#[test]
fn a_setting_is_not_tried_against_itself() {
    let found = under("roundup_power2_divisions:8", 20 * MIB).trials;
    assert!(found.iter().all(|trial| !trial.settings.contains("divisions:8,roundup_power2_divisions")), "{found:?}");
    assert!(found.iter().all(|trial| trial.settings != "roundup_power2_divisions:8"), "{found:?}");
    assert!(found.iter().any(|trial| trial.settings.starts_with("roundup_power2_divisions:")), "{found:?}");
}
