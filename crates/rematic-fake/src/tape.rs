use std::cell::{Ref, RefCell};
use std::rc::Rc;

use rematic_trace::{
    CallId, CardKind, Category, Collective, Dtype, Event, Layout, Module, ModuleId, OpId, OpRecord, Parameter, Phase,
    StepTrace, StorageId, Table,
};

use crate::autocast::Autocast;
use crate::autograd::{Edge, Node, NodeId, NodeKind};
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Results, Slot};
use crate::parallel::{TP, TP_RANK, TensorParallel};
use crate::tensor::Tensor;
use crate::training::Training;

/// The most operators that a step may have; more is a mistake in the sizes. `rematic stats` takes about 0.4 kB for each, so
/// that it stays below 1 GB.
const MAX_OPS: usize = 2_000_000;

/// Records what runs. Every tensor knows its tape; a tape is cheap to clone.
#[derive(Clone)]
pub struct Tape(Rc<RefCell<State>>);

pub(crate) struct State {
    pub(crate) trace: StepTrace,
    pub(crate) phase: Phase,
    /// Module calls that are running, outermost first.
    pub(crate) calls: Vec<CallId>,
    /// While the engine evaluates a node: the forward op that it differentiates.
    pub(crate) differentiates: Option<OpId>,
    pub(crate) no_grad_depth: u32,
    pub(crate) autocast: Option<Autocast>,
    /// Whose kernels run.
    pub(crate) card: CardKind,
    /// Parameters and buffers live as long as the model, whether or not the front end keeps its own reference.
    pub(crate) parameters: Vec<Tensor>,
    pub(crate) buffers: Vec<Tensor>,
    /// Parameters that are not trained.
    pub(crate) frozen: Vec<Tensor>,
    pub(crate) training: Training,
    pub(crate) nodes: Vec<Node>,
    pub(crate) hook_groups: Vec<crate::autograd::HookGroup>,
    /// Calls whose positional inputs need no gradient: their backward ends with the whole backward.
    pub(crate) open_ended_calls: Vec<CallId>,
    pub(crate) error: Option<FakeError>,
    /// Ordinary references per storage.
    references: Table<StorageId, u32>,
}

impl Tape {
    /// An empty tape for a model with this name.
    #[must_use]
    pub fn new(model: &str) -> Self {
        Tape(Rc::new(RefCell::new(State {
            trace: StepTrace::new(model),
            phase: Phase::Forward,
            calls: Vec::new(),
            differentiates: None,
            no_grad_depth: 0,
            autocast: None,
            card: CardKind::default(),
            parameters: Vec::new(),
            buffers: Vec::new(),
            frozen: Vec::new(),
            training: Training::default(),
            nodes: Vec::new(),
            hook_groups: Vec::new(),
            open_ended_calls: Vec::new(),
            error: None,
            references: Table::default(),
        })))
    }

    /// Runs `body` without recording for autograd, as `torch.no_grad` does.
    pub fn no_grad<R>(&self, body: impl FnOnce() -> R) -> R {
        self.with(|state| state.no_grad_depth += 1);
        let result = body();
        self.with(|state| state.no_grad_depth -= 1);
        result
    }

    /// Reports a mistake in the model. The first one is what the step returns; later operators record nothing.
    pub fn fail(&self, error: FakeError) {
        self.with(|state| {
            state.error.get_or_insert(error);
        });
    }

    /// The kind of card whose attention runs from here on.
    pub fn run_on(&self, card: CardKind) {
        self.with(|state| state.card = card);
    }

