//! The autograd tape and engine.
//!
//! It follows PyTorch's engine in all that shows in memory: a node a differentiable op, in the order of execution;
//! backward runs the ready node with the highest sequence number, gradient accumulators before all others; gradients
//! that meet are added when the second arrives; a node's saved tensors go when its function has returned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rematic_trace::{CallId, Category, Dtype, Event, Layout, OpId, Phase};

use crate::error::FakeError;
use crate::parallel::{Spread, TensorParallel};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// Takes the gradients of an op's outputs and gives those of its differentiable inputs.
pub(crate) type BackwardFn = Box<dyn FnOnce(&Gradients<'_>) -> Vec<Option<Tensor>>>;

/// What a backward function sees.
pub(crate) struct Gradients<'a> {
    pub(crate) tape: &'a Tape,
    /// Gradients of the outputs.
    pub(crate) outputs: &'a [Option<Tensor>],
    /// The saved tensors, in the order of saving.
    pub(crate) saved: &'a [Tensor],
    /// For each differentiable input, whether its gradient is wanted.
    pub(crate) wanted: &'a [bool],
}

impl Gradients<'_> {
    /// The gradient of the first output.
    pub(crate) fn output(&self) -> &Tensor {
        self.outputs[0].as_ref().expect("the engine runs a node only when it has a gradient")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) usize);

/// Where a gradient goes, and the shape and type that it must have there.
pub(crate) struct Edge {
    pub(crate) node: NodeId,
    pub(crate) input: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: Dtype,
    /// All ranks have the gradient, and it is added to summands: each rank adds an equal share.
    pub(crate) replicated: bool,
    /// The gradient may also be one of this shape, that all ranks have and of which this one takes its rows.
    pub(crate) whole: Option<(TensorParallel, Vec<u64>)>,
}

impl Edge {
    /// How a gradient of this shape is spread that comes to be added to another.
    fn spread(&self, shape: &[u64]) -> Spread {
        match &self.whole {
            Some((group, whole)) if whole == shape => Spread::Whole(*group, whole.clone()),
            _ => Spread::Own,
        }
    }

    fn takes(&self, gradient: &Tensor) -> bool {
        let shape = gradient.shape();
        (shape == self.shape || self.spread(shape) != Spread::Own) && gradient.dtype() == self.dtype
    }
}

pub(crate) enum NodeKind {
    Op {
        op: OpId,
        saved: Vec<(Tensor, bool)>,
        backward: Option<BackwardFn>,
    },
    Accumulator(Tensor),
    /// Nothing refers to it any more.
    Released,
}

pub(crate) struct Node {
    kind: NodeKind,
    edges: Vec<Option<Edge>>,
    /// How many gradients it takes: one for each output of its op.
    inputs: usize,
    /// Tensors and nodes that refer to it.
    references: u32,
    /// Called before the node runs, in the order of registration.
    hooks: Vec<(usize, usize)>,
}

/// A hook on several tensors, as `torch.autograd.graph.register_multi_grad_hook` makes them.
pub(crate) struct HookGroup {
    event: Event,
    /// Fire on the first gradient; otherwise once all are there.
    any: bool,
    nodes: Vec<NodeId>,
    left: Option<usize>,
}

impl Tape {
    pub(crate) fn add_node(&self, kind: NodeKind, edges: Vec<Option<Edge>>, inputs: usize) -> NodeId {
        self.with(|state| {
            state.nodes.push(Node { kind, edges, inputs, references: 1, hooks: Vec::new() });
            NodeId(state.nodes.len() - 1)
        })
    }

    pub(crate) fn add_accumulator(&self, parameter: &Tensor) -> NodeId {
        self.add_node(NodeKind::Accumulator(parameter.clone()), Vec::new(), 1)
    }

    pub(crate) fn retain_node(&self, node: NodeId) {
        self.with(|state| state.node(node).references += 1);
    }

