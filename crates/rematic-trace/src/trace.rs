use std::collections::HashMap;
use std::ops::Range;

use crate::{
    Call, CallId, Category, Collective, CollectiveId, Event, Flags, Layout, LayoutId, Module, ModuleId, NameId, Op,
    OpId, Origin, Phase, Place, Pool, Storage, StorageId, StreamId, Table, Tensor,
};

/// An operator as it is handed to [`StepTrace::run`]. It runs on the compute stream and by itself, unless
/// [`StepTrace::set_stream`] and [`StepTrace::set_collective`] say otherwise afterwards.
#[derive(Clone, Copy, Debug)]
pub struct OpRecord<'a> {
    /// Name with overload.
    pub name: &'a str,
    /// Where in the step it runs.
    pub phase: Phase,
    /// The innermost module call that it belongs to.
    pub call: Option<CallId>,
    /// For a backward op: the forward op that it differentiates.
    pub differentiates: Option<OpId>,
    /// Its kind.
    pub flags: Flags,
    /// Storages that it changes in place.
    pub mutates: &'a [StorageId],
    /// Tensors that it reads.
    pub inputs: &'a [Tensor],
    /// Tensors that it returns.
    pub outputs: &'a [Tensor],
    /// Tensors that autograd saves for its backward, in the order of saving; parameters too.
    pub saves: &'a [Tensor],
    /// Bytes and category of the new storages among the outputs; they get the next free ids, in this order.
    pub births: &'a [(u64, Category)],
}

impl<'a> OpRecord<'a> {
    /// An operator that reads, makes and changes nothing, for others to be made of.
    #[must_use]
    pub fn new(name: &'a str, phase: Phase) -> Self {
        OpRecord {
            name,
            phase,
            call: None,
            differentiates: None,
            flags: Flags::default(),
            mutates: &[],
            inputs: &[],
            outputs: &[],
            saves: &[],
            births: &[],
        }
    }
}

/// One rank's training step, from the first operator of forward to the end of `zero_grad`.
#[derive(Clone, Debug)]
pub struct StepTrace {
    /// What was traced, and how.
    pub origin: Origin,
    /// The rank whose step it is.
    pub place: Place,
    pub(crate) streams: Table<StreamId, String>,
    pub(crate) collectives: Table<CollectiveId, Collective>,
    pub(crate) modules: Table<ModuleId, Module>,
    pub(crate) calls: Table<CallId, Call>,
    pub(crate) storages: Table<StorageId, Storage>,
    pub(crate) layouts: Table<LayoutId, Layout>,
    pub(crate) names: Table<NameId, String>,
    pub(crate) ops: Table<OpId, Op>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) mutated: Vec<StorageId>,
    pub(crate) events: Vec<Event>,
    layout_ids: HashMap<Layout, LayoutId>,
    name_ids: HashMap<String, NameId>,
}

/// The name of the stream that models run on.
pub(crate) const COMPUTE_STREAM: &str = "compute";

/// The storages of a step must add up to less than this, so that no sum of a few totals overflows.
const STORAGES_LIMIT: u64 = 1 << 62;
/// Added to each storage in that sum: no allocator rounds up by more.
const MOST_ROUNDING: u64 = 2 << 20;

/// Two traces are equal if they say the same; the look-up tables do not matter.
impl PartialEq for StepTrace {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
            && self.place == other.place
            && self.streams == other.streams
            && self.collectives == other.collectives
            && self.modules == other.modules
            && self.calls == other.calls
            && self.storages == other.storages
            && self.layouts == other.layouts
            && self.names == other.names
            && self.ops == other.ops
            && self.tensors == other.tensors
            && self.mutated == other.mutated
            && self.events == other.events
    }
}

impl Default for StepTrace {
    fn default() -> Self {
        StepTrace::new("")
    }
}

impl StepTrace {
    /// An empty step of the named model.
    #[must_use]
    pub fn new(model: &str) -> Self {
        StepTrace {
            origin: Origin::of(model),
            place: Place::default(),
            streams: vec![COMPUTE_STREAM.to_owned()].into(),
            collectives: Table::default(),
            modules: Table::default(),
            calls: Table::default(),
            storages: Table::default(),
            layouts: Table::default(),
            names: Table::default(),
            ops: Table::default(),
            tensors: Vec::new(),
            mutated: Vec::new(),
            events: Vec::new(),
            layout_ids: HashMap::new(),
            name_ids: HashMap::new(),
        }
    }

    // ---- reading ----

    /// The modules; a parent stands before its children, the root first.
    #[must_use]
    pub fn modules(&self) -> &Table<ModuleId, Module> {
        &self.modules
    }

