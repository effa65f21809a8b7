//! How a tensor that lies on several ranks comes to lie otherwise: the operators that PyTorch's DTensor runs on one of them.

use rematic_trace::{CollectiveKind, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::parallel::{Spread, TensorParallel};
use crate::tensor::Tensor;

/// Whether a message is waited for at once, or where its result is read first. The second shows in no operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    AtOnce,
    Later,
}

/// The dimension along which a tensor is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The first.
    Rows,
    /// The second.
    Sequence,
    /// The last.
    Width,
}

impl Cut {
    fn place(self, rank: usize) -> usize {
        match self {
            Cut::Rows => 0,
            Cut::Sequence => 1,
            Cut::Width => rank.saturating_sub(1),
        }
    }

    /// A shape with an extent changed.
    fn with(self, shape: &[u64], change: impl FnOnce(u64) -> u64) -> Vec<u64> {
        let mut shape = shape.to_vec();
        let place = self.place(shape.len());
        if let Some(extent) = shape.get_mut(place) {
            *extent = change(*extent);
        }
        shape
    }

    /// Whether what lies before the dimension is one row, so that parts that are stacked are parts that are joined.
    fn is_outermost(self, shape: &[u64]) -> bool {
        shape.iter().take(self.place(shape.len())).all(|extent| *extent == 1)
    }
}

/// What was gathered along a dimension longer than this is narrowed to its own length: DTensor asks whether two lengths are the same
/// object, and Python has one object for each number up to this only.
const SMALL: u64 = 256;

impl Tensor {
    /// `DTensor.from_local`: a view, and nothing in backward.
    pub(crate) fn distributed(&self) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let kernel = Kernel::view("view.default", self, vec![Out::View(self, self.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// `DTensor.from_local` of what all ranks have and each makes a part of the result of; in backward, summands are added up.
    pub(crate) fn for_columns(&self, group: TensorParallel) -> Tensor {
        let backward =
            Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().all_reduced(group, Wait::AtOnce))]);
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
        self.gather(group, Cut::Sequence, wait, Some(derivative))
    }

    /// The same for what all ranks make the same of; in backward each takes its part.
    pub(crate) fn gather_sequence_for_all(&self, group: TensorParallel) -> Tensor {
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let parts = gradients.output().parts_of(group, Cut::Sequence);
            vec![Some(parts.get(group.rank as usize).unwrap_or(gradients.output()).clone_contiguous())]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.gather(group, Cut::Sequence, Wait::AtOnce, Some(derivative))
    }

