use rematic_trace::Dtype;

use super::Scope;
use super::adapter::Adapter;
use crate::ops::{Cut, Wait};
use crate::parallel::{Spread, TensorParallel};
use crate::tensor::Tensor;

/// `x @ weight.T + bias`.
pub struct Linear {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Adapter>,
}

impl Linear {
    /// A layer without bias whose gradient is spread over ranks.
    pub(crate) fn spread(parent: &Scope, name: &str, [inputs, outputs]: [u64; 2], spread: Spread) -> Self {
        let scope = parent.child(name, "Linear");
        let weight = scope.parameter_of("weight", &[outputs, inputs], spread);
        Linear { scope, weight, bias: None, adapter: None }
    }

    /// A layer from `inputs` to `outputs` features.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        let (scope, around) = adapted(parent, name, "Linear");
        let weight = scope.parameter("weight", &[outputs, inputs]);
        let bias = bias.then(|| scope.parameter("bias", &[outputs]));
        let adapter = around.map(|(around, rank)| Adapter::new(around, rank, inputs, outputs));
        Linear { scope, weight, bias, adapter }
    }

    /// A layer without bias whose weight is another module's parameter.
    #[must_use]
    pub fn tied(parent: &Scope, name: &str, weight: &Tensor) -> Self {
        let (scope, around) = adapted(parent, name, "Linear");
        scope.tie("weight", weight);
        let adapter = around.map(|(around, rank)| Adapter::new(around, rank, weight.size(1), weight.size(0)));
        Linear { scope, weight: weight.clone(), bias: None, adapter }
    }

    /// A layer whose weight and bias are parameters of other modules.
    pub(crate) fn tied_with(parent: &Scope, name: &str, weight: &Tensor, bias: &Tensor) -> Self {
        let tied = Linear::tied(parent, name, weight);
        tied.scope.tie("bias", bias);
        Linear { bias: Some(bias.clone()), ..tied }
    }

    /// A layer whose bias is a parameter of another module.
    pub(crate) fn biased_with(parent: &Scope, name: &str, [inputs, outputs]: [u64; 2], bias: &Tensor) -> Self {
        let linear = Linear::new(parent, name, inputs, outputs, false);
        linear.scope.tie("bias", bias);
        Linear { bias: Some(bias.clone()), ..linear }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        with_adapter(self.adapter.as_ref(), input, || {
            self.scope.call(&[input], || input.linear(&self.weight, self.bias.as_ref()))
        })
    }

    /// Its weight.
    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Calls the layer without its product, which is computed later: its input and its weight as they are then multiplied.
    pub(crate) fn deferred(&self, input: &Tensor) -> (Tensor, Tensor) {
        let mut found = None;
        self.scope.call(&[input], || {
            found = Some(match input.tape().autocast_dtype() {
                Some(dtype) => (input.to(dtype), self.weight.to(dtype)),
                None => (input.clone(), self.weight.clone()),
            });
            Vec::new()
        });
        found.unwrap_or_else(|| (input.clone(), self.weight.clone()))
    }

    /// Runs the rank's outputs of the layer (`ColwiseParallel`), on what all ranks have. They are a tensor of its own.
    pub(crate) fn forward_columns(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let output = self.forward(input);
        if group.is_some() { output.local() } else { output }
    }

    /// Runs the layer on the rank's inputs (`RowwiseParallel`): its part of the sequence of the sum over all ranks.
    pub(crate) fn forward_rows(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let summand = {
            let input = input.distributed();
            self.summand(&input)
        };
        let part = summand.scatter_sequence(group, Wait::Later);
        part.local()
    }

    /// Runs the layer on the rank's inputs (`RowwiseParallel(output_layouts=Partial())`): a summand.
    pub(crate) fn forward_summand(&self, input: &Tensor) -> Tensor {
        let summand = {
            let input = input.distributed();
            self.summand(&input)
        };
        summand.local()
    }

    pub(super) fn summand(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || input.linear_summand(&self.weight, self.bias.as_ref()))
    }

    /// Runs the rank's outputs of the layer, and gives all ranks those of all (`ColwiseParallel(output_layouts=Replicate())`).
    pub(crate) fn forward_columns_gathered(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let part = self.forward(input);
        let whole = part.gather_width(group);
        whole.local()
    }

    /// Runs the layer on the rank's part of inputs that all ranks have (`RowwiseParallel(input_layouts=Replicate())`).
    pub(crate) fn forward_rows_of_all(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let summand = {
            let part = {
                let input = input.distributed();
                input.own_part(group, Cut::Width, Wait::AtOnce)
            };
            self.summand(&part)
        };
        let part = summand.scatter_sequence(group, Wait::Later);
        part.local()
    }

    /// The same, as a tensor of the rank's own.
    pub(crate) fn forward_gathered_columns(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let output = self.forward_gathered(input, group);
        if group.is_some() { output.local() } else { output }
    }

    /// The same, and gives all ranks those of all, `outputs` of them.
    pub(crate) fn forward_gathered_whole(&self, input: &Tensor, outputs: u64, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let part = self.forward_gathered(input, Some(group));
        let whole = part.gather_width_of(group, outputs);
        whole.local()
    }

    /// Runs the rank's outputs of the layer on a part of the sequence, which is gathered first.
    pub(crate) fn forward_gathered(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let whole = input.gather_sequence(group, Wait::Later);
        self.forward(&whole)
    }
}

