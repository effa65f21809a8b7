use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rematic_trace::{Dtype, Layout, LayoutId, StorageId};

use crate::autograd::{Edge, NodeId};
use crate::parallel::Spread;
use crate::tape::Tape;

/// A tensor without data: a layout over a storage. Cloning makes another reference to the same tensor; when the last
/// reference to the last tensor over a storage goes, the tape notes that the storage is dropped.
#[derive(Clone)]
pub struct Tensor(Rc<Inner>);

struct Inner {
    tape: Tape,
    storage: StorageId,
    /// Whether it counts as an ordinary reference. What autograd hands back to a backward function does not.
    held: bool,
    layout: Layout,
    layout_id: LayoutId,
    node: Option<(NodeId, usize)>,
    leaf: Option<Leaf>,
    /// All ranks make the same gradient of it, where others make summands.
    replicated: bool,
}

/// A parameter's own part of autograd.
#[derive(Default)]
struct Leaf {
    accumulator: Cell<Option<NodeId>>,
    gradient: RefCell<Option<Tensor>>,
    spread: Spread,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((node, _)) = self.node {
            self.tape.release_node(node);
        }
        if self.held {
            self.tape.let_go(self.storage);
        }
    }
}

impl Tensor {
    pub(crate) fn new(tape: &Tape, storage: StorageId, layout: Layout, layout_id: LayoutId) -> Self {
        tape.hold(storage);
        Self::of_parts(tape, storage, true, layout, layout_id)
    }

    /// The caller has counted the reference already if `held`.
    pub(crate) fn of_parts(tape: &Tape, storage: StorageId, held: bool, layout: Layout, layout_id: LayoutId) -> Self {
        Tensor(Rc::new(Inner {
            tape: tape.clone(),
            storage,
            held,
            layout,
            layout_id,
            node: None,
            leaf: None,
            replicated: false,
        }))
    }

    /// The tape that it is recorded on.
    #[must_use]
    pub fn tape(&self) -> &Tape {
        &self.0.tape
    }

    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.0.layout.dtype
    }

    /// Its extents.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.0.layout.shape
    }

    /// The extent of one dimension; negative counts from the end, as in Python. 1 where there is no such dimension.
    #[must_use]
    pub fn size(&self, dim: isize) -> u64 {
        self.0.layout.shape.get(self.axis(dim)).copied().unwrap_or(1)
    }

    /// How it lies in its storage.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Whether a gradient flows into it.
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        self.0.node.is_some() || self.0.leaf.is_some()
    }

    /// Whether it is a parameter that is trained.
    pub(crate) fn is_leaf(&self) -> bool {
        self.0.leaf.is_some()
    }

    pub(crate) fn axis(&self, dim: isize) -> usize {
        let rank = self.0.layout.shape.len();
        if dim < 0 { rank.saturating_sub(dim.unsigned_abs()) } else { dim.unsigned_abs() }
    }

    pub(crate) fn storage(&self) -> StorageId {
        self.0.storage
    }

    pub(crate) fn layout_id(&self) -> LayoutId {
        self.0.layout_id
    }

    /// The tensor as the trace has it.
    pub(crate) fn recorded(&self) -> rematic_trace::Tensor {
        rematic_trace::Tensor { storage: self.0.storage, layout: self.0.layout_id }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.0.held
    }

    /// The number of references to this very tensor.
    pub(crate) fn reference_count(&self) -> usize {
        Rc::strong_count(&self.0)
    }

    /// The same data as a tensor of its own, without a gradient.
    pub(crate) fn same(&self) -> Tensor {
        Self::new(self.tape(), self.0.storage, self.0.layout.clone(), self.0.layout_id)
    }

    /// The same tensor as autograd holds it: not an ordinary reference.
    pub(crate) fn borrowed(&self) -> Tensor {
        Self::of_parts(self.tape(), self.0.storage, false, self.0.layout.clone(), self.0.layout_id)
    }

    // ---- autograd ----

    pub(crate) fn into_parameter(self, spread: Spread) -> Tensor {
        let (tape, storage) = (self.tape().clone(), self.0.storage);
        tape.hold(storage);
        Tensor(Rc::new(Inner {
            tape,
            storage,
            held: true,
            layout: self.0.layout.clone(),
            layout_id: self.0.layout_id,
            node: None,
            leaf: Some(Leaf { spread, ..Leaf::default() }),
            replicated: false,
        }))
    }

    pub(crate) fn set_gradient_node(&mut self, node: NodeId, output: usize) {
        self.0.tape.retain_node(node);
        if let Some(inner) = Rc::get_mut(&mut self.0) {
            inner.node = Some((node, output));
        }
    }

    /// The same tensor, for a reader of which all ranks have the same gradient, where those of other readers are summands.
    pub(crate) fn for_replicas(&self) -> Tensor {
        let mut same = self.same();
        if let Some((node, output)) = self.0.node {
            same.set_gradient_node(node, output);
        }
        if let Some(inner) = Rc::get_mut(&mut same.0) {
            inner.replicated = true;
        }
        same
    }

    pub(crate) fn gradient_node(&self) -> Option<(NodeId, usize)> {
        self.0.node
    }

    /// Where the gradient of this tensor goes; takes hold of the node.
    pub(crate) fn gradient_edge(&self) -> Option<Edge> {
        let (node, input) = match (&self.0.node, &self.0.leaf) {
            (Some((node, output)), _) => {
                self.0.tape.retain_node(*node);
                (*node, *output)
            }
            (None, Some(leaf)) => {
                let node = leaf.accumulator.get().inspect(|node| self.0.tape.retain_node(*node)).unwrap_or_else(|| {
                    let node = self.0.tape.add_accumulator(self);
                    leaf.accumulator.set(Some(node));
                    node
                });
                (node, 0)
            }
            (None, None) => return None,
        };
        let shape = match self.spread() {
            Spread::Whole(_, shape) => shape.clone(),
            _ => self.shape().to_vec(),
        };
        let whole = match self.spread() {
            Spread::Tied(group, shape) => Some((*group, shape.clone())),
            _ => None,
        };
        Some(Edge { node, input, shape, dtype: self.dtype(), replicated: self.0.replicated, whole })
    }

    /// How the gradient of a parameter is spread.
    pub(crate) fn spread(&self) -> &Spread {
        self.0.leaf.as_ref().map_or(&Spread::Own, |leaf| &leaf.spread)
    }

    pub(crate) fn forget_accumulator(&self) {
        if let Some(leaf) = &self.0.leaf {
            leaf.accumulator.set(None);
        }
    }

    /// The gradient that backward has left on a parameter.
    #[must_use]
    pub fn gradient(&self) -> Option<Tensor> {
        self.0.leaf.as_ref()?.gradient.borrow().clone()
    }

    pub(crate) fn set_gradient(&self, gradient: Option<Tensor>) {
        if let Some(leaf) = &self.0.leaf {
            let old = leaf.gradient.replace(gradient);
            drop(old);
        }
    }
}
