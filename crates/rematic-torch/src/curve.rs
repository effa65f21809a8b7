use rematic_trace::{Bytes, Millis};
use serde::Serialize;

use crate::{Fate, GreedyOrder, OpGroups, SacStats};

/// What torch adds to every discarded fraction of a curve (`delta` there), without saying why. It keeps the first point,
/// where only views are recomputed, away from a fraction of exactly zero, and makes a fit that is read at the true
/// fraction promise a hundredth of the region's memory more than the curve has. It is kept because the fitted lines, and so the
/// plans of the `milp` planner, are to equal torch's.
pub const DISCARD_OFFSET: f64 = 0.01;

/// Recompute time against discarded memory, both as fractions of the region's total, in the greedy order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TradeoffCurve {
    /// `(discarded fraction + DISCARD_OFFSET, recomputed fraction)`, the discarded fractions strictly ascending: where
    /// recomputing more frees nothing more, the last point counts, as in torch.
    pub points: Vec<(f64, f64)>,
}

impl TradeoffCurve {
    /// The curve of a region; without points if the region has no memory to free, or no time to pay with.
    #[must_use]
    pub fn new(stats: &SacStats, groups: &OpGroups, order: &GreedyOrder) -> Self {
        let mut curve = TradeoffCurve::default();
        let (memory, time) = (stats.total_memory(), stats.total_runtime());
        if memory == Bytes(0) || time.0 <= 0.0 {
            return curve;
        }
        let mut discarded = Bytes(0);
        let mut recomputed = Millis(0.0);
        let mut add = |bytes: Bytes, millis: Millis| {
            discarded += bytes;
            recomputed += millis;
            curve.push(discarded.0 as f64 / memory.0 as f64 + DISCARD_OFFSET, recomputed.0 / time.0);
        };
        let (bytes, millis) = sum(groups, Fate::Recompute);
        add(bytes, millis);
        for group in &order.msps_meta {
            add(group.memory, group.runtime);
        }
        let (bytes, millis) = sum(groups, Fate::Store);
        add(bytes, millis);
        curve
    }

    fn push(&mut self, discarded: f64, recomputed: f64) {
        match self.points.last_mut() {
            Some(last) if last.0 == discarded => last.1 = recomputed,
            _ => self.points.push((discarded, recomputed)),
        }
    }

    /// The points that the lines are fitted to: each discarded fraction with the time of the *next* step. The true cost
    /// of a fraction between two steps is that of the next one, since an operator is recomputed whole or not at all;
    /// lines through these points lie above the steps instead of cutting through them.
    #[must_use]
    pub fn shifted(&self) -> Vec<(f64, f64)> {
        self.points.windows(2).map(|pair| (pair[0].0, pair[1].1)).collect()
    }
}

fn sum(groups: &OpGroups, fate: Fate) -> (Bytes, Millis) {
    groups
        .with_fate(fate)
        .fold((Bytes(0), Millis(0.0)), |(bytes, millis), group| (bytes + group.memory, millis + group.runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(stats: &SacStats) -> TradeoffCurve {
        let groups = OpGroups::new(stats).unwrap();
        TradeoffCurve::new(stats, &groups, &GreedyOrder::new(stats, &groups))
    }

    #[test]
    fn a_curve_by_hand() {
        let stats = SacStats {
            func_names: vec!["op".into(); 4],
            runtimes: [6.0, 1.0, 2.0, 1.0].map(Millis).to_vec(),
            memory: [50, 50, 0, 0].map(Bytes).to_vec(),
            view_like_ops: vec![3],
            ..SacStats::default()
        };
        // The view, the cheap half, the dear half together with the one that frees nothing.
        assert_eq!(curve(&stats).points, [(0.01, 0.1), (0.51, 0.2), (1.01, 1.0)]);
        assert_eq!(curve(&stats).shifted(), [(0.01, 0.2), (0.51, 1.0)]);
    }

    #[test]
    fn a_region_without_memory_or_time_has_none() {
        let mut stats = SacStats {
            func_names: vec!["op".into()],
            runtimes: vec![Millis(1.0)],
            memory: vec![Bytes(0)],
            ..SacStats::default()
        };
        assert!(curve(&stats).points.is_empty());
        stats.memory[0] = Bytes(1);
        assert_eq!(curve(&stats).points.len(), 2);
        stats.runtimes[0] = Millis(0.0);
        assert!(curve(&stats).points.is_empty());
    }
}