/// The scope of a layer, and if it gets an adapter the one around both, with its rank.
fn adapted(parent: &Scope, name: &str, class: &str) -> (Scope, Option<(Scope, u64)>) {
    let Some(rank) = parent.adapter_rank(name) else { return (parent.child(name, class), None) };
    // PEFT's class has this name too.
    let around = parent.child(name, "Linear");
    (around.child("base_layer", class), Some((around, rank)))
}

fn with_adapter(adapter: Option<&Adapter>, input: &Tensor, layer: impl FnOnce() -> Tensor) -> Tensor {
    match adapter {
        None => layer(),
        Some(adapter) => adapter.forward(input, layer),
    }
}

/// Hugging Face's `Conv1D`: a linear layer with its weight the other way round.
pub struct Conv1d {
    scope: Scope,
    weight: Tensor,
    bias: Tensor,
    adapter: Option<Adapter>,
}

impl Conv1d {
    /// A layer from `inputs` to `outputs` features.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, inputs: u64, outputs: u64) -> Self {
        let (scope, around) = adapted(parent, name, "Conv1D");
        let weight = scope.parameter("weight", &[inputs, outputs]);
        let bias = scope.parameter("bias", &[outputs]);
        let adapter = around.map(|(around, rank)| Adapter::new(around, rank, inputs, outputs));
        Conv1d { scope, weight, bias, adapter }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        with_adapter(self.adapter.as_ref(), input, || self.layer(input))
    }

    fn layer(&self, input: &Tensor) -> Tensor {
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
    /// A number by which the vectors are scaled, as a tensor.
    scale: Option<Tensor>,
}

