use rematic_trace::{ModuleId, StepTrace, Table};

/// The modules that people hand to `fully_shard`: the numbered ones in a list which is never called itself, such as the layers
/// of a transformer, the outermost ones, if they have parameters.
#[must_use]
pub fn layers(trace: &StepTrace) -> Vec<ModuleId> {
    let mut called = trace.modules().filled(false);
    for call in trace.calls() {
        called[call.module] = true;
    }
    let owns = owners(trace);
    let mut inside = trace.modules().filled(false);
    let mut found = Vec::new();
    for (id, module) in trace.modules().entries() {
        let Some(parent) = module.parent else { continue };
        inside[id] = inside[parent];
        let is_numbered = module.name.parse::<u64>().is_ok();
        if !inside[id] && is_numbered && !called[parent] && called[id] && owns[id] {
            inside[id] = true;
            found.push(id);
        }
    }
    found
}

/// Whether there are parameters in each module, or in those inside it.
fn owners(trace: &StepTrace) -> Table<ModuleId, bool> {
    let mut owns: Table<ModuleId, bool> = trace.modules().iter().map(|module| !module.parameters.is_empty()).collect();
    for (id, module) in trace.modules().entries().rev() {
        if let Some(parent) = module.parent.filter(|_| owns[id]) {
            owns[parent] = true;
        }
    }
    owns
}

/// For every module, the unit that it is in; outside of all others it is the outermost one.
pub(crate) fn unit_of(
    trace: &StepTrace,
    unit_at: &Table<ModuleId, Option<usize>>,
    outermost: usize,
) -> Table<ModuleId, usize> {
    let mut of = trace.modules().filled(outermost);
    for (id, module) in trace.modules().entries() {
        of[id] = unit_at[id].or_else(|| module.parent.map(|parent| of[parent])).unwrap_or(outermost);
    }
    of
}
