//! The rules of the replay once more, as plainly as possible: every storage is looked at after every event, and every
//! module after every operator.

use std::collections::{BTreeMap, BTreeSet};

use rematic_replay::{Allocator, ModuleMemory, Pass, Resident};
use rematic_trace::{Bytes, CallId, Category, Event, ModuleId, OpId, Phase, Pool, StepTrace, Storage, StorageId};

/// Bytes per category, in the order of [`Category::ALL`].
pub(crate) type State = [u64; 7];

#[derive(Default)]
pub(crate) struct Reference {
    pub(crate) start: State,
    pub(crate) states: Vec<State>,
    pub(crate) end: State,
    pub(crate) peak: (Option<OpId>, State),
    pub(crate) peak_alive: Vec<Resident>,
    pub(crate) modules: Vec<Option<Seen>>,
}

/// What is seen of one module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) held: [u64; 2],
    pub(crate) passed: [u64; 2],
    pub(crate) forward: [Option<State>; 3],
    pub(crate) backward: [Option<State>; 3],
}

impl From<&ModuleMemory> for Seen {
    fn from(memory: &ModuleMemory) -> Self {
        let pass = |pass: &Pass| [pass.pre, pass.peak, pass.post].map(|snapshot| snapshot.as_ref().map(state));
        assert_eq!(memory.recompute, Pass::default());
        Seen {
            held: [memory.parameter_bytes.0, memory.buffer_bytes.0],
            passed: [memory.input_bytes.0, memory.output_bytes.0],
            forward: pass(&memory.forward),
            backward: pass(&memory.backward),
        }
    }
}

pub(crate) fn state(snapshot: &rematic_replay::Snapshot) -> State {
    Category::ALL.map(|category| snapshot[category].0)
}

pub(crate) fn total(state: &State) -> u64 {
    state.iter().sum()
}

struct World<'a> {
    trace: &'a StepTrace,
    allocator: Allocator,
    held: BTreeSet<StorageId>,
    saving: BTreeSet<OpId>,
    released: BTreeSet<StorageId>,
    shrunk: BTreeMap<StorageId, u64>,
    categories: Vec<Category>,
    /// Calls under way, forward and backward.
    open: [BTreeSet<CallId>; 2],
}

impl World<'_> {
    fn bytes(&self, storage: StorageId) -> u64 {
        self.rounded(storage, self.shrunk.get(&storage).copied())
    }

    fn rounded(&self, storage: StorageId, left: Option<u64>) -> u64 {
        let Storage { bytes, pool, share, .. } = self.trace.storages()[storage];
        let requested = left.or(share).unwrap_or(bytes);
        if pool == Pool::Pinned {
            return 0;
        }
        match self.allocator {
            Allocator::Cuda => requested.div_ceil(512) * 512,
            _ => requested,
        }
    }

    fn savers(&self, storage: StorageId) -> Vec<OpId> {
        let saves = |op: &&OpId| self.trace.saves(self.trace.op(**op)).iter().any(|tensor| tensor.storage == storage);
        self.saving.iter().filter(saves).copied().collect()
    }

    fn alive(&self) -> Vec<StorageId> {
        let all = (0..self.trace.storages().len()).map(StorageId::new);
        let present = all.filter(|storage| !self.released.contains(storage));
        present.filter(|storage| self.held.contains(storage) || !self.savers(*storage).is_empty()).collect()
    }

    fn state(&self) -> State {
        let mut state = State::default();
        for storage in self.alive() {
            state[self.categories[storage.index()] as usize] += self.bytes(storage);
        }
        state
    }

    fn residents(&self) -> Vec<Resident> {
        let mut residents: Vec<Resident> = self
            .alive()
            .into_iter()
            .map(|storage| {
                let birth = self.trace.storages()[storage].birth;
                let owner = self.trace.modules().iter().position(|module| {
                    module.parameters.iter().chain(&module.buffers).any(|parameter| parameter.storage == storage)
                });
                Resident {
                    storage,
                    bytes: Bytes(self.bytes(storage)),
                    category: self.categories[storage.index()],
                    birth,
                    module: match birth {
                        Some(op) => self.trace.module_of(self.trace.op(op)),
                        None => owner.map(ModuleId::new),
                    },
                    held: self.held.contains(&storage),
                    saved_by: self.savers(storage),
                }
            })
            .collect();
        residents.sort_by_key(|resident| std::cmp::Reverse(resident.bytes));
        residents
    }

    fn active(&self, direction: usize, module: usize) -> bool {
        self.open[direction].iter().any(|call| self.trace.call(*call).module.index() == module)
    }

    fn below(&self, module: usize, top: usize) -> bool {
        let mut at = Some(ModuleId::new(module));
        while let Some(id) = at {
            if id.index() == top {
                return true;
            }
            at = self.trace.module(id).parent;
        }
        false
    }

    fn holdings(&self, top: usize) -> [u64; 2] {
        let mut storages = [BTreeSet::new(), BTreeSet::new()];
        for (index, module) in self.trace.modules().iter().enumerate().filter(|(index, _)| self.below(*index, top)) {
            assert!(index >= top);
            storages[0].extend(module.parameters.iter().map(|parameter| parameter.storage));
            storages[1].extend(module.buffers.iter().map(|parameter| parameter.storage));
        }
        // As they are when the step begins.
        storages.map(|storages| storages.into_iter().map(|storage| self.rounded(storage, None)).sum())
    }
}

