//! Random steps: valid ones against the reference, and nonsense that must not bring the replay down.

use std::collections::HashMap;

use proptest::prelude::*;
use rematic_replay::{Allocator, Resident, Timeline};
use rematic_trace::{
    CallId, Category, Event, Flags, LayoutId, Module, ModuleId, OpId, OpRecord, Parameter, Phase, Pool, StepTrace,
    StorageId, Tensor,
};

use crate::reference::{self, Seen, state};
use crate::script::{Action, Script};

/// Few sizes, so that equal totals are common.
const SIZES: [u64; 5] = [0, 100, 512, 700, 1024];

/// One step of the generator: what to try, and the dice to choose by.
type Move = (u8, u32, u32);

fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec((0..24_u8, any::<u32>(), any::<u32>()), 0..most)
}

fn pick<T: Copy>(from: &[T], dice: u32) -> Option<T> {
    (!from.is_empty()).then(|| from[dice as usize % from.len()])
}

/// Makes only moves that are allowed, so that what comes out is valid.
struct Generator {
    script: Script,
    held: Vec<StorageId>,
    saving: Vec<OpId>,
    released: Vec<StorageId>,
    /// The bytes that are left of those that shrank.
    own: HashMap<StorageId, u64>,
    open: Vec<CallId>,
    returned: Vec<CallId>,
}

impl Generator {
    /// A tree of modules with parameters, some of them tied.
    fn new(tree: &[(u32, u32)], before: &[u8]) -> Self {
        let mut script = Script::new();
        let held: Vec<StorageId> = before
            .iter()
            .map(|&dice| script.before(SIZES[dice as usize % SIZES.len()], Category::ALL[dice as usize % 7]))
            .collect();
        for storage in held.iter().filter(|storage| before[storage.index()] & 128 != 0) {
            script.trace.set_pool(*storage, Pool::Pinned);
        }
        let released: Vec<StorageId> =
            held.iter().copied().filter(|storage| before[storage.index()] & 32 != 0).collect();
        for storage in &released {
            script.trace.set_released(*storage);
        }
        for (index, &(parent, storage)) in tree.iter().enumerate() {
            let parent = (index > 0).then(|| ModuleId::new(parent as usize % index));
            let module = script.module(&format!("m{index}"), parent);
            for dice in [storage, storage >> 8] {
                if let Some(storage) = pick(&held, dice) {
                    let parameter = script.parameter(storage);
                    let module = script.trace.module_mut(module);
                    if dice & 64 == 0 { &mut module.parameters } else { &mut module.buffers }.push(parameter);
                }
            }
        }
        Generator {
            script,
            held,
            saving: Vec::new(),
            released,
            own: HashMap::new(),
            open: Vec::new(),
            returned: Vec::new(),
        }
    }

    fn alive(&self) -> Vec<StorageId> {
        let trace = &self.script.trace;
        let saved = self.saving.iter().flat_map(|op| trace.saves(trace.op(*op))).map(|tensor| tensor.storage);
        let mut alive: Vec<StorageId> = self.held.iter().copied().chain(saved).collect();
        alive.sort_unstable();
        alive.dedup();
        alive
    }

    fn make(&mut self, phase: Phase, (action, a, b): Move) {
        let mut alive = self.alive();
        let released: Vec<StorageId> = alive.extract_if(.., |storage| self.released.contains(storage)).collect();
        match action {
            0..=5 => self.run(phase, &alive, a, b),
            6..=8 => {
                if let Some(storage) = pick(&self.held, a) {
                    self.held.retain(|held| *held != storage);
                    self.script.drop(storage);
                }
            }
            9..=10 => {
                if let Some(op) = pick(&self.saving, a) {
                    self.saving.retain(|saving| *saving != op);
                    self.script.push(Event::Unsave(op));
                }
            }
            11 => {
                if let Some(storage) = pick(if b & 64 == 0 { &alive } else { &released }, a) {
                    self.script.push(Event::Recategorize(storage, Category::ALL[b as usize % 7]));
                    if b & 64 == 0 && b % 3 == 0 {
                        let own = self.own.entry(storage).or_insert(self.script.trace.storages()[storage].bytes);
                        *own /= 2;
                        self.script.push(Event::Shrink(storage, *own));
                    }
                }
            }
            12..=13 => {
                let module = ModuleId::new(a as usize % self.script.trace.modules().len());
                let inputs = pick(&alive, b).map_or(Vec::new(), |storage| vec![storage; 1 + (b as usize >> 8) % 2]);
                self.open.push(self.script.trace.enter(module, inputs));
            }
            14..=15 => self.exit(pick(&alive, b)),
            16..=17 => {
                if let Some(storage) = pick(&alive, a) {
                    self.released.push(storage);
                    self.script.push(Event::Release(storage));
                }
            }
            18..=19 => {
                if let Some(storage) = pick(&released, a) {
                    self.released.retain(|released| *released != storage);
                    self.script.push(Event::Restore(storage));
                }
            }
            _ => {
                if let Some(call) = pick(&self.returned, a) {
                    let event = if action < 22 { Event::EnterBackward(call) } else { Event::ExitBackward(call) };
                    self.script.push(event);
                }
            }
        }
    }

    fn run(&mut self, phase: Phase, alive: &[StorageId], a: u32, b: u32) {
        let births: Vec<(u64, Category)> = (0..a % 3)
            .map(|shift| b >> (8 * shift))
            .map(|dice| (SIZES[dice as usize % SIZES.len()], Category::ALL[dice as usize % 7]))
            .collect();
        let first = self.script.trace.next_storage().index();
        self.held.extend((first..first + births.len()).map(StorageId::new));
        let some: Vec<StorageId> = [a >> 8, b >> 8].into_iter().filter_map(|dice| pick(alive, dice)).collect();
        let op = self.script.run(
            phase,
            Action {
                call: self.open.last().copied(),
                births: &births,
                views: if a & 16 == 0 { &some } else { &[] },
                saves: if a & 32 == 0 { &some } else { &[] },
                saves_births: a & 64 == 0,
            },
        );
        self.saving.push(op);
    }

