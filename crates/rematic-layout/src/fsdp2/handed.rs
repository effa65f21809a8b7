//! Tensors that several units are given and that get a gradient: what an encoder says, which every block of a decoder reads.
//!
//! FSDP2 hands all inputs of a unit through a function of its own, whose backward reduces the unit and runs right behind the unit's last
//! operator. So the gradients that a unit makes of such a tensor are added up among themselves, and to those of other units when the unit
//! is reduced. On one device they are added as they come, and the backward of a unit's call seems to be over when the last one has come.

use std::collections::BTreeMap;

use rematic_trace::{
    CallId, Category, Dtype, Event, ModuleId, OpId, OpRecord, Phase, StepTrace, StorageId, Table, Tensor,
};

use super::Fsdp2Error;
use super::walk::{Place, Walk};

/// What is known of such tensors.
#[derive(Debug)]
pub(crate) struct Handed {
    /// For every operator, the call of a unit that it runs in, or whose backward it is.
    within: Table<OpId, Option<CallId>>,
    /// Whether a tensor is given to several calls of units.
    is_shared: Table<StorageId, bool>,
    /// The events before which the backward of calls is over, where the step says so later.
    ends: BTreeMap<usize, Vec<CallId>>,
    /// For every gradient, of what it is, and the call that made it.
    of: Table<StorageId, Option<(StorageId, CallId)>>,
    waiting: Vec<Waiting>,
}

/// A sum that a unit has made, and what it is added to when the unit is reduced.
#[derive(Debug)]
struct Waiting {
    call: CallId,
    others: StorageId,
    /// As the step has it.
    sum: StorageId,
    tensor: Tensor,
}

impl Handed {
    /// Of the calls of these modules.
    pub(crate) fn new(trace: &StepTrace, is_unit: impl Fn(ModuleId) -> bool) -> Self {
        let is_call = |call: CallId| is_unit(trace.call(call).module);
        let mut within: Table<OpId, Option<CallId>> = trace.ops().filled(None);
        let mut given: Table<StorageId, u32> = trace.storages().filled(0);
        let mut running = Vec::new();
        for &event in trace.events() {
            match event {
                Event::Enter(call) if is_call(call) => {
                    running.push(call);
                    inputs(trace, call).for_each(|storage| given[storage] += 1);
                }
                Event::Exit(call) if is_call(call) => drop(running.pop()),
                Event::Op(id) => {
                    let forward = trace.op(id).differentiates;
                    within[id] = forward.map_or(running.last().copied(), |forward| within[forward]);
                }
                _ => {}
            }
        }
        let ends = late_ends(trace, &within, is_call);
        let is_shared = given.iter().map(|count| *count > 1).collect();
        Handed { within, is_shared, ends, of: trace.storages().filled(None), waiting: Vec::new() }
    }
}

/// The tensors that a call is given, each once.
fn inputs(trace: &StepTrace, call: CallId) -> impl Iterator<Item = StorageId> {
    let call = trace.call(call);
    let mut all: Vec<StorageId> = call.inputs.iter().chain(&call.keywords).copied().collect();
    all.sort();
    all.dedup();
    all.into_iter()
}

/// Where the backward of calls is over that the step lets end behind operators of others.
fn late_ends(
    trace: &StepTrace,
    within: &Table<OpId, Option<CallId>>,
    is_call: impl Fn(CallId) -> bool,
) -> BTreeMap<usize, Vec<CallId>> {
    let is_backward = |id: OpId| trace.op(id).phase == Phase::Backward;
    // The event behind the last operator of each call, and whether there was one.
    let mut behind: Table<CallId, Option<usize>> = trace.calls().filled(None);
    let mut last = None;
    let mut ended = Vec::new();
    for (at, &event) in trace.events().iter().enumerate() {
        match event {
            // What differentiates nothing hands a parameter its gradient.
            Event::Op(id) if is_backward(id) && trace.op(id).differentiates.is_none() => {}
            Event::Op(id) => {
                let now = within[id].filter(|_| is_backward(id));
                if let Some(before) = last.filter(|before| Some(*before) != now) {
                    behind[before] = behind[before].or(Some(at));
                }
                if let Some(call) = now {
                    behind[call] = None;
                    last = Some(call);
                }
            }
            Event::EnterBackward(call) if is_call(call) => {
                if let Some(before) = last.filter(|before| *before != call) {
                    behind[before] = behind[before].or(Some(at));
                }
            }
            Event::ExitBackward(call) if is_call(call) => ended.push((at, call, behind[call])),
            _ => {}
        }
    }
    let mut ends: BTreeMap<usize, Vec<CallId>> = BTreeMap::new();
    for (at, call, behind) in ended {
        // Where no input needs a gradient it stands at the end, and FSDP2 does not know it either.
        let next =
            trace.events()[at..].iter().find_map(|event| if let Event::Op(id) = event { Some(*id) } else { None });
        let early = behind.filter(|early| *early < at && next.is_some_and(is_backward));
        if let Some(early) = early {
            ends.entry(early).or_default().push(call);
        }
    }
    ends
}

