//! The parameters, and which unit has each.

use rematic_trace::{Category, Dtype, Layout, ModuleId, Parameter, StorageId, Tensor};

use super::Fsdp2Error;
use super::units::unit_of;
use super::walk::{Place, Unit, Walk};

/// A parameter of the model, once however many modules share it.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    /// Its layout as the step reads it.
    pub(crate) layout: Layout,
    /// The rank's rows of it.
    pub(crate) shard: Tensor,
    /// The memory that it is gathered into.
    pub(crate) whole: StorageId,
    /// The elements of a padded shard.
    pub(crate) padded: u64,
}

impl Walk<'_> {
    /// The parameters, each with its unit: that of the first module that has it.
    pub(super) fn find_weights(&mut self, units: &[ModuleId]) -> Result<(), Fsdp2Error> {
        let trace = self.trace;
        for (index, &unit) in units.iter().enumerate() {
            self.unit_at[unit] = Some(index);
            let is_kept = index + self.how.gathered as usize >= units.len();
            let reshards = self.how.reshard && !is_kept;
            self.units.push(Unit { name: trace.path(unit), reshards, ..Unit::default() });
        }
        let root = units.len();
        self.unit_at[ModuleId::new(0)] = Some(root);
        self.units.push(Unit { name: trace.path(ModuleId::new(0)), ..Unit::default() });
        let of = unit_of(trace, &self.unit_at, root);
        for (id, module) in trace.modules().entries() {
            for Parameter { name, storage, layout } in &module.parameters {
                let named = || format!("{}.{name}", trace.path(id));
                if let Place::Weight(weight) = self.places[*storage] {
                    if self.unit_of_weight[weight] != of[id] {
                        return Err(Fsdp2Error::SharedByUnits { parameter: named() });
                    }
                    continue;
                }
                let layout = &trace.layouts()[*layout];
                if layout.shape.is_empty() {
                    return Err(Fsdp2Error::Scalar { parameter: named() });
                }
                if !layout.is_contiguous() {
                    return Err(Fsdp2Error::NotContiguous { parameter: named() });
                }
                self.places[*storage] = Place::Weight(self.weights.len());
                self.units[of[id]].weights.push(self.weights.len());
                self.unit_of_weight.push(of[id]);
                let weight = self.weight(layout);
                self.weights.push(weight);
            }
        }
        if self.weights.is_empty() {
            return Err(Fsdp2Error::NoParameters);
        }
        let mut floats = self.weights.iter().map(|weight| weight.layout.dtype).filter(|dtype| dtype.is_float());
        let mut is_mixed = |shards: Dtype| floats.all(|dtype| dtype.size() < shards.size());
        if !self.how.shards.is_none_or(&mut is_mixed) {
            return Err(Fsdp2Error::NotMixed);
        }
        if self.how.shards.is_some() { self.check_inputs() } else { Ok(()) }
    }

    fn weight(&mut self, layout: &Layout) -> Weight {
        let padded = self.rows.padded_elements(layout);
        let own = self.rows.own(layout);
        let bytes = padded.saturating_mul(own.dtype.size());
        let shard = self.made.storage_before_step(bytes, Category::Parameter);
        let shard = Tensor { storage: shard, layout: self.made.layout(&own) };
        let bytes = padded.saturating_mul(u64::from(self.how.ranks)).saturating_mul(layout.dtype.size());
        let whole = self.made.storage_before_step(bytes, Category::Parameter);
        self.made.set_released(whole);
        Weight { layout: layout.clone(), shard, whole, padded }
    }
}
