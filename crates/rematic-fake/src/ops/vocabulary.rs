//! A vocabulary whose rows lie on several ranks: looking tokens up, and the loss (`loss_parallel`).

use rematic_trace::{Dtype, Layout};

use super::redistribute::Wait;
use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

impl Tensor {
    /// The rows of `self`, the rank's part of a table of `vocabulary` rows, that `indices` name, and a mask of those that lie on
    /// another rank. The gradient is that of the whole table.
    pub(crate) fn embedding_part(&self, indices: &Tensor, vocabulary: u64) -> (Tensor, Tensor) {
        let tape = self.tape();
        let (mask, own) = tape.no_grad(|| indices.own_rows());
        let mut shape = indices.shape().to_vec();
        shape.push(self.size(-1));
        let layout = Layout::contiguous(self.dtype(), &shape);
        let table = Layout::contiguous(self.dtype(), &[vocabulary, self.size(-1)]);
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let inputs = [gradients.output(), &gradients.saved[0]];
            let kernel = Kernel::new("embedding_dense_backward.default", &inputs, vec![Out::New(table)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let kernel = Kernel::new("embedding.default", &[self, &own], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(indices)], backward };
        (tape.launch_differentiable(kernel, derivative).swap_remove(0), mask)
    }

    /// Zeroes what a mask of one dimension less says.
    pub(crate) fn mask_rows(&self, mask: Tensor) {
        let mask = mask.unsqueeze(-1);
        self.fill_where(&mask);
    }

    /// Which of these rows lie on other ranks, and the numbers of all of them on this one.
    fn own_rows(&self) -> (Tensor, Tensor) {
        let mask = {
            let below = self.map_to("lt.Scalar", Dtype::Bool);
            let above = self.map_to("ge.Scalar", Dtype::Bool);
            below.zip("__or__.Tensor", &above)
        };
        let own = {
            let copy = self.clone_contiguous();
            copy.map("sub.Tensor")
        };
        own.fill_where(&mask);
        (mask, own)
    }

    fn fill_where(&self, mask: &Tensor) {
        let outputs = vec![Out::View(self, self.layout().clone())];
        let kernel = Kernel::new("masked_fill_.Scalar", &[self, mask], outputs).mutating(&[self]);
        drop(self.tape().launch_one(kernel));
    }

    /// An elementwise kernel of one tensor whose result has another type.
    pub(crate) fn map_to(&self, name: &'static str, dtype: Dtype) -> Tensor {
        let layout = Layout { dtype, ..Layout::contiguous(dtype, self.shape()) };
        self.tape().launch_one(Kernel::new(name, &[self], vec![Out::New(layout)]))
    }

    /// A reduction of the last dimension, which stays with extent 1.
    fn fold_last(&self, name: &'static str) -> Tensor {
        let mut shape = self.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = 1;
        }
        let layout = Layout::contiguous(self.dtype(), &shape);
        self.tape().launch_one(Kernel::new(name, &[self], vec![Out::New(layout)]))
    }

    /// `where(targets != ignored, self, 0)`.
    fn where_counted(&self, targets: &Tensor) -> Tensor {
        let counted = targets.map_to("ne.Scalar", Dtype::Bool);
        counted.choose(self, targets.shape())
    }

    fn choose(&self, values: &Tensor, shape: &[u64]) -> Tensor {
        let layout = Layout::contiguous(values.dtype(), shape);
        self.tape().launch_one(Kernel::new("where.ScalarOther", &[self, values], vec![Out::New(layout)]))
    }

    /// The mean cross-entropy of `[rows, the rank's part of the classes]` against integer `targets`.
    pub(crate) fn cross_entropy_part(&self, targets: &Tensor, group: TensorParallel) -> Tensor {
        let log_probabilities = self.log_softmax_part(group);
        let targets = targets.distributed();
        log_probabilities.nll_loss_part(&targets, group)
    }

