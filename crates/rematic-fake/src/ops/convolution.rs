use rematic_trace::Layout;

use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;

impl Tensor {
    /// Convolution of images `[batch, channels, height, width]`, row-major as they are fed, with patches that lie side by side: the
    /// stride is the extent of the weight `[outputs, channels, height, width]`. All is row-major then, with cuDNN too
    /// (`cudnn_conv_suggest_memory_format`).
    pub(crate) fn convolve_patches(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let bias = bias.map(Tensor::lowered);
        let weight = &weight.lowered();
        let images = &self.lowered();
        images.convolution_kernel(weight, bias.as_ref())
    }

    fn convolution_kernel(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let ([batch, channels, height, width], [outputs, own, tall, wide]) = (self.shape(), weight.shape()) else {
            self.tape().fail(mismatch(self, weight));
            return self.clone();
        };
        if channels != own || *tall == 0 || *wide == 0 || tall > height || wide > width {
            self.tape().fail(mismatch(self, weight));
            return self.clone();
        }
        let layout = Layout::contiguous(self.dtype(), &[*batch, *outputs, height / tall, width / wide]);
        let of = |tensor: &Tensor| Layout::contiguous(tensor.dtype(), tensor.shape());
        let mut inputs = vec![self, weight];
        inputs.extend(bias);
        let layouts: Vec<Layout> = inputs.iter().map(|tensor| of(tensor)).collect();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let [images, weight] = gradients.saved else { return vec![] };
            let made = layouts.into_iter().zip(gradients.wanted).filter(|(_, wanted)| **wanted);
            let outputs = made.map(|(layout, _)| Out::New(layout)).collect();
            let name = "convolution_backward.default";
            let mut made =
                gradients.tape.launch(Kernel::new(name, &[gradients.output(), images, weight], outputs)).into_iter();
            gradients.wanted.iter().map(|wanted| wanted.then(|| made.next()).flatten()).collect()
        });
        let kernel = Kernel::new("convolution.default", &inputs, vec![Out::New(layout)]);
        let saves = vec![Slot::Input(self), Slot::Input(weight)];
        let derivative = Derivative { inputs: &inputs, saves, backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }
}

fn mismatch(images: &Tensor, weight: &Tensor) -> FakeError {
    FakeError::Shape {
        op: "convolution.default",
        expected: "images and weight must have equal channels, and a patch must fit into an image",
        found: format!("{} and {}", images.layout(), weight.layout()),
    }
}
