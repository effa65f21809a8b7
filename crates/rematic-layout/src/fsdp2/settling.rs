//! Gradients that ranks which share the model (tensor parallelism) make in another way than the parameters lie.
//!
//! Of a parameter that all of them have, each makes a summand; of an embedding whose rows are dealt out, each makes the gradient of
//! all rows. Without FSDP2 it is the optimizer that brings them to where the parameter is, each time it reads them, or momenta that
//! began as copies of them; with it, that is done once, before a unit's gradients are packed.

use rematic_trace::{
    Category, Collective, CollectiveKind, Event, Layout, OpId, OpRecord, Phase, StepTrace, Storage, StorageId, Table,
    Tensor,
};

use super::walk::{Place, Walk};

/// What is done to a gradient before it is packed.
#[derive(Clone, Debug)]
pub(crate) enum Settling {
    /// The summands of all ranks are added up.
    Sum(Collective),
    /// The rank's rows of it are copied.
    Part(Layout),
}

/// How the optimizer of a step settles gradients.
#[derive(Debug)]
pub(crate) struct Settlings {
    /// For every gradient and momentum, what is done to it.
    of: Table<StorageId, Option<Settling>>,
    /// The operators that do it.
    ops: Table<OpId, bool>,
    /// For every copy that they make, of what it is.
    copies: Table<StorageId, Option<StorageId>>,
    /// For every momentum, the gradient that is added to it.
    added: Table<StorageId, Option<StorageId>>,
}

impl Settlings {
    pub(crate) fn new(trace: &StepTrace) -> Self {
        let is_state = |storage: &Storage| storage.birth.is_none() && storage.category == Category::Optimizer;
        let mut gradients: Table<StorageId, bool> = trace.storages().iter().map(is_state).collect();
        let mut found = Settlings {
            of: trace.storages().filled(None),
            ops: trace.ops().filled(false),
            copies: trace.storages().filled(None),
            added: trace.storages().filled(None),
        };
        for &event in trace.events() {
            match event {
                Event::Recategorize(storage, Category::Gradient) => gradients[storage] = true,
                Event::Op(id) if trace.op(id).phase == Phase::Optimizer => {
                    found.pair(trace, id);
                    found.look_at(trace, id, &gradients);
                }
                _ => {}
            }
        }
        found
    }

    /// What is added to each of a list of tensors.
    fn pair(&mut self, trace: &StepTrace, id: OpId) {
        let op = trace.op(id);
        let (changed, read) = (trace.mutates(op), trace.inputs(op));
        if trace.op_name(op).starts_with("_foreach_add_.") && read.len() == 2 * changed.len() {
            for (target, added) in changed.iter().zip(&read[changed.len()..]) {
                self.added[*target] = Some(added.storage);
            }
        }
    }

    fn note(&mut self, storage: StorageId, how: Settling) {
        if let Some(gradient) = self.added[storage] {
            self.of[gradient] = Some(how.clone());
        }
        self.of[storage] = Some(how);
    }

    fn look_at(&mut self, trace: &StepTrace, id: OpId, gradients: &Table<StorageId, bool>) {
        let op = trace.op(id);
        let (&[input], Some(&output)) = (trace.inputs(op), trace.outputs(op).first()) else { return };
        let read = input.storage;
        let name = trace.op_name(op);
        if let Some(how) = trace.collective_of(op).filter(|how| how.kind == CollectiveKind::AllReduce) {
            if gradients[read] {
                self.note(read, Settling::Sum(how.clone()));
                self.copies[output.storage] = Some(read);
                self.ops[id] = true;
            }
        } else if op.flags.view && (name.starts_with("chunk.") || self.copies[read].is_some()) {
            self.ops[id] = gradients[read] || self.copies[read].is_some();
        } else if name.starts_with("clone.") && gradients[read] {
            self.note(read, Settling::Part(trace.layout_of(output).clone()));
            self.copies[output.storage] = Some(read);
            self.ops[id] = true;
        }
    }

