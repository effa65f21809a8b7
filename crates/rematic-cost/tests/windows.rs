//! Torch's attribution by windows, where it is not a tree.

mod step;

use rematic_cost::{CostRule, ModuleTimes};
use rematic_trace::{Event, Phase, Tensor};
use step::{Step, assert_close};

/// A step whose operators all take the same time, so that times can be counted.
struct Counted {
    step: Step,
    x: Tensor,
}

impl Counted {
    fn new() -> Self {
        let mut step = Step::new();
        let x = step.f32(&[1000]);
        Counted { step, x }
    }

    fn ops(&mut self, count: usize, phase: Phase) {
        self.step.phase = phase;
        for _ in 0..count {
            self.step.run("relu.default", &[self.x], &[self.x]);
        }
    }

    /// Asserts how many operators each module was charged for, in forward and in backward.
    #[track_caller]
    fn assert_counts(&self, expected: &[(f64, f64)]) {
        let times = ModuleTimes::new(&self.step.trace, &self.step.costs("a100-80", CostRule::Torch));
        let one = 8000.0 / 2039.0 / 1e6;
        assert_eq!(times.forward().len(), expected.len());
        for (module, (forward, backward)) in expected.iter().enumerate() {
            assert_close(times.forward().items()[module].0, forward * one);
            assert_close(times.backward().items()[module].0, backward * one);
        }
    }
}

#[test]
fn windows_overlap_without_nesting() {
    let mut counted = Counted::new();
    let root = counted.step.module("Root", None);
    let [a, b] = ["a", "b"].map(|name| counted.step.module(name, Some(root)));
    let calls = [a, b].map(|module| {
        let call = counted.step.enter(module);
        counted.ops(2, Phase::Forward);
        counted.step.exit(call, None);
        call
    });
    let [a, b] = calls;
    counted.step.push(Event::EnterBackward(b));
    counted.ops(1, Phase::Backward);
    counted.step.push(Event::EnterBackward(a));
    counted.ops(2, Phase::Backward);
    counted.step.push(Event::ExitBackward(b));
    counted.ops(4, Phase::Backward);
    counted.step.push(Event::ExitBackward(a));
    counted.ops(8, Phase::Backward);
    counted.assert_counts(&[(0.0, 0.0), (2.0, 6.0), (2.0, 3.0)]);
}

#[test]
fn a_module_that_began_twice_has_to_end_twice() {
    let mut counted = Counted::new();
    let module = counted.step.module("Root", None);
    let calls = [(); 2].map(|()| {
        let call = counted.step.enter(module);
        counted.step.exit(call, None);
        call
    });
    counted.step.push(Event::EnterBackward(calls[1]));
    counted.ops(1, Phase::Backward);
    counted.step.push(Event::EnterBackward(calls[0]));
    counted.ops(1, Phase::Backward);
    counted.step.push(Event::ExitBackward(calls[1]));
    counted.ops(1, Phase::Backward);
    counted.step.push(Event::ExitBackward(calls[0]));
    counted.ops(1, Phase::Backward);
    // An end too many is not owed to the next begin.
    counted.step.push(Event::ExitBackward(calls[0]));
    counted.step.push(Event::EnterBackward(calls[0]));
    counted.ops(1, Phase::Backward);
    counted.assert_counts(&[(0.0, 4.0)]);
}

#[test]
fn the_end_of_backward_ends_every_window() {
    let mut counted = Counted::new();
    let root = counted.step.module("Root", None);
    let child = counted.step.module("child", Some(root));
    for _ in 0..2 {
        let outer = counted.step.enter(root);
        let inner = counted.step.enter(child);
        counted.ops(1, Phase::Forward);
        counted.step.exit(inner, Some(outer));
        counted.ops(1, Phase::Forward);
        counted.step.exit(outer, None);
        counted.ops(1, Phase::Forward);
        counted.step.push(Event::EnterBackward(outer));
        counted.step.push(Event::EnterBackward(inner));
        counted.ops(3, Phase::Backward);
    }
    counted.ops(5, Phase::Optimizer);
    // Left open in the first backward, the modules are not charged for what follows it.
    counted.assert_counts(&[(4.0, 6.0), (2.0, 6.0)]);
}
