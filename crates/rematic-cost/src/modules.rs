//! Which module an operator's time counts for.
//!
//! # Physical
//! An operator belongs to the module whose call ran it, and to all modules above that one. A backward operator belongs to
//! the call of the operator that it differentiates.
//!
//! # Torch
//! An operator belongs to every module that is *active* when it runs: between the begin and the end of its forward, or
//! between the moment when the gradient of one of its outputs is there and the moment when those of all its inputs are.
//! The second kind of window neither nests nor follows the tree: the three projections of attention, which share their
//! input, all stay open until that input's gradient is complete, so each is charged for the others' backward. A module is
//! active as long as its count of begins exceeds its count of ends; an end of an inactive module changes nothing; the end
//! of backward ends everything, as torch's engine callback does.
//!
//! A clock of all forward time and one of all backward time run through the events; a module gains what they advanced
//! while it was active. That is linear in the events, however many modules are active at once.

use rematic_trace::{CallId, Event, Millis, ModuleId, Phase, StepTrace, Table};

use crate::costs::Costs;
use crate::rules::CostRule;

/// Forward and backward time of every module. Operators of the optimizer belong to no module.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleTimes {
    forward: Table<ModuleId, Millis>,
    backward: Table<ModuleId, Millis>,
}

impl ModuleTimes {
    /// The times by the attribution that belongs to the costs' rule.
    #[must_use]
    pub fn new(trace: &StepTrace, costs: &Costs) -> ModuleTimes {
        match costs.rule() {
            CostRule::Physical => by_tree(trace, costs),
            CostRule::Torch => by_window(trace, costs),
        }
    }

    /// Forward time of each module with all that is inside it.
    #[must_use]
    pub fn forward(&self) -> &Table<ModuleId, Millis> {
        &self.forward
    }

    /// Backward time of each module with all that is inside it.
    #[must_use]
    pub fn backward(&self) -> &Table<ModuleId, Millis> {
        &self.backward
    }
}

fn by_tree(trace: &StepTrace, costs: &Costs) -> ModuleTimes {
    let modules = trace.modules();
    let mut forward = modules.filled(Millis(0.0));
    let mut backward = forward.clone();
    for (op, &time) in trace.ops().iter().zip(costs.times()) {
        let Some(module) = trace.module_of(op) else { continue };
        match op.phase {
            Phase::Forward => forward[module] += time,
            Phase::Backward => backward[module] += time,
            Phase::Optimizer => {}
        }
    }
    // Parents stand before their children, so from the back every child is complete before it is added.
    for (id, module) in modules.entries().rev() {
        if let Some(parent) = module.parent {
            let (inside_forward, inside_backward) = (forward[id], backward[id]);
            forward[parent] += inside_forward;
            backward[parent] += inside_backward;
        }
    }
    ModuleTimes { forward, backward }
}

fn by_window(trace: &StepTrace, costs: &Costs) -> ModuleTimes {
    let mut windows = Windows::new(trace);
    let mut ends = backward_ends(trace).into_iter().peekable();
    for (row, &event) in trace.events().iter().enumerate() {
        match event {
            Event::Op(op) => match trace.op(op).phase {
                Phase::Forward => windows.forward.advance(costs.time(op)),
                Phase::Backward => windows.backward.advance(costs.time(op)),
                Phase::Optimizer => {}
            },
            Event::Enter(call) | Event::EnterBackward(call) => windows.begin(call),
            Event::Exit(call) | Event::ExitBackward(call) => windows.end(call),
            Event::Drop(_) | Event::Return(_) | Event::Unsave(_) | Event::Recategorize(..) => {}
            Event::Release(_) | Event::Restore(_) | Event::Shrink(..) | Event::Wait { .. } | Event::MicroBatch(_) => {}
        }
        if ends.next_if_eq(&row).is_some() {
            windows.end_all();
        }
    }
    windows.end_all();
    windows.times()
}

