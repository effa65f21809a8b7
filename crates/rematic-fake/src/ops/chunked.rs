//! The loss of a language model over parts of its positions: `python/rematic/_loss/function.py`, statement by statement.

use rematic_trace::{Dtype, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

/// What a model does to its logits before the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitScale {
    None,
    /// Times a number (Cohere).
    Times,
    /// Over a number (Granite).
    Over,
    /// `tanh(logits / cap) * cap` (Gemma 2).
    Softcap,
}

impl LogitScale {
    /// The logits as the loss takes them.
    pub(crate) fn applied(self, logits: Tensor) -> Tensor {
        self.passed(logits).0
    }

    /// The same, with what backward needs: the output of `tanh`.
    fn passed(self, mut logits: Tensor) -> (Tensor, Option<Tensor>) {
        match self {
            LogitScale::None => (logits, None),
            LogitScale::Times => (logits.mul_scalar(), None),
            LogitScale::Over => (logits.div_scalar(), None),
            LogitScale::Softcap => {
                logits = logits.div_scalar();
                logits = logits.tanh();
                (logits.mul_scalar(), Some(logits))
            }
        }
    }

    /// The gradient of the logits as the layer gives them, from that of those that the loss takes.
    fn back(self, mut delta: Tensor, tanh: Option<Tensor>) -> Tensor {
        if let Some(tanh) = tanh {
            delta = delta.map("mul.Tensor");
            delta = delta.zip("tanh_backward.default", &tanh);
            drop(tanh);
            return delta.map("div.Tensor");
        }
        match self {
            LogitScale::None | LogitScale::Softcap => delta,
            LogitScale::Times => delta.map("mul.Tensor"),
            LogitScale::Over => delta.map("div.Tensor"),
        }
    }
}

/// The loss of a linear layer over parts of its rows.
#[derive(Clone, Copy)]
pub(crate) struct Chunked {
    pub(crate) chunks: u64,
    pub(crate) scale: LogitScale,
}

impl Chunked {
    /// The loss of hidden states `[batch, positions, width]`, which are as the layer computes with them, against the next tokens.
    pub(crate) fn loss(self, hidden: Tensor, weight: Tensor, labels: &Tensor) -> Tensor {
        let padded = labels.pad_last(1);
        let mut targets = {
            let shifted = padded.slice(-1, 1, padded.size(-1));
            shifted.contiguous()
        };
        let count = hidden.size(0).saturating_mul(hidden.size(1));
        let rows = hidden.reshape(&[count, hidden.size(-1)]);
        drop(hidden);
        targets = targets.view(&[count]);
        let tape = rows.tape().clone();
        tape.inside_operator(|| self.function(&rows, &weight, &targets))
    }

    /// Both passes of the function. What it saves counts as saved by its first operator.
    fn function(self, rows: &Tensor, weight: &Tensor, targets: &Tensor) -> Tensor {
        let backward = Box::new(move |gradients: &Gradients<'_>| self.backward(gradients));
        let saves = vec![Slot::Input(rows), Slot::Input(weight), Slot::Input(targets)];
        let derivative = Derivative { inputs: &[rows, weight], saves, backward };
        let zeros = Kernel::new("zeros.default", &[], vec![Out::New(Layout::contiguous(Dtype::F32, &[]))]);
        rows.tape().launch_function(zeros, derivative, |total| {
            let (parts, wanted) = (rows.parts(self.chunks), targets.parts(self.chunks));
            for (part, wanted) in parts.iter().zip(&wanted) {
                let (logits, _) = self.logits(part, weight);
                let loss = logits.cross_entropy(wanted);
                drop(logits);
                total.change("add_.Tensor", &[&loss]);
            }
            let count = targets.counted().sum_of_bools();
            total.zip("div.Tensor", &count)
        })
    }

    /// What the layer gives for some rows, scaled, in fp32; and the output of `tanh`.
    fn logits(self, part: &Tensor, weight: &Tensor) -> (Tensor, Option<Tensor>) {
        let product = {
            let flipped = weight.t();
            part.matmul_kernel(&flipped)
        };
        let (scaled, tanh) = self.scale.passed(product);
        (scaled.to(Dtype::F32), tanh)
    }

    fn backward(self, gradients: &Gradients<'_>) -> Vec<Option<Tensor>> {
        let [rows, weight, targets] = gradients.saved else { return vec![None, None] };
        let counts = targets.counted();
        let scale = {
            let count = counts.sum_of_bools();
            gradients.output().zip("div.Tensor", &count)
        };
        let for_rows = gradients.wanted[0].then(|| rows.map("empty_like.default"));
        let for_weight = gradients.wanted[1].then(|| weight.map("zeros_like.default"));
        let [parts, wanted, counted] = [rows, targets, &counts].map(|tensor| tensor.parts(self.chunks));
        let results = for_rows.as_ref().map(|tensor| tensor.parts(self.chunks));
        for (at, ((part, wanted), counted)) in parts.iter().zip(&wanted).zip(&counted).enumerate() {
            let delta = self.delta(part, weight, wanted, counted.zip("mul.Tensor", &scale));
            if let Some(result) = results.as_ref().and_then(|results| results.get(at)) {
                let product = delta.matmul_kernel(weight);
                result.change("copy_.default", &[&product]);
            }
            if let Some(for_weight) = &for_weight {
                let flipped = delta.t();
                for_weight.change("addmm_.default", &[&flipped, part]);
            }
        }
        vec![for_rows, for_weight]
    }

    /// The gradient of what the layer gives for some rows.
    fn delta(self, part: &Tensor, weight: &Tensor, wanted: &Tensor, scales: Tensor) -> Tensor {
        let (mut delta, tanh) = {
            let (logits, tanh) = self.logits(part, weight);
            (logits.softmax_last(), tanh)
        };
        delta.become_delta(wanted, &scales);
        drop(scales);
        // The one in fp32 goes before the scale is undone.
        delta = delta.to(weight.dtype());
        self.scale.back(delta, tanh)
    }
}

impl Tensor {
    /// Views of equal parts along the first dimension; the last may have less.
    fn parts(&self, count: u64) -> Vec<Tensor> {
        self.split(self.size(0).div_ceil(count.max(1)).max(1), 0)
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
