use rematic_trace::{Category, Event, OpId, Phase, StepTrace, StorageId, Table};

use super::Fsdp2Error;
use super::settling::Settlings;

/// Which parameter's gradient each storage becomes, if it becomes one.
///
/// A gradient comes from the backward of an operator that read the parameter and has as many elements; where several are added up,
/// or brought to another type, from such ones.
pub(crate) fn parameter_of(
    trace: &StepTrace,
    parameters: &Table<StorageId, Option<usize>>,
    elements: &[u64],
    settlings: &Settlings,
) -> Result<Table<StorageId, Option<usize>>, Fsdp2Error> {
    let mut likely: Table<StorageId, Option<usize>> = trace.storages().filled(None);
    let mut found = trace.storages().filled(None);
    let mut taken = vec![false; elements.len()];
    for &event in trace.events() {
        match event {
            Event::Op(op) => guess(trace, op, parameters, elements, settlings, &mut likely, &taken),
            Event::Recategorize(storage, Category::Gradient) => {
                let Some(parameter) = likely[storage] else {
                    let op = trace.storages()[storage].birth.map(|op| trace.op_name(trace.op(op)).to_owned());
                    return Err(Fsdp2Error::Gradient { op: op.unwrap_or_default() });
                };
                taken[parameter] = true;
                found[storage] = Some(parameter);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// What an operator reads, or that of which it reads an equal share: of a bias behind a sum over ranks every one adds one, and the
/// gradient is that of the bias.
fn shared(trace: &StepTrace, storage: StorageId) -> StorageId {
    let birth = trace.storages()[storage].birth.map(|op| trace.op(op));
    match birth.map(|op| (trace.op_name(op), op.phase, trace.inputs(op))) {
        Some(("div.Tensor", Phase::Forward, [whole])) => whole.storage,
        _ => storage,
    }
}

/// Whose gradient an operator's new storages may be.
fn guess(
    trace: &StepTrace,
    id: OpId,
    parameters: &Table<StorageId, Option<usize>>,
    elements: &[u64],
    settlings: &Settlings,
    likely: &mut Table<StorageId, Option<usize>>,
    taken: &[bool],
) {
    let op = trace.op(id);
    let mut here: Vec<usize> = Vec::new();
    for &tensor in trace.outputs(op) {
        if trace.storages()[tensor.storage].birth != Some(id) || likely[tensor.storage].is_some() {
            continue;
        }
        let count = settlings.part(tensor.storage).unwrap_or_else(|| trace.layout_of(tensor)).elements();
        let read = op.differentiates.map(|forward| trace.inputs(trace.op(forward))).unwrap_or_default();
        let direct = read.iter().filter_map(|input| parameters[shared(trace, input.storage)]);
        let through = trace.inputs(op).iter().filter_map(|input| likely[input.storage]);
        // A gradient that is added up in place begins as zeros like its parameter.
        let begins_empty = trace.op_name(op).starts_with("zeros_like.");
        let zeros = if begins_empty { trace.inputs(op) } else { &[] };
        let like = zeros.iter().filter_map(|input| parameters[input.storage]);
        let mut candidates = direct.chain(through).chain(like).filter(|parameter| elements[*parameter] == count);
        // Of several that are alike, such as weight and bias of a norm, each gets one.
        let free = candidates.clone().find(|parameter| !taken[*parameter] && !here.contains(parameter));
        likely[tensor.storage] = free.or_else(|| candidates.next());
        here.extend(likely[tensor.storage]);
    }
}
