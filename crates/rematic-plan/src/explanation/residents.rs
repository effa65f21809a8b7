use std::collections::HashMap;

use rematic_replay::{Allocator, Resident, holder};
use rematic_trace::{Bytes, Category, OpId, StepTrace, any_layer};
use serde::Serialize;

/// Storages that are alive at the same moment, and alike but for the layer that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResidentGroup {
    /// What they take together.
    pub bytes: Bytes,
    /// How many there are.
    pub count: usize,
    /// What they are counted as.
    pub category: Category,
    /// The operator that made them, or when they were made.
    pub made_by: String,
    /// The module of that operator, with positions in lists left open; empty if there is none.
    pub module: String,
    /// Why they are still there.
    pub held_by: String,
}

/// What is alive right after an operator (for `None`, before the step), the largest group first.
#[must_use]
pub fn resident_groups(trace: &StepTrace, allocator: Allocator, op: Option<OpId>) -> Vec<ResidentGroup> {
    let mut groups: Vec<ResidentGroup> = Vec::new();
    let mut places = HashMap::new();
    for resident in Resident::after(trace, allocator, op, usize::MAX) {
        let made_by = holder::maker(trace, resident.birth, resident.category).to_owned();
        let module = resident.module.map_or_else(String::new, |module| any_layer(&trace.path(module)));
        let held_by = holders(trace, &resident);
        let key = (resident.category, made_by.clone(), module.clone(), held_by.clone());
        let place = *places.entry(key).or_insert_with(|| {
            let category = resident.category;
            groups.push(ResidentGroup { bytes: Bytes(0), count: 0, category, made_by, module, held_by });
            groups.len() - 1
        });
        groups[place].count += 1;
        groups[place].bytes += resident.bytes;
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}

fn holders(trace: &StepTrace, resident: &Resident) -> String {
    let saved = holder::autograd(trace, &resident.saved_by);
    let owner = holder::owner(resident.category);
    match (resident.held, saved) {
        (true, Some(saved)) if resident.category == Category::Activation => format!("{owner}, {saved}"),
        (true, _) => owner.to_owned(),
        (false, saved) => saved.unwrap_or_else(|| "-".to_owned()),
    }
}
