use rematic_trace::Dtype;

use super::{Linear, Scope};
use crate::tensor::Tensor;

/// Low-rank adapters beside the layers of a model whose own weights are frozen, as PEFT's `get_peft_model` puts them there:
/// without dropout, and in fp32 (`autocast_adapter_dtype=True`), unless FSDP2 casts them to the type of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The rank of the two factors.
    pub rank: u64,
    /// Names of the linear layers that get one, as `target_modules` takes them; nothing for those that PEFT takes.
    pub targets: Vec<String>,
    /// The update is scaled by this over the rank. It changes numbers, and neither memory nor time.
    pub alpha: Option<f64>,
    /// The type in which adapters compute, if it is not fp32.
    pub dtype: Option<Dtype>,
}

impl Lora {
    /// The word for every linear layer but the output layer.
    pub const ALL_LINEAR: &'static str = "all-linear";
}

/// PEFT's `lora.Linear`: a layer with an adapter beside it.
pub(super) struct Adapter {
    scope: Scope,
    dropout: Scope,
    down: Box<Linear>,
    up: Box<Linear>,
    dtype: Dtype,
}

/// The type of adapters, whatever the type of the layers, if nothing else is said.
const DTYPE: Dtype = Dtype::F32;
/// What PEFT calls an adapter that has no other name.
const NAME: &str = "default";

impl Adapter {
    /// Beside a layer from `inputs` to `outputs` features, which has been made in `scope` already.
    pub(super) fn new(scope: Scope, rank: u64, inputs: u64, outputs: u64) -> Self {
        let said = scope.tape().training(|training| training.lora.as_ref().and_then(|lora| lora.dtype));
        let dtype = said.unwrap_or(DTYPE);
        let list = |name| scope.child(name, "ModuleDict").for_adapter(dtype);
        let dropout = list("lora_dropout").child(NAME, "Identity");
        let down = Box::new(Linear::new(&list("lora_A"), NAME, inputs, rank, false));
        let up = Box::new(Linear::new(&list("lora_B"), NAME, rank, outputs, false));
        for name in ["lora_embedding_A", "lora_embedding_B"] {
            let _empty = scope.child(name, "ParameterDict");
        }
        list("lora_magnitude_vector");
        Adapter { scope, dropout, down, up, dtype }
    }

    /// Runs the layer, and adds what the adapter says.
    pub(super) fn forward(&self, input: &Tensor, layer: impl FnOnce() -> Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut result = layer();
            let dtype = result.dtype();
            let input = input.to(self.dtype);
            result = {
                let update = {
                    let raised = {
                        let lowered = {
                            let kept = self.dropout.call(&[&input], || input.clone());
                            self.down.forward(&kept)
                        };
                        self.up.forward(&lowered)
                    };
                    raised.mul_scalar()
                };
                result.add(&update)
            };
            result = result.to(dtype);
            result
        })
    }
}
