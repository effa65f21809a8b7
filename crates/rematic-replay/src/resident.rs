use std::cmp::Reverse;

use rematic_trace::{Bytes, Category, Event, ModuleId, OpId, StepTrace, StorageId, Table};

use crate::{Allocator, Ledger, Moment, Ran, Schedule};

/// A storage that is alive at some moment, with where it comes from and why it is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The storage.
    pub storage: StorageId,
    /// The bytes that it takes.
    pub bytes: Bytes,
    /// What it is counted as at that moment.
    pub category: Category,
    /// The operator that made it; `None` if it exists before the step.
    pub birth: Option<OpId>,
    /// The module of that operator; for what exists before the step, the first module that has it as a parameter or
    /// buffer.
    pub module: Option<ModuleId>,
    /// Whether there is an ordinary reference to it.
    pub held: bool,
    /// The operators that saved it and whose backward is not over, in the order of execution.
    pub saved_by: Vec<OpId>,
}

impl Resident {
    /// The `most` largest storages that are alive right after an operator (or, for `None`, before the step), the largest
    /// first; equal ones in the order of their ids.
    ///
    /// It replays the trace up to that moment, so no replay has to carry sets along. An operator that never runs stands
    /// for the end of the step.
    #[must_use]
    pub fn after(trace: &StepTrace, allocator: Allocator, op: Option<OpId>, most: usize) -> Vec<Resident> {
        let start = Ledger::new(trace, allocator);
        let mut found = op.is_none().then(|| largest(&start, trace, most));
        let mut saving = trace.ops().filled(false);
        if let Some(last) = op {
            let end = Schedule::plain(trace, &start).replay(&mut |ran: Ran, ledger: &Ledger| {
                if ran.op == last {
                    found = Some(largest(ledger, trace, most));
                }
            });
            found.get_or_insert_with(|| largest(&end, trace, most));
            mark_savers(&mut saving, trace, last);
        }
        let mut residents = found.unwrap_or_default();
        name_holders(&mut residents, trace, &saving);
        residents
    }
}

/// Which operators have saved something whose backward is not over right after an operator.
fn mark_savers(saving: &mut Table<OpId, bool>, trace: &StepTrace, last: OpId) {
    for &event in trace.events() {
        let (op, saves) = match event {
            Event::Op(op) => (op, true),
            Event::Unsave(op) => (op, false),
            _ => continue,
        };
        if let Some(saving) = saving.get_mut(op) {
            *saving = saves;
        }
        if event == Event::Op(last) {
            break;
        }
    }
}

fn largest(ledger: &Ledger, trace: &StepTrace, most: usize) -> Vec<Resident> {
    let mut alive: Vec<(Reverse<Bytes>, StorageId)> = (0..trace.storages().len())
        .map(StorageId::new)
        .filter(|&storage| ledger.is_alive(storage))
        .map(|storage| (Reverse(ledger.footprint(storage)), storage))
        .collect();
    if most < alive.len() {
        alive.select_nth_unstable(most);
        alive.truncate(most);
    }
    alive.sort_unstable();
    alive
        .into_iter()
        .map(|(Reverse(bytes), storage)| {
            let record = &trace.storages()[storage];
            Resident {
                storage,
                bytes,
                category: ledger.category(storage).unwrap_or(record.category),
                birth: record.birth,
                module: record.birth.and_then(|op| Moment::after(trace, op)).and_then(|moment| moment.module),
                held: ledger.is_held(storage),
                saved_by: Vec::new(),
            }
        })
        .collect()
}

/// Fills in which operators hold the residents, and which modules own those from before the step.
fn name_holders(residents: &mut [Resident], trace: &StepTrace, saving: &Table<OpId, bool>) {
    let mut places: Vec<(StorageId, usize)> =
        residents.iter().enumerate().map(|(place, resident)| (resident.storage, place)).collect();
    places.sort_unstable();
    let place_of = |storage: StorageId| {
        places.binary_search_by_key(&storage, |&(storage, _)| storage).ok().map(|found| places[found].1)
    };
    for (id, op) in trace.ops().entries().filter(|&(id, _)| saving[id]) {
        for place in trace.saves(op).iter().filter_map(|tensor| place_of(tensor.storage)) {
            let saved_by = &mut residents[place].saved_by;
            if saved_by.last() != Some(&id) {
                saved_by.push(id);
            }
        }
    }
    for (id, module) in trace.modules().entries() {
        for parameter in module.parameters.iter().chain(&module.buffers) {
            if let Some(resident) = place_of(parameter.storage).map(|place| &mut residents[place])
                && resident.birth.is_none()
            {
                resident.module.get_or_insert(id);
            }
        }
    }
}