    /// Gives up a reference to a node; nodes that nothing refers to let go of what they saved. Not recursive: a deep
    /// model has a graph as deep.
    pub(crate) fn release_node(&self, node: NodeId) {
        let mut pending = vec![node];
        while let Some(id) = pending.pop() {
            let released = self.with(|state| {
                let node = state.node(id);
                node.references -= 1;
                if node.references > 0 {
                    return None;
                }
                pending.extend(std::mem::take(&mut node.edges).into_iter().flatten().map(|edge| edge.node));
                let kind = std::mem::replace(&mut node.kind, NodeKind::Released);
                if let NodeKind::Op { op, saved, backward: Some(_) } = &kind
                    && !saved.is_empty()
                {
                    let op = *op;
                    state.emit(Event::Unsave(op));
                }
                Some(kind)
            });
            // Dropped here, where the tape is not borrowed.
            if let Some(NodeKind::Accumulator(parameter)) = released {
                parameter.forget_accumulator();
            }
        }
    }

    /// A call's outputs are there: note when their gradients come.
    pub(crate) fn watch_outputs(&self, call: CallId, outputs: &[Tensor]) {
        let nodes = self.hook_nodes(outputs);
        if !nodes.is_empty() {
            self.add_hooks(
                HookGroup { event: Event::EnterBackward(call), any: true, nodes: Vec::new(), left: None },
                nodes,
            );
        }
    }

    /// A call has its inputs: note when their gradients are complete.
    pub(crate) fn watch_inputs(&self, call: CallId, inputs: &[&Tensor]) {
        let owned: Vec<Tensor> = inputs.iter().map(|tensor| (*tensor).clone()).collect();
        let nodes = self.hook_nodes(&owned);
        if nodes.is_empty() {
            self.with(|state| state.open_ended_calls.push(call));
        } else {
            self.add_hooks(
                HookGroup { event: Event::ExitBackward(call), any: false, nodes: Vec::new(), left: None },
                nodes,
            );
        }
    }

    fn hook_nodes(&self, tensors: &[Tensor]) -> Vec<(NodeId, usize)> {
        tensors
            .iter()
            .filter_map(|tensor| {
                tensor.gradient_node().or_else(|| {
                    // A parameter passed as an argument: its accumulator carries the hook, and outlives the edge only
                    // if the parameter is used.
                    let edge = tensor.gradient_edge()?;
                    let at = (edge.node, edge.input);
                    self.release_node(edge.node);
                    Some(at)
                })
            })
            .collect()
    }

    fn add_hooks(&self, mut group: HookGroup, nodes: Vec<(NodeId, usize)>) {
        self.with(|state| {
            let id = state.hook_groups.len();
            group.nodes = nodes.iter().map(|(node, _)| *node).collect();
            state.hook_groups.push(group);
            for (node, input) in nodes {
                state.node(node).hooks.push((input, id));
            }
        });
    }

    /// Runs backward from a scalar loss.
    pub(crate) fn backward(&self, loss: &Tensor) {
        let Some(root) = loss.gradient_edge() else {
            return self.fail(FakeError::NoGradient);
        };
        let seed = loss.ones_like();
        self.with(|state| state.phase = Phase::Backward);
        Engine::new(self, root.node).run(seed.clone(), root.node);
        self.with(|state| {
            for call in std::mem::take(&mut state.open_ended_calls).into_iter().rev() {
                state.emit(Event::ExitBackward(call));
            }
            state.hook_groups.clear();
        });
        drop(seed);
        self.release_node(root.node);
    }
}

/// Whether a gradient lies as its parameter does (`obeys_layout_contract`): strides of a single element do not count, unless they
/// are 0, which is a view's.
fn lies_as(gradient: &Layout, parameter: &Layout) -> bool {
    let strides = gradient.strides.iter().zip(&parameter.strides).zip(&gradient.shape);
    strides.into_iter().all(|((own, wanted), extent)| if *extent == 1 { *own != 0 } else { own == wanted })
}