impl Walk<'_> {
    /// Whether FSDP2 leaves what units are given as it is. In mixed precision it casts floating-point numbers to the type of the weights.
    pub(super) fn check_inputs(&self) -> Result<(), Fsdp2Error> {
        let trace = self.trace;
        let mut types: Table<StorageId, Option<Dtype>> = trace.storages().filled(None);
        for tensor in trace.ops().iter().flat_map(|op| trace.outputs(op)) {
            types[tensor.storage].get_or_insert(trace.layout_of(*tensor).dtype);
        }
        for call in trace.calls().iter() {
            let Some(unit) = self.unit_at[call.module] else { continue };
            let Some(own) = self.units[unit].weights.first().map(|weight| self.weights[*weight].layout.dtype) else {
                continue;
            };
            let mut given = call.inputs.iter().chain(&call.keywords).filter_map(|storage| types[*storage]);
            if let Some(given) = given.find(|given| given.is_float() && given.size() > own.size()) {
                return Err(Fsdp2Error::NarrowedInput { unit: self.units[unit].name.clone(), given });
            }
        }
        Ok(())
    }

    /// Ends the backward of calls that is over before an event.
    pub(super) fn end_before(&mut self, at: usize) {
        for call in self.handed.ends.remove(&at).unwrap_or_default() {
            self.exit_backward(call);
        }
    }

    /// Notes of what an operator makes gradients. Whether it adds one to those of other units, which is done later.
    pub(super) fn adds_to_others(&mut self, id: OpId) -> bool {
        let (op, trace) = (self.trace.op(id), self.trace);
        let Some((call, forward)) = self.handed.within[id].zip(op.differentiates) else { return false };
        let &[birth] = &self.births[id][..] else { return false };
        if op.phase != Phase::Backward || self.gradient_of[birth].is_some() {
            return false;
        }
        let Some(&made) = trace.outputs(op).first() else { return false };
        let elements = trace.layout_of(made).elements();
        let handed = trace.inputs(trace.op(forward)).iter().find(|input| {
            self.handed.is_shared[input.storage]
                && trace.layout_of(**input).elements() == elements
                && inputs(trace, call).any(|given| given == input.storage)
                // What a unit hands on as it got it, the next one has from it: that one's gradient comes to the unit as its output's.
                && !trace.call(call).outputs.contains(&input.storage)
        });
        let Some(handed) = handed else { return false };
        self.handed.of[birth] = Some((handed.storage, call));
        let (&[first, second], true) = (trace.inputs(op), trace.op_name(op).starts_with("add.")) else { return false };
        let of = |tensor: Tensor| self.handed.of[tensor.storage];
        match (of(first), of(second)) {
            (Some((one, others)), Some((other, own))) if one == other && own == call && others != call => {
                self.wait(call, first.storage, second.storage, (birth, made));
                true
            }
            _ => {
                for waiting in &mut self.handed.waiting {
                    if waiting.sum == first.storage {
                        waiting.sum = birth;
                    }
                }
                false
            }
        }
    }

    /// The unit's own gradient stands for the sum, until that is made.
    fn wait(&mut self, call: CallId, others: StorageId, own: StorageId, (sum, made): (StorageId, Tensor)) {
        self.postpone_end(others);
        self.postpone_end(own);
        self.places[sum] = self.places[own];
        let (others, tensor) = (self.place(others), self.whole(made));
        self.handed.waiting.push(Waiting { call, others, sum, tensor });
    }

    /// Adds what a unit has made to what others have, behind its reduction.
    pub(super) fn add_to_others(&mut self, call: CallId) {
        let all = std::mem::take(&mut self.handed.waiting);
        let (own, rest): (Vec<Waiting>, Vec<Waiting>) = all.into_iter().partition(|waiting| waiting.call == call);
        self.handed.waiting = rest;
        for Waiting { others, sum, tensor, .. } in own {
            let before = self.place(sum);
            let after = self.made.next_storage();
            let at = |storage| Tensor { storage, ..tensor };
            self.made.run(OpRecord {
                inputs: &[at(others), at(before)],
                outputs: &[at(after)],
                births: &[(self.made.storages()[before].bytes, Category::Temp)],
                ..OpRecord::new("add.Tensor", Phase::Backward)
            });
            self.made.push(Event::Drop(others));
            self.made.push(Event::Drop(before));
            self.places[sum] = Place::There(after);
        }
    }
}
