//! Runs: calls of modules beside each other that follow one another directly, seen as one region.
//!
//! A run can be made again from its calls alone. So no operator of the module around them lies between them, and what a later
//! call is given or finds elsewhere of what an earlier one made is among the outputs of that one. Calls of modules without children
//! count too.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

use rematic_trace::{CallId, Event, ModuleId, StepTrace, StorageId, Table};

use crate::Region;

/// A chain of so many calls is worth to be cut into runs, whatever they are.
const MANY: usize = 4;
/// So many calls of modules with children are, too.
const MANY_WITH_CHILDREN: usize = 2;

/// Calls beside each other any of which that follow one another make a run, in the order of forward.
pub type Chain = Vec<CallId>;

/// Which modules have others inside.
pub(crate) fn have_children(trace: &StepTrace) -> Table<ModuleId, bool> {
    let mut has_children = trace.modules().filled(false);
    for module in trace.modules() {
        if let Some(parent) = module.parent {
            has_children[parent] = true;
        }
    }
    has_children
}

/// The chains of a step, as long as they can be, in the order in which they end; in time linear in the trace.
#[must_use]
pub fn chains(trace: &StepTrace) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut open: Vec<Links> = Vec::new();
    let mut next_op = 0;
    for &event in trace.events() {
        match event {
            Event::Op(op) => {
                next_op = op.index() + 1;
                for read in trace.inputs(trace.op(op)) {
                    let birth = trace.storages().get(read.storage).and_then(|storage| storage.birth);
                    if let Some(birth) = birth {
                        open.iter_mut().for_each(|around| around.read(read.storage, birth.index()));
                    }
                }
            }
            Event::Enter(call) => {
                if let Some(around) = open.last_mut() {
                    around.enter(trace, call, next_op, &mut chains);
                }
                open.push(Links::default());
            }
            Event::Exit(call) => {
                chains.extend(open.pop().map(|links| links.calls).filter(|chain| chain.len() > 1));
                if let Some(around) = open.last_mut() {
                    around.exit(trace, call, next_op, &mut chains);
                }
            }
            _ => {}
        }
    }
    chains
}

/// The chains that are worth to be cut into runs. What comes before a model's layers, a module without children, is not cut together
/// with them.
#[must_use]
pub fn long_chains(trace: &StepTrace) -> Vec<Chain> {
    let has_children = have_children(trace);
    let with_children = |call: &CallId| has_children[trace.call(*call).module];
    let is_long = |chain: &Chain| {
        let count = chain.iter().filter(|call| with_children(call)).count();
        chain.len() >= MANY || count >= MANY_WITH_CHILDREN
    };
    let mut long = Vec::new();
    for mut chain in chains(trace) {
        let layers = chain.iter().position(with_children).unwrap_or(0);
        let rest = chain.split_off(layers);
        long.extend([chain, rest].into_iter().filter(is_long));
    }
    long
}

/// The calls inside one call, as far as they follow one another directly.
#[derive(Default)]
struct Links {
    calls: Chain,
    /// The operators of the chain so far.
    ops_start: usize,
    ops_end: usize,
    /// Where the last of its calls begins.
    last_start: usize,
    /// Whether that call reads what an earlier one made and did not return.
    reads_inside: bool,
    /// The outputs of its calls.
    made: HashSet<StorageId>,
}

impl Links {
    fn enter(&mut self, trace: &StepTrace, call: CallId, next_op: usize, chains: &mut Vec<Chain>) {
        let given = &trace.call(call);
        let is_made = |storage: &&StorageId| {
            let birth = trace.storages().get(**storage).and_then(|storage| storage.birth);
            birth.is_some_and(|birth| (self.ops_start..next_op).contains(&birth.index()))
        };
        let is_linked = self.ops_end == next_op
            && given.inputs.iter().chain(&given.keywords).filter(is_made).all(|storage| self.made.contains(storage));
        if !is_linked || self.calls.is_empty() {
            self.begin_anew(next_op, chains);
        }
        self.calls.push(call);
        (self.last_start, self.reads_inside) = (next_op, false);
    }

    /// An operator of the last call reads a storage.
    fn read(&mut self, storage: StorageId, birth: usize) {
        self.reads_inside |= (self.ops_start..self.last_start).contains(&birth) && !self.made.contains(&storage);
    }

    fn exit(&mut self, trace: &StepTrace, call: CallId, next_op: usize, chains: &mut Vec<Chain>) {
        if self.reads_inside {
            self.calls.pop();
            self.begin_anew(self.last_start, chains);
            self.calls.push(call);
            self.reads_inside = false;
        }
        self.ops_end = next_op;
        self.made.extend(&trace.call(call).outputs);
    }

    fn begin_anew(&mut self, next_op: usize, chains: &mut Vec<Chain>) {
        let chain = std::mem::take(&mut self.calls);
        chains.extend(Some(chain).filter(|chain| chain.len() > 1));
        self.made.clear();
        self.ops_start = next_op;
    }
}

/// Regions that are added to those of a step one by one, and never go.
#[derive(Debug, Default)]
pub(crate) struct Added {
    chunks: [OnceLock<Box<[OnceLock<Region>]>>; CHUNKS],
    /// By first and last call.
    known: Mutex<HashMap<(CallId, CallId), usize>>,
}

const CHUNKS: usize = 26;
const FIRST_CHUNK: usize = 64;

impl Added {
    /// Adds a region unless it is there; returns its number.
    pub(crate) fn add(&self, region: Region) -> usize {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = known.len();
        let index = *known.entry((region.call, region.last())).or_insert(next);
        if index == next {
            let (chunk, at) = place(index);
            let chunk = self.chunks[chunk]
                .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(FIRST_CHUNK << chunk).collect());
            chunk[at].get_or_init(|| Region { parent: None, ..region });
        }
        index
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Region> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)?.get()
    }
}

impl Clone for Added {
    fn clone(&self) -> Self {
        let clone = Added::default();
        for region in (0..).map_while(|index| self.get(index)) {
            clone.add(region.clone());
        }
        clone
    }
}

/// In which chunk an item is, and where: each is twice as long as the one before.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
}

/// The runs of a step by their first calls, and where they end.
pub(crate) struct Starts {
    runs: HashMap<CallId, Vec<CallId>>,
    last: HashSet<CallId>,
}

impl Starts {
    /// `runs` must have no call in common.
    pub(crate) fn new(runs: impl IntoIterator<Item = Vec<CallId>>) -> Self {
        let mut starts = Starts { runs: HashMap::new(), last: HashSet::new() };
        for mut run in runs.into_iter().filter(|run| run.len() > 1) {
            starts.last.extend(run.last());
            let first = run.remove(0);
            starts.runs.insert(first, run);
        }
        starts
    }

    /// The further calls of the run that a call begins.
    pub(crate) fn begin(&mut self, call: CallId) -> Option<Vec<CallId>> {
        if self.runs.is_empty() { None } else { self.runs.remove(&call) }
    }

    /// Whether a run ends with a call.
    pub(crate) fn end(&self, call: CallId) -> bool {
        !self.last.is_empty() && self.last.contains(&call)
    }
}

/// Chains cut into runs of so many calls, the last of each of what is left; runs of one call are left out.
#[must_use]
pub fn tiles(chains: &[Chain], length: usize) -> Vec<Vec<CallId>> {
    let runs = chains.iter().flat_map(|chain| chain.chunks(length.max(1)));
    runs.filter(|run| run.len() > 1).map(<[CallId]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn places_follow_one_another() {
        assert_eq!([0, 63, 64, 191, 192].map(place), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
    }
}
