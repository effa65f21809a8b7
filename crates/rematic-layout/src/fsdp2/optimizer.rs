//! What the optimizer does with rows of parameters in place of whole ones.

use rematic_trace::{Op, OpId, StorageId, Tensor};

use super::Fsdp2Error;
use super::walk::{Place, Walk};

/// What these make of rows is not rows of what they make of all.
const PRODUCTS: [&str; 6] = ["mm.", "bmm.", "addmm.", "baddbmm.", "matmul.", "linalg_"];

impl Walk<'_> {
    /// An operator of the optimizer works on rows, and makes rows of what has the shape of a parameter.
    pub(super) fn optimizer_op(&mut self, id: OpId) -> Result<(), Fsdp2Error> {
        if self.settlings.settles(id) {
            self.skip_settling(id);
            return Ok(());
        }
        let op = self.trace.op(id);
        let inputs: Vec<Tensor> = self.trace.inputs(op).iter().map(|tensor| self.rows_of(*tensor)).collect();
        let first = self.made.next_storage().index();
        let mut births = Vec::new();
        for (at, &birth) in self.births[id].iter().enumerate() {
            let new = StorageId::new(first + at);
            let (bytes, category) = self.size_of(birth);
            let spread = self.rows_of_birth(op, birth)?;
            self.places[birth] = if spread.is_some() { Place::Rows(new) } else { Place::There(new) };
            births.push((spread.unwrap_or(bytes), category));
        }
        let outputs: Vec<Tensor> = self.trace.outputs(op).iter().map(|tensor| self.rows_of(*tensor)).collect();
        let saves: Vec<Tensor> = self.trace.saves(op).iter().map(|tensor| self.rows_of(*tensor)).collect();
        self.record(id, &inputs, &outputs, &saves, &births);
        Ok(())
    }

    /// What the rank's rows of a new storage take; nothing if it is not spread.
    fn rows_of_birth(&self, op: &Op, birth: StorageId) -> Result<Option<u64>, Fsdp2Error> {
        let Some(output) = self.trace.outputs(op).iter().find(|tensor| tensor.storage == birth) else {
            return Ok(None);
        };
        let layout = self.trace.layout_of(*output);
        let is_spread = |tensor: &&Tensor| !matches!(self.places[tensor.storage], Place::There(_) | Place::Nowhere);
        let mut read = self.trace.inputs(op).iter().filter(is_spread).map(|tensor| self.trace.layout_of(*tensor));
        if layout.shape.is_empty() {
            return Ok(None);
        }
        let multiplies = PRODUCTS.iter().any(|name| self.trace.op_name(op).starts_with(name));
        if !multiplies && read.clone().any(|other| other.shape == layout.shape) {
            return Ok(Some(self.rows.own_bytes(layout)));
        }
        match read.next() {
            Some(_) => Err(Fsdp2Error::Optimizer { op: self.trace.op_name(op).to_owned() }),
            None => Ok(None),
        }
    }

    /// A tensor of the optimizer, as the rank has it.
    fn rows_of(&mut self, tensor: Tensor) -> Tensor {
        let layout = self.trace.layout_of(tensor);
        match self.places[tensor.storage] {
            Place::There(_) | Place::Nowhere => self.whole(tensor),
            Place::Weight(weight) if layout.shape == self.weights[weight].layout.shape => self.weights[weight].shard,
            Place::Weight(weight) => self.rows_in(self.weights[weight].shard.storage, tensor),
            Place::Reduced(_) | Place::Rows(_) | Place::Settled(_) => self.rows_in(self.place(tensor.storage), tensor),
        }
    }

    fn rows_in(&mut self, storage: StorageId, tensor: Tensor) -> Tensor {
        let layout = self.settlings.part(tensor.storage).unwrap_or_else(|| self.trace.layout_of(tensor));
        let own = self.rows.own(layout);
        Tensor { storage, layout: self.made.layout(&own) }
    }
}
