//! Layers of models whose hidden states all ranks have: `parallelize_module` with its default styles.

use super::{Embedding, LayerNorm, Linear};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

impl Linear {
    /// Runs the rank's outputs of the layer (`ColwiseParallel()`).
    pub(crate) fn columns(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        if group.is_none() {
            return self.forward(input);
        }
        let output = self.columns_dealt(input, group);
        output.local()
    }

    /// The same for those who know that they are dealt out (`use_local_output=False`).
    pub(crate) fn columns_dealt(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let input = input.for_columns(group);
        self.forward(&input)
    }

    /// Runs the layer on the rank's inputs (`RowwiseParallel()`): the sum over all ranks.
    pub(crate) fn rows(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        let Some(group) = group else { return self.forward(input) };
        let summand = {
            let input = input.distributed();
            self.summand(&input)
        };
        let sum = summand.summed(group);
        sum.local()
    }

    /// Runs the layer, on all ranks the same.
    pub(crate) fn replicated(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        replicated(input, group, |input| self.forward(input))
    }
}

impl LayerNorm {
    /// Runs the layer, on all ranks the same.
    pub(crate) fn replicated(&self, input: &Tensor, group: Option<TensorParallel>) -> Tensor {
        replicated(input, group, |input| self.forward(input))
    }
}

impl Embedding {
    /// `count` vectors of `width`, of which every rank has some rows.
    pub(crate) fn dealt(
        parent: &super::Scope,
        name: &str,
        [count, width]: [u64; 2],
        group: Option<TensorParallel>,
    ) -> Self {
        match group {
            None => Embedding::new(parent, name, count, width),
            Some(group) => Embedding::part(parent, name, None, [count, width], group),
        }
    }

    /// Looks vectors up, in all rows of all ranks (`RowwiseParallel(input_layouts=Replicate())`).
    pub(crate) fn rows(&self, indices: &Tensor, group: Option<TensorParallel>) -> Tensor {
        match group {
            None => self.forward(indices),
            Some(group) => self.forward_part(indices, group, true),
        }
    }

    /// Looks vectors up, on all ranks the same.
    pub(crate) fn replicated(&self, indices: &Tensor, group: Option<TensorParallel>) -> Tensor {
        replicated(indices, group, |indices| self.forward(indices))
    }
}

/// A parameter that is a module's own, on all ranks the same, as the rank computes with it.
pub(crate) fn own(parameter: &Tensor, group: Option<TensorParallel>) -> Tensor {
    if group.is_some() { parameter.local() } else { parameter.clone() }
}

/// What a module makes of what all ranks have, if there are several, as a tensor of the rank's own (torchtitan's `NoParallel`).
pub(crate) fn replicated(
    input: &Tensor,
    group: Option<TensorParallel>,
    module: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    if group.is_none() {
        return module(input);
    }
    let output = {
        let input = input.distributed();
        module(&input)
    };
    output.local()
}
