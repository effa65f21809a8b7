//! When a storage counts, as what, and where the peak is.

use crate::script::{Action, Script};
use rematic_replay::{Allocator, Moment, Resident, Timeline};
use rematic_trace::{Bytes, Category, Event, Parameter, Phase, Pool};

fn totals(timeline: &Timeline) -> Vec<u64> {
    timeline.totals().iter().map(|bytes| bytes.0).collect()
}

#[test]
fn an_empty_step_stays_where_it_starts() {
    let mut script = Script::new();
    script.before(100, Category::Parameter);
    let timeline = script.replay(Allocator::Cpu);
    assert!(timeline.totals().is_empty());
    assert_eq!(timeline.start().total(), Bytes(100));
    assert_eq!(timeline.end(), timeline.start());
    assert_eq!(timeline.peak().at, None);
    assert_eq!(timeline.peak().snapshot, *timeline.start());
}

#[test]
fn views_share_a_storage() {
    let mut script = Script::new();
    let storage = script.make(Phase::Forward, 100);
    let view = Action { views: &[storage, storage], ..Action::default() };
    script.run(Phase::Forward, view);
    script.drop(storage);
    script.look(Phase::Forward);
    assert_eq!(totals(&script.replay(Allocator::Cpu)), [100, 100, 0]);
}

#[test]
fn saved_outlives_dropped() {
    let mut script = Script::new();
    let births = [(100, Category::Activation)];
    let storage = script.trace.next_storage();
    let op = script.run(Phase::Forward, Action { births: &births, saves_births: true, ..Action::default() });
    script.drop(storage);
    script.look(Phase::Forward);
    script.push(Event::Unsave(op));
    script.look(Phase::Backward);
    assert_eq!(totals(&script.replay(Allocator::Cpu)), [100, 100, 0]);
}

#[test]
fn held_outlives_saved() {
    let mut script = Script::new();
    let births = [(100, Category::Activation)];
    let storage = script.trace.next_storage();
    let op = script.run(Phase::Forward, Action { births: &births, saves_births: true, ..Action::default() });
    script.push(Event::Unsave(op));
    script.look(Phase::Backward);
    script.drop(storage);
    script.look(Phase::Backward);
    assert_eq!(totals(&script.replay(Allocator::Cpu)), [100, 100, 0]);
}

#[test]
fn every_saver_must_let_go() {
    let mut script = Script::new();
    let storage = script.make(Phase::Forward, 100);
    // The first saves it twice (a product of a tensor with itself): both go with one event.
    let first = script.run(Phase::Forward, Action { saves: &[storage, storage], ..Action::default() });
    let second = script.run(Phase::Forward, Action { saves: &[storage], ..Action::default() });
    script.drop(storage);
    script.push(Event::Unsave(second));
    script.look(Phase::Backward);
    script.push(Event::Unsave(first));
    script.look(Phase::Backward);
    assert_eq!(totals(&script.replay(Allocator::Cpu)), [100, 100, 100, 100, 0]);
}

#[test]
fn what_exists_before_the_step_can_die_in_it() {
    let mut script = Script::new();
    let batch = script.before(100, Category::Other);
    script.look(Phase::Forward);
    script.drop(batch);
    script.look(Phase::Forward);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(totals(&timeline), [100, 0]);
    assert_eq!(timeline.end().total(), Bytes(0));
}

#[test]
fn a_new_category_takes_the_bytes_along() {
    let mut script = Script::new();
    let gradient = script.make(Phase::Backward, 100);
    script.push(Event::Recategorize(gradient, Category::Gradient));
    script.look(Phase::Backward);
    script.drop(gradient);
    script.look(Phase::Optimizer);
    let timeline = script.replay(Allocator::Cpu);
    let seen: Vec<_> = timeline.snapshots().iter().map(|s| (s[Category::Temp].0, s[Category::Gradient].0)).collect();
    assert_eq!(seen, [(100, 0), (0, 100), (0, 0)]);
    assert_eq!(totals(&timeline), [100, 100, 0]);
}

#[test]
fn cuda_rounds_each_storage_and_the_host_none() {
    let mut script = Script::new();
    script.before(1, Category::Parameter);
    script.before(0, Category::Buffer);
    script.make(Phase::Forward, 512);
    script.make(Phase::Forward, 513);
    assert_eq!(totals(&script.replay(Allocator::Cpu)), [513, 1026]);
    assert_eq!(totals(&script.replay(Allocator::Cuda)), [1024, 2048]);
}

#[test]
fn the_first_of_equal_peaks_counts() {
    let mut script = Script::new();
    let first = script.make(Phase::Forward, 100);
    script.drop(first);
    script.make(Phase::Backward, 100);
    let peak = script.replay(Allocator::Cpu).peak().clone();
    assert_eq!(peak.at.map(|moment| moment.op.index()), Some(0));
    assert_eq!(peak.snapshot[Category::Activation], Bytes(100));
}

#[test]
fn the_start_counts_and_wins_a_tie() {
    let mut script = Script::new();
    let old = script.before(100, Category::Gradient);
    script.drop(old);
    script.make(Phase::Forward, 100);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(timeline.peak().at, None);
    assert_eq!(timeline.peak().snapshot[Category::Gradient], Bytes(100));
    assert_eq!(timeline.alive_at_peak(&script.trace, 9)[0].storage, old);
}

