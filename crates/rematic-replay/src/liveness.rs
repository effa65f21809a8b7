//! Which operators of a checkpointed region make something that is read when it runs again.

use rematic_trace::{OpId, StepTrace, StorageId};

use crate::{Region, births};

/// For each operator of a region, whether it need not run again: it is not among those that are saved, and nothing reads what it
/// makes. In time linear in the region.
///
/// Read is what backward needs of the region, what an operator is given that runs again, and what more than operators reads
/// ([`Storage::seen`](rematic_trace::Storage::seen)). A storage is read as a whole: who changes it in place runs again with whoever
/// makes it. Some operators always run again, whoever reads what they make:
///
/// - those that draw random numbers: others draw from the same generator behind them;
/// - those that return no tensor, or change memory from outside the region;
/// - those of other libraries: what else they do is not known.
///
/// What is changed in place after a view of it was made is read: autograd makes the view again where it has no memory, as one operator
/// more. What an operator makes that runs again is read too. So what is in memory while the region runs again is what was there the first time,
/// and nothing is ever half made.
///
/// Where the region communicates with other ranks, all run again: on every rank the same.
#[must_use]
pub fn unread(trace: &StepTrace, region: &Region, saved: &[OpId]) -> Vec<bool> {
    if communicates(trace, region) {
        return vec![false; region.ops.len()];
    }
    let mut live = Live {
        trace,
        region,
        saved: vec![false; region.ops.len()],
        live: vec![false; region.ops.len()],
        real: vec![false; region.ops.len()],
        changers: vec![Vec::new(); region.ops.len()],
        queue: Vec::new(),
    };
    for op in saved.iter().filter(|op| region.contains(**op)) {
        live.saved[op.index() - region.ops.start] = true;
    }
    live.begin();
    while let Some(at) = live.queue.pop() {
        let id = live.id(at);
        // What is in memory is never half made: who changes it in place runs too.
        births(trace, id).for_each(|storage| live.read(storage));
        trace.inputs(trace.op(id)).iter().for_each(|tensor| live.read(tensor.storage));
    }
    (0..region.ops.len()).map(|at| live.is_unread(at)).collect()
}

/// Whether other ranks take part in a region.
#[must_use]
pub fn communicates(trace: &StepTrace, region: &Region) -> bool {
    trace.ops().items()[region.ops.clone()].iter().any(|op| op.collective.is_some())
}

/// What is read of an operator and of what it makes, whether or not it runs again: what its backward needs, what more than operators
/// reads, and a tensor that it gives other memory (`set_`), which stands for its result.
pub fn read_whatever_runs(trace: &StepTrace, id: OpId) -> impl Iterator<Item = StorageId> {
    let op = trace.op(id);
    let given = trace.inputs(op);
    let is_given = |storage: &StorageId| given.iter().any(|tensor| tensor.storage == *storage);
    let replaces = !trace.mutates(op).iter().all(is_given);
    let saved = trace.saves(op).iter().chain(if replaces { given } else { &[] });
    let seen = births(trace, id).filter(|storage| trace.storages()[*storage].seen);
    saved.map(|tensor| tensor.storage).chain(seen)
}

/// Whether an operator may stay out if nothing reads what it makes, in a region that does not communicate.
#[must_use]
pub fn may_rest(trace: &StepTrace, region: &Region, id: OpId) -> bool {
    let op = trace.op(id);
    let is_own = |storage: &StorageId| is_born_in(trace, region, *storage);
    let is_torch = trace.op_name(op).bytes().filter(|byte| *byte == b'.').count() < PARTS;
    is_torch
        && !op.flags.random
        && !op.flags.host
        && !trace.outputs(op).is_empty()
        && trace.mutates(op).iter().all(is_own)
}

/// The parts of an operator's name, if it is one of PyTorch's own: its name and its overload. Others have a library before them.
const PARTS: usize = 2;

struct Live<'a> {
    trace: &'a StepTrace,
    region: &'a Region,
    saved: Vec<bool>,
    live: Vec<bool>,
    /// Whether what an operator makes is read.
    real: Vec<bool>,
    /// By operator, who changes what it makes in place.
    changers: Vec<Vec<usize>>,
    /// Operators that run again, and whose inputs are yet to be looked at.
    queue: Vec<usize>,
}

impl Live<'_> {
    fn id(&self, at: usize) -> OpId {
        OpId::new(self.region.ops.start + at)
    }

    fn begin(&mut self) {
        let trace = self.trace;
        let (mut viewed, mut behind_views) = (vec![false; self.live.len()], Vec::new());
        for at in 0..self.live.len() {
            let op = trace.op(self.id(at));
            if op.flags.view {
                let makers = trace.inputs(op).iter().filter_map(|tensor| self.maker(tensor.storage));
                makers.for_each(|maker| viewed[maker] = true);
            }
            for &storage in trace.mutates(op) {
                let Some(maker) = self.maker(storage) else { continue };
                self.changers[maker].push(at);
                if viewed[maker] {
                    behind_views.push(storage);
                }
            }
        }
        behind_views.into_iter().for_each(|storage| self.read(storage));
        for at in 0..self.live.len() {
            let id = self.id(at);
            let op = trace.op(id);
            read_whatever_runs(trace, id).for_each(|storage| self.read(storage));
            if self.saved[at] {
                // It is handed back in place of what it changed.
                trace.mutates(op).iter().for_each(|storage| self.read(*storage));
            } else if self.region.reaches(id) && !may_rest(trace, self.region, id) {
                self.run(at);
            }
        }
    }

    /// The operator of the region that makes a storage.
    fn maker(&self, storage: StorageId) -> Option<usize> {
        let birth = self.trace.storages()[storage].birth.filter(|birth| self.region.contains(*birth))?;
        Some(birth.index() - self.region.ops.start)
    }

    fn run(&mut self, at: usize) {
        let is_view = self.trace.op(self.id(at)).flags.view;
        if !self.saved[at] && !is_view && !std::mem::replace(&mut self.live[at], true) {
            self.queue.push(at);
        }
    }

    fn read(&mut self, storage: StorageId) {
        let Some(maker) = self.maker(storage) else { return };
        if std::mem::replace(&mut self.real[maker], true) {
            return;
        }
        self.run(maker);
        for at in std::mem::take(&mut self.changers[maker]) {
            self.run(at);
        }
    }

    fn is_unread(&self, at: usize) -> bool {
        let (trace, id) = (self.trace, self.id(at));
        if self.saved[at] || !self.region.reaches(id) {
            return false;
        }
        if !trace.op(id).flags.view {
            return !self.live[at];
        }
        // A view goes with what it is a view of.
        let is_gone = |storage: StorageId| self.maker(storage).is_some_and(|at| !self.saved[at] && !self.live[at]);
        trace.inputs(trace.op(id)).iter().any(|tensor| is_gone(tensor.storage))
    }
}

fn is_born_in(trace: &StepTrace, region: &Region, storage: StorageId) -> bool {
    trace.storages()[storage].birth.is_some_and(|birth| region.contains(birth))
}
