use crate::{LayoutId, ModuleId, StorageId};

/// A module of the model's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its own name inside its parent (`0`, `attention`); for the root, the class name, as PyTorch's tools do.
    pub name: String,
    /// Its class (`Linear`).
    pub class: String,
    /// The module that holds it; `None` only for the root.
    pub parent: Option<ModuleId>,
    /// Parameters that it holds itself, not those of its children.
    pub parameters: Vec<Parameter>,
    /// Buffers that it holds itself.
    pub buffers: Vec<Parameter>,
}

/// A parameter or buffer of a module. Tied parameters share a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its attribute name (`weight`).
    pub name: String,
    /// The memory that it lies in.
    pub storage: StorageId,
    /// Its shape and type.
    pub layout: LayoutId,
}

/// One call of a module's forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The module that is called.
    pub module: ModuleId,
    /// Storages of the positional tensor inputs, with repetition, as PyTorch's module hooks see them.
    pub inputs: Vec<StorageId>,
    /// Storages of the tensors among its keyword arguments, which those hooks do not see.
    pub keywords: Vec<StorageId>,
    /// Storages of the tensor outputs, with repetition.
    pub outputs: Vec<StorageId>,
}
