//! When a unit's weights come, and when they go.

use rematic_trace::{Event, Phase, StorageId};

use super::walk::Walk;
use super::weights::Weight;

impl Walk<'_> {
    pub(super) fn before_forward(&mut self, unit: usize) {
        if !self.units[unit].gathered && !self.units[unit].weights.is_empty() {
            let flat = self.gather(unit, Phase::Forward);
            if self.in_backward {
                self.copy_out(unit, flat, Phase::Backward);
                self.made.push(Event::Drop(flat));
            } else {
                self.traffic.drop_gathered(&mut self.made);
                self.copy_out(unit, flat, Phase::Forward);
                self.traffic.gathered = Some(flat);
            }
        }
    }

    /// The unit's own weights, and those of the unit whose forward ended before it.
    pub(super) fn before_backward(&mut self, unit: usize) {
        self.gather_for_backward(unit);
        let before = self.units[unit].ended.pop().and_then(|at| at.checked_sub(1)).map(|at| self.ended[at]);
        if let Some(before) = before.filter(|before| self.is_sharded(*before)) {
            let flat = self.gather(before, Phase::Backward);
            self.units[before].ahead = Some(flat);
        }
    }

    pub(super) fn gather_for_backward(&mut self, unit: usize) {
        if self.units[unit].gathered || self.units[unit].weights.is_empty() {
            return;
        }
        let flat = match self.units[unit].ahead.take() {
            Some(flat) => flat,
            None => self.gather(unit, Phase::Backward),
        };
        self.copy_out(unit, flat, Phase::Backward);
        self.made.push(Event::Drop(flat));
    }

    fn is_sharded(&self, unit: usize) -> bool {
        let unit = &self.units[unit];
        !unit.gathered && unit.ahead.is_none() && !unit.weights.is_empty()
    }

    fn gather(&mut self, unit: usize, phase: Phase) -> StorageId {
        let weights: Vec<&Weight> = self.units[unit].weights.iter().map(|weight| &self.weights[*weight]).collect();
        self.traffic.gather(&mut self.made, &weights, phase)
    }

    fn copy_out(&mut self, unit: usize, flat: StorageId, phase: Phase) {
        let weights: Vec<&Weight> = self.units[unit].weights.iter().map(|weight| &self.weights[*weight]).collect();
        self.traffic.copy_out(&mut self.made, &weights, flat, phase);
        self.units[unit].gathered = true;
    }

    pub(super) fn release(&mut self, unit: usize) {
        if std::mem::replace(&mut self.units[unit].gathered, false) {
            for &weight in &self.units[unit].weights {
                self.made.push(Event::Release(self.weights[weight].whole));
            }
        }
    }
}
