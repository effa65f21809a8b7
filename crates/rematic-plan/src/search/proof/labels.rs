//! Beginnings of plans, and which of them are worth an end.

use super::{MOST_WATCHED, Proof, TIE};

/// How near labels are that become one at first, as a share of what is open.
const NEARLY: f64 = 1e-4;

/// So few labels are put in order at once.
const FEW: usize = 64;
const LABELS_PER_PART: usize = 4;

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
        let watched = self.watched.len();
        self.work += labels.len();
        if watched == 1 {
            sieve(labels);
        }
        let order = by_cost(labels);
        let mut kept: Vec<Label> = Vec::with_capacity(labels.len());
        if watched == 1 {
            let mut lowest = i64::MAX;
            for Ranked { over, at, .. } in order {
                if over < lowest {
                    lowest = over;
                    kept.push(labels[at as usize]);
                }
            }
            *labels = kept;
            self.join(labels, most, target);
            return;
        }
        let mut compared = 0;
        for label in order.iter().map(|ranked| &labels[ranked.at as usize]) {
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
            *labels = joined(labels, cell);
            for label in labels.iter_mut() {
                let watched = self.watched.iter().zip(&label.over).map(|(&span, over)| self.prices[span] * over);
                label.reduced = label.cost + watched.sum::<f64>();
            }
            near *= 2.0;
        }
    }
}

/// Leaves out most of those that others beat where one moment is watched, before the others are put in order: the range of heights is cut into
/// equal parts, and what costs no less than something in a lower part goes.
fn sieve(labels: &mut Vec<Label>) {
    if labels.len() < FEW {
        return;
    }
    let overs = labels.iter().map(|label| label.over[0]);
    let (low, high) = overs.fold((f64::MAX, f64::MIN), |(low, high), over| (low.min(over), high.max(over)));
    let parts = labels.len() / LABELS_PER_PART;
    let scale = (parts - 1) as f64 / (high - low).max(f64::MIN_POSITIVE);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from nothing to the number of parts")]
    let part = |label: &Label| (((label.over[0] - low) * scale) as usize).min(parts - 1);
    let mut least = vec![f64::INFINITY; parts + 1];
    for label in labels.iter() {
        let least = &mut least[part(label) + 1];
        *least = least.min(label.cost);
    }
    // What is least below a part.
    for at in 1..parts {
        least[at] = least[at].min(least[at - 1]);
    }
    labels.retain(|label| label.cost < least[part(label)]);
}

/// What labels are ordered by, and which one it is: they are large, and are not moved for that.
struct Ranked {
    /// The cost, or the cell along the first of the watched moments.
    first: i64,
    over: i64,
    at: u32,
}

fn ranked(labels: &[Label], first: impl Fn(&Label) -> f64) -> Vec<Ranked> {
    let rank = |(label, at): (&Label, u32)| Ranked { first: in_order(first(label)), over: in_order(label.over[0]), at };
    labels.iter().zip(0..).map(rank).collect()
}

/// A number that is in the same order as [`f64::total_cmp`], and quicker to compare.
fn in_order(number: f64) -> i64 {
    let bits = number.to_bits().cast_signed();
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// The cheapest first, of those the lowest.
fn by_cost(labels: &[Label]) -> Vec<Ranked> {
    let mut order = ranked(labels, |label| label.cost);
    order.sort_unstable_by(|a, b| a.first.cmp(&b.first).then_with(|| a.over.cmp(&b.over).then(a.at.cmp(&b.at))));
    order
}

/// One label for each cell of so many bytes in which there are some: with the decision of the cheapest, and as low as each of them.
fn joined(labels: &[Label], cell: f64) -> Vec<Label> {
    let places: Vec<Heights> = labels.iter().map(|label| label.over.map(|over| (over / cell).floor())).collect();
    let place = |ranked: &Ranked| &places[ranked.at as usize];
    let cost = |ranked: &Ranked| labels[ranked.at as usize].cost;
    let mut order = ranked(labels, |label| (label.over[0] / cell).floor());
    order.sort_unstable_by(|a, b| {
        let rest = || place(a).iter().zip(place(b)).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne());
        let behind = || rest().unwrap_or_else(|| cost(a).total_cmp(&cost(b)).then(a.at.cmp(&b.at)));
        a.first.cmp(&b.first).then_with(behind)
    });
    let mut found: Vec<Label> = Vec::with_capacity(labels.len());
    let mut last: Option<&Heights> = None;
    for ranked in &order {
        let label = &labels[ranked.at as usize];
        match found.last_mut() {
            Some(first) if last == Some(place(ranked)) => {
                first.over.iter_mut().zip(&label.over).for_each(|(one, other)| *one = one.min(*other));
            }
            _ => found.push(*label),
        }
        last = Some(place(ranked));
    }
    found
}
