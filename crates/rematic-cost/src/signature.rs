use std::collections::HashMap;

use rematic_trace::{Id, Layout, NameId, OpId, StepTrace, Table, Tensor};

use crate::rules::{only_allocates, without_overload};

/// What an operator's time depends on: its name, and the layouts of what it reads and returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Its name with overload (`mm.default`).
    pub op: String,
    /// What it reads, in the order of its arguments.
    pub inputs: Vec<Layout>,
    /// What it returns.
    pub outputs: Vec<Layout>,
}

/// The distinct signatures of a step.
///
/// Operators for which no kernel runs (views, allocations, those on the host) have none: they take no time on the device.
///
/// ```
/// use rematic_cost::Signatures;
/// use rematic_trace::StepTrace;
///
/// assert!(Signatures::new(&StepTrace::new("nothing")).all().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Signatures {
    all: Vec<(Signature, usize)>,
    of_op: Table<OpId, Option<usize>>,
}

impl Signatures {
    /// Collects them, in the order in which they run first.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let names = firsts(trace.names());
        let layouts = firsts(trace.layouts());
        let without_kernel: Table<NameId, bool> =
            trace.names().iter().map(|name| only_allocates(without_overload(name))).collect();
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut signatures = Signatures { all: Vec::new(), of_op: Vec::with_capacity(trace.ops().len()).into() };
        for op in trace.ops() {
            if op.flags.view || op.flags.host || without_kernel[op.name] {
                signatures.of_op.push(None);
                continue;
            }
            let (inputs, outputs) = (trace.inputs(op), trace.outputs(op));
            let ids =
                |tensors: &[Tensor]| -> Vec<usize> { tensors.iter().map(|tensor| layouts[tensor.layout]).collect() };
            let mut key = vec![names[op.name], inputs.len()];
            key.extend(ids(inputs));
            key.extend(ids(outputs));
            let index = *known.entry(key).or_insert_with(|| {
                let of = |tensors: &[Tensor]| tensors.iter().map(|tensor| trace.layout_of(*tensor).clone()).collect();
                let signature =
                    Signature { op: trace.op_name(op).to_owned(), inputs: of(inputs), outputs: of(outputs) };
                signatures.all.push((signature, 0));
                signatures.all.len() - 1
            });
            signatures.all[index].1 += 1;
            signatures.of_op.push(Some(index));
        }
        signatures
    }

    /// Each with the number of operators that have it.
    #[must_use]
    pub fn all(&self) -> &[(Signature, usize)] {
        &self.all
    }

    /// For each operator, the position of its signature in [`Signatures::all`].
    #[must_use]
    pub fn of_op(&self) -> &Table<OpId, Option<usize>> {
        &self.of_op
    }
}

/// For each row, the first that is equal to it: another program's trace may list a name or a layout twice.
fn firsts<I: Id, T: std::hash::Hash + Eq>(rows: &Table<I, T>) -> Table<I, usize> {
    let mut known = HashMap::new();
    rows.iter().enumerate().map(|(index, row)| *known.entry(row).or_insert(index)).collect()
}
