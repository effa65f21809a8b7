use rematic_trace::Dtype;

use super::Scope;
use crate::tensor::Tensor;

/// `x @ weight.T + bias`.
pub struct Linear {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        let scope = parent.child(name, "Linear");
        let weight = scope.parameter("weight", &[outputs, inputs]);
        let bias = bias.then(|| scope.parameter("bias", &[outputs]));
        Linear { scope, weight, bias }
    }

    /// A layer without bias whose weight is another module's parameter.
    #[must_use]
    pub fn tied(parent: &Scope, name: &str, weight: &Tensor) -> Self {
        let scope = parent.child(name, "Linear");
        scope.tie("weight", weight);
        Linear { scope, weight: weight.clone(), bias: None }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || input.linear(&self.weight, self.bias.as_ref()))
    }
}

/// Hugging Face's `Conv1D`: a linear layer with its weight the other way round.
pub struct Conv1d {
    scope: Scope,
    weight: Tensor,
    bias: Tensor,
}

impl Conv1d {
    /// A layer from `inputs` to `outputs` features.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, inputs: u64, outputs: u64) -> Self {
        let scope = parent.child(name, "Conv1D");
        let weight = scope.parameter("weight", &[inputs, outputs]);
        let bias = scope.parameter("bias", &[outputs]);
        Conv1d { scope, weight, bias }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut shape = input.shape().to_vec();
            let features = shape.pop().unwrap_or(1);
            let rows = shape.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent));
            shape.push(self.weight.size(1));
            let product = {
                let folded = input.view(&[rows, features]);
                Tensor::addmm(&self.bias, &folded, &self.weight)
            };
            product.view(&shape)
        })
    }
}

/// A table of vectors.
pub struct Embedding {
    scope: Scope,
    weight: Tensor,
}

impl Embedding {
    /// `count` vectors of `width`.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, count: u64, width: u64) -> Self {
        let scope = parent.child(name, "Embedding");
        let weight = scope.parameter("weight", &[count, width]);
        Embedding { scope, weight }
    }

    /// The table, to tie it to an output layer.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Looks vectors up.
    #[must_use]
    pub fn forward(&self, indices: &Tensor) -> Tensor {
        self.scope.call(&[indices], || self.weight.embedding(indices))
    }
}

/// Layer normalisation with weight and bias.
pub struct LayerNorm {
    scope: Scope,
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    /// Over the last dimension, of extent `width`.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, width: u64) -> Self {
        let scope = parent.child(name, "LayerNorm");
        let weight = scope.parameter("weight", &[width]);
        let bias = scope.parameter("bias", &[width]);
        LayerNorm { scope, weight, bias }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || input.layer_norm(&self.weight, &self.bias))
    }
}

/// Hugging Face's RMS normalisation: computed in fp32 from plain operators.
pub struct RmsNorm {
    scope: Scope,
    weight: Tensor,
}

impl RmsNorm {
    /// Over the last dimension, of extent `width`; `class` is the Python class.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, class: &str, width: u64) -> Self {
        let scope = parent.child(name, class);
        let weight = scope.parameter("weight", &[width]);
        RmsNorm { scope, weight }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = input.to(Dtype::F32);
            let variance = {
                let squares = hidden.pow_scalar();
                squares.mean_last()
            };
            hidden = {
                let scale = {
                    let shifted = variance.add_scalar();
                    shifted.rsqrt()
                };
                hidden.mul(&scale)
            };
            let narrow = hidden.to(input.dtype());
            self.weight.mul(&narrow)
        })
    }
}

/// Dropout in training.
pub struct Dropout {
    scope: Scope,
    probability: f64,
}

impl Dropout {
    /// Drops elements with this probability; 0 makes it do nothing.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, probability: f64) -> Self {
        Dropout { scope: parent.child(name, "Dropout"), probability }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || input.dropout(self.probability))
    }
}