/// One run of backward.
struct Engine<'a> {
    tape: &'a Tape,
    /// How many gradients a node still waits for; `None` if it will not run.
    missing: Vec<Option<u32>>,
    buffers: Vec<Vec<Option<Tensor>>>,
    ready: BinaryHeap<(u64, Reverse<u64>, NodeId)>,
    pushed: u64,
}

impl<'a> Engine<'a> {
    fn new(tape: &'a Tape, root: NodeId) -> Self {
        let state = tape.state();
        let count = state.nodes.len();
        let mut missing = vec![None; count];
        missing[root.0] = Some(0);
        let mut pending = vec![root];
        while let Some(node) = pending.pop() {
            for edge in state.nodes[node.0].edges.iter().flatten() {
                let target = &mut missing[edge.node.0];
                if target.is_none() {
                    pending.push(edge.node);
                }
                *target = Some(target.unwrap_or(0) + 1);
            }
        }
        let mut buffers = Vec::new();
        buffers.resize_with(count, Vec::new);
        Engine { tape, missing, buffers, ready: BinaryHeap::new(), pushed: 0 }
    }

    fn run(mut self, seed: Tensor, root: NodeId) {
        self.buffers[root.0] = vec![Some(seed)];
        self.push(root);
        while let Some((_, _, node)) = self.ready.pop() {
            if self.tape.has_failed() {
                break;
            }
            self.evaluate(node);
        }
    }

    fn push(&mut self, node: NodeId) {
        let accumulator = matches!(self.tape.state().nodes[node.0].kind, NodeKind::Accumulator(_));
        let priority = if accumulator { u64::MAX } else { node.0 as u64 };
        self.ready.push((priority, Reverse(self.pushed), node));
        self.pushed += 1;
    }

    fn evaluate(&mut self, node: NodeId) {
        let mut gradients = std::mem::take(&mut self.buffers[node.0]);
        self.call_hooks(node, &gradients);
        let inputs = self.tape.state().nodes[node.0].inputs;
        gradients.resize_with(inputs, || None);
        let parameter = match &self.tape.state().nodes[node.0].kind {
            NodeKind::Accumulator(parameter) => Some(parameter.clone()),
            _ => None,
        };
        if let Some(parameter) = parameter {
            if let Some(gradient) = gradients.swap_remove(0) {
                self.accumulate(&parameter, gradient);
            }
            return;
        }
        self.differentiate(node, gradients);
        self.tape.with(|state| state.differentiates = None);
    }

    fn call_hooks(&mut self, node: NodeId, gradients: &[Option<Tensor>]) {
        self.tape.with(|state| {
            let hooks = std::mem::take(&mut state.node(node).hooks);
            for (input, group) in hooks {
                if gradients.get(input).is_none_or(Option::is_none) {
                    continue;
                }
                let group = &mut state.hook_groups[group];
                let total = || group.nodes.iter().filter(|node| self.missing[node.0].is_some()).count();
                let left = match group.left {
                    None if group.any => 1,
                    None => total(),
                    Some(left) => left,
                };
                group.left = Some(left.saturating_sub(1));
                if left == 1 {
                    let event = group.event;
                    state.emit(event);
                }
            }
        });
    }

    /// A parameter's gradient is complete.
    fn accumulate(&self, parameter: &Tensor, gradient: Tensor) {
        self.tape.with(|state| state.emit(Event::Recategorize(gradient.storage(), Category::Gradient)));
        let previous = parameter.gradient();
        let total = match previous {
            Some(previous) => self.tape.no_grad(|| previous.add_in_place(&gradient)),
            // PyTorch takes the gradient over if nobody else refers to it and it lies as the parameter does.
            None if gradient.reference_count() == 1 && lies_as(gradient.layout(), parameter.layout()) => {
                gradient.detach()
            }
            None => {
                let copy = self.tape.no_grad(|| gradient.clone_like(parameter));
                self.tape.with(|state| state.emit(Event::Recategorize(copy.storage(), Category::Gradient)));
                copy
            }
        };
        parameter.set_gradient(Some(total));
    }

