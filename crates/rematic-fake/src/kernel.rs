use rematic_trace::{Category, Dtype, Flags, Layout, StorageId};

use crate::tape::State;
use crate::tensor::Tensor;

/// An output of a kernel.
pub(crate) enum Out<'a> {
    /// New memory.
    New(Layout),
    /// New memory as wide as the second, of which the first is a part: rows that are aligned.
    Part(Layout, Layout),
    /// A view of an input.
    View(&'a Tensor, Layout),
}

impl Out<'_> {
    /// New memory whose rows are filled up to a multiple of so many elements.
    pub(crate) fn aligned(dtype: Dtype, shape: &[u64], step: u64) -> Out<'static> {
        let mut wide = shape.to_vec();
        if let Some(columns) = wide.last_mut() {
            *columns = columns.checked_next_multiple_of(step).unwrap_or(*columns);
        }
        let whole = Layout::contiguous(dtype, &wide);
        Out::Part(Layout { shape: shape.to_vec(), ..whole.clone() }, whole)
    }

    pub(crate) fn layout(&self) -> &Layout {
        let (Out::New(layout) | Out::Part(layout, _) | Out::View(_, layout)) = self;
        layout
    }

    /// Whether the tensor counts as an ordinary reference: a view is what its input is.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Out::New(_) | Out::Part(..) => true,
            Out::View(input, _) => input.is_held(),
        }
    }
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

/// What a kernel will return: its tensors, and the memory that is new among them.
pub(crate) struct Results {
    pub(crate) tensors: Vec<rematic_trace::Tensor>,
    pub(crate) births: Vec<(u64, Category)>,
}

impl Results {
    /// `sizes` holds the bytes of every output.
    pub(crate) fn new(state: &mut State, outputs: &[Out<'_>], sizes: &[u64]) -> Self {
        let category = state.category();
        let first = state.trace.next_storage().index();
        let mut births = Vec::new();
        let mut tensors = Vec::with_capacity(outputs.len());
        for (out, &bytes) in outputs.iter().zip(sizes) {
            let storage = match out {
                Out::New(_) | Out::Part(..) => {
                    births.push((bytes, category));
                    StorageId::new(first + births.len() - 1)
                }
                Out::View(input, _) => input.storage(),
            };
            tensors.push(rematic_trace::Tensor { storage, layout: state.trace.layout(out.layout()) });
        }
        Results { tensors, births }
    }

    /// What autograd saves in this slot.
    pub(crate) fn saved(&self, slot: Slot<'_>) -> rematic_trace::Tensor {
        match slot {
            Slot::Input(tensor) => tensor.recorded(),
            Slot::Output(index) | Slot::Auxiliary(index) => self.tensors[index],
        }
    }
}
