use std::cell::{Ref, RefCell};
use std::rc::Rc;

use rematic_trace::{
    CallId, Category, Dtype, Event, Flags, Layout, LayoutId, Module, ModuleId, OpId, OpRecord, Parameter, Phase,
    StepTrace, StorageId,
};

use crate::autograd::{Edge, Node, NodeId, NodeKind};
use crate::error::FakeError;
use crate::tensor::Tensor;

/// The most operators that a step may have. More is a mistake in the sizes, and would not fit in memory.
const MAX_OPS: usize = 20_000_000;

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
    /// Parameters and buffers live as long as the model, whether or not the front end keeps its own reference.
    pub(crate) parameters: Vec<Tensor>,
    pub(crate) buffers: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) hook_groups: Vec<crate::autograd::HookGroup>,
    /// Calls whose positional inputs need no gradient: their backward ends with the whole backward.
    pub(crate) open_ended_calls: Vec<CallId>,
    pub(crate) error: Option<FakeError>,
    /// Ordinary references per storage.
    references: Vec<u32>,
}

/// An output of a kernel.
pub(crate) enum Out<'a> {
    /// New memory.
    New(Layout),
    /// A view of an input.
    View(&'a Tensor, Layout),
}

/// Which tensor autograd saves.
#[derive(Clone, Copy)]
pub(crate) enum Slot<'a> {
    Input(&'a Tensor),
    /// An output that is differentiable: PyTorch detaches it when it saves it, and again when it reads it.
    Output(usize),
    /// An output that is not differentiable (a mask, a log-sum-exp).
    Auxiliary(usize),
}

pub(crate) struct Kernel<'a> {
    pub(crate) name: &'static str,
    pub(crate) flags: Flags,
    pub(crate) inputs: Vec<&'a Tensor>,
    pub(crate) mutates: Vec<&'a Tensor>,
    pub(crate) outputs: Vec<Out<'a>>,
}

impl<'a> Kernel<'a> {
    pub(crate) fn new(name: &'static str, inputs: &[&'a Tensor], outputs: Vec<Out<'a>>) -> Self {
        Kernel { name, flags: Flags::default(), inputs: inputs.to_vec(), mutates: Vec::new(), outputs }
    }

    pub(crate) fn view(name: &'static str, input: &'a Tensor, outputs: Vec<Out<'a>>) -> Self {
        let mut kernel = Kernel::new(name, &[input], outputs);
        kernel.flags.view = true;
        kernel
    }

    pub(crate) fn mutating(mut self, targets: &[&'a Tensor]) -> Self {
        self.mutates = targets.to_vec();
        self
    }

    pub(crate) fn random(mut self) -> Self {
        self.flags.random = true;
        self
    }
}

/// How a kernel is differentiated.
pub(crate) struct Derivative<'a> {
    /// The inputs that may get a gradient, in the order of the gradients that `backward` returns.
    pub(crate) inputs: &'a [&'a Tensor],
    pub(crate) saves: Vec<Slot<'a>>,
    pub(crate) backward: crate::autograd::BackwardFn,
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
            parameters: Vec::new(),
            buffers: Vec::new(),
            nodes: Vec::new(),
            hook_groups: Vec::new(),
            open_ended_calls: Vec::new(),
            error: None,
            references: Vec::new(),
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

    /// Notes a fact about the run in the trace.
    pub fn fact(&self, name: &str, value: impl std::fmt::Display) {
        self.with(|state| state.trace.fact(name, value));
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
        let owned = self.with(|state| (std::mem::take(&mut state.parameters), std::mem::take(&mut state.buffers)));
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

    fn record(&self, kernel: &Kernel<'_>, saves: &[Slot<'_>]) -> (OpId, Vec<Tensor>) {
        let sizes: Vec<u64> = kernel
            .outputs
            .iter()
            .map(|out| match out {
                Out::New(layout) => self.bytes_of(layout),
                Out::View(..) => 0,
            })
            .collect();
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let poisoned = state.error.is_some();
        if !poisoned && state.trace.ops().len() >= MAX_OPS {
            state.error = Some(FakeError::TooManyOps { limit: MAX_OPS });
        }
        let category = match state.phase {
            Phase::Forward => Category::Activation,
            Phase::Backward => Category::Temp,
            Phase::Optimizer => Category::Optimizer,
        };
        let mut births = Vec::new();
        let mut fresh = state.trace.next_storage().index();
        let mut layouts: Vec<(LayoutId, StorageId)> = Vec::with_capacity(kernel.outputs.len());
        for (out, bytes) in kernel.outputs.iter().zip(sizes) {
            let storage = match out {
                Out::New(_) => {
                    births.push((bytes, category));
                    fresh += 1;
                    StorageId::new(fresh - 1)
                }
                Out::View(input, _) => input.storage(),
            };
            let (Out::New(layout) | Out::View(_, layout)) = out;
            layouts.push((state.trace.layout(layout), storage));
        }
        let raw = |tensor: &Tensor| rematic_trace::Tensor { storage: tensor.storage(), layout: tensor.layout_id() };
        let output_of = |index: usize| rematic_trace::Tensor { storage: layouts[index].1, layout: layouts[index].0 };
        let inputs: Vec<_> = kernel.inputs.iter().map(|tensor| raw(tensor)).collect();
        let outputs: Vec<_> = (0..layouts.len()).map(output_of).collect();
        let mutates: Vec<_> = kernel.mutates.iter().map(|tensor| tensor.storage()).collect();
        let saves: Vec<_> = saves
            .iter()
            .map(|slot| match *slot {
                Slot::Input(tensor) => raw(tensor),
                Slot::Output(index) | Slot::Auxiliary(index) => output_of(index),
            })
            .collect();
        let differentiates = state.differentiates;
        let call = match state.phase {
            Phase::Forward => state.calls.last().copied(),
            _ => differentiates.and_then(|op| state.trace.op(op).call),
        };
        let op = if poisoned || state.error.is_some() {
            // Nothing more is recorded, but the storages must exist for the tensors to point at.
            for &(bytes, category) in &births {
                state.trace.storage_before_step(bytes, category);
            }
            OpId::new(0)
        } else {
            state.trace.run(OpRecord {
                name: kernel.name,
                phase: state.phase,
                call,
                differentiates,
                flags: kernel.flags,
                mutates: &mutates,
                inputs: &inputs,
                outputs: &outputs,
                saves: &saves,
                births: &births,
            })
        };
        let ids = layouts;
        let tensors = kernel.outputs.iter().zip(ids).map(|(out, (layout_id, storage))| {
            let (Out::New(layout) | Out::View(_, layout)) = out;
            let held = match out {
                Out::New(_) => true,
                Out::View(input, _) => input.is_held(),
            };
            if held {
                state.hold(storage);
            }
            Tensor::of_parts(self, storage, held, layout.clone(), layout_id)
        });
        (op, tensors.collect())
    }

    // ---- references ----

    pub(crate) fn hold(&self, storage: StorageId) {
        self.with(|state| state.hold(storage));
    }

    pub(crate) fn let_go(&self, storage: StorageId) {
        self.with(|state| {
            let count = &mut state.references[storage.index()];
            *count -= 1;
            if *count == 0 && state.error.is_none() {
                state.trace.push(Event::Drop(storage));
            }
        });
    }
}

impl State {
    fn hold(&mut self, storage: StorageId) {
        if self.references.len() <= storage.index() {
            self.references.resize(storage.index() + 1, 0);
        }
        self.references[storage.index()] += 1;
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