#[test]
fn the_peak_says_where_it_is() {
    let mut script = Script::new();
    let module = script.module("root", None);
    let call = script.trace.enter(module, Vec::new());
    let births = [(100, Category::Activation)];
    let op = script.run(Phase::Forward, Action { call: Some(call), births: &births, ..Action::default() });
    script.trace.exit(call, Vec::new());
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(timeline.peak().at, Some(Moment { op, phase: Phase::Forward, module: Some(module) }));
    assert_eq!(timeline.after(op), Some(&timeline.peak().snapshot));
}

#[test]
fn residents_are_the_largest_with_their_holders() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let weight = script.before(50, Category::Parameter);
    let parameter: Parameter = script.parameter(weight);
    script.trace.module_mut(root).parameters.push(parameter);
    let call = script.trace.enter(root, Vec::new());
    let births = [(100, Category::Activation), (100, Category::Activation), (7, Category::Activation)];
    let in_root = Action { call: Some(call), ..Action::default() };
    let (a, b) = (script.trace.next_storage(), rematic_trace::StorageId::new(2));
    let maker = script.run(Phase::Forward, Action { births: &births, saves_births: true, ..in_root });
    let saver = script.run(Phase::Forward, Action { saves: &[a, weight, a], ..in_root });
    script.trace.exit(call, vec![b]);
    script.drop(a);
    script.push(Event::Unsave(maker));
    script.push(Event::Recategorize(b, Category::Temp));
    let late = script.make(Phase::Backward, 60);
    let timeline = script.replay(Allocator::Cpu);

    let resident = |storage, bytes, category, birth, module, held, saved_by| Resident {
        storage,
        bytes: Bytes(bytes),
        category,
        birth,
        module,
        held,
        saved_by,
    };
    let last = timeline.peak().at.map(|moment| moment.op);
    assert_eq!(
        timeline.alive_at_peak(&script.trace, 4),
        [
            resident(a, 100, Category::Activation, Some(maker), Some(root), false, vec![saver]),
            resident(b, 100, Category::Temp, Some(maker), Some(root), true, vec![]),
            resident(late, 60, Category::Temp, last, None, true, vec![]),
            resident(weight, 50, Category::Parameter, None, Some(root), true, vec![saver]),
        ]
    );
    let all = timeline.alive_at_peak(&script.trace, usize::MAX);
    assert_eq!(all.iter().map(|resident| resident.bytes.0).sum::<u64>(), timeline.peak().total().0);
    assert!(timeline.alive_at_peak(&script.trace, 0).is_empty());

    let early = Resident::after(&script.trace, Allocator::Cpu, Some(maker), 1);
    assert_eq!(early, [resident(a, 100, Category::Activation, Some(maker), Some(root), true, vec![maker])]);
    let before = Resident::after(&script.trace, Allocator::Cpu, None, 1);
    assert_eq!(before, [resident(weight, 50, Category::Parameter, None, Some(root), true, vec![])]);
}

/// FSDP2's `storage.resize_(0)`: the bytes go and come back while the parameter and autograd refer to the storage.
#[test]
fn released_bytes_do_not_count_while_references_stay() {
    let mut script = Script::new();
    let weight = script.before(1000, Category::Parameter);
    let reader = script.run(Phase::Forward, Action { saves: &[weight], ..Action::default() });
    script.push(Event::Release(weight));
    let released = script.look(Phase::Forward);
    script.push(Event::Recategorize(weight, Category::Other));
    script.push(Event::Restore(weight));
    let restored = script.look(Phase::Backward);
    script.push(Event::Release(weight));
    script.drop(weight);
    script.push(Event::Unsave(reader));
    let dead = script.look(Phase::Backward);
    let timeline = script.replay(Allocator::Cpu);
    let total = |op| timeline.after(op).unwrap().total().0;
    assert_eq!([reader, released, restored, dead].map(total), [1000, 0, 1000, 0]);
    assert_eq!(timeline.after(restored).unwrap()[Category::Other], Bytes(1000));
    assert!(Resident::after(&script.trace, Allocator::Cpu, Some(released), 9).is_empty());
}

#[test]
fn pinned_memory_is_not_the_devices() {
    let mut script = Script::new();
    let host = script.before(4096, Category::Parameter);
    script.trace.set_pool(host, Pool::Pinned);
    script.make(Phase::Forward, 100);
    let timeline = script.replay(Allocator::Cuda);
    assert_eq!((timeline.start().total(), timeline.peak().total()), (Bytes(0), Bytes(512)));
}

/// What is copied to the host and back is said, whole: from which buffer into which.
#[test]
fn copies_between_pools_are_actions() {
    let mut script = Script::new();
    let made = script.make(Phase::Forward, 100);
    let host = script.trace.next_storage();
    script.run(Phase::Forward, Action { views: &[made], births: &[(100, Category::Temp)], ..Action::default() });
    script.trace.set_pool(host, Pool::Pinned);
    script.drop(made);
    let back = script.trace.next_storage();
    script.run(Phase::Backward, Action { views: &[host], births: &[(100, Category::Temp)], ..Action::default() });
    script.run(Phase::Backward, Action { views: &[back], births: &[(100, Category::Temp)], ..Action::default() });

    assert_eq!(script.copies(), [(made.into(), host.into()), (host.into(), back.into())]);
}