    fn differentiate(&mut self, id: NodeId, gradients: Vec<Option<Tensor>>) {
        let (op, saved, backward, wanted) = self.tape.with(|state| {
            let node = state.node(id);
            let wanted: Vec<bool> = node.edges.iter().map(Option::is_some).collect();
            match &mut node.kind {
                NodeKind::Op { op, saved, backward } => (*op, std::mem::take(saved), backward.take(), wanted),
                _ => unreachable!("only op nodes are differentiated"),
            }
        });
        let Some(backward) = backward else { return };
        self.tape.with(|state| state.differentiates = Some(op));
        let any_saved = !saved.is_empty();
        let outputs = {
            let saved: Vec<Tensor> =
                saved.into_iter().map(|(tensor, output)| if output { tensor.detach() } else { tensor }).collect();
            let mut outputs =
                backward(&Gradients { tape: self.tape, outputs: &gradients, saved: &saved, wanted: &wanted });
            if any_saved && !self.fits(id, &outputs) {
                self.tape.with(|state| state.emit(Event::Return(op)));
            }
            self.fit(id, &mut outputs);
            drop(gradients);
            outputs
        };
        if any_saved {
            self.tape.with(|state| state.emit(Event::Unsave(op)));
        }
        self.deliver(id, outputs);
    }

    /// Whether all gradients have the shapes and types of the inputs.
    fn fits(&self, id: NodeId, outputs: &[Option<Tensor>]) -> bool {
        let state = self.tape.state();
        let edges = state.nodes[id.0].edges.iter();
        edges.zip(outputs).all(|(edge, output)| match (edge, output) {
            (Some(edge), Some(gradient)) => edge.takes(gradient),
            _ => true,
        })
    }

    /// Brings the gradients to the shapes and types of the inputs: what was broadcast is summed up.
    fn fit(&self, id: NodeId, outputs: &mut [Option<Tensor>]) {
        for (index, slot) in outputs.iter_mut().enumerate() {
            let target =
                self.tape.state().nodes[id.0].edges[index].as_ref().map(|edge| (edge.shape.clone(), edge.dtype));
            let Some((shape, dtype)) = target else { continue };
            let Some(mut gradient) = slot.take() else { continue };
            if gradient.shape() != shape {
                gradient = gradient.sum_to(&shape);
            }
            if gradient.dtype() != dtype {
                gradient = gradient.to(dtype);
            }
            *slot = Some(gradient);
        }
    }

    fn deliver(&mut self, id: NodeId, outputs: Vec<Option<Tensor>>) {
        // What is added to another gradient stays in the function's list of results until all of them are delivered.
        let mut added = Vec::new();
        for (index, output) in outputs.into_iter().enumerate() {
            let target = self.tape.state().nodes[id.0].edges[index].as_ref().map(|edge| {
                (edge.node, edge.input, edge.replicated, output.as_ref().map(|given| edge.spread(given.shape())))
            });
            let Some((node, input, replicated, spread)) = target else { continue };
            if let Some(gradient) = output {
                let buffer = &mut self.buffers[node.0];
                if buffer.len() <= input {
                    buffer.resize_with(input + 1, || None);
                }
                buffer[input] = Some(match buffer[input].take() {
                    Some(first) => {
                        let share = match spread {
                            _ if replicated => Some(gradient.map("div.Tensor")),
                            Some(spread @ Spread::Whole(..)) => Some(gradient.settled(&spread)),
                            _ => None,
                        };
                        let sum = first.add(share.as_ref().unwrap_or(&gradient));
                        added.push(gradient);
                        sum
                    }
                    None => gradient,
                });
            }
            let missing = self.missing[node.0].get_or_insert(1);
            *missing -= 1;
            if *missing == 0 {
                self.push(node);
            }
        }
    }
}