    /// The module with this id.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id]
    }

    /// The calls of modules, in the order in which they begin.
    #[must_use]
    pub fn calls(&self) -> &Table<CallId, Call> {
        &self.calls
    }

    /// The call with this id.
    #[must_use]
    pub fn call(&self, id: CallId) -> &Call {
        &self.calls[id]
    }

    /// The storages.
    #[must_use]
    pub fn storages(&self) -> &Table<StorageId, Storage> {
        &self.storages
    }

    /// What all storages take together, with room for an allocator's rounding; `None` if that is 2^62 bytes or more,
    /// which [`StepTrace::validate`] refuses.
    #[must_use]
    pub fn storage_bytes(&self) -> Option<u64> {
        self.storages.iter().try_fold(0, |sum, storage| with_storage(sum, storage.bytes))
    }

    /// The operators, in the order of execution.
    #[must_use]
    pub fn ops(&self) -> &Table<OpId, Op> {
        &self.ops
    }

    /// The operator with this id.
    #[must_use]
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id]
    }

    /// Everything that happens, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The distinct layouts.
    #[must_use]
    pub fn layouts(&self) -> &Table<LayoutId, Layout> {
        &self.layouts
    }

    /// The layout of a tensor.
    #[must_use]
    pub fn layout_of(&self, tensor: Tensor) -> &Layout {
        &self.layouts[tensor.layout]
    }

    /// The distinct operator names.
    #[must_use]
    pub fn names(&self) -> &Table<NameId, String> {
        &self.names
    }

    /// An operator's name (`mm.default`).
    #[must_use]
    pub fn op_name(&self, op: &Op) -> &str {
        &self.names[op.name]
    }

    /// The tensors that an operator reads.
    #[must_use]
    pub fn inputs(&self, op: &Op) -> &[Tensor] {
        &self.tensors[as_usize(&op.inputs)]
    }

    /// The tensors that an operator returns.
    #[must_use]
    pub fn outputs(&self, op: &Op) -> &[Tensor] {
        &self.tensors[as_usize(&op.outputs)]
    }

    /// The tensors that autograd saves for an operator's backward.
    #[must_use]
    pub fn saves(&self, op: &Op) -> &[Tensor] {
        &self.tensors[as_usize(&op.saves)]
    }

    /// The storages that an operator changes in place.
    #[must_use]
    pub fn mutates(&self, op: &Op) -> &[StorageId] {
        &self.mutated[as_usize(&op.mutates)]
    }

    /// The names of the streams; the first is the compute stream.
    #[must_use]
    pub fn streams(&self) -> &Table<StreamId, String> {
        &self.streams
    }

    /// The distinct ways in which operators communicate.
    #[must_use]
    pub fn collectives(&self) -> &Table<CollectiveId, Collective> {
        &self.collectives
    }

    /// How an operator communicates with other ranks, if it does.
    #[must_use]
    pub fn collective_of(&self, op: &Op) -> Option<&Collective> {
        op.collective.map(|collective| &self.collectives[collective])
    }

    /// A module's full name: the names from the root down, joined by dots.
    #[must_use]
    pub fn path(&self, module: ModuleId) -> String {
        let mut names = vec![self.module(module).name.as_str()];
        let mut at = self.module(module).parent;
        while let Some(parent) = at {
            names.push(&self.module(parent).name);
            at = self.module(parent).parent;
        }
        names.reverse();
        names.join(".")
    }

    /// The module that an operator belongs to.
    #[must_use]
    pub fn module_of(&self, op: &Op) -> Option<ModuleId> {
        op.call.map(|call| self.call(call).module)
    }

    // ---- writing ----

    /// Adds a module; its parent must have been added before.
    pub fn add_module(&mut self, module: Module) -> ModuleId {
        self.modules.push(module)
    }

    /// The module, to add its parameters.
    pub fn module_mut(&mut self, id: ModuleId) -> &mut Module {
        &mut self.modules[id]
    }

    /// The id of a layout; equal layouts share one.
    pub fn layout(&mut self, layout: &Layout) -> LayoutId {
        if let Some(&id) = self.layout_ids.get(layout) {
            return id;
        }
        let id = self.layouts.push(layout.clone());
        self.layout_ids.insert(layout.clone(), id);
        id
    }

    /// A storage that exists when the step begins.
    pub fn storage_before_step(&mut self, bytes: u64, category: Category) -> StorageId {
        self.storages.push(Storage {
            bytes,
            category,
            birth: None,
            pool: Pool::Device,
            released: false,
            share: None,
            seen: false,
        })
    }

    /// The storage lies in another pool than the device's memory.
    pub fn set_pool(&mut self, storage: StorageId, pool: Pool) {
        self.storages[storage].pool = pool;
    }

    /// The bytes of a storage that exists before the step are released when it begins.
    pub fn set_released(&mut self, storage: StorageId) {
        self.storages[storage].released = true;
    }

    /// More than operators reads the storage.
    pub fn set_seen(&mut self, storage: StorageId) {
        self.storages[storage].seen = true;
    }

    /// The rank has only so many bytes of the storage; others have the rest.
    pub fn set_share(&mut self, storage: StorageId, bytes: u64) {
        self.storages[storage].share = Some(bytes);
    }

    /// Puts others in the place of events: each is handed over with the list that it, or what replaces it, goes into.
    pub fn rewrite(&mut self, mut each: impl FnMut(Event, &mut Vec<Event>)) {
        let before = std::mem::take(&mut self.events);
        self.events.reserve(before.len());
        for event in before {
            each(event, &mut self.events);
        }
    }

    /// Adds a stream.
    pub fn add_stream(&mut self, name: &str) -> StreamId {
        self.streams.push(name.to_owned())
    }

    /// The operator runs on another stream than the compute stream.
    pub fn set_stream(&mut self, op: OpId, stream: StreamId) {
        self.ops[op].stream = stream;
    }

    /// The operator communicates with other ranks. Equal ways to do so share an id.
    pub fn set_collective(&mut self, op: OpId, collective: Collective) {
        // A step has few distinct ones: a handful for each size of a layer.
        let known = self.collectives.entries().find(|(_, known)| **known == collective).map(|(id, _)| id);
        self.ops[op].collective = Some(known.unwrap_or_else(|| self.collectives.push(collective)));
    }

    /// The id that the first new storage of the next operator will get.
    #[must_use]
    pub fn next_storage(&self) -> StorageId {
        StorageId::new(self.storages.len())
    }

    /// Runs an operator: adds it, its new storages and its event.
    pub fn run(&mut self, record: OpRecord<'_>) -> OpId {
        let id = OpId::new(self.ops.len());
        self.storages.items_mut().extend(record.births.iter().map(|&(bytes, category)| Storage {
            bytes,
            category,
            birth: Some(id),
            pool: Pool::Device,
            released: false,
            share: None,
            seen: false,
        }));
        let name = self.name(record.name);
        let inputs = extend(&mut self.tensors, record.inputs.iter().copied());
        let outputs = extend(&mut self.tensors, record.outputs.iter().copied());
        let saves = extend(&mut self.tensors, record.saves.iter().copied());
        let mutates = extend(&mut self.mutated, record.mutates.iter().copied());
        self.ops.push(Op {
            name,
            phase: record.phase,
            call: record.call,
            differentiates: record.differentiates,
            flags: record.flags,
            stream: StreamId::COMPUTE,
            collective: None,
            mutates,
            inputs,
            outputs,
            saves,
        });
        self.events.push(Event::Op(id));
        id
    }

    /// Begins a call of a module's forward.
    pub fn enter(&mut self, module: ModuleId, inputs: Vec<StorageId>) -> CallId {
        let id = self.calls.push(Call { module, inputs, keywords: Vec::new(), outputs: Vec::new() });
        self.events.push(Event::Enter(id));
        id
    }

    /// Notes the storages of the tensors among a call's keyword arguments.
    pub fn set_keywords(&mut self, call: CallId, keywords: Vec<StorageId>) {
        self.calls[call].keywords = keywords;
    }

    /// Ends a call of a module's forward.
    pub fn exit(&mut self, call: CallId, outputs: Vec<StorageId>) {
        self.calls[call].outputs = outputs;
        self.events.push(Event::Exit(call));
    }

    /// Adds any other event.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Makes the look-up tables for tables that were filled without them.
    pub(crate) fn index(&mut self) {
        for (id, name) in self.names.entries() {
            if !self.name_ids.contains_key(name) {
                self.name_ids.insert(name.clone(), id);
            }
        }
        for (id, layout) in self.layouts.entries() {
            if !self.layout_ids.contains_key(layout) {
                self.layout_ids.insert(layout.clone(), id);
            }
        }
    }

    fn name(&mut self, name: &str) -> NameId {
        if let Some(&id) = self.name_ids.get(name) {
            return id;
        }
        let id = self.names.push(name.to_owned());
        self.name_ids.insert(name.to_owned(), id);
        id
    }
}

