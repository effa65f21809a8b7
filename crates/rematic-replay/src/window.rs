use rematic_trace::{Bytes, Call, CallId, ModuleId, OpId, Phase, StepTrace, StorageId, Table};

use crate::action::{Action, Observer};
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
    pub(crate) history: History,
    holdings: Table<ModuleId, Holdings>,
    modules: Table<ModuleId, Option<ModuleMemory>>,
    forward: Activity,
    backward: Activity,
    /// The state just before the first operator of the optimizer.
    after_backward: Option<Snapshot>,
}

impl<'a> Windows<'a> {
    pub(crate) fn new(trace: &'a StepTrace, ledger: &Ledger) -> Self {
        Windows {
            trace,
            history: History::with_capacity(trace.ops().len()),
            holdings: Holdings::of_modules(trace, ledger),
            modules: trace.modules().filled(None),
            forward: Activity::new(trace),
            backward: Activity::new(trace),
            after_backward: None,
        }
    }

    fn enter(&mut self, id: CallId, ledger: &Ledger) {
        let Some(call) = self.trace.calls().get(id) else { return };
        let Some(memory) = self.modules.get_mut(call.module) else { return };
        let memory = memory.get_or_insert_with(|| ModuleMemory::new(self.holdings[call.module]));
        memory.input_bytes = bytes_of(&call.inputs, ledger);
        begin(&mut memory.forward, *ledger.snapshot());
        self.forward.begin(id, call.module, self.history.now());
    }

    fn exit(&mut self, id: CallId, ledger: &Ledger) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        memory.output_bytes = bytes_of(&call.outputs, ledger);
        memory.forward.post = Some(*ledger.snapshot());
        if let Some(since) = self.forward.end(id, call.module) {
            end(&mut memory.forward, since, &self.history);
        }
    }

    fn enter_backward(&mut self, id: CallId, ledger: &Ledger) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        begin(&mut memory.backward, *ledger.snapshot());
        self.backward.begin(id, call.module, self.history.now());
    }

    fn exit_backward(&mut self, id: CallId, ledger: &Ledger) {
        let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { return };
        memory.backward.post = Some(*ledger.snapshot());
        if let Some(since) = self.backward.end(id, call.module) {
            end(&mut memory.backward, since, &self.history);
        }
    }

    /// Just before an operator runs. At the first of the optimizer, backward is over, and with it every backward window that
    /// no event has closed (the gradient of some input never came).
    fn before(&mut self, op: OpId, ledger: &Ledger) {
        let is_optimizer = self.trace.ops().get(op).is_some_and(|op| op.phase == Phase::Optimizer);
        if is_optimizer && self.after_backward.is_none() {
            self.after_backward = Some(*ledger.snapshot());
            self.end_backward();
        }
    }

    /// What was seen of every module, and the memory after every operator.
    pub(crate) fn finish(mut self, ledger: &Ledger) -> (Table<ModuleId, Option<ModuleMemory>>, History) {
        self.end_backward();
        let after_backward = self.after_backward.unwrap_or(*ledger.snapshot());
        for memory in self.modules.iter_mut().flatten() {
            memory.backward.post.get_or_insert(after_backward);
        }
        (self.modules, self.history)
    }

    fn end_backward(&mut self) {
        for id in self.trace.calls().ids() {
            let Some((call, memory)) = called(self.trace, &mut self.modules, id) else { continue };
            if let Some(since) = self.backward.end(id, call.module) {
                end(&mut memory.backward, since, &self.history);
            }
        }
    }
}

impl Observer for Windows<'_> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Launch(ran) => self.before(ran.op, ledger),
            Action::Run(_) => self.history.push(ledger.snapshot()),
            Action::Enter(call) => self.enter(call, ledger),
            Action::Exit(call) => self.exit(call, ledger),
            Action::EnterBackward(call) => self.enter_backward(call, ledger),
            Action::ExitBackward(call) => self.exit_backward(call, ledger),
            _ => {}
        }
    }
}

/// A call with the memory of its module, which exists once the module has been entered.
fn called<'t, 'm>(
    trace: &'t StepTrace,
    modules: &'m mut Table<ModuleId, Option<ModuleMemory>>,
    id: CallId,
) -> Option<(&'t Call, &'m mut ModuleMemory)> {
    let call = trace.calls().get(id)?;
    let memory = modules.get_mut(call.module)?.as_mut()?;
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

/// Which calls are under way in one direction, and where the last window of each module begins.
///
/// Every call that ends brings its module's peak up to date, so that where calls of one module overlap, the last one that
/// ends settles it.
#[derive(Debug)]
struct Activity {
    open: Table<CallId, bool>,
    /// How many operators had run when a call of the module last began.
    since: Table<ModuleId, usize>,
}

impl Activity {
    fn new(trace: &StepTrace) -> Self {
        Activity { open: trace.calls().filled(false), since: trace.modules().filled(0) }
    }

    fn begin(&mut self, call: CallId, module: ModuleId, now: usize) {
        self.open[call] = true;
        self.since[module] = now;
    }

    /// Where the module's window begins. A call that has not begun ends nothing.
    fn end(&mut self, call: CallId, module: ModuleId) -> Option<usize> {
        std::mem::take(&mut self.open[call]).then(|| self.since[module])
    }
}