impl Embedding {
    /// `count` vectors of `width`.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, count: u64, width: u64) -> Self {
        let scope = parent.child(name, "Embedding");
        let weight = scope.parameter("weight", &[count, width]);
        Embedding { scope, weight, scale: None }
    }

    /// A table that is another module's parameter.
    pub(crate) fn tied(parent: &Scope, name: &str, weight: &Tensor) -> Self {
        let scope = parent.child(name, "Embedding");
        scope.tie("weight", weight);
        Embedding { scope, weight: weight.clone(), scale: None }
    }

    /// `count` vectors of `width` that are scaled after they are looked up, as Gemma's are; `class` is the Python class.
    pub(crate) fn scaled(parent: &Scope, name: &str, class: &str, count: u64, width: u64) -> Self {
        let scope = parent.child(name, class);
        let weight = scope.parameter("weight", &[count, width]);
        let scale = scope.buffer("embed_scale", weight.dtype(), &[]);
        Embedding { scope, weight, scale: Some(scale) }
    }

    /// The rank's rows of `count` vectors of `width`, which are scaled after they are looked up if the class says so.
    pub(crate) fn part(
        parent: &Scope,
        name: &str,
        scaled: Option<&str>,
        [count, width]: [u64; 2],
        group: TensorParallel,
    ) -> Self {
        let scope = parent.child(name, scaled.unwrap_or("Embedding"));
        let spread = Spread::Whole(group, vec![count, width]);
        let weight = scope.parameter_of("weight", &[group.share(count), width], spread);
        let scale = scaled.map(|_| scope.buffer("embed_scale", weight.dtype(), &[]));
        Embedding { scope, weight, scale }
    }

    /// The rank's rows of `count` vectors of `width`, which are the weight of an output layer too.
    pub(crate) fn tied_part(parent: &Scope, name: &str, [count, width]: [u64; 2], group: TensorParallel) -> Self {
        let scope = parent.child(name, "Embedding");
        let spread = Spread::Tied(group, vec![count, width]);
        let weight = scope.parameter_of("weight", &[group.share(count), width], spread);
        Embedding { scope, weight, scale: None }
    }

    /// Looks the vectors of a row of indices up in a table that lies on several ranks: the rank's part of the row.
    pub(crate) fn forward_rows(&self, indices: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(indices) };
        let found = self.summand(&indices.distributed(), group);
        let part = found.scatter_rows(group);
        part.local()
    }

    /// Looks vectors up in a table that lies on several ranks (`RowwiseParallel`): the rank's part of the sequence, or all of it.
    pub(crate) fn forward_part(&self, indices: &Tensor, group: TensorParallel, whole: bool) -> Tensor {
        let found = self.summand(&indices.distributed(), group);
        let given = match (&self.scale, whole) {
            (None, false) => found.scatter_sequence(group, Wait::Later),
            (None, true) => found.summed(group),
            (Some(_), false) => found.own_part(group, Cut::Sequence, Wait::Later),
            (Some(_), true) => found,
        };
        given.local()
    }

    /// What the rank has of the vectors, zeros for those of others; the sum if they are scaled.
    fn summand(&self, indices: &Tensor, group: TensorParallel) -> Tensor {
        let count = match self.weight.spread() {
            Spread::Whole(_, shape) | Spread::Tied(_, shape) => shape.first().copied().unwrap_or(0),
            _ => self.weight.size(0),
        };
        let mut mask = None;
        let found = self.scope.call(&[indices], || {
            let (rows, others) = self.weight.embedding_part(indices, count);
            let Some(scale) = &self.scale else {
                mask = Some(others);
                return rows;
            };
            // Summands are not scaled: all ranks have the sum first.
            rows.mask_rows(others);
            rows.sum_scaled(scale, group)
        });
        if let Some(mask) = mask {
            found.mask_rows(mask);
        }
        found
    }

    /// The table, to tie it to an output layer.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Looks vectors up.
    #[must_use]
    pub fn forward(&self, indices: &Tensor) -> Tensor {
        self.scope.call(&[indices], || {
            let rows = self.weight.embedding(indices);
            match &self.scale {
                Some(scale) => rows.mul(scale),
                None => rows,
            }
        })
    }
}

/// Layer normalisation with weight and bias.
pub struct LayerNorm {
    scope: Scope,
    weight: Tensor,
    bias: Tensor,
    group: Option<TensorParallel>,
}

impl LayerNorm {
    /// Over the last dimension, of extent `width`.
    #[must_use]
    pub fn new(parent: &Scope, name: &str, width: u64) -> Self {
        Self::with(parent, name, width, None)
    }

    /// On all ranks the same, each with a part of the sequence (`SequenceParallel`), if there are several.
    pub(crate) fn with(parent: &Scope, name: &str, width: u64, group: Option<TensorParallel>) -> Self {
        let scope = parent.child(name, "LayerNorm");
        let parameter = |name| scope.parameter_of(name, &[width], group.map_or(Spread::Own, Spread::Summand));
        let (weight, bias) = (parameter("weight"), parameter("bias"));
        LayerNorm { scope, weight, bias, group }
    }

    /// Runs the layer.
    #[must_use]
    pub fn forward(&self, input: &Tensor) -> Tensor {
        let input = &if self.group.is_some() { input.distributed() } else { input.clone() };
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
        Self::with(parent, name, class, width, Spread::Own)
    }

    /// With a gradient that is spread over ranks.
    pub(crate) fn with(parent: &Scope, name: &str, class: &str, width: u64, spread: Spread) -> Self {
        let scope = parent.child(name, class);
        let weight = scope.parameter_of("weight", &[width], spread);
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
