//! Which operators of a checkpointed region make something that is read when it runs again.

use std::ops::Range;

use rematic_trace::{Op, OpId, StepTrace, StorageId};

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
    Readings::new(trace, region.ops.clone()).unread(region, saved)
}

/// The parts of an operator's name, if it is one of PyTorch's own: its name and its overload. Others have a library before them.
const PARTS: usize = 2;

/// What is known of an operator whatever the region.
#[derive(Clone, Copy, Default)]
struct Traits {
    /// It may stay out if nothing reads what it makes, and it changes nothing from outside the region.
    rests: bool,
    /// More than operators reads what it makes.
    is_seen: bool,
    /// It gives a tensor other memory (`set_`): that tensor stands for its result.
    replaces: bool,
    communicates: bool,
}

/// Who reads what in a step, for questions about many of its regions.
pub struct Readings<'a> {
    trace: &'a StepTrace,
    /// The first operator that is known.
    start: usize,
    traits: Vec<Traits>,
}

impl<'a> Readings<'a> {
    /// For regions among these operators.
    #[must_use]
    pub fn new(trace: &'a StepTrace, ops: Range<usize>) -> Self {
        let start = ops.start;
        // By name, whether it is one of PyTorch's own.
        let mut known: Vec<Option<bool>> = Vec::new();
        let mut is_torch = |op: &Op| {
            let name = op.name.index();
            known.resize(known.len().max(name + 1), None);
            *known[name].get_or_insert_with(|| trace.op_name(op).bytes().filter(|byte| *byte == b'.').count() < PARTS)
        };
        let traits = ops.map(|op| traits(trace, OpId::new(op), &mut is_torch)).collect();
        Readings { trace, start, traits }
    }

    fn traits(&self, id: OpId) -> Traits {
        self.traits[id.index() - self.start]
    }

    /// Whether other ranks take part in a region.
    #[must_use]
    pub fn communicates(&self, region: &Region) -> bool {
        self.traits[region.ops.start - self.start..region.ops.end - self.start].iter().any(|op| op.communicates)
    }

    /// Whether an operator may stay out if nothing reads what it makes, in a region that does not communicate.
    #[must_use]
    pub fn may_rest(&self, region: &Region, id: OpId) -> bool {
        let changed = self.trace.mutates(self.trace.op(id));
        self.traits(id).rests && changed.iter().all(|storage| maker(self.trace, region, *storage).is_some())
    }

    /// The operators of a region, by their places in it, of which something is read whatever runs again: by the backward of an
    /// operator, or by it as it gives a tensor other memory, or by more than operators.
    pub fn read_whatever_runs(&self, region: &Region, id: OpId) -> impl Iterator<Item = usize> {
        let op = self.trace.op(id);
        let Traits { is_seen, replaces, .. } = self.traits(id);
        let given = if replaces { self.trace.inputs(op) } else { &[] };
        let read = self.trace.saves(op).iter().chain(given);
        let made = is_seen.then_some(id.index() - region.ops.start);
        read.filter_map(|tensor| maker(self.trace, region, tensor.storage)).chain(made)
    }

    /// The same as the function [`unread`].
    #[must_use]
    pub fn unread(&self, region: &Region, saved: &[OpId]) -> Vec<bool> {
        if self.communicates(region) {
            return vec![false; region.ops.len()];
        }
        let states = vec![State::default(); region.ops.len()];
        let mut live = Live { readings: self, region, states, changers: Vec::new(), queue: Vec::new() };
        for op in saved.iter().filter(|op| region.contains(**op)) {
            live.states[op.index() - region.ops.start].saved = true;
        }
        live.begin();
        while let Some(at) = live.queue.pop() {
            // What is in memory is never half made: who changes it in place runs too.
            live.read(at);
            for tensor in self.trace.inputs(self.trace.op(live.id(at))) {
                live.read_storage(tensor.storage);
            }
        }
        (0..region.ops.len()).map(|at| live.is_unread(at)).collect()
    }
}

