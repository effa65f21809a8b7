//! Steps with several micro-batches, each of which is reduced, as `fully_shard` does unless it is told otherwise.
//!
//! On one device the gradients of a later micro-batch are added into those that are there. Under FSDP2 a parameter that is whole has no
//! gradient from the micro-batch before: what is new is packed and reduced like the first, and the rank adds its rows of it, on the
//! stream that reduced them. Then the rows go; where replicas reduce them once more, when backward is over.

use rematic_trace::{
    CallId, Category, Event, ModuleId, Op, OpId, OpRecord, Phase, StepTrace, StorageId, Table, Tensor,
};

use super::walk::{Place, Walk};

/// What is known of gradients that are added into others.
#[derive(Debug)]
pub(crate) struct Accumulation {
    /// Gradients whose end in the step is that of a summand: here they live until they are packed.
    packed_later: Table<StorageId, bool>,
    /// Sums that replicas have, which are held until backward is over.
    held: Vec<StorageId>,
    /// Whether micro-batches have gradients of other parameters than the first, or such as cannot be packed as they are.
    pub(crate) differs: bool,
}

impl Accumulation {
    pub(crate) fn new(trace: &StepTrace) -> Self {
        Accumulation { packed_later: trace.storages().filled(false), held: Vec::new(), differs: false }
    }
}

impl Walk<'_> {
    /// Whether a forward of the whole model begins at an event, and is no second run of one. Not every step marks its micro-batches.
    pub(super) fn begins_forward(&self, at: usize) -> bool {
        let is_whole = |call: CallId| self.trace.call(call).module == ModuleId::new(0);
        let mut events = self.trace.events()[at..].iter();
        if !matches!(events.next(), Some(Event::Enter(call)) if is_whole(*call)) {
            return false;
        }
        let mut ops = events.filter_map(|event| if let Event::Op(op) = event { Some(*op) } else { None });
        ops.next().is_none_or(|op| self.trace.op(op).phase == Phase::Forward)
    }

    /// Where the last operator stands of the first backward from here on, up to the next forward.
    pub(super) fn last_backward(&self, from: usize) -> usize {
        let events = &self.trace.events()[from..];
        let until = (from..self.trace.events().len()).position(|at| self.begins_forward(at)).unwrap_or(events.len());
        let is_backward = |event: &Event| matches!(event, Event::Op(op) if self.trace.op(*op).phase == Phase::Backward);
        events[..until].iter().rposition(is_backward).map_or(from, |at| from + at)
    }

    /// The reduced gradient that an operator adds another one into, that one, and the parameter of both.
    fn added(&self, op: &Op) -> Option<(StorageId, Tensor, usize)> {
        let (&[sum], &[_, added]) = (self.trace.mutates(op), self.trace.inputs(op)) else { return None };
        let is_sum = op.phase == Phase::Backward
            && self.trace.op_name(op).starts_with("add_.")
            && matches!(self.places[sum], Place::Reduced(_));
        Some((sum, added, self.gradient_of[sum].filter(|_| is_sum)?))
    }

    /// Does what FSDP2 does in place of adding gradients up; whether the operator does nothing else.
    pub(super) fn takes_gradient(&mut self, id: OpId) -> bool {
        let Some((sum, added, weight)) = self.added(self.trace.op(id)) else { return false };
        let layout = self.trace.layout_of(added);
        let bytes = layout.elements().saturating_mul(layout.dtype.size());
        // What is a part of something, or one number for all, is copied before it is somebody's gradient.
        let is_its_own = self.trace.storages()[added.storage].bytes == bytes && layout.is_contiguous();
        self.accumulation.differs |= !is_its_own;
        self.postpone_end(added.storage);
        self.settlings.settle_like(added.storage, sum);
        let gradients = &mut self.units[self.unit_of_weight[weight]].gradients;
        match gradients.iter_mut().find(|(storage, _)| *storage == added.storage) {
            // Of parameters that are alike it is known only now whose it is.
            Some((_, known)) => *known = weight,
            None => {
                self.made.push(Event::Recategorize(self.place(added.storage), Category::Gradient));
                self.add_gradient(added.storage, weight);
            }
        }
        true
    }

    /// Leaves out what brings a gradient to the narrower type of its parameter, as autograd does for any other: in mixed precision FSDP2
    /// takes it as it is (`grad_dtype`) and packs it so.
    pub(super) fn keeps_wide(&mut self, id: OpId) -> bool {
        let op = self.trace.op(id);
        let (&[read], &[made], &[birth]) = (self.trace.inputs(op), self.trace.outputs(op), &self.births[id][..]) else {
            return false;
        };
        let is_copy = |op: &Op| self.trace.op_name(op).starts_with("_to_copy.");
        let width = |tensor| self.trace.layout_of(tensor).dtype.size();
        // One of the model's own stays: it is the backward of another.
        let is_engines = op.differentiates.is_some_and(|forward| !is_copy(self.trace.op(forward)));
        let is_left_out = self.how.shards.is_some()
            && op.phase == Phase::Backward
            && is_copy(op)
            && is_engines
            && self.gradient_of[birth].is_some()
            && width(read) > width(made);
        if is_left_out {
            self.places[birth] = self.places[read.storage];
            self.postpone_end(read.storage);
        }
        is_left_out
    }

    /// The end of a storage in the step is none here.
    pub(super) fn postpone_end(&mut self, storage: StorageId) {
        self.accumulation.packed_later[storage] = true;
    }

    /// Whether the end of a storage is to come later.
    pub(super) fn ends_later(&mut self, storage: StorageId) -> bool {
        std::mem::take(&mut self.accumulation.packed_later[storage])
    }

    /// Adds a unit's rows of new gradients into those that it has.
    pub(super) fn add_rows(&mut self, sums: StorageId, new: StorageId, weights: &[usize]) {
        let stream = self.traffic.last_stream();
        for &weight in weights {
            let own = self.weights[weight].shard.layout;
            let [sum, new] = [sums, new].map(|storage| Tensor { storage, layout: own });
            let op = self.made.run(OpRecord {
                inputs: &[sum, new],
                outputs: &[sum],
                mutates: &[sums],
                ..OpRecord::new("add_.Tensor", Phase::Backward)
            });
            self.made.set_stream(op, stream);
        }
        if self.how.replicas > 1 {
            self.accumulation.held.push(new);
        } else {
            self.made.push(Event::Drop(new));
        }
    }

    /// When backward is over.
    pub(super) fn drop_held(&mut self) {
        for storage in std::mem::take(&mut self.accumulation.held) {
            self.made.push(Event::Drop(storage));
        }
    }
}
