//! The last touch on a solution that was found with few policies.

use super::case::Case;
use super::{Pick, TIE};
use crate::region::Point;

impl Case<'_> {
    /// Betters a solution that was put together from few policies: first each region, then each two neighbours get the
    /// policies that take least and free as much as is needed.
    pub(super) fn polish(&self, picks: &mut Vec<Pick>) {
        let exact = |pick: &Pick| self.nodes[pick.node].frontier.is_exact();
        for at in 0..picks.len() {
            if !exact(&picks[at]) {
                continue;
            }
            let points = self.nodes[picks[at].node].frontier.points();
            let present = points.partition_point(|point| point.kept > picks[at].policy.kept);
            let mut tried = picks.clone();
            let enough = points[..present].partition_point(|point| {
                tried[at].policy = *point;
                self.spare(&tried).is_none()
            });
            if enough < present {
                picks[at] = Pick::new(self.nodes, picks[at].node, points[enough]);
            }
        }
        for at in 1..picks.len() {
            self.problem.cancel.check();
            let (first, second) = (&picks[at - 1], &picks[at]);
            let Some(spare) = self.spare(picks).filter(|_| exact(first) && exact(second)) else { continue };
            let (nodes, worth) = ([first.node, second.node], |pick: &Pick| self.freed(pick.node, &pick.policy));
            let needed = worth(first) + worth(second) - spare;
            let present = first.policy.time.0 + second.policy.time.0;
            let [left, right] = nodes.map(|node| self.nodes[node].frontier.points());
            // The more the one frees, the less the other has to.
            let mut other = right.len();
            let mut best: Option<(f64, Point, Point)> = None;
            for point in left {
                let freed = self.freed(nodes[0], point);
                while other > 0 && freed + self.freed(nodes[1], &right[other - 1]) >= needed {
                    other -= 1;
                }
                let Some(partner) = right.get(other) else { continue };
                let time = point.time.0 + partner.time.0;
                if best.is_none_or(|(least, ..)| time < least) {
                    best = Some((time, *point, *partner));
                }
            }
            let Some((_, left, right)) = best.filter(|(time, ..)| *time < present * (1.0 - TIE)) else { continue };
            let mut tried = picks.clone();
            tried[at - 1] = Pick::new(self.nodes, nodes[0], left);
            tried[at] = Pick::new(self.nodes, nodes[1], right);
            if self.spare(&tried).is_some() {
                *picks = tried;
            }
        }
    }
}
