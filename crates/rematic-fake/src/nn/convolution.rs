use super::{Scope, own};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// `nn.Conv2d` whose stride is its kernel: patches side by side.
pub(crate) struct PatchConvolution {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
    group: Option<TensorParallel>,
}

impl PatchConvolution {
    /// From `channels` to `outputs`, with patches of this height and width.
    pub(crate) fn new(
        parent: &Scope,
        name: &str,
        channels: u64,
        outputs: u64,
        (height, width): (u64, u64),
        bias: bool,
    ) -> Self {
        let scope = parent.child(name, "Conv2d");
        let weight = scope.parameter("weight", &[outputs, channels, height, width]);
        let bias = bias.then(|| scope.parameter("bias", &[outputs]));
        PatchConvolution { scope, weight, bias, group: None }
    }

    /// The same layer on all ranks that share the model, if several do.
    pub(crate) fn shared(self, group: Option<TensorParallel>) -> Self {
        PatchConvolution { group, ..self }
    }

    /// Runs the layer.
    pub(crate) fn forward(&self, images: &Tensor) -> Tensor {
        self.scope.call(&[images], || {
            let weight = own(&self.weight, self.group);
            let bias = self.bias.as_ref().map(|bias| own(bias, self.group));
            images.convolve_patches(&weight, bias.as_ref())
        })
    }
}
