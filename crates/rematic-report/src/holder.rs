//! Who holds a storage, in words.

use rematic_trace::{Category, OpId, StepTrace};

use crate::stats::short;

/// Who has an ordinary reference to a storage of a category.
pub(crate) fn owner(category: Category) -> &'static str {
    match category {
        Category::Parameter | Category::Buffer => "the model",
        Category::Optimizer => "the optimizer",
        Category::Other => "the caller",
        Category::Gradient | Category::Activation | Category::Temp => "a variable",
    }
}

/// The operators that saved a storage; `None` if none did.
pub(crate) fn autograd(trace: &StepTrace, savers: &[OpId]) -> Option<String> {
    let first = savers.first()?;
    let more = match savers.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("autograd for {}{more}", short(trace.op_name(trace.op(*first)))))
}
