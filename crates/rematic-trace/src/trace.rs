use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    Call, CallId, Event, Flags, Layout, LayoutId, Module, ModuleId, NameId, Op, OpId, Phase, StorageId, Tensor,
};

/// What a storage is for; the categories of PyTorch's MemTracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// A module's parameter.
    Parameter,
    /// A module's buffer.
    Buffer,
    /// The gradient of a parameter.
    Gradient,
    /// Made in forward.
    Activation,
    /// Made in backward: gradients of activations and intermediate results.
    Temp,
    /// Optimizer state, and what the optimizer makes while it steps.
    Optimizer,
    /// Made outside the step: the batch.
    Other,
}

impl Category {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Category; 7] = [
        Category::Parameter,
        Category::Buffer,
        Category::Gradient,
        Category::Activation,
        Category::Temp,
        Category::Optimizer,
        Category::Other,
    ];
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Category::Parameter => "parameter",
            Category::Buffer => "buffer",
            Category::Gradient => "gradient",
            Category::Activation => "activation",
            Category::Temp => "temp",
            Category::Optimizer => "optimizer",
            Category::Other => "other",
        })
    }
}

/// A block of memory. Several tensors may lie in one; memory is counted per storage, never per tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its size as requested, before any allocator rounds it.
    pub bytes: u64,
    /// What it is counted as when it is born.
    pub category: Category,
    /// The operator that makes it; `None` if it exists before the step.
    pub birth: Option<OpId>,
}

/// An operator with everything about it, as it is handed to [`StepTrace::run`].
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

/// One training step, from the first operator of forward to the end of `zero_grad`.
#[derive(Clone, Debug, Default)]
pub struct StepTrace {
    /// What was traced, for people: a model's name or a script.
    pub model: String,
    /// Facts about how it was traced (`batch`, `dtype`, …), in the order in which they were given.
    pub facts: Vec<(String, String)>,
    pub(crate) modules: Vec<Module>,
    pub(crate) calls: Vec<Call>,
    pub(crate) storages: Vec<Storage>,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) names: Vec<String>,
    pub(crate) ops: Vec<Op>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) mutated: Vec<StorageId>,
    pub(crate) events: Vec<Event>,
    layout_ids: HashMap<Layout, LayoutId>,
    name_ids: HashMap<String, NameId>,
}

/// The storages of a step must add up to less than this, so that no sum of a few totals overflows.
const STORAGES_LIMIT: u64 = 1 << 62;
/// Added to each storage in that sum: no allocator rounds up by more.
const MOST_ROUNDING: u64 = 2 << 20;

/// Two traces are equal if they say the same; the look-up tables do not matter.
impl PartialEq for StepTrace {
    fn eq(&self, other: &Self) -> bool {
        self.model == other.model
            && self.facts == other.facts
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

impl StepTrace {
    /// An empty step of the named model.
    #[must_use]
    pub fn new(model: &str) -> Self {
        StepTrace { model: model.to_owned(), ..StepTrace::default() }
    }

    // ---- reading ----

    /// The modules; a parent stands before its children, the root first.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The module with this id.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id.index()]
    }

    /// The calls of modules, in the order in which they begin.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The call with this id.
    #[must_use]
    pub fn call(&self, id: CallId) -> &Call {
        &self.calls[id.index()]
    }

    /// The storages.
    #[must_use]
    pub fn storages(&self) -> &[Storage] {
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
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operator with this id.
    #[must_use]
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// Everything that happens, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The distinct layouts.
    #[must_use]
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// The layout of a tensor.
    #[must_use]
    pub fn layout_of(&self, tensor: Tensor) -> &Layout {
        &self.layouts[tensor.layout.index()]
    }

    /// The distinct operator names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// An operator's name (`mm.default`).
    #[must_use]
    pub fn op_name(&self, op: &Op) -> &str {
        &self.names[op.name.index()]
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

    /// Notes a fact about how the step was traced.
    pub fn fact(&mut self, name: &str, value: impl fmt::Display) {
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Adds a module; its parent must have been added before.
    pub fn add_module(&mut self, module: Module) -> ModuleId {
        self.modules.push(module);
        ModuleId::new(self.modules.len() - 1)
    }

    /// The module, to add its parameters.
    pub fn module_mut(&mut self, id: ModuleId) -> &mut Module {
        &mut self.modules[id.index()]
    }

    /// The id of a layout; equal layouts share one.
    pub fn layout(&mut self, layout: &Layout) -> LayoutId {
        if let Some(&id) = self.layout_ids.get(layout) {
            return id;
        }
        let id = LayoutId::new(self.layouts.len());
        self.layouts.push(layout.clone());
        self.layout_ids.insert(layout.clone(), id);
        id
    }

    /// A storage that exists when the step begins.
    pub fn storage_before_step(&mut self, bytes: u64, category: Category) -> StorageId {
        self.storages.push(Storage { bytes, category, birth: None });
        StorageId::new(self.storages.len() - 1)
    }

    /// The id that the first new storage of the next operator will get.
    #[must_use]
    pub fn next_storage(&self) -> StorageId {
        StorageId::new(self.storages.len())
    }

    /// Runs an operator: adds it, its new storages and its event.
    pub fn run(&mut self, record: OpRecord<'_>) -> OpId {
        let id = OpId::new(self.ops.len());
        self.storages.extend(record.births.iter().map(|&(bytes, category)| Storage {
            bytes,
            category,
            birth: Some(id),
        }));
        let name = self.name(record.name);
        let inputs = extend(&mut self.tensors, record.inputs);
        let outputs = extend(&mut self.tensors, record.outputs);
        let saves = extend(&mut self.tensors, record.saves);
        let mutates = extend(&mut self.mutated, record.mutates);
        self.ops.push(Op {
            name,
            phase: record.phase,
            call: record.call,
            differentiates: record.differentiates,
            flags: record.flags,
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
        let id = CallId::new(self.calls.len());
        self.calls.push(Call { module, inputs, keywords: Vec::new(), outputs: Vec::new() });
        self.events.push(Event::Enter(id));
        id
    }

    /// Notes the storages of the tensors among a call's keyword arguments.
    pub fn set_keywords(&mut self, call: CallId, keywords: Vec<StorageId>) {
        self.calls[call.index()].keywords = keywords;
    }

    /// Ends a call of a module's forward.
    pub fn exit(&mut self, call: CallId, outputs: Vec<StorageId>) {
        self.calls[call.index()].outputs = outputs;
        self.events.push(Event::Exit(call));
    }

    /// Adds any other event.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    fn name(&mut self, name: &str) -> NameId {
        if let Some(&id) = self.name_ids.get(name) {
            return id;
        }
        let id = NameId::new(self.names.len());
        self.names.push(name.to_owned());
        self.name_ids.insert(name.to_owned(), id);
        id
    }
}

/// The sum with one more storage, if it is countable.
pub(crate) fn with_storage(sum: u64, bytes: u64) -> Option<u64> {
    sum.checked_add(bytes)?.checked_add(MOST_ROUNDING).filter(|&sum| sum < STORAGES_LIMIT)
}

fn extend<T: Copy>(pool: &mut Vec<T>, items: &[T]) -> Range<u32> {
    let at = |length: usize| u32::try_from(length).expect("a trace holds fewer than 2^32 tensor references");
    let start = at(pool.len());
    pool.extend_from_slice(items);
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
