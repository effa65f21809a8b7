use rematic_trace::Layout;

use crate::autograd::Gradients;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements of the last dimension at these places.
    pub(crate) fn gather_last(&self, places: &Tensor) -> Tensor {
        self.gather_last_for(places, None)
    }

    /// The same on several ranks, each of which has a summand of the gradient.
    pub(crate) fn gather_last_for(&self, places: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), places.shape());
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let places = &gradients.saved[1];
            let zeros = gradients.output().new_zeros(own.clone());
            let gradient = gradients.output().summed_up(group);
            let kernel = Kernel::new("scatter_add.default", &[&zeros, places, &gradient], vec![Out::New(own)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let kernel = Kernel::new("gather.default", &[self, places], vec![Out::New(layout)]);
        let saves = vec![Slot::Input(self), Slot::Input(places)];
        self.tape().launch_differentiable(kernel, Derivative { inputs: &[self], saves, backward }).swap_remove(0)
    }

    /// The rows of `self` that `indices` name.
    #[must_use]
    pub fn embedding(&self, indices: &Tensor) -> Tensor {
        let mut shape = indices.shape().to_vec();
        shape.push(self.size(-1));
        let layout = Layout::contiguous(self.dtype(), &shape);
        let table = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let inputs = [gradients.output(), &gradients.saved[0]];
            let kernel = Kernel::new("embedding_dense_backward.default", &inputs, vec![Out::New(table)]);
            vec![Some(gradients.tape.launch_one(kernel))]
        });
        let kernel = Kernel::new("embedding.default", &[self, indices], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![Slot::Input(indices)], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }
}
