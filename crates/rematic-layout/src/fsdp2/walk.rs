//! The step written anew, event by event, with what FSDP2 does in between.

use rematic_trace::{
    Call, CallId, Category, Event, Layout, ModuleId, Op, OpId, OpRecord, Phase, StepTrace, StorageId, Table, Tensor,
};

use super::accumulation::Accumulation;
use super::gradients::parameter_of;
use super::handed::Handed;
use super::settling::Settlings;
use super::shards::Rows;
use super::traffic::{Streams, Traffic};
use super::weights::Weight;
use super::{Fsdp2, Fsdp2Error};

/// A unit, and where it stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    pub(crate) name: String,
    /// Its parameters.
    pub(crate) weights: Vec<usize>,
    pub(crate) reshards: bool,
    /// Whether its weights are there.
    pub(crate) gathered: bool,
    /// Gathered ahead of time, not yet copied out.
    pub(crate) ahead: Option<StorageId>,
    /// Its places in the order in which forwards ended.
    pub(crate) ended: Vec<usize>,
    /// Gradients that are there and not yet reduced, with their parameters.
    pub(crate) gradients: Vec<(StorageId, usize)>,
    /// The reduced gradients, and how many of the unit's gradients are still referred to.
    pub(crate) reduced: Option<(StorageId, usize)>,
}

/// What became of a storage of the step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Not made yet.
    Nowhere,
    /// There as it was.
    There(StorageId),
    /// A parameter.
    Weight(usize),
    /// A gradient that was reduced: the rank has rows of it.
    Reduced(usize),
    /// The optimizer's: the rank has rows of it.
    Rows(StorageId),
    /// A copy of this gradient, which is what the copy would be.
    Settled(StorageId),
}