fn traits(trace: &StepTrace, id: OpId, is_torch: &mut impl FnMut(&Op) -> bool) -> Traits {
    let op = trace.op(id);
    let given = trace.inputs(op);
    let is_given = |storage: &StorageId| given.iter().any(|tensor| tensor.storage == *storage);
    Traits {
        rests: !op.flags.random && !op.flags.host && !trace.outputs(op).is_empty() && is_torch(op),
        is_seen: births(trace, id).any(|storage| trace.storages()[storage].seen),
        replaces: !trace.mutates(op).iter().all(is_given),
        communicates: op.collective.is_some(),
    }
}

/// The operator of a region that makes a storage, by its place in it.
#[inline]
fn maker(trace: &StepTrace, region: &Region, storage: StorageId) -> Option<usize> {
    let at = trace.storages()[storage].birth?.index().checked_sub(region.ops.start)?;
    (at < region.ops.len()).then_some(at)
}

/// What is known of an operator so far.
#[derive(Clone, Copy, Default)]
struct State {
    saved: bool,
    /// It runs again.
    live: bool,
    /// What it makes is read.
    read: bool,
    /// A view of what it makes was made.
    viewed: bool,
}

struct Live<'a> {
    readings: &'a Readings<'a>,
    region: &'a Region,
    states: Vec<State>,
    /// Who makes a storage and who changes it in place, ascending.
    changers: Vec<(usize, usize)>,
    /// Operators that run again, and whose inputs are yet to be looked at.
    queue: Vec<usize>,
}

impl Live<'_> {
    fn id(&self, at: usize) -> OpId {
        OpId::new(self.region.ops.start + at)
    }

    fn begin(&mut self) {
        let trace = self.readings.trace;
        let mut behind_views = Vec::new();
        for (at, op) in trace.ops().items()[self.region.ops.clone()].iter().enumerate() {
            if op.flags.view {
                let makers = trace.inputs(op).iter().filter_map(|tensor| maker(trace, self.region, tensor.storage));
                makers.for_each(|maker| self.states[maker].viewed = true);
            }
            for maker in trace.mutates(op).iter().filter_map(|storage| maker(trace, self.region, *storage)) {
                self.changers.push((maker, at));
                if self.states[maker].viewed {
                    behind_views.push(maker);
                }
            }
        }
        self.changers.sort_unstable();
        behind_views.into_iter().for_each(|maker| self.read(maker));
        for at in 0..self.states.len() {
            let id = self.id(at);
            let (readings, region) = (self.readings, self.region);
            readings.read_whatever_runs(region, id).for_each(|maker| self.read(maker));
            if self.states[at].saved {
                // It is handed back in place of what it changed.
                trace.mutates(trace.op(id)).iter().for_each(|storage| self.read_storage(*storage));
            } else if region.reaches(id) && !readings.may_rest(region, id) {
                self.run(at);
            }
        }
    }

    fn run(&mut self, at: usize) {
        let is_view = self.readings.trace.op(self.id(at)).flags.view;
        let state = &mut self.states[at];
        if !state.saved && !is_view && !std::mem::replace(&mut state.live, true) {
            self.queue.push(at);
        }
    }

    fn read_storage(&mut self, storage: StorageId) {
        if let Some(maker) = maker(self.readings.trace, self.region, storage) {
            self.read(maker);
        }
    }

    /// What an operator makes is read: it runs, and so does who changes that in place.
    fn read(&mut self, maker: usize) {
        if std::mem::replace(&mut self.states[maker].read, true) {
            return;
        }
        self.run(maker);
        let first = self.changers.partition_point(|(made, _)| *made < maker);
        for at in first..self.changers.len() {
            let (made, changer) = self.changers[at];
            if made != maker {
                break;
            }
            self.run(changer);
        }
    }

    fn is_unread(&self, at: usize) -> bool {
        let (trace, id) = (self.readings.trace, self.id(at));
        let state = self.states[at];
        if state.saved || !self.region.reaches(id) {
            return false;
        }
        if !trace.op(id).flags.view {
            return !state.live;
        }
        // A view goes with what it is a view of.
        let is_gone = |storage: StorageId| {
            let maker = maker(trace, self.region, storage).map(|at| self.states[at]);
            maker.is_some_and(|maker| !maker.saved && !maker.live)
        };
        trace.inputs(trace.op(id)).iter().any(|tensor| is_gone(tensor.storage))
    }
}