    /// Notes a fact about the run in the trace.
    pub fn fact(&self, name: &str, value: impl std::fmt::Display) {
        self.with(|state| state.trace.origin.note(name, value));
    }

    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        body(&mut self.0.borrow_mut())
    }

    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    /// The first mistake that was reported.
    pub(crate) fn check(&self) -> Result<(), FakeError> {
        self.state().error.clone().map_or(Ok(()), Err)
    }

    /// Whether a mistake was reported. What runs then is not recorded, so a loop over layers may as well end.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state().error.is_some()
    }

    pub(crate) fn take_trace(&self) -> Result<StepTrace, FakeError> {
        let result = self.check().and_then(|()| {
            let trace = self.with(|state| std::mem::take(&mut state.trace));
            // Each tensor is countable by itself, but their sum need not be.
            match trace.storage_bytes() {
                Some(_) => Ok(trace),
                None => Err(FakeError::StepTooLarge { storages: trace.storages().len() }),
            }
        });
        // They refer to the tape; without this the two would keep each other alive.
        let owned =
            self.with(|state| [&mut state.parameters, &mut state.buffers, &mut state.frozen].map(std::mem::take));
        drop(owned);
        result
    }

    // ---- building ----

    pub(crate) fn add_module(&self, name: &str, class: &str, parent: Option<ModuleId>) -> ModuleId {
        self.with(|state| {
            state.trace.add_module(Module {
                name: name.to_owned(),
                class: class.to_owned(),
                parent,
                parameters: Vec::new(),
                buffers: Vec::new(),
            })
        })
    }

    pub(crate) fn add_to_module(&self, module: ModuleId, name: &str, tensor: &Tensor, buffer: bool) {
        let entry = Parameter { name: name.to_owned(), storage: tensor.storage(), layout: tensor.layout_id() };
        self.with(|state| {
            let module = state.trace.module_mut(module);
            if buffer { module.buffers.push(entry) } else { module.parameters.push(entry) }
        });
    }

    /// A tensor that exists before the step.
    pub(crate) fn tensor_before_step(&self, dtype: Dtype, shape: &[u64], category: Category) -> Tensor {
        let layout = Layout::contiguous(dtype, shape);
        let bytes = self.bytes_of(&layout);
        let (storage, layout_id) =
            self.with(|state| (state.trace.storage_before_step(bytes, category), state.trace.layout(&layout)));
        Tensor::new(self, storage, layout, layout_id)
    }

    /// The batch: integer token ids and the like, made outside the step.
    #[must_use]
    pub fn input(&self, dtype: Dtype, shape: &[u64]) -> Tensor {
        self.tensor_before_step(dtype, shape, Category::Other)
    }

    fn bytes_of(&self, layout: &Layout) -> u64 {
        layout.checked_bytes().unwrap_or_else(|error| {
            self.fail(error.into());
            0
        })
    }

    // ---- running ----

    /// Runs a kernel that autograd does not see.
    pub(crate) fn launch(&self, kernel: Kernel<'_>) -> Vec<Tensor> {
        self.record(&kernel, &[]).1
    }

    /// Runs a kernel with one output that autograd does not see.
    pub(crate) fn launch_one(&self, kernel: Kernel<'_>) -> Tensor {
        let mut outputs = self.launch(kernel);
        outputs.swap_remove(0)
    }

    /// Runs a kernel, and makes its node on the tape if any input needs a gradient. The first output, and every
    /// further one that has the same element type and is a view, is differentiable.
    pub(crate) fn launch_differentiable(&self, kernel: Kernel<'_>, derivative: Derivative<'_>) -> Vec<Tensor> {
        let recording = self.with(|state| state.no_grad_depth == 0 && state.error.is_none());
        if !recording || !derivative.inputs.iter().any(|input| input.requires_grad()) {
            return self.launch(kernel);
        }
        // Before the kernel runs, as PyTorch does: the edges take hold of the inputs' nodes.
        let edges: Vec<Option<Edge>> = derivative.inputs.iter().map(|input| input.gradient_edge()).collect();
        let (op, mut outputs) = self.record(&kernel, &derivative.saves);
        if self.state().error.is_some() {
            return outputs;
        }
        let saved = derivative.saves.iter().map(|slot| match *slot {
            Slot::Input(tensor) => (tensor.borrowed(), false),
            Slot::Output(index) => (outputs[index].borrowed(), true),
            Slot::Auxiliary(index) => (outputs[index].borrowed(), false),
        });
        let saved = saved.collect();
        let node = self.add_node(NodeKind::Op { op, saved, backward: Some(derivative.backward) }, edges, outputs.len());
        for slot in &derivative.saves {
            if let Slot::Output(index) = *slot {
                drop(outputs[index].detach());
            }
        }
        let views = kernel.flags.view;
        for (index, output) in outputs.iter_mut().enumerate() {
            if index == 0 || views {
                output.set_gradient_node(node, index);
            }
        }
        // The outputs hold the node now.
        self.release_node(node);
        outputs
    }

    /// Runs a kernel that writes into a part of `whole`: the node is that of the whole, of which the result is.
    pub(crate) fn launch_on(&self, kernel: Kernel<'_>, derivative: Derivative<'_>, whole: &Tensor) -> Tensor {
        let recording = self.with(|state| state.no_grad_depth == 0 && state.error.is_none());
        let mut written = whole.same();
        if !recording || !derivative.inputs.iter().any(|input| input.requires_grad()) {
            drop(self.launch(kernel));
            return written;
        }
        let edges: Vec<Option<Edge>> = derivative.inputs.iter().map(|input| input.gradient_edge()).collect();
        let (op, outputs) = self.record(&kernel, &derivative.saves);
        drop(outputs);
        if self.has_failed() {
            return written;
        }
        let kind = NodeKind::Op { op, saved: Vec::new(), backward: Some(derivative.backward) };
        let node = self.add_node(kind, edges, 1);
        written.set_gradient_node(node, 0);
        self.release_node(node);
        written
    }

    /// Runs a function with a backward of its own (`torch.autograd.Function`): its first kernel, which saves what the function saves,
    /// and what else it does, without recording.
    pub(crate) fn launch_function(
        &self,
        first: Kernel<'_>,
        derivative: Derivative<'_>,
        body: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let recording = self.with(|state| state.no_grad_depth == 0 && state.error.is_none());
        if !recording || !derivative.inputs.iter().any(|input| input.requires_grad()) {
            let made = self.launch_one(first);
            return self.no_grad(|| body(&made));
        }
        let edges: Vec<Option<Edge>> = derivative.inputs.iter().map(|input| input.gradient_edge()).collect();
        let (op, mut made) = self.record(&first, &derivative.saves);
        let saved = derivative.saves.iter().filter_map(|slot| match *slot {
            Slot::Input(tensor) => Some((tensor.borrowed(), false)),
            Slot::Output(_) | Slot::Auxiliary(_) => None,
        });
        let saved = saved.collect();
        let mut output = self.no_grad(|| body(&made.swap_remove(0)));
        if self.has_failed() {
            return output;
        }
        let node = self.add_node(NodeKind::Op { op, saved, backward: Some(derivative.backward) }, edges, 1);
        output.set_gradient_node(node, 0);
        self.release_node(node);
        output
    }

    fn record(&self, kernel: &Kernel<'_>, saves: &[Slot<'_>]) -> (OpId, Vec<Tensor>) {
        let size_of = |out: &Out<'_>| match out {
            Out::New(layout) | Out::Part(_, layout) => self.bytes_of(layout),
            Out::View(..) => 0,
        };
        let sizes: Vec<u64> = kernel.outputs.iter().map(size_of).collect();
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let results = Results::new(state, &kernel.outputs, &sizes);
        let op = state.run(kernel, &results, saves);
        let tensors = kernel.outputs.iter().zip(&results.tensors).map(|(out, result)| {
            if out.is_held() {
                state.hold(result.storage);
            }
            Tensor::of_parts(self, result.storage, out.is_held(), out.layout().clone(), result.layout)
        });
        (op, tensors.collect())
    }

    /// The model is shared by ranks.
    pub(crate) fn share(&self, group: TensorParallel) {
        self.fact(TP, group.ranks);
        if group.rank > 0 {
            self.fact(TP_RANK, group.rank);
        }
        self.with(|state| state.trace.place.axes.push(group.axis()));
    }

    /// The operator that ran last communicates with other ranks.
    pub(crate) fn set_collective(&self, collective: Collective) {
        self.with(|state| {
            if state.error.is_none()
                && let Some(last) = state.trace.ops().len().checked_sub(1)
            {
                state.trace.set_collective(OpId::new(last), collective);
            }
        });
    }

    // ---- references ----

    pub(crate) fn hold(&self, storage: StorageId) {
        self.with(|state| state.hold(storage));
    }

    pub(crate) fn let_go(&self, storage: StorageId) {
        self.with(|state| {
            let count = &mut state.references[storage];
            *count -= 1;
            if *count == 0 && state.error.is_none() {
                state.trace.push(Event::Drop(storage));
            }
        });
    }
}