    fn exit(&mut self, output: Option<StorageId>) {
        if let Some(call) = self.open.pop() {
            self.script.trace.exit(call, output.into_iter().collect());
            self.returned.push(call);
        }
    }
}

prop_compose! {
    fn step()(
        tree in prop::collection::vec(any::<(u32, u32)>(), 1..6),
        before in prop::collection::vec(any::<u8>(), 0..4),
        forward in moves(60),
        backward in moves(60),
        optimizer in moves(15),
    ) -> StepTrace {
        let mut generator = Generator::new(&tree, &before);
        for (phase, moves) in
            [(Phase::Forward, forward), (Phase::Backward, backward), (Phase::Optimizer, optimizer)]
        {
            for one in moves {
                generator.make(phase, one);
            }
        }
        while !generator.open.is_empty() {
            generator.exit(None);
        }
        generator.script.trace
    }
}

/// Ids that are mostly, but not always, in range.
fn stray() -> impl Strategy<Value = usize> {
    prop_oneof![9 => 0..6_usize, 1 => Just(u32::MAX as usize)]
}

fn stray_event() -> impl Strategy<Value = Event> {
    (0..11_u8, stray(), 0..7_usize).prop_map(|(kind, id, category)| match kind {
        0 => Event::Op(OpId::new(id)),
        1 => Event::Drop(StorageId::new(id)),
        2 => Event::Unsave(OpId::new(id)),
        3 => Event::Recategorize(StorageId::new(id), Category::ALL[category]),
        4 => Event::Enter(CallId::new(id)),
        5 => Event::Exit(CallId::new(id)),
        6 => Event::EnterBackward(CallId::new(id)),
        7 => Event::Release(StorageId::new(id)),
        8 => Event::Restore(StorageId::new(id)),
        9 => Event::Shrink(StorageId::new(id), 100 * category as u64),
        _ => Event::ExitBackward(CallId::new(id)),
    })
}

prop_compose! {
    fn nonsense()(
        modules in prop::collection::vec((prop::option::of(stray()), stray()), 0..5),
        calls in prop::collection::vec((stray(), stray()), 0..5),
        ops in prop::collection::vec((stray(), stray(), stray(), any::<u64>()), 0..5),
        events in prop::collection::vec(stray_event(), 0..60),
    ) -> StepTrace {
        let mut trace = StepTrace::new("nonsense");
        let layout = LayoutId::new(7);
        trace.storage_before_step(u64::MAX, Category::Parameter);
        for (parent, storage) in modules {
            let parameter = Parameter { name: String::new(), storage: StorageId::new(storage), layout };
            trace.add_module(Module {
                name: String::new(),
                class: String::new(),
                parent: parent.map(ModuleId::new),
                parameters: vec![parameter.clone(); 2],
                buffers: vec![parameter],
            });
        }
        for (module, storage) in calls {
            let call = trace.enter(ModuleId::new(module), vec![StorageId::new(storage); 2]);
            trace.exit(call, vec![StorageId::new(storage); 2]);
        }
        for (call, output, save, bytes) in ops {
            let tensor = |storage| Tensor { storage: StorageId::new(storage), layout };
            trace.run(OpRecord {
                name: "op",
                phase: if bytes % 2 == 0 { Phase::Backward } else { Phase::Optimizer },
                call: Some(CallId::new(call)),
                differentiates: None,
                flags: Flags::default(),
                mutates: &[],
                inputs: &[],
                outputs: &[tensor(output)],
                saves: &[tensor(save)],
                births: &[(bytes, Category::Temp)],
            });
        }
        for event in events {
            trace.push(event);
        }
        trace
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn valid_steps_replay_as_the_reference_says(
        trace in step(),
        allocator in prop_oneof![Just(Allocator::Cuda), Just(Allocator::Cpu)],
        most in 0..12_usize,
    ) {
        prop_assert_eq!(trace.validate(), Ok(()));
        let timeline = Timeline::replay(&trace, allocator);
        let slow = reference::replay(&trace, allocator);
        prop_assert_eq!(state(timeline.start()), slow.start);
        prop_assert_eq!(state(timeline.end()), slow.end);
        prop_assert_eq!(timeline.snapshots().iter().map(state).collect::<Vec<_>>(), &slow.states[..]);
        let totals: Vec<u64> = slow.states.iter().map(reference::total).collect();
        prop_assert_eq!(timeline.totals().iter().map(|bytes| bytes.0).collect::<Vec<_>>(), totals);
        prop_assert_eq!(timeline.peak().at.map(|moment| moment.op), slow.peak.0);
        prop_assert_eq!(state(&timeline.peak().snapshot), slow.peak.1);
        let kept = most.min(slow.peak_alive.len());
        prop_assert_eq!(&timeline.alive_at_peak(&trace, most)[..], &slow.peak_alive[..kept]);
        let seen: Vec<Option<Seen>> = timeline.modules().iter().map(|memory| memory.as_ref().map(Seen::from)).collect();
        prop_assert_eq!(seen, slow.modules);
    }

    #[test]
    fn nonsense_does_not_panic(trace in nonsense(), op in stray(), most in 0..9_usize) {
        let timeline = Timeline::replay(&trace, Allocator::Cuda);
        let _ = timeline.alive_at_peak(&trace, most);
        let _ = Resident::after(&trace, Allocator::Cpu, Some(OpId::new(op)), most);
    }
}