    /// A gradient is settled like the one that it would be added to.
    pub(crate) fn settle_like(&mut self, gradient: StorageId, other: StorageId) {
        self.of[gradient] = self.of[other].clone();
    }

    /// Whether an operator does nothing but settle gradients.
    pub(crate) fn settles(&self, op: OpId) -> bool {
        self.ops[op]
    }

    /// The layout of a gradient or a momentum once it is settled, if that is another than before.
    pub(crate) fn part(&self, storage: StorageId) -> Option<&Layout> {
        match &self.of[storage] {
            Some(Settling::Part(layout)) => Some(layout),
            _ => None,
        }
    }
}

impl Walk<'_> {
    /// An operator of the optimizer that is not needed any more: what it would copy is as it should be.
    pub(super) fn skip_settling(&mut self, id: OpId) {
        for birth in self.births[id].clone() {
            if let Some(gradient) = self.settlings.copies[birth] {
                self.places[birth] = Place::Settled(gradient);
            }
        }
    }

    /// Summands have the type of the shards, in which they are added up, as soon as they are there.
    pub(super) fn widen(&mut self, storage: StorageId, weight: usize) {
        let layout = self.weights[weight].layout.clone();
        let dtype = self.rows.dtype_of(layout.dtype);
        if dtype == layout.dtype || !matches!(self.settlings.of[storage], Some(Settling::Sum(_))) {
            return;
        }
        let before = self.place(storage);
        let width = layout.elements().saturating_mul(dtype.size());
        if self.made.storages()[before].bytes >= width {
            return;
        }
        let read = Tensor { storage: before, layout: self.made.layout(&layout) };
        let wide = self.copied("_to_copy.default", read, &Layout::contiguous(dtype, &layout.shape));
        self.made.push(Event::Drop(before));
        self.places[storage] = Place::There(wide);
    }

    /// Brings a unit's gradients to where its parameters are.
    pub(super) fn settle(&mut self, unit: usize) {
        let mut gradients = self.units[unit].gradients.clone();
        gradients.sort_by_key(|(_, weight)| *weight);
        for (storage, weight) in gradients {
            let Some(how) = self.settlings.of[storage].clone() else { continue };
            let before = self.place(storage);
            let layout = self.weights[weight].layout.clone();
            let own = match how {
                Settling::Sum(how) => {
                    let dtype = self.rows.dtype_of(layout.dtype);
                    self.sum_up(before, &Layout::contiguous(dtype, &layout.shape), how)
                }
                Settling::Part(part) => {
                    let read = Tensor { storage: before, layout: self.made.layout(&part) };
                    self.copied("clone.default", read, &part)
                }
            };
            self.made.push(Event::Drop(before));
            self.places[storage] = Place::There(own);
        }
    }

    fn sum_up(&mut self, summand: StorageId, layout: &Layout, how: Collective) -> StorageId {
        let bytes = layout.elements().saturating_mul(layout.dtype.size());
        let layout = self.made.layout(layout);
        let sum = Tensor { storage: self.made.next_storage(), layout };
        let op = self.made.run(OpRecord {
            inputs: &[Tensor { storage: summand, layout }],
            outputs: &[sum],
            births: &[(bytes, Category::Gradient)],
            ..OpRecord::new("_c10d_functional.all_reduce.default", Phase::Backward)
        });
        self.made.set_collective(op, Collective { bytes, ..how });
        sum.storage
    }

    /// A copy of a gradient, with this layout.
    fn copied(&mut self, name: &str, read: Tensor, layout: &Layout) -> StorageId {
        let bytes = layout.elements().saturating_mul(layout.dtype.size());
        let copy = Tensor { storage: self.made.next_storage(), layout: self.made.layout(layout) };
        self.made.run(OpRecord {
            inputs: &[read],
            outputs: &[copy],
            births: &[(bytes, Category::Gradient)],
            ..OpRecord::new(name, Phase::Backward)
        });
        copy.storage
    }
}