pub(crate) struct Walk<'a> {
    pub(super) trace: &'a StepTrace,
    pub(super) how: Fsdp2,
    pub(super) rows: Rows,
    pub(crate) made: StepTrace,
    pub(super) places: Table<StorageId, Place>,
    ops: Table<OpId, OpId>,
    /// The storages that each operator makes, in order.
    pub(super) births: Table<OpId, Vec<StorageId>>,
    pub(super) weights: Vec<Weight>,
    /// For every storage, the parameter whose gradient it becomes.
    pub(super) gradient_of: Table<StorageId, Option<usize>>,
    pub(super) units: Vec<Unit>,
    /// For every module that is a unit, which one.
    pub(super) unit_at: Table<ModuleId, Option<usize>>,
    /// For every parameter, its unit.
    pub(super) unit_of_weight: Vec<usize>,
    pub(super) traffic: Traffic,
    pub(super) settlings: Settlings,
    /// The units whose forwards have ended, in order.
    pub(super) ended: Vec<usize>,
    pub(super) in_backward: bool,
    /// Whether a unit has gradients of several types, which FSDP2 refuses.
    mixes: bool,
    pub(super) accumulation: Accumulation,
    pub(super) handed: Handed,
    /// The calls whose backward is over.
    over: Table<CallId, bool>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(trace: &'a StepTrace, how: Fsdp2, units: &[ModuleId]) -> Result<Self, Fsdp2Error> {
        let mut made = StepTrace::new(&trace.origin.model);
        made.origin = trace.origin.clone();
        let traffic = Traffic::new(&how, Streams::new(&mut made, &how));
        let mut births = trace.ops().filled(Vec::new());
        for (id, storage) in trace.storages().entries() {
            if let Some(op) = storage.birth {
                births[op].push(id);
            }
        }
        let mut walk = Walk {
            trace,
            how,
            rows: Rows::new(&how),
            made,
            places: trace.storages().filled(Place::Nowhere),
            ops: trace.ops().filled(OpId::new(0)),
            births,
            weights: Vec::new(),
            gradient_of: Table::default(),
            units: Vec::new(),
            unit_at: trace.modules().filled(None),
            unit_of_weight: Vec::new(),
            traffic,
            settlings: Settlings::new(trace),
            ended: Vec::new(),
            in_backward: false,
            mixes: false,
            accumulation: Accumulation::new(trace),
            handed: Handed::new(trace, |module| units.contains(&module)),
            over: trace.calls().filled(false),
        };
        walk.find_weights(units)?;
        walk.find_gradients()?;
        walk.place_others()?;
        walk.copy_modules();
        Ok(walk)
    }

    fn find_gradients(&mut self) -> Result<(), Fsdp2Error> {
        let parameters: Table<StorageId, Option<usize>> = self
            .places
            .iter()
            .map(|place| match place {
                Place::Weight(weight) => Some(*weight),
                _ => None,
            })
            .collect();
        let elements: Vec<u64> = self.weights.iter().map(|weight| weight.layout.elements()).collect();
        self.gradient_of = parameter_of(self.trace, &parameters, &elements, &self.settlings)?;
        Ok(())
    }

    /// What else is there before the step: the optimizer's state in rows, all else as it is.
    fn place_others(&mut self) -> Result<(), Fsdp2Error> {
        let trace = self.trace;
        let mut layouts: Table<StorageId, Option<&Layout>> = trace.storages().filled(None);
        for op in trace.ops().iter().filter(|op| op.phase == Phase::Optimizer) {
            for &tensor in trace.inputs(op) {
                layouts[tensor.storage].get_or_insert(trace.layout_of(tensor));
            }
        }
        for (id, storage) in trace.storages().entries() {
            if storage.birth.is_some() || !matches!(self.places[id], Place::Nowhere) {
                continue;
            }
            if storage.category == Category::Gradient {
                return Err(Fsdp2Error::KeptGradients);
            }
            let spread =
                layouts[id].filter(|layout| storage.category == Category::Optimizer && !layout.shape.is_empty());
            let spread = spread.map(|layout| self.settlings.part(id).unwrap_or(layout));
            self.places[id] = match spread {
                Some(layout) => {
                    Place::Rows(self.made.storage_before_step(self.rows.own_bytes(layout), storage.category))
                }
                None => Place::There(self.made.storage_before_step(storage.bytes, storage.category)),
            };
            if let Place::There(new) = self.places[id] {
                self.made.set_pool(new, storage.pool);
            }
        }
        Ok(())
    }

    fn copy_modules(&mut self) {
        for (_, module) in self.trace.modules().entries() {
            let mut copy = module.clone();
            for parameter in &mut copy.parameters {
                if let Place::Weight(weight) = self.places[parameter.storage] {
                    let shard = self.weights[weight].shard;
                    (parameter.storage, parameter.layout) = (shard.storage, shard.layout);
                }
            }
            for buffer in &mut copy.buffers {
                buffer.layout = self.made.layout(&self.trace.layouts()[buffer.layout]);
                buffer.storage = self.place(buffer.storage);
            }
            self.made.add_module(copy);
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), Fsdp2Error> {
        let mut last_backward = self.last_backward(0);
        for (at, &event) in self.trace.events().iter().enumerate() {
            self.end_before(at);
            match event {
                Event::Op(op) => self.op(op)?,
                Event::Drop(storage) => {
                    // Of what forward made, `backward()` holds the gradient of the loss until all is reduced.
                    if at > last_backward && self.is_of_forward(storage) {
                        self.finish_backward();
                    }
                    self.drop(storage);
                }
                Event::Return(op) => self.made.push(Event::Return(self.ops[op])),
                Event::Unsave(op) => self.made.push(Event::Unsave(self.ops[op])),
                Event::Recategorize(storage, category) => self.recategorize(storage, category),
                Event::Release(storage) => self.made.push(Event::Release(self.place(storage))),
                Event::Restore(storage) => self.made.push(Event::Restore(self.place(storage))),
                Event::Shrink(storage, bytes) => self.made.push(Event::Shrink(self.place(storage), bytes)),
                Event::Enter(call) => {
                    if self.begins_forward(at) {
                        self.finish_backward();
                        last_backward = self.last_backward(at + 1);
                    }
                    self.enter(call);
                }
                Event::Exit(call) => self.exit(call),
                Event::EnterBackward(call) => self.enter_backward(call, at),
                Event::ExitBackward(call) => {
                    self.made.push(event);
                    // Where no input needs a gradient it stands at the end, and tells nothing of when.
                    if at < last_backward {
                        self.exit_backward(call);
                    }
                }
                Event::MicroBatch(_) => {
                    self.finish_backward();
                    self.made.push(event);
                }
                Event::Wait { .. } => self.made.push(event),
            }
        }
        self.finish_backward();
        match (self.mixes, self.accumulation.differs) {
            (true, _) => Err(Fsdp2Error::SeveralTypes),
            (false, true) => Err(Fsdp2Error::MicroBatches),
            (false, false) => Ok(()),
        }
    }

    fn is_of_forward(&self, storage: StorageId) -> bool {
        let birth = self.trace.storages()[storage].birth;
        birth.is_some_and(|op| self.trace.op(op).phase == Phase::Forward)
    }

    /// The gradient of a unit's output is that of another one's input, whose backward is over first.
    fn enter_backward(&mut self, call: CallId, at: usize) {
        self.made.push(Event::EnterBackward(call));
        self.in_backward = true;
        let Some(unit) = self.unit_of_call(call) else { return };
        let now = self.trace.events()[at..].iter().take_while(|event| !matches!(event, Event::Op(_)));
        for event in now {
            if let Event::ExitBackward(other) = event {
                self.exit_backward(*other);
            }
        }
        self.before_backward(unit);
    }

    pub(super) fn exit_backward(&mut self, call: CallId) {
        if std::mem::replace(&mut self.over[call], true) {
            return;
        }
        let outermost = self.units.len() - 1;
        if let Some(unit) = self.unit_of_call(call).filter(|unit| *unit != outermost) {
            self.after_backward(unit);
        }
        self.add_to_others(call);
    }

    fn unit_of_call(&self, call: CallId) -> Option<usize> {
        self.unit_at[self.trace.call(call).module]
    }

    /// Where a storage lies that the rank has whole.
    pub(super) fn place(&self, storage: StorageId) -> StorageId {
        match self.places[storage] {
            Place::There(place) | Place::Rows(place) => place,
            Place::Weight(weight) => self.weights[weight].whole,
            Place::Reduced(unit) => self.units[unit].reduced.map_or(StorageId::new(0), |(storage, _)| storage),
            Place::Settled(gradient) => self.place(gradient),
            Place::Nowhere => StorageId::new(0),
        }
    }

    fn enter(&mut self, call: CallId) {
        if let Some(unit) = self.unit_of_call(call) {
            self.before_forward(unit);
        }
        let Call { module, inputs, keywords, .. } = self.trace.call(call);
        let places = |storages: &[StorageId]| storages.iter().map(|storage| self.place(*storage)).collect();
        let (inputs, keywords) = (places(inputs), places(keywords));
        let made = self.made.enter(*module, inputs);
        self.made.set_keywords(made, keywords);
    }

    fn exit(&mut self, call: CallId) {
        let outputs = self.trace.call(call).outputs.iter().map(|storage| self.place(*storage)).collect();
        self.made.exit(call, outputs);
        let Some(unit) = self.unit_of_call(call).filter(|_| !self.in_backward) else { return };
        self.units[unit].ended.push(self.ended.len());
        self.ended.push(unit);
        if self.units[unit].reshards {
            self.release(unit);
        }
        if unit + 1 == self.units.len() {
            self.traffic.drop_gathered(&mut self.made);
        }
    }

    /// Its weights go, and its gradients are reduced.
    fn after_backward(&mut self, unit: usize) {
        self.settle(unit);
        self.release(unit);
        if let Some(flat) = self.units[unit].ahead.take() {
            self.made.push(Event::Drop(flat));
        }
        // Also by a unit that has none to reduce.
        self.traffic.drop_packed(&mut self.made);
        let gradients = std::mem::take(&mut self.units[unit].gradients);
        if gradients.is_empty() {
            return;
        }
        let places: Vec<StorageId> = gradients.iter().map(|(storage, _)| self.place(*storage)).collect();
        let weights = gradients.iter().map(|(_, weight)| &self.weights[*weight]);
        let read: Vec<(StorageId, &Weight)> = places.into_iter().zip(weights).collect();
        let dtype = self.rows.dtype_of(read[0].1.layout.dtype);
        self.mixes |= read.iter().any(|(_, weight)| weight.layout.dtype != read[0].1.layout.dtype);
        let reduced = self.traffic.reduce(&mut self.made, &read, dtype);
        let weights: Vec<usize> = gradients.iter().map(|(_, weight)| *weight).collect();
        match self.units[unit].reduced {
            None => {
                self.made.push(Event::Recategorize(reduced, Category::Gradient));
                self.units[unit].reduced = Some((reduced, gradients.len()));
            }
            Some((sums, count)) => {
                self.accumulation.differs |= count != weights.len();
                self.add_rows(sums, reduced, &weights);
            }
        }
        for (storage, _) in gradients {
            self.places[storage] = Place::Reduced(unit);
        }
    }

    /// Units that have not reduced yet do so, the outermost one first, the others as they stand in the model.
    pub(super) fn finish_backward(&mut self) {
        if !std::mem::replace(&mut self.in_backward, false) {
            return;
        }
        let outermost = self.units.len() - 1;
        for unit in std::iter::once(outermost).chain(0..outermost) {
            self.after_backward(unit);
            self.units[unit].ended.clear();
        }
        self.traffic.drop_packed(&mut self.made);
        self.traffic.wait_for_reductions(&mut self.made);
        self.drop_held();
        self.ended.clear();
    }

    fn drop(&mut self, storage: StorageId) {
        if self.ends_later(storage) {
            return;
        }
        match self.places[storage] {
            Place::Reduced(unit) => {
                let reduced = self.units[unit].reduced.take();
                self.units[unit].reduced = match reduced {
                    Some((storage, 1)) => {
                        self.made.push(Event::Drop(storage));
                        None
                    }
                    other => other.map(|(storage, left)| (storage, left - 1)),
                };
            }
            // A parameter that is dropped is no parameter of a model; its shard goes with it.
            Place::Weight(weight) => self.made.push(Event::Drop(self.weights[weight].whole)),
            Place::There(place) | Place::Rows(place) => self.made.push(Event::Drop(place)),
            Place::Nowhere | Place::Settled(_) => {}
        }
    }

    fn recategorize(&mut self, storage: StorageId, category: Category) {
        self.made.push(Event::Recategorize(self.place(storage), category));
        if let Some(weight) = self.gradient_of[storage].filter(|_| category == Category::Gradient) {
            self.add_gradient(storage, weight);
        }
    }

    /// A gradient of a parameter is there. One that does not lie as the parameter does is copied, and the copy is the gradient.
    pub(super) fn add_gradient(&mut self, storage: StorageId, weight: usize) {
        let gradients = &mut self.units[self.unit_of_weight[weight]].gradients;
        let read =
            self.trace.storages()[storage].birth.map_or(&[][..], |birth| self.trace.inputs(self.trace.op(birth)));
        // Of parameters that are alike another one's gradient may be taken for this one's at first.
        let is_copied = |before: StorageId| read.iter().any(|tensor| tensor.storage == before);
        match gradients.iter_mut().find(|(before, known)| *known == weight && is_copied(*before)) {
            Some(before) => before.0 = storage,
            None => gradients.push((storage, weight)),
        }
        self.widen(storage, weight);
    }

    fn op(&mut self, id: OpId) -> Result<(), Fsdp2Error> {
        let op = self.trace.op(id);
        if op.phase == Phase::Optimizer {
            self.finish_backward();
            return self.optimizer_op(id);
        }
        if self.is_look_at_gradients(op) {
            return self.look_at_gradients(id);
        }
        if self.takes_gradient(id) || self.keeps_wide(id) || self.adds_to_others(id) {
            return Ok(());
        }
        self.check_gathered(op)?;
        let births: Vec<(u64, Category)> = self.births[id].iter().map(|birth| self.size_of(*birth)).collect();
        let first = self.made.next_storage().index();
        for (at, &birth) in self.births[id].iter().enumerate() {
            self.places[birth] = Place::There(StorageId::new(first + at));
        }
        let tensors = |walk: &mut Self, tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(|tensor| walk.whole(*tensor)).collect()
        };
        let inputs = tensors(self, self.trace.inputs(op));
        let outputs = tensors(self, self.trace.outputs(op));
        let saves = tensors(self, self.trace.saves(op));
        self.record(id, &inputs, &outputs, &saves, &births);
        for (at, &birth) in self.births[id].iter().enumerate() {
            if self.trace.storages()[birth].seen {
                self.made.set_seen(StorageId::new(first + at));
            }
        }
        Ok(())
    }

    pub(super) fn size_of(&self, storage: StorageId) -> (u64, Category) {
        let storage = &self.trace.storages()[storage];
        (storage.bytes, storage.category)
    }

    pub(super) fn whole(&mut self, tensor: Tensor) -> Tensor {
        let layout = self.made.layout(self.trace.layout_of(tensor));
        Tensor { storage: self.place(tensor.storage), layout }
    }

    fn check_gathered(&mut self, op: &Op) -> Result<(), Fsdp2Error> {
        for tensor in self.trace.inputs(op) {
            if let Place::Weight(weight) = self.places[tensor.storage] {
                let unit = self.unit_of_weight[weight];
                if !self.units[unit].gathered {
                    if self.in_backward || op.phase == Phase::Backward {
                        self.gather_for_backward(unit);
                        continue;
                    }
                    let (op, unit) = (self.trace.op_name(op).to_owned(), self.units[unit].name.clone());
                    return Err(Fsdp2Error::ReadWhileSharded { op, unit });
                }
            }
        }
        Ok(())
    }

    pub(super) fn record(
        &mut self,
        id: OpId,
        inputs: &[Tensor],
        outputs: &[Tensor],
        saves: &[Tensor],
        births: &[(u64, Category)],
    ) {
        let op = self.trace.op(id);
        let mutates: Vec<StorageId> = self
            .trace
            .mutates(op)
            .iter()
            .map(|storage| match self.places[*storage] {
                Place::Weight(weight) if op.phase == Phase::Optimizer => self.weights[weight].shard.storage,
                _ => self.place(*storage),
            })
            .collect();
        let made = self.made.run(OpRecord {
            name: self.trace.op_name(op),
            phase: op.phase,
            call: op.call,
            differentiates: op.differentiates.map(|forward| self.ops[forward]),
            flags: op.flags,
            mutates: &mutates,
            inputs,
            outputs,
            saves,
            births,
        });
        self.ops[id] = made;
        self.made.set_stream(made, op.stream);
        if let Some(collective) = self.trace.collective_of(op) {
            self.made.set_collective(made, collective.clone());
        }
    }
}