impl State {
    /// What memory that is made now counts as.
    pub(crate) fn category(&self) -> Category {
        match self.phase {
            Phase::Forward => Category::Activation,
            Phase::Backward => Category::Temp,
            Phase::Optimizer => Category::Optimizer,
        }
    }

    /// The innermost module call that an operator belongs to now.
    fn call(&self) -> Option<CallId> {
        match self.phase {
            Phase::Forward => self.calls.last().copied(),
            _ => self.differentiates.and_then(|op| self.trace.op(op).call),
        }
    }

    /// Puts a kernel on the trace. After a mistake nothing more is recorded, but the storages must exist for the tensors
    /// to point at.
    fn run(&mut self, kernel: &Kernel<'_>, results: &Results, saves: &[Slot<'_>]) -> OpId {
        if self.error.is_none() && self.trace.ops().len() >= MAX_OPS {
            self.error = Some(FakeError::TooManyOps { limit: MAX_OPS });
        }
        if self.error.is_some() {
            for &(bytes, category) in &results.births {
                self.trace.storage_before_step(bytes, category);
            }
            return OpId::new(0);
        }
        let inputs: Vec<_> = kernel.inputs.iter().map(|tensor| tensor.recorded()).collect();
        let mutates: Vec<_> = kernel.mutates.iter().map(|tensor| tensor.storage()).collect();
        let saves: Vec<_> = saves.iter().map(|slot| results.saved(*slot)).collect();
        let call = self.call();
        self.trace.run(OpRecord {
            name: kernel.name,
            phase: self.phase,
            call,
            differentiates: self.differentiates,
            flags: kernel.flags,
            mutates: &mutates,
            inputs: &inputs,
            outputs: &results.tensors,
            saves: &saves,
            births: &results.births,
        })
    }

    fn hold(&mut self, storage: StorageId) {
        if self.references.len() <= storage.index() {
            self.references.items_mut().resize(storage.index() + 1, 0);
        }
        self.references[storage] += 1;
    }

    pub(crate) fn emit(&mut self, event: Event) {
        if self.error.is_none() {
            self.trace.push(event);
        }
    }

    pub(crate) fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }
}
