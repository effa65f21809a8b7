//! Who holds a storage, in words.

use rematic_trace::{Category, OpId, StepTrace, short};

/// Who has an ordinary reference to a storage of a category.
#[must_use]
pub fn owner(category: Category) -> &'static str {
    match category {
        Category::Parameter | Category::Buffer => "the model",
        Category::Optimizer => "the optimizer",
        Category::Other => "the caller",
        Category::Gradient | Category::Activation | Category::Temp => "a variable",
    }
}

/// What made a storage: an operator, or when it was made.
#[must_use]
pub fn maker(trace: &StepTrace, birth: Option<OpId>, category: Category) -> &str {
    match (birth, category) {
        (Some(op), _) => short(trace.op_name(trace.op(op))),
        (None, Category::Activation) => "the previous step",
        (None, _) => "before the step",
    }
}

/// The operators that saved a storage; `None` if none did.
#[must_use]
pub fn autograd(trace: &StepTrace, savers: &[OpId]) -> Option<String> {
    let first = savers.first()?;
    let more = match savers.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("autograd for {}{more}", short(trace.op_name(trace.op(*first)))))
}