/// The sum with one more storage, if it is countable.
pub(crate) fn with_storage(sum: u64, bytes: u64) -> Option<u64> {
    sum.checked_add(bytes)?.checked_add(MOST_ROUNDING).filter(|&sum| sum < STORAGES_LIMIT)
}

/// Adds items to a pool of many lists, and says where they are.
pub(crate) fn extend<T>(pool: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Range<u32> {
    let at = |length: usize| u32::try_from(length).expect("a trace holds fewer than 2^32 tensor references");
    let start = at(pool.len());
    pool.extend(items);
    start..at(pool.len())
}

fn as_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// An operator's name without the overload that most have.
#[must_use]
pub fn short(name: &str) -> &str {
    name.strip_suffix(".default").unwrap_or(name)
}

/// A module's full name as it is called in code, with the positions in lists left open: `Model.layers.7.mlp` becomes
/// `layers.*.mlp`. The root keeps its name.
#[must_use]
pub fn any_layer(path: &str) -> String {
    let inner = path.split_once('.').map_or(path, |(_, inner)| inner);
    let name = |part: &str| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part }.to_owned();
    inner.split('.').map(name).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::any_layer;

    #[test]
    fn layers_are_named_by_what_they_share() {
        assert_eq!(any_layer("Model.layers.12.mlp"), "layers.*.mlp");
        assert_eq!(any_layer("Model.h2.0"), "h2.*");
        assert_eq!(any_layer("Model"), "Model");
    }
}
