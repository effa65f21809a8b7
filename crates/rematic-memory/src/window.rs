use rematic_trace::{Bytes, Call, CallId, StepTrace, StorageId};

use crate::history::History;
use crate::module::{Holdings, add};
use crate::{Ledger, ModuleMemory, Pass, Snapshot};

/// Follows the calls of modules through a step and writes down what they look like.
///
/// An event takes constant time, but for the binary search where a window ends: modules that are under way are never
/// visited one by one. Backward windows may overlap in any way.
#[derive(Debug)]
pub(crate) struct Windows<'a> {
    trace: &'a StepTrace,
    holdings: Vec<Holdings>,
    modules: Vec<Option<ModuleMemory>>,
    forward: Activity,
    backward: Activity,
    /// The state just before the first operator of the optimizer.
    after_backward: Option<Snapshot>,
}

impl<'a> Windows<'a> {
    pub(crate) fn new(trace: &'a StepTrace, ledger: &Ledger) -> Self {
        Windows {
            trace,
            holdings: Holdings::of_modules(trace, ledger),
            modules: vec![None; trace.modules().len()],
            forward: Activity::new(trace),
            backward: Activity::new(trace),
            after_backward: None,
        }
    }

    pub(crate) fn enter(&mut self, id: CallId, ledger: &Ledger, history: &History) {
        let Some(call) = self.trace.calls().get(id.index()) else { return };
        let module = call.module.index();
        let Some(memory) = self.modules.get_mut(module) else { return };
        let memory = memory.get_or_insert_with(|| ModuleMemory::new(self.holdings[module]));
        memory.input_bytes = bytes_of(&call.inputs, ledger);
        begin(&mut memory.forward, *ledger.snapshot());
        self.forward.begin(id, module, history.now());
    }

    pub(crate) fn exit(&mut self, id: CallId, ledger: &Ledger, history: &History) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        memory.output_bytes = bytes_of(&call.outputs, ledger);
        memory.forward.post = Some(*ledger.snapshot());
        if let Some(since) = self.forward.end(id, call.module.index()) {
            end(&mut memory.forward, since, history);
        }
    }

    pub(crate) fn enter_backward(&mut self, id: CallId, ledger: &Ledger, history: &History) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        begin(&mut memory.backward, *ledger.snapshot());
        self.backward.begin(id, call.module.index(), history.now());
    }

    pub(crate) fn exit_backward(&mut self, id: CallId, ledger: &Ledger, history: &History) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        memory.backward.post = Some(*ledger.snapshot());
        if let Some(since) = self.backward.end(id, call.module.index()) {
            end(&mut memory.backward, since, history);
        }
    }

    /// Just before an operator of the optimizer runs. At the first, backward is over, and with it every backward window
    /// that no event has closed (the gradient of some input never came).
    pub(crate) fn before_optimizer(&mut self, ledger: &Ledger, history: &History) {
        if self.after_backward.is_none() {
            self.after_backward = Some(*ledger.snapshot());
            self.end_backward(history);
        }
    }

    pub(crate) fn finish(mut self, ledger: &Ledger, history: &History) -> Vec<Option<ModuleMemory>> {
        self.end_backward(history);
        let modules = &mut self.modules;
        self.forward.end_all(|module, since| {
            if let Some(memory) = &mut modules[module] {
                end(&mut memory.forward, since, history);
            }
        });
        let after_backward = self.after_backward.unwrap_or(*ledger.snapshot());
        for memory in self.modules.iter_mut().flatten() {
            memory.backward.post.get_or_insert(after_backward);
        }
        self.modules
    }

    fn end_backward(&mut self, history: &History) {
        let modules = &mut self.modules;
        self.backward.end_all(|module, since| {
            if let Some(memory) = &mut modules[module] {
                end(&mut memory.backward, since, history);
            }
        });
    }
}

/// A call with the memory of its module, which exists once the module has been entered.
fn called<'t, 'm>(
    trace: &'t StepTrace,
    modules: &'m mut [Option<ModuleMemory>],
    id: CallId,
) -> Option<(&'t Call, &'m mut ModuleMemory)> {
    let call = trace.calls().get(id.index())?;
    let memory = modules.get_mut(call.module.index())?.as_mut()?;
    Some((call, memory))
}

fn begin(pass: &mut Pass, state: Snapshot) {
    pass.pre = Some(state);
    pass.peak = Some(state);
}

fn end(pass: &mut Pass, since: usize, history: &History) {
    let start = pass.pre.map_or(Bytes(0), |state| state.total());
    if let Some((_, state)) = history.highest_since(since).filter(|(total, _)| *total > start) {
        pass.peak = Some(state);
    }
}

fn bytes_of(storages: &[StorageId], ledger: &Ledger) -> Bytes {
    let mut sum = Bytes(0);
    for &storage in storages {
        add(&mut sum, ledger.footprint(storage));
    }
    sum
}

/// Which calls are under way in one direction, and since when their modules are.
#[derive(Debug)]
struct Activity {
    open: Vec<bool>,
    modules: Vec<Active>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Active {
    /// Calls under way.
    calls: u32,
    /// How many operators had run when the last of them began.
    since: usize,
}

impl Activity {
    fn new(trace: &StepTrace) -> Self {
        Activity { open: vec![false; trace.calls().len()], modules: vec![Active::default(); trace.modules().len()] }
    }

    fn begin(&mut self, call: CallId, module: usize, now: usize) {
        let active = &mut self.modules[module];
        if !std::mem::replace(&mut self.open[call.index()], true) {
            active.calls += 1;
        }
        active.since = now;
    }

    /// Where the module's window began, if no other call of it is under way. A call that has not begun ends nothing.
    fn end(&mut self, call: CallId, module: usize) -> Option<usize> {
        let active = &mut self.modules[module];
        if !std::mem::replace(&mut self.open[call.index()], false) {
            return None;
        }
        active.calls -= 1;
        (active.calls == 0).then_some(active.since)
    }

    fn end_all(&mut self, mut ended: impl FnMut(usize, usize)) {
        self.open.fill(false);
        for (module, active) in self.modules.iter_mut().enumerate() {
            if std::mem::take(&mut active.calls) > 0 {
                ended(module, active.since);
            }
        }
    }
}
