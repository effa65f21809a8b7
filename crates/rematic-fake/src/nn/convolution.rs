use super::Scope;
use crate::tensor::Tensor;

/// `nn.Conv2d` whose stride is its kernel: patches side by side.
pub(crate) struct PatchConvolution {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
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
        PatchConvolution { scope, weight, bias }
    }

    /// Runs the layer.
    pub(crate) fn forward(&self, images: &Tensor) -> Tensor {
        self.scope.call(&[images], || images.convolve_patches(&self.weight, self.bias.as_ref()))
    }
}
