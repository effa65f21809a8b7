//! Beginnings of plans, and which of them are worth an end.

use std::cmp::Ordering;

use super::{MOST_WATCHED, Proof, TIE};

/// How near labels are that become one at first, as a share of what is open.
const NEARLY: f64 = 1e-4;

/// By watched moment.
pub(super) type Heights = [f64; MOST_WATCHED];

/// A beginning of plans, or what may be done with one node.
#[derive(Clone, Copy)]
pub(super) struct Label {
    /// Time, and the bytes at moments that are not watched by their prices.
    pub(super) cost: f64,
    /// The same with those at moments that are watched.
    pub(super) reduced: f64,
    /// How far it is above the budget, or what it adds.
    pub(super) over: Heights,
    /// The last of its decisions.
    pub(super) decision: u32,
}

impl Label {
    pub(super) fn and(&self, other: &Label, decision: u32) -> Label {
        let mut both = Label { cost: self.cost + other.cost, reduced: self.reduced + other.reduced, decision, ..*self };
        for (one, other) in both.over.iter_mut().zip(&other.over) {
            *one += other;
        }
        both
    }
}

impl Proof<'_> {
    /// Those that no other beats.
    pub(super) fn keep_undominated(&mut self, labels: &mut Vec<Label>, most: usize, target: f64) {
        if self.watched.len() > 1 {
            self.join(labels, most, target);
        }
        labels.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.over[0].total_cmp(&b.over[0])));
        let watched = self.watched.len();
        self.work += labels.len();
        if watched == 1 {
            let mut lowest = f64::INFINITY;
            labels.retain(|label| {
                let lower = label.over[0] < lowest;
                lowest = lowest.min(label.over[0]);
                lower
            });
            self.join(labels, most, target);
            return;
        }
        let mut kept: Vec<Label> = Vec::with_capacity(labels.len());
        let mut compared = 0;
        for label in labels.iter() {
            let limit = label.cost + TIE * target;
            let beats = |other: &Label| {
                compared += 1;
                other.cost <= limit && (0..watched).all(|at| other.over[at] <= label.over[at])
            };
            match kept.iter().position(beats) {
                // What beats one often beats the next.
                Some(at) => kept.swap(at, at / 2),
                None => kept.push(*label),
            }
        }
        self.work += compared / 8;
        *labels = kept;
    }

    /// If there are too many, joins those that are nearly the same.
    fn join(&mut self, labels: &mut Vec<Label>, most: usize, target: f64) {
        if !self.joins || labels.len() <= most {
            return;
        }
        let overs = labels.iter().map(|label| label.over[0]);
        let (low, high) = overs.fold((f64::MAX, f64::MIN), |(low, high), over| (low.min(over), high.max(over)));
        let least = self.cheapest.best[0] + self.cheapest.constant;
        // Cells of which there are not too many along the first of the watched moments.
        let mut near = (NEARLY * (target - least)).max((high - low) * self.rate() / (2 * most) as f64);
        near = near.max(f64::MIN_POSITIVE);
        while labels.len() > most {
            self.work += labels.len();
            // What so much costs, in bytes.
            let cell = near / self.rate();
            let place = |label: &Label| label.over.map(|over| (over / cell).floor());
            let order = |a: &Label, b: &Label| {
                let (a, b) = (place(a), place(b));
                a.iter().zip(&b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            };
            labels.sort_by(|a, b| order(a, b).then(a.cost.total_cmp(&b.cost)));
            // The cheapest comes first.
            labels.dedup_by(|next, first| {
                let same = order(next, first).is_eq();
                if same {
                    first.over.iter_mut().zip(&next.over).for_each(|(one, other)| *one = one.min(*other));
                }
                same
            });
            for label in labels.iter_mut() {
                let watched = self.watched.iter().zip(&label.over).map(|(&span, over)| self.prices[span] * over);
                label.reduced = label.cost + watched.sum::<f64>();
            }
            near *= 2.0;
        }
    }
}
