//! The loss of a language model over parts of its positions: `python/rematic/_chunked_loss.py`, statement by statement.

use rematic_trace::{Dtype, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

impl Tensor {
    /// The loss of hidden states `[batch, positions, width]` against the next tokens, over so many parts.
    pub(crate) fn chunked_loss(&self, weight: &Tensor, labels: &Tensor, chunks: u64) -> Tensor {
        let targets = {
            let padded = labels.pad_last(1);
            let shifted = padded.slice(-1, 1, padded.size(-1));
            shifted.contiguous()
        };
        let rows = self.size(0).saturating_mul(self.size(1));
        let targets = targets.view(&[rows]);
        let hidden = self.reshape(&[rows, self.size(-1)]);
        match self.tape().autocast_dtype() {
            None => hidden.chunked_function(weight, &targets, chunks),
            Some(dtype) => {
                let (hidden, weight) = (hidden.to(dtype), weight.to(dtype));
                self.tape().inside_operator(|| hidden.chunked_function(&weight, &targets, chunks))
            }
        }
    }

    /// Both passes of the function. What it saves counts as saved by its first operator.
    fn chunked_function(&self, weight: &Tensor, targets: &Tensor, chunks: u64) -> Tensor {
        let backward = Box::new(move |gradients: &Gradients<'_>| chunked_backward(gradients, chunks));
        let saves = vec![Slot::Input(self), Slot::Input(weight), Slot::Input(targets)];
        let derivative = Derivative { inputs: &[self, weight], saves, backward };
        let zeros = Kernel::new("zeros.default", &[], vec![Out::New(Layout::contiguous(Dtype::F32, &[]))]);
        self.tape().launch_function(zeros, derivative, |total| {
            let (parts, wanted) = (self.parts(chunks), targets.parts(chunks));
            for (part, wanted) in parts.iter().zip(&wanted) {
                let loss = part.logits(weight).cross_entropy(wanted);
                total.change("add_.Tensor", &[&loss]);
            }
            let count = targets.counted().sum_of_bools();
            total.zip("div.Tensor", &count)
        })
    }

    /// Views of equal parts along the first dimension; the last may have less.
    fn parts(&self, count: u64) -> Vec<Tensor> {
        self.split(self.size(0).div_ceil(count.max(1)).max(1), 0)
    }

    /// `linear(self, weight).float()`.
    fn logits(&self, weight: &Tensor) -> Tensor {
        let product = {
            let flipped = weight.t();
            self.matmul_kernel(&flipped)
        };
        product.to(Dtype::F32)
    }

    /// Which targets are not ignored.
    fn counted(&self) -> Tensor {
        let layout = Layout { dtype: Dtype::Bool, ..self.layout().clone() };
        self.tape().launch_one(Kernel::new("ne.Scalar", &[self], vec![Out::New(layout)]))
    }

    fn sum_of_bools(&self) -> Tensor {
        let layout = Layout::contiguous(Dtype::I64, &[]);
        self.tape().launch_one(Kernel::new("sum.default", &[self], vec![Out::New(layout)]))
    }
}

fn chunked_backward(gradients: &Gradients<'_>, chunks: u64) -> Vec<Option<Tensor>> {
    let [hidden, weight, targets] = gradients.saved else { return vec![None, None] };
    let counts = targets.counted();
    let scale = {
        let count = counts.sum_of_bools();
        gradients.output().zip("div.Tensor", &count)
    };
    let for_hidden = hidden.map("empty_like.default");
    let for_weight = gradients.wanted[1].then(|| weight.map("zeros_like.default"));
    let [parts, wanted, counted, results] = [hidden, targets, &counts, &for_hidden].map(|tensor| tensor.parts(chunks));
    let all = parts.iter().zip(&wanted).zip(&counted).zip(&results);
    for (((part, wanted), counted), result) in all {
        let delta = {
            let probabilities = {
                let logits = part.logits(weight);
                logits.softmax_last()
            };
            let scales = counted.zip("mul.Tensor", &scale);
            probabilities.become_delta(wanted, &scales);
            drop(scales);
            probabilities.to(weight.dtype())
        };
        let product = delta.matmul_kernel(weight);
        result.change("copy_.default", &[&product]);
        drop(product);
        if let Some(for_weight) = &for_weight {
            let flipped = delta.t();
            for_weight.change("addmm_.default", &[&flipped, part]);
        }
    }
    vec![Some(for_hidden), for_weight]
}

impl Tensor {
    /// Probabilities become the gradient of the logits.
    fn become_delta(&self, wanted: &Tensor, scales: &Tensor) {
        let scales = scales.unsqueeze(1);
        self.change("mul_.Tensor", &[&scales]);
        let index = {
            let clamped = wanted.map("clamp.default");
            clamped.unsqueeze(1)
        };
        let negated = scales.map("neg.default");
        self.change("scatter_add_.default", &[&index, &negated]);
    }
}
