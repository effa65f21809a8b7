//! How a tensor that lies on several ranks comes to lie otherwise: the operators that PyTorch's DTensor runs on one of them.

use rematic_trace::{CollectiveKind, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out};
use crate::parallel::{Spread, TensorParallel};
use crate::tensor::Tensor;

/// Whether a message is waited for at once, or where its result is read first. The second shows in no operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    AtOnce,
    Later,
}

const SEQUENCE: isize = 1;
/// A longer sequence is narrowed to its own length when it was gathered: DTensor asks whether two lengths are the same object, and
/// Python has one object for each number up to this only.
const SMALL: u64 = 256;

impl Tensor {
    /// `DTensor.from_local`: a view, and nothing in backward.
    pub(crate) fn distributed(&self) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let kernel = Kernel::view("view.default", self, vec![Out::View(self, self.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `DTensor.to_local`: a view, in backward too.
    pub(crate) fn local(&self) -> Tensor {
        self.view(self.shape())
    }

    /// From a part of the sequence to all of it; in backward, summands are added up and each rank gets its part.
    pub(crate) fn gather_sequence(&self, group: TensorParallel, wait: Wait) -> Tensor {
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let sum = gradients.output().scattered(group);
            vec![Some(if wait == Wait::AtOnce { sum.passed(WAIT) } else { sum })]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.gather(group, wait, Some(derivative))
    }

    /// From summands of all of the sequence to a part of the sum; in backward, the parts are gathered.
    pub(crate) fn scatter_sequence(&self, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let backward =
            Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().gather(group, Wait::Later, None))]);
        let (sum, _stacked) = tape.no_grad(|| self.reduced(group));
        let kernel = Kernel::view(WRAP, &sum, vec![Out::View(&sum, sum.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The last operator is the one that is differentiated, if any is.
    fn gather(&self, group: TensorParallel, wait: Wait, mut derivative: Option<Derivative<'_>>) -> Tensor {
        let tape = self.tape();
        let ranks = u64::from(group.ranks);
        let mut stacked = self.shape().to_vec();
        let mut whole = stacked.clone();
        if let [first, sequence, ..] = stacked.as_mut_slice() {
            whole[1] = sequence.saturating_mul(ranks);
            *first = first.saturating_mul(ranks);
        }
        let wrapped = {
            let out = Out::New(Layout::contiguous(self.dtype(), &stacked));
            let kernel = Kernel::new("_c10d_functional.all_gather_into_tensor.default", &[self], vec![out]);
            let message = tape.no_grad(|| group.communicate(tape, CollectiveKind::AllGather, kernel));
            message.passed(WRAP)
        };
        let whole = Layout::contiguous(self.dtype(), &whole);
        let is_single = self.size(0) == 1;
        let mut after = Vec::new();
        if whole.shape.get(1).is_some_and(|length| *length > SMALL) {
            after.push("slice.Tensor");
        }
        if is_single && wait == Wait::AtOnce {
            after.push(WAIT);
        }
        let mut run = |kernel: Kernel<'_>, is_last: bool| match derivative.take_if(|_| is_last) {
            Some(derivative) => tape.launch_differentiable(kernel, derivative).swap_remove(0),
            None => tape.launch_one(kernel),
        };
        let mut seen = if is_single {
            // Of one sequence the parts lie one behind the other already.
            run(Kernel::view("view.default", &wrapped, vec![Out::View(&wrapped, whole.clone())]), after.is_empty())
        } else {
            let waited = wrapped.passed(WAIT);
            let parts = tape.no_grad(|| waited.split(self.size(0), 0));
            let parts: Vec<&Tensor> = parts.iter().collect();
            run(Kernel::new("cat.default", &parts, vec![Out::New(whole.clone())]), after.is_empty())
        };
        drop(wrapped);
        for (at, name) in after.iter().enumerate() {
            let kernel = Kernel::view(name, &seen, vec![Out::View(&seen, whole.clone())]);
            seen = run(kernel, at + 1 == after.len());
        }
        seen
    }

    fn scattered(&self, group: TensorParallel) -> Tensor {
        let (sum, _stacked) = self.reduced(group);
        sum.passed(WRAP)
    }

    /// The rank's part of the sum over all ranks, and what was sent, which stays until the part is wrapped.
    fn reduced(&self, group: TensorParallel) -> (Tensor, Tensor) {
        let tape = self.tape();
        let mut part = self.shape().to_vec();
        if let Some(sequence) = part.get_mut(1) {
            *sequence = group.share(*sequence);
        }
        let stacked = {
            let parts = self.split(part.get(1).copied().unwrap_or(1), SEQUENCE);
            let parts: Vec<&Tensor> = parts.iter().collect();
            Tensor::cat(tape, &parts, 0)
        };
        let out = Out::New(Layout::contiguous(self.dtype(), &part));
        let kernel = Kernel::new("_c10d_functional.reduce_scatter_tensor.default", &[&stacked], vec![out]);
        let part = group.communicate(tape, CollectiveKind::ReduceScatter, kernel);
        (part, stacked)
    }

    /// The sum over all ranks.
    pub(crate) fn all_reduced(&self, group: TensorParallel, wait: Wait) -> Tensor {
        let out = Out::New(Layout::contiguous(self.dtype(), self.shape()));
        let kernel = Kernel::new("_c10d_functional.all_reduce.default", &[self], vec![out]);
        let message = group.communicate(self.tape(), CollectiveKind::AllReduce, kernel);
        let wrapped = message.passed(WRAP);
        if wait == Wait::AtOnce { wrapped.passed(WAIT) } else { wrapped }
    }

    /// A gradient or a momentum as its parameter is spread; a copy, unless it is that already.
    pub(crate) fn settled(&self, spread: &Spread) -> Tensor {
        match spread {
            Spread::Own => self.clone(),
            Spread::Summand(group) => self.all_reduced(*group, Wait::AtOnce),
            Spread::Whole(group, _) => {
                let pieces = self.chunks(*group);
                pieces.get(group.rank as usize).unwrap_or(self).clone_contiguous()
            }
        }
    }

    /// The rows of every rank; views.
    fn chunks(&self, group: TensorParallel) -> Vec<Tensor> {
        let piece = |rank| {
            let mut layout = self.layout().clone();
            if let Some(rows) = layout.shape.first_mut() {
                *rows = TensorParallel { rank, ..group }.share(*rows);
            }
            Out::View(self, layout)
        };
        self.tape().launch(Kernel::view("chunk.default", self, (0..group.ranks).map(piece).collect()))
    }

    /// The same tensor through an operator that does nothing to it.
    fn passed(&self, name: &'static str) -> Tensor {
        self.tape().launch_one(Kernel::view(name, self, vec![Out::View(self, self.layout().clone())]))
    }
}

const WRAP: &str = "_c10d_functional._wrap_tensor_autograd.default";
const WAIT: &str = "_c10d_functional.wait_tensor.default";
