use rematic_trace::{Category, Dtype, ModuleId};

use crate::parallel::Spread;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// A module of the tree: holds parameters, and is entered and left when it is called.
#[derive(Clone)]
pub struct Scope {
    tape: Tape,
    module: ModuleId,
    dtype: Dtype,
    /// Whether its parameters are those of an adapter, which are trained where others are not.
    adapter: bool,
    /// The modules around the root that are called with it, outermost first: PEFT's.
    around: Vec<ModuleId>,
}

/// What PEFT makes of a causal language model.
const PEFT_MODEL: &str = "PeftModelForCausalLM";

/// What a module returns: tensors in some arrangement.
pub trait Outputs {
    /// The tensors in it.
    fn tensors(&self) -> Vec<Tensor>;
}

impl Outputs for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }
}

impl Outputs for (Tensor, Tensor) {
    fn tensors(&self) -> Vec<Tensor> {
        // A model may have nothing but one to return.
        if self.0.storage() == self.1.storage() { vec![self.0.clone()] } else { vec![self.0.clone(), self.1.clone()] }
    }
}

impl Outputs for [Tensor; 2] {
    fn tensors(&self) -> Vec<Tensor> {
        self.to_vec()
    }
}

impl Outputs for Vec<Tensor> {
    fn tensors(&self) -> Vec<Tensor> {
        self.clone()
    }
}

impl Scope {
    /// The root module of a model of this class; its parameters are of type `dtype`.
    #[must_use]
    pub fn root(tape: &Tape, class: &str, dtype: Dtype) -> Scope {
        let around = match tape.training(|training| training.lora.is_some()) {
            false => Vec::new(),
            true => {
                let outer = tape.add_module(PEFT_MODEL, PEFT_MODEL, None);
                vec![outer, tape.add_module("base_model", "LoraModel", Some(outer))]
            }
        };
        let module = match around.last() {
            None => tape.add_module(class, class, None),
            Some(&outer) => tape.add_module("model", class, Some(outer)),
        };
        Scope { tape: tape.clone(), module, dtype, adapter: false, around }
    }

    /// A child. Children are made in the order in which the Python class registers them: parameters reach the
    /// optimizer in that order.
    #[must_use]
    pub fn child(&self, name: &str, class: &str) -> Scope {
        Scope {
            tape: self.tape.clone(),
            module: self.tape.add_module(name, class, Some(self.module)),
            dtype: self.dtype,
            adapter: self.adapter,
            around: Vec::new(),
        }
    }

    /// The same module, with parameters of an adapter.
    pub(super) fn for_adapter(self, dtype: Dtype) -> Scope {
        Scope { dtype, adapter: true, ..self }
    }

    /// The rank of the adapter that a linear layer of this name gets, if it gets one.
    pub(super) fn adapter_rank(&self, name: &str) -> Option<u64> {
        let path = format!("{}.{name}", self.tape.state().trace.path(self.module));
        self.tape.with(|state| state.training.adapter_rank(&path, self.adapter))
    }

    /// The tape.
    #[must_use]
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// A trainable parameter.
    #[must_use]
    pub fn parameter(&self, name: &str, shape: &[u64]) -> Tensor {
        self.parameter_of(name, shape, Spread::Own)
    }

    /// A trainable parameter whose gradient is spread over ranks.
    pub(crate) fn parameter_of(&self, name: &str, shape: &[u64], spread: Spread) -> Tensor {
        let path = format!("{}.{name}", self.tape.state().trace.path(self.module));
        let tensor = self.tape.tensor_before_step(self.dtype, shape, Category::Parameter);
        let is_trained = self.tape.with(|state| state.training.trains(&path, self.adapter));
        let tensor = if is_trained { tensor.into_parameter(spread) } else { tensor };
        self.tape.add_to_module(self.module, name, &tensor, false);
        self.tape.with(|state| {
            if is_trained { state.parameters.push(tensor.clone()) } else { state.frozen.push(tensor.clone()) }
        });
        tensor
    }

    /// Shares a parameter of another module, as tied weights do.
    pub fn tie(&self, name: &str, parameter: &Tensor) {
        self.tape.add_to_module(self.module, name, parameter, false);
    }

    /// A buffer: memory that belongs to the module but is not trained.
    #[must_use]
    pub fn buffer(&self, name: &str, dtype: Dtype, shape: &[u64]) -> Tensor {
        let tensor = self.tape.tensor_before_step(dtype, shape, Category::Buffer);
        self.tape.add_to_module(self.module, name, &tensor, true);
        self.tape.with(|state| state.buffers.push(tensor.clone()));
        tensor
    }

    /// Calls the module: `inputs` are the positional tensor arguments (PyTorch's hooks do not see keyword arguments).
    pub fn call<R: Outputs>(&self, inputs: &[&Tensor], forward: impl FnOnce() -> R) -> R {
        self.call_with(inputs, &[], forward)
    }

    /// Calls the module with tensors among its keyword arguments too.
    pub fn call_with<R: Outputs>(&self, inputs: &[&Tensor], keywords: &[&Tensor], forward: impl FnOnce() -> R) -> R {
        let [outer, inner] = self.around[..] else {
            return self.call_module(self.module, (inputs, keywords), forward);
        };
        let given = (inputs, keywords);
        self.call_module(outer, given, || {
            self.call_module(inner, given, || self.call_module(self.module, given, forward))
        })
    }

    fn call_module<R: Outputs>(
        &self,
        module: ModuleId,
        (inputs, keywords): (&[&Tensor], &[&Tensor]),
        forward: impl FnOnce() -> R,
    ) -> R {
        let tape = &self.tape;
        let storages = |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.storage()).collect();
        let call = tape.with(|state| {
            let call = state.trace.enter(module, storages(inputs));
            state.trace.set_keywords(call, storages(keywords));
            state.calls.push(call);
            call
        });
        tape.watch_inputs(call, inputs);
        let result = forward();
        let outputs = result.tensors();
        let storages = outputs.iter().map(Tensor::storage).collect();
        tape.with(|state| {
            state.trace.exit(call, storages);
            state.calls.pop();
        });
        tape.watch_outputs(call, &outputs);
        result
    }
}
