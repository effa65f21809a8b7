//! What each module looks like, and when.

use crate::script::{Action, Script};
use rematic_replay::{Allocator, ModuleMemory, Pass, Snapshot, Timeline};
use rematic_trace::{Bytes, Category, Event, ModuleId, Phase, StorageId};

fn memory(timeline: &Timeline, module: ModuleId) -> &ModuleMemory {
    timeline.module(module).expect("the module is called")
}

/// Totals at the beginning, the peak and the end.
fn seen(pass: &Pass) -> [Option<u64>; 3] {
    [pass.pre, pass.peak, pass.post].map(|snapshot| snapshot.as_ref().map(Snapshot::total).map(|bytes| bytes.0))
}

#[test]
fn nested_forwards_each_have_their_own_peak() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let child = script.module("child", Some(root));
    let list = script.module("list", Some(root));
    let outer = script.trace.enter(root, Vec::new());
    script.make(Phase::Forward, 10);
    let inner = script.trace.enter(child, Vec::new());
    let spike = script.make(Phase::Forward, 100);
    script.drop(spike);
    script.make(Phase::Forward, 5);
    script.trace.exit(inner, Vec::new());
    script.make(Phase::Forward, 20);
    script.trace.exit(outer, Vec::new());
    script.make(Phase::Forward, 1000);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(seen(&memory(&timeline, child).forward), [Some(10), Some(110), Some(15)]);
    assert_eq!(seen(&memory(&timeline, root).forward), [Some(0), Some(110), Some(35)]);
    assert_eq!(timeline.module(list), None);
    assert_eq!(timeline.modules().len(), 3);
    assert_eq!(memory(&timeline, root).recompute, Pass::default());
}

#[test]
fn a_window_peaks_at_its_beginning_if_nothing_inside_is_higher() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let before = script.make(Phase::Forward, 100);
    let call = script.trace.enter(root, Vec::new());
    script.drop(before);
    // Equal to the beginning, but in another category: the beginning stays.
    let births = [(100, Category::Temp)];
    script.run(Phase::Forward, Action { births: &births, ..Action::default() });
    script.trace.exit(call, Vec::new());
    let timeline = script.replay(Allocator::Cpu);
    let forward = memory(&timeline, root).forward;
    assert_eq!(forward.peak, forward.pre);
    assert_eq!(forward.peak.map(|peak| peak[Category::Activation]), Some(Bytes(100)));
}

#[test]
fn the_first_of_equal_peaks_inside_a_window_counts() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let call = script.trace.enter(root, Vec::new());
    let first = script.make(Phase::Forward, 100);
    script.drop(first);
    script.run(Phase::Forward, Action { births: &[(100, Category::Temp)], ..Action::default() });
    script.trace.exit(call, Vec::new());
    let timeline = script.replay(Allocator::Cpu);
    let peak = memory(&timeline, root).forward.peak.expect("it was entered");
    assert_eq!(peak[Category::Activation], Bytes(100));
}

#[test]
fn backward_windows_may_overlap_without_nesting() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let modules = ["a", "b"].map(|name| script.module(name, Some(root)));
    let [a, b] = modules.map(|module| {
        let call = script.trace.enter(module, Vec::new());
        script.trace.exit(call, Vec::new());
        call
    });
    script.push(Event::EnterBackward(b));
    let only_b = script.make(Phase::Backward, 100);
    script.drop(only_b);
    script.push(Event::EnterBackward(a));
    let both = script.make(Phase::Backward, 50);
    script.drop(both);
    script.push(Event::ExitBackward(b));
    script.make(Phase::Backward, 70);
    script.push(Event::ExitBackward(a));
    script.make(Phase::Backward, 1000);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(seen(&memory(&timeline, modules[1]).backward), [Some(0), Some(100), Some(0)]);
    assert_eq!(seen(&memory(&timeline, modules[0]).backward), [Some(0), Some(70), Some(70)]);
}

#[test]
fn the_last_call_of_a_module_is_the_one_that_is_seen() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let input = script.before(3, Category::Other);
    let large = script.before(4, Category::Other);
    let first = script.trace.enter(root, vec![large]);
    let spike = script.make(Phase::Forward, 1000);
    script.drop(spike);
    script.trace.exit(first, vec![large, large]);
    let second = script.trace.enter(root, vec![input, input]);
    script.make(Phase::Forward, 10);
    script.trace.exit(second, vec![input]);
    // Backward runs the other way round: what is seen last belongs to the call that was made first.
    script.push(Event::EnterBackward(second));
    let spike = script.make(Phase::Backward, 1000);
    script.drop(spike);
    script.push(Event::ExitBackward(second));
    script.push(Event::EnterBackward(first));
    script.make(Phase::Backward, 20);
    script.push(Event::ExitBackward(first));
    let timeline = script.replay(Allocator::Cpu);
    let memory = memory(&timeline, root);
    assert_eq!(seen(&memory.forward), [Some(7), Some(17), Some(17)]);
    assert_eq!(seen(&memory.backward), [Some(17), Some(37), Some(37)]);
    assert_eq!((memory.input_bytes, memory.output_bytes), (Bytes(6), Bytes(3)));
}

