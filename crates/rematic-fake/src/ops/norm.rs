use rematic_trace::{Dtype, Layout};

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

impl Tensor {
    /// Layer normalisation over the last dimension, with weight and bias.
    #[must_use]
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor) -> Tensor {
        let bias = &bias.raised();
        let weight = &weight.raised();
        let this = &self.raised();
        this.layer_norm_kernel(weight, bias)
    }

    fn layer_norm_kernel(&self, weight: &Tensor, bias: &Tensor) -> Tensor {
        let out = Layout::contiguous(self.dtype(), self.shape());
        let mut rows = self.shape().to_vec();
        if let Some(last) = rows.last_mut() {
            *last = 1;
        }
        // CUDA keeps mean and reciprocal deviation in the accumulation type.
        let statistics = Layout::contiguous(Dtype::F32, &rows);
        let outputs = vec![Out::New(out), Out::New(statistics.clone()), Out::New(statistics)];
        let (input, weights, biases) = (self.layout().clone(), weight.layout().clone(), bias.layout().clone());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let [input_saved, weight, bias, mean, deviation] = gradients.saved else { return vec![] };
            let inputs = [gradients.output(), input_saved, mean, deviation, weight, bias];
            let layouts = [Layout::contiguous(input.dtype, &input.shape), weights, biases];
            let wanted = layouts.into_iter().zip(gradients.wanted).filter(|(_, wanted)| **wanted);
            let outputs = wanted.map(|(layout, _)| Out::New(layout)).collect();
            let kernel = Kernel::new("native_layer_norm_backward.default", &inputs, outputs);
            let mut made = gradients.tape.launch(kernel).into_iter();
            gradients.wanted.iter().map(|wanted| wanted.then(|| made.next()).flatten()).collect()
        });
        let kernel = Kernel::new("native_layer_norm.default", &[self, weight, bias], outputs);
        let saves =
            vec![Slot::Input(self), Slot::Input(weight), Slot::Input(bias), Slot::Auxiliary(1), Slot::Auxiliary(2)];
        let derivative = Derivative { inputs: &[self, weight, bias], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Softmax over the last dimension.
    #[must_use]
    pub fn softmax_last(&self) -> Tensor {
        self.softmax_last_for(None)
    }

    /// The same on several ranks, each of which has a summand of the gradient.
    pub(crate) fn softmax_last_for(&self, group: Option<TensorParallel>) -> Tensor {
        self.softmax_kernel("_softmax.default", "_softmax_backward_data.default", group)
    }

    /// Softmax over the last dimension in fp32: half numbers are read as they are, others are converted first.
    pub(crate) fn softmax_in_single(&self) -> Tensor {
        if self.dtype() != Dtype::F16 {
            let single = self.to(Dtype::F32);
            return single.softmax_last();
        }
        let layout = Layout::contiguous(Dtype::F32, self.shape());
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let inputs = [gradients.output(), &gradients.saved[0]];
            let name = "_softmax_backward_data.default";
            vec![Some(gradients.tape.launch_one(Kernel::new(name, &inputs, vec![Out::New(own)])))]
        });
        let kernel = Kernel::new("_softmax.default", &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Output(0)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Softmax over the last dimension that gives zeros for rows that are masked completely.
    pub(crate) fn safe_softmax(&self) -> Tensor {
        self.softmax_kernel("_safe_softmax.default", "_softmax_backward_data.default", None)
    }

    /// The logarithm of softmax over the last dimension.
    #[must_use]
    pub fn log_softmax_last(&self) -> Tensor {
        self.softmax_kernel("_log_softmax.default", "_log_softmax_backward_data.default", None)
    }

    fn softmax_kernel(&self, name: &'static str, backward_name: &'static str, group: Option<TensorParallel>) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), self.shape());
        let own = layout.clone();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let inputs = [&gradients.output().summed_up(group), &gradients.saved[0]];
            vec![Some(gradients.tape.launch_one(Kernel::new(backward_name, &inputs, vec![Out::New(own)])))]
        });
        let kernel = Kernel::new(name, &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Output(0)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }
}