pub(crate) fn replay(trace: &StepTrace, allocator: Allocator) -> Reference {
    let before = |(index, storage): (usize, &Storage)| storage.birth.is_none().then_some(index);
    let released = |(index, storage): (usize, &Storage)| storage.released.then_some(index);
    let mut world = World {
        trace,
        allocator,
        held: trace.storages().iter().enumerate().filter_map(before).map(StorageId::new).collect(),
        saving: BTreeSet::new(),
        released: trace.storages().iter().enumerate().filter_map(released).map(StorageId::new).collect(),
        shrunk: BTreeMap::new(),
        categories: trace.storages().iter().map(|storage| storage.category).collect(),
        open: [BTreeSet::new(), BTreeSet::new()],
    };
    let start = world.state();
    let mut reference = Reference {
        start,
        peak: (None, start),
        peak_alive: world.residents(),
        modules: vec![None; trace.modules().len()],
        ..Reference::default()
    };
    let mut after_backward = None;
    for &event in trace.events() {
        if let Event::Op(op) = event
            && trace.op(op).phase == Phase::Optimizer
            && after_backward.is_none()
        {
            after_backward = Some(world.state());
            world.open[1].clear();
        }
        follow(&mut world, &mut reference, event);
    }
    reference.end = world.state();
    for seen in reference.modules.iter_mut().flatten() {
        seen.backward[2].get_or_insert(after_backward.unwrap_or(reference.end));
    }
    reference
}

fn follow(world: &mut World<'_>, reference: &mut Reference, event: Event) {
    let trace = world.trace;
    match event {
        Event::Op(op) => {
            let born = |storage: &StorageId| trace.storages()[*storage].birth == Some(op);
            world.held.extend((0..trace.storages().len()).map(StorageId::new).filter(born));
            world.saving.insert(op);
            let state = world.state();
            reference.states.push(state);
            if total(&state) > total(&reference.peak.1) {
                reference.peak = (Some(op), state);
                reference.peak_alive = world.residents();
            }
            for (module, seen) in reference.modules.iter_mut().enumerate() {
                let Some(seen) = seen else { continue };
                for (direction, pass) in [&mut seen.forward, &mut seen.backward].into_iter().enumerate() {
                    if world.active(direction, module) && pass[1].is_some_and(|peak| total(&state) > total(&peak)) {
                        pass[1] = Some(state);
                    }
                }
            }
        }
        Event::Return(_) | Event::Wait { .. } | Event::MicroBatch(_) => {}
        Event::Release(storage) => assert!(world.released.insert(storage)),
        Event::Restore(storage) => assert!(world.released.remove(&storage)),
        Event::Shrink(storage, bytes) => {
            world.shrunk.insert(storage, bytes);
        }
        Event::Drop(storage) => assert!(world.held.remove(&storage)),
        Event::Unsave(op) => assert!(world.saving.remove(&op)),
        Event::Recategorize(storage, category) => world.categories[storage.index()] = category,
        Event::Enter(call) | Event::Exit(call) | Event::EnterBackward(call) | Event::ExitBackward(call) => {
            let state = world.state();
            let sum = |storages: &[StorageId]| storages.iter().map(|storage| world.bytes(*storage)).sum();
            let module = trace.call(call).module.index();
            let seen = reference.modules[module]
                .get_or_insert_with(|| Seen { held: world.holdings(module), ..Seen::default() });
            match event {
                Event::Enter(_) => {
                    seen.passed[0] = sum(&trace.call(call).inputs);
                    seen.forward = [Some(state), Some(state), seen.forward[2]];
                    world.open[0].insert(call);
                }
                Event::Exit(_) => {
                    seen.passed[1] = sum(&trace.call(call).outputs);
                    seen.forward[2] = Some(state);
                    world.open[0].remove(&call);
                }
                Event::EnterBackward(_) => {
                    seen.backward = [Some(state), Some(state), seen.backward[2]];
                    world.open[1].insert(call);
                }
                _ => {
                    seen.backward[2] = Some(state);
                    world.open[1].remove(&call);
                }
            }
        }
    }
}
