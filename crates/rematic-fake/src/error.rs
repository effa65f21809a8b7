use rematic_trace::{Opt, ShapeTooLarge};

/// A step cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FakeError {
    /// The operands do not fit each other.
    #[error("{op}: {expected}, but got {found}; check the sizes of the model")]
    Shape {
        /// The operator.
        op: &'static str,
        /// What it needs.
        expected: &'static str,
        /// The operands' layouts.
        found: String,
    },
    /// A tensor is too large for 64-bit arithmetic.
    #[error(transparent)]
    TooLarge(#[from] ShapeTooLarge),
    /// The tensors together are too large for 64-bit arithmetic.
    #[error("the {storages} storages of the step add up to 2^62 bytes or more; use a smaller batch or smaller sizes")]
    StepTooLarge {
        /// How many storages the step has.
        storages: usize,
    },
    /// An absurd number of operators.
    #[error("the step has more than {limit} operators, the most that is traced; use fewer layers")]
    TooManyOps {
        /// The most that is traced.
        limit: usize,
    },
    /// Backward without anything to differentiate.
    #[error("the loss does not depend on any parameter, so there is no backward")]
    NoGradient,
    /// An option has a value that no model can have.
    #[error("{name} is {value}; {rule}")]
    Option {
        /// The option.
        name: Opt,
        /// Its value.
        value: String,
        /// What it must be.
        rule: String,
    },
    /// An option that this model does not take.
    #[error("{model} has no option {name}; it takes {known}")]
    UnknownOption {
        /// The model.
        model: String,
        /// The option.
        name: String,
        /// The options that it has.
        known: String,
    },
    /// A model that is not shared among ranks.
    #[error(
        "{model} is not shared by {option}: {why}; spread it with {instead}, or capture the model that you have parallelized"
    )]
    NotParallel {
        /// The model.
        model: String,
        /// The option.
        option: String,
        /// What stands against it.
        why: String,
        /// Another one.
        instead: String,
    },
    /// A name that is neither a built-in model nor a file.
    #[error("there is no model or file called `{name}`; {suggestion}`rematic models` lists the models")]
    UnknownModel {
        /// The name.
        name: String,
        /// Empty, or a question with the nearest name.
        suggestion: String,
    },
    /// A config file that is not JSON.
    #[error("{file} is not JSON: {reason}")]
    ConfigSyntax {
        /// The file.
        file: String,
        /// Why, with line and column.
        reason: String,
    },
    /// A config file that holds something else than fields.
    #[error("{file} is JSON, but not an object; give the config.json of a Hugging Face model")]
    ConfigNotObject {
        /// The file.
        file: String,
    },
    /// A config file without a field that is needed, or with one of another type.
    #[error("{file}: field `{field}` {problem}")]
    ConfigField {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// `is missing`, or what it should be.
        problem: String,
    },
    /// A config of a model family that is not there.
    #[error("{file}: model_type `{found}` has no native model; those that have are {supported}")]
    UnsupportedFamily {
        /// The file.
        file: String,
        /// The family.
        found: String,
        /// Those that are there.
        supported: String,
    },
    /// A config of quantized weights.
    #[error(
        "{file}: {what} is not supported; quantized weights are smaller than counted here and are not trained; remove the field to \
         plan the training of the unquantized model"
    )]
    Quantized {
        /// The file.
        file: String,
        /// The field, and the method if it says one.
        what: String,
    },
    /// A config asks for something that is not modelled.
    #[error("{file}: {what} is not supported; {instead}")]
    UnsupportedFeature {
        /// The file.
        file: String,
        /// The feature.
        what: String,
        /// What to do.
        instead: String,
    },
}