    fn log_softmax_part(&self, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let wide = tape.no_grad(|| self.to(Dtype::F32));
        let (shifted, logarithm, _rest) = tape.no_grad(|| {
            let highest = {
                let own = wide.fold_last("amax.default");
                own.all_reduced(group, Wait::Later)
            };
            let shifted = wide.zip("sub.Tensor", &highest);
            let sums = {
                let own = {
                    let powers = shifted.map("exp.default");
                    powers.fold_last("sum.dim_IntList")
                };
                own.all_reduced(group, Wait::Later)
            };
            let logarithm = sums.map("log.default");
            (shifted, logarithm, (highest, sums))
        });
        // PyTorch makes the gradient in the backward of what follows, and here hands it on.
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let out = Out::New(Layout::contiguous(self.dtype(), self.shape()));
        let single;
        let kernel = if self.dtype() == Dtype::F32 {
            Kernel::new("sub.Tensor", &[&shifted, &logarithm], vec![out])
        } else {
            single = tape.no_grad(|| shifted.zip("sub.Tensor", &logarithm));
            Kernel::new("_to_copy.default", &[&single], vec![out])
        };
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Output(0)], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    fn nll_loss_part(&self, targets: &Tensor, group: TensorParallel) -> Tensor {
        let tape = self.tape();
        let safe = targets.where_counted(targets);
        let (mask, rows) = safe.unsqueeze(1).own_rows();
        let found = {
            let layout = Layout::contiguous(self.dtype(), rows.shape());
            tape.no_grad(|| tape.launch_one(Kernel::new("gather.default", &[self, &rows], vec![Out::New(layout)])))
        };
        found.fill_where(&mask);
        drop(mask);
        let reduced = found.all_reduced(group, Wait::Later);
        let losses = {
            let negative = reduced.squeeze(1).map("neg.default");
            negative.where_counted(targets)
        };
        let scalar = |dtype| vec![Out::New(Layout::contiguous(dtype, &[]))];
        let weight = {
            let count = {
                let counted = targets.map_to("ne.Scalar", Dtype::Bool);
                tape.launch_one(Kernel::new("sum.default", &[&counted], scalar(Dtype::I64)))
            };
            tape.launch_one(Kernel::new("_to_copy.default", &[&count], scalar(self.dtype())))
        };
        let total = tape.launch_one(Kernel::new("sum.default", &[&losses], scalar(self.dtype())));
        let kernel = Kernel::new("div.Tensor", &[&total, &weight], scalar(self.dtype()));
        let saves = vec![Slot::Input(self), Slot::Input(targets), Slot::Input(&weight)];
        let derivative = Derivative { inputs: &[self], saves, backward: Box::new(loss_gradient) };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }
}

/// The gradient of the loss by the logits.
fn loss_gradient(gradients: &Gradients<'_>) -> Vec<Option<Tensor>> {
    let [input, targets, weight] = gradients.saved else { return vec![] };
    let tape = gradients.tape;
    let targets = targets.distributed();
    let weight = weight.distributed();
    let mean = gradients.output().zip("div.Tensor", &weight);
    let column = targets.unsqueeze(1);
    let safe = column.where_counted(&column);
    let update = input.map("zeros_like.default");
    let (mask, rows) = safe.squeeze(1).own_rows();
    let values = {
        let marked = mask.map_to("_to_copy.default", input.dtype());
        marked.map("sub.Tensor")
    };
    let places = Tensor::arange(tape, rows.size(0), crate::ArangeOverload::End);
    let outputs = vec![Out::View(&update, update.layout().clone())];
    let put = Kernel::new("index_put_.default", &[&update, &places, &rows, &values], outputs).mutating(&[&update]);
    drop(tape.launch_one(put));
    let scale = {
        let counted = column.map_to("ne.Scalar", Dtype::Bool);
        counted.choose(&mean, column.shape())
    };
    drop(mean);
    let difference = {
        let probabilities = input.map("exp.default");
        update.zip("add.Tensor", &probabilities)
    };
    vec![Some(difference.zip("mul.Tensor", &scale))]
}