#[test]
fn overlapping_calls_of_one_module_peak_until_all_are_over() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let [first, second] = [(); 2].map(|()| {
        let call = script.trace.enter(root, Vec::new());
        script.trace.exit(call, Vec::new());
        call
    });
    script.push(Event::EnterBackward(second));
    let early = script.make(Phase::Backward, 1000);
    script.drop(early);
    script.push(Event::EnterBackward(first));
    script.make(Phase::Backward, 10);
    script.push(Event::ExitBackward(first));
    let late = script.make(Phase::Backward, 100);
    script.drop(late);
    script.push(Event::ExitBackward(second));
    script.make(Phase::Backward, 1000);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(seen(&memory(&timeline, root).backward), [Some(0), Some(110), Some(10)]);
}

#[test]
fn backward_can_end_without_having_begun() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let call = script.trace.enter(root, Vec::new());
    script.trace.exit(call, Vec::new());
    script.make(Phase::Backward, 10);
    script.push(Event::ExitBackward(call));
    script.make(Phase::Backward, 10);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(seen(&memory(&timeline, root).backward), [None, None, Some(10)]);
}

#[test]
fn a_window_that_nothing_closes_ends_with_backward() {
    for optimizer in [true, false] {
        let mut script = Script::new();
        let root = script.module("root", None);
        let call = script.trace.enter(root, Vec::new());
        script.trace.exit(call, Vec::new());
        script.push(Event::EnterBackward(call));
        let spike = script.make(Phase::Backward, 100);
        script.make(Phase::Backward, 1);
        script.drop(spike);
        if optimizer {
            script.make(Phase::Optimizer, 1000);
        }
        let timeline = script.replay(Allocator::Cpu);
        assert_eq!(seen(&memory(&timeline, root).backward), [Some(0), Some(101), Some(1)], "{optimizer}");
    }
}

#[test]
fn modules_whose_backward_is_never_seen_end_with_backward() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let call = script.trace.enter(root, Vec::new());
    script.trace.exit(call, Vec::new());
    script.make(Phase::Backward, 10);
    let first = script.make(Phase::Optimizer, 100);
    script.drop(first);
    script.make(Phase::Optimizer, 1000);
    let timeline = script.replay(Allocator::Cpu);
    assert_eq!(seen(&memory(&timeline, root).backward), [None, None, Some(10)]);
}

#[test]
fn a_module_holds_what_is_below_it_and_ties_count_once() {
    let mut script = Script::new();
    let root = script.module("root", None);
    let left = script.module("left", Some(root));
    let right = script.module("right", Some(root));
    let leaf = script.module("leaf", Some(left));
    let [tied, own, top] = [1, 600, 2].map(|bytes| script.before(bytes, Category::Parameter));
    let mask = script.before(3, Category::Buffer);
    let mut give = |module: ModuleId, storage: StorageId| {
        let parameter = script.parameter(storage);
        script.trace.module_mut(module).parameters.push(parameter);
    };
    give(root, top);
    give(leaf, tied);
    give(right, tied);
    give(right, tied);
    give(right, own);
    let buffer = script.parameter(mask);
    script.trace.module_mut(leaf).buffers.push(buffer.clone());
    script.trace.module_mut(left).buffers.push(buffer);
    for module in [root, left, right, leaf] {
        let call = script.trace.enter(module, Vec::new());
        script.trace.exit(call, Vec::new());
    }
    let timeline = script.replay(Allocator::Cpu);
    let bytes = |module| {
        let memory = memory(&timeline, module);
        (memory.parameter_bytes.0, memory.buffer_bytes.0)
    };
    assert_eq!([root, left, right, leaf].map(bytes), [(603, 3), (1, 3), (601, 0), (1, 3)]);
    let rounded = script.replay(Allocator::Cuda);
    assert_eq!(memory(&rounded, root).parameter_bytes, Bytes(512 + 1024 + 512));
    assert_eq!(memory(&rounded, leaf).buffer_bytes, Bytes(512));
}