    /// An equal share, as each of several ranks adds it; the gradient is that of all of it.
    pub(crate) fn equal_share(&self) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let out = Out::New(Layout::contiguous(self.dtype(), self.shape()));
        let kernel = Kernel::new("div.Tensor", &[self], vec![out]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// From a part of the width to all of it, on every rank; in backward each takes its part.
    pub(crate) fn gather_width(&self, group: TensorParallel) -> Tensor {
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let parts = gradients.output().parts_of(group, Cut::Width);
            vec![Some(parts.get(group.rank as usize).unwrap_or(gradients.output()).clone_contiguous())]
        });
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.gather(group, Cut::Width, Wait::Later, Some(derivative))
    }

    /// The same for a width of `extent`, of which the last ranks may have less.
    pub(crate) fn gather_width_of(&self, group: TensorParallel, extent: u64) -> Tensor {
        if extent.is_multiple_of(u64::from(group.ranks)) {
            return self.gather_width(group);
        }
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let parts = gradients.output().parts_of(group, Cut::Width);
            vec![Some(parts.get(group.rank as usize).unwrap_or(gradients.output()).clone_contiguous())]
        });
        let tape = self.tape();
        let with = |width: u64| Layout::contiguous(self.dtype(), &Cut::Width.with(self.shape(), |_| width));
        let whole = with(extent);
        let (seen, _padded) = tape.no_grad(|| {
            let chunk = group.chunk(extent);
            // All messages are of one length.
            let padded = (self.size(-1) < chunk)
                .then(|| tape.launch_one(Kernel::new("constant_pad_nd.default", &[self], vec![Out::New(with(chunk))])));
            let long = with(chunk.saturating_mul(u64::from(group.ranks)));
            let joined = {
                let wrapped = padded.as_ref().unwrap_or(self).all_gathered(group);
                let waited = wrapped.passed(WAIT);
                drop(wrapped);
                let parts = waited.split(self.size(0), 0);
                let parts: Vec<&Tensor> = parts.iter().collect();
                tape.launch_one(Kernel::new("cat.default", &parts, vec![Out::New(long)]))
            };
            let mut seen = joined;
            for _ in 0..if extent > SMALL { 2 } else { 1 } {
                let narrow = Layout { shape: whole.shape.clone(), ..seen.layout().clone() };
                seen = tape.launch_one(Kernel::view("slice.Tensor", &seen, vec![Out::View(&seen, narrow)]));
            }
            (seen, padded)
        });
        let kernel = Kernel::new("clone.default", &[&seen], vec![Out::New(whole)]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// From summands of all rows to some rows of the sum; in backward, the rows of all are gathered.
    pub(crate) fn scatter_rows(&self, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let rows = gradients.output().all_gathered(group);
            vec![Some(if rows.size(0) > SMALL { rows.passed("slice.Tensor") } else { rows })]
        });
        let rows = Cut::Rows.with(self.shape(), |count| group.share(count));
        let sum = tape.no_grad(|| {
            let out = Out::New(Layout::contiguous(self.dtype(), &rows));
            let kernel = Kernel::new("_c10d_functional.reduce_scatter_tensor.default", &[self], vec![out]);
            group.communicate(tape, CollectiveKind::ReduceScatter, kernel)
        });
        let kernel = Kernel::view(WRAP, &sum, vec![Out::View(&sum, sum.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// What all ranks have, one behind the other.
    fn all_gathered(&self, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let stacked = Cut::Rows.with(self.shape(), |count| count.saturating_mul(u64::from(group.ranks)));
        let out = Out::New(Layout::contiguous(self.dtype(), &stacked));
        let kernel = Kernel::new("_c10d_functional.all_gather_into_tensor.default", &[self], vec![out]);
        let message = tape.no_grad(|| group.communicate(tape, CollectiveKind::AllGather, kernel));
        message.passed(WRAP)
    }

    /// The rank's part of what all ranks have; in backward, the parts are gathered.
    pub(crate) fn own_part(&self, group: TensorParallel, cut: Cut, wait: Wait) -> Tensor {
        let tape = self.tape();
        let parts = tape.no_grad(|| self.parts_of(group, cut));
        let own = parts.get(group.rank as usize).unwrap_or(self);
        let backward =
            Box::new(move |gradients: &Gradients<'_>| vec![Some(gradients.output().gather(group, cut, wait, None))]);
        let kernel =
            Kernel::new("clone.default", &[own], vec![Out::New(Layout::contiguous(self.dtype(), own.shape()))]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// From summands to the sum, on every rank; nothing in backward.
    pub(crate) fn summed(&self, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let sum = tape.no_grad(|| self.sum_of_all(group));
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let kernel = Kernel::view(WRAP, &sum, vec![Out::View(&sum, sum.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Summands, of which all ranks get the sum, times a number.
    pub(crate) fn sum_scaled(&self, scale: &Tensor, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let sum = tape.no_grad(|| self.all_reduced(group, Wait::AtOnce));
        let backward = Box::new(|gradients: &Gradients<'_>| {
            let scale = gradients.saved.first();
            vec![scale.map(|scale| gradients.output().zip("mul.Tensor", scale))]
        });
        let out = Out::New(Layout::contiguous(self.dtype(), self.shape()));
        let kernel = Kernel::new("mul.Tensor", &[&sum, scale], vec![out]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(scale)], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The parts of all ranks; views.
    fn parts_of(&self, group: TensorParallel, cut: Cut) -> Vec<Tensor> {
        let place = cut.place(self.shape().len());
        let each = self.shape().get(place).map_or(1, |extent| group.chunk(*extent));
        self.split(each.max(1), place.cast_signed())
    }

    /// From summands of all of the sequence to a part of the sum; in backward, the parts are gathered.
    pub(crate) fn scatter_sequence(&self, group: TensorParallel, wait: Wait) -> Tensor {
        let tape = self.tape();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            vec![Some(gradients.output().gather(group, Cut::Sequence, wait, None))]
        });
        let (mut sum, stacked) = tape.no_grad(|| self.reduced(group));
        let mut last = WRAP;
        let mut held = Some(stacked);
        if wait == Wait::AtOnce {
            sum = tape.no_grad(|| sum.passed(WRAP));
            (last, held) = (WAIT, None);
        }
        let kernel = Kernel::view(last, &sum, vec![Out::View(&sum, sum.layout().clone())]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        let part = tape.launch_differentiable(kernel, derivative).swap_remove(0);
        drop(held);
        part
    }

    /// The last operator is the one that is differentiated, if any is.
    fn gather(&self, group: TensorParallel, cut: Cut, wait: Wait, mut derivative: Option<Derivative<'_>>) -> Tensor {
        let tape = self.tape();
        let whole = cut.with(self.shape(), |extent| extent.saturating_mul(u64::from(group.ranks)));
        let wrapped = self.all_gathered(group);
        let whole = Layout::contiguous(self.dtype(), &whole);
        let is_single = cut.is_outermost(self.shape());
        let mut after = Vec::new();
        if whole.shape.get(cut.place(whole.shape.len())).is_some_and(|length| *length > SMALL) {
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
        let part = Cut::Sequence.with(self.shape(), |length| group.share(length));
        let stacked = {
            let parts = self.parts_of(group, Cut::Sequence);
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
        let wrapped = self.sum_of_all(group).passed(WRAP);
        if wait == Wait::AtOnce { wrapped.passed(WAIT) } else { wrapped }
    }

    /// The sum of what several ranks have, for an operator that needs all of it; as it is where there is one rank.
    pub(crate) fn summed_up(&self, group: Option<TensorParallel>) -> Tensor {
        group.map_or_else(|| self.clone(), |group| self.all_reduced(group, Wait::AtOnce))
    }

    fn sum_of_all(&self, group: TensorParallel) -> Tensor {
        let out = Out::New(Layout::contiguous(self.dtype(), self.shape()));
        let kernel = Kernel::new("_c10d_functional.all_reduce.default", &[self], vec![out]);
        group.communicate(self.tape(), CollectiveKind::AllReduce, kernel)
    }

    /// A gradient or a momentum as its parameter is spread; a copy, unless it is that already.
    pub(crate) fn settled(&self, spread: &Spread) -> Tensor {
        match spread {
            Spread::Own | Spread::Tied(..) => self.clone(),
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