/// The rows of the events with which a run of the autograd engine ends: the last of backward before other operators.
fn backward_ends(trace: &StepTrace) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut last = None;
    for (row, event) in trace.events().iter().enumerate() {
        match event {
            Event::EnterBackward(_) | Event::ExitBackward(_) => last = Some(row),
            Event::Op(op) if trace.op(*op).phase == Phase::Backward => last = Some(row),
            Event::Op(_) => ends.extend(last.take()),
            _ => {}
        }
    }
    ends
}

/// Time as a whole number of 2^-60 ms, so that sums and differences are exact however long the step and short the module.
#[derive(Clone, Copy, Debug, Default)]
struct Clock(u128);

impl Clock {
    const TICKS_PER_MS: f64 = (1_u64 << 60) as f64;

    fn advance(&mut self, time: Millis) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "times are not negative; it drops less than a tick and saturates"
        )]
        let ticks = (time.0 * Self::TICKS_PER_MS) as u128;
        self.0 = self.0.saturating_add(ticks);
    }

    fn millis(self) -> Millis {
        Millis(self.0 as f64 / Self::TICKS_PER_MS)
    }
}

/// The active modules and what they have gained.
struct Windows<'a> {
    trace: &'a StepTrace,
    forward: Clock,
    backward: Clock,
    modules: Table<ModuleId, Window>,
    /// Modules that were activated since everything was last ended; some may have ended since.
    begun: Vec<ModuleId>,
}

#[derive(Clone, Copy, Default)]
struct Window {
    active: u32,
    since: (Clock, Clock),
    gained: (Clock, Clock),
}

impl<'a> Windows<'a> {
    fn new(trace: &'a StepTrace) -> Self {
        Windows {
            trace,
            forward: Clock::default(),
            backward: Clock::default(),
            modules: trace.modules().filled(Window::default()),
            begun: Vec::new(),
        }
    }

    fn begin(&mut self, call: CallId) {
        let module = self.trace.call(call).module;
        let window = &mut self.modules[module];
        if window.active == 0 {
            window.since = (self.forward, self.backward);
            self.begun.push(module);
        }
        window.active = window.active.saturating_add(1);
    }

    fn end(&mut self, call: CallId) {
        let module = self.trace.call(call).module;
        match self.modules[module].active {
            0 => {}
            1 => self.close(module),
            _ => self.modules[module].active -= 1,
        }
    }

    fn end_all(&mut self) {
        for module in std::mem::take(&mut self.begun) {
            if self.modules[module].active > 0 {
                self.close(module);
            }
        }
    }

    fn close(&mut self, module: ModuleId) {
        let window = &mut self.modules[module];
        window.active = 0;
        window.gained.0.0 = window.gained.0.0.saturating_add(self.forward.0 - window.since.0.0);
        window.gained.1.0 = window.gained.1.0.saturating_add(self.backward.0 - window.since.1.0);
    }

    fn times(&self) -> ModuleTimes {
        ModuleTimes {
            forward: self.modules.iter().map(|window| window.gained.0.millis()).collect(),
            backward: self.modules.iter().map(|window| window.gained.1.millis()).collect(),
        }
    }
}

/// The orders in which modules begin and end, as torch's `RuntimeEstimator` lists them; a module appears once per call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleOrders {
    /// Begins of forward.
    pub fw_pre: Vec<ModuleId>,
    /// Ends of forward.
    pub fw_post: Vec<ModuleId>,
    /// Begins of backward.
    pub bw_pre: Vec<ModuleId>,
    /// Ends of backward.
    pub bw_post: Vec<ModuleId>,
}

impl ModuleOrders {
    /// The orders in a trace.
    #[must_use]
    pub fn new(trace: &StepTrace) -> ModuleOrders {
        let mut orders = ModuleOrders::default();
        for &event in trace.events() {
            let (order, call) = match event {
                Event::Enter(call) => (&mut orders.fw_pre, call),
                Event::Exit(call) => (&mut orders.fw_post, call),
                Event::EnterBackward(call) => (&mut orders.bw_pre, call),
                Event::ExitBackward(call) => (&mut orders.bw_post, call),
                _ => continue,
            };
            order.push(trace.call(call).module);
        }
        orders
    }
}
