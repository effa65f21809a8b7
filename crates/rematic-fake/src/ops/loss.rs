use rematic_trace::Layout;

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

impl Tensor {
    /// The mean negative log-likelihood of `targets` under log-probabilities of shape `[rows, classes]`.
    #[must_use]
    pub fn nll_loss(&self, targets: &Tensor) -> Tensor {
        self.raised().nll_loss_kernel(targets)
    }

    fn nll_loss_kernel(&self, targets: &Tensor) -> Tensor {
        let scalar = Layout::contiguous(self.dtype(), &[]);
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let [input, targets, total_weight] = gradients.saved else { return vec![] };
            let inputs = [gradients.output(), input, targets, total_weight];
            let kernel = Kernel::new("nll_loss_backward.default", &inputs, vec![Out::New(own)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let outputs = vec![Out::New(scalar.clone()), Out::New(scalar)];
        let kernel = Kernel::new("nll_loss_forward.default", &[self, targets], outputs);
        let saves = vec![Slot::Input(self), Slot::Input(targets), Slot::Auxiliary(1)];
        let derivative = Derivative { inputs: &[self], saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// The mean cross-entropy of logits of shape `[rows, classes]` against integer `targets`. It asks for logarithms in the type of the
    /// logits, so that autocast leaves them; the rest it raises.
    #[must_use]
    pub fn cross_entropy(&self, targets: &Tensor) -> Tensor {
        let log_probabilities = self.log_softmax_last();
        log_probabilities.nll_loss(targets)
    }
}
