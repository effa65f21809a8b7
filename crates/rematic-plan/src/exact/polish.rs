//! The last touch on a solution that was found with few policies.

use super::case::Case;
use super::{Pick, TIE};
use crate::region::Point;

/// What is left over where nothing is needed: far from overflow.
const UNLIMITED: i64 = i64::MAX / 4;

/// What a solution frees beyond what is needed, place by place: another policy shifts all that comes behind it.
struct Margins {
    /// By pick: Σd before it.
    before: Vec<i64>,
    /// By pick: the least that is left over where the nodes before it are passed over.
    passing: Vec<i64>,
    /// By pick: the least that is left over at any need behind it, its own aside.
    behind: Vec<i64>,
    /// What is left over at the end.
    spare: i64,
}

impl Case<'_> {
    /// Betters a solution that was put together from few policies: first each region, then each two neighbours get the
    /// policies that take least and free as much as is needed.
    pub(super) fn polish(&self, picks: &mut [Pick]) {
        if let Some(margins) = self.margins(picks) {
            self.polish_each(picks, &margins);
        }
        if let Some(margins) = self.margins(picks) {
            self.polish_pairs(picks, margins);
        }
    }

    /// Each region gets the policy that takes least and frees as much as is needed.
    fn polish_each(&self, picks: &mut [Pick], margins: &Margins) {
        // What is freed by the regions so far beyond what the margins say.
        let mut shift = 0;
        for (at, pick) in picks.iter_mut().enumerate() {
            let frontier = &self.nodes[pick.node].frontier;
            if !frontier.is_exact() {
                continue;
            }
            let points = frontier.points();
            let present = points.partition_point(|point| point.kept > pick.policy.kept);
            let own = self.freed(pick.node, &pick.policy);
            let (before, behind) = (margins.before[at] + shift, margins.behind[at] + shift);
            let more = |point: &Point| self.freed(pick.node, point) - own;
            let is_enough = |point: &Point| self.may_choose(pick.node, point, before) && behind + more(point) >= 0;
            let enough = points[..present].partition_point(|point| !is_enough(point));
            if enough < present {
                shift += more(&points[enough]);
                *pick = Pick::new(self.nodes, pick.node, points[enough]);
            }
        }
    }

    /// Each two neighbours get the policies that take least and free as much as is needed.
    fn polish_pairs(&self, picks: &mut [Pick], mut margins: Margins) {
        let exact = |pick: &Pick| self.nodes[pick.node].frontier.is_exact();
        // What is freed by the regions so far beyond what the margins say.
        let mut shift = 0;
        for at in 1..picks.len() {
            self.problem.cancel.check();
            let (first, second) = (&picks[at - 1], &picks[at]);
            if !exact(first) || !exact(second) {
                continue;
            }
            let worth = |pick: &Pick| self.freed(pick.node, &pick.policy);
            let (own, freed) = (worth(first), worth(first) + worth(second));
            let Some((left, right)) = self.cheapest_pair(first, second, freed - margins.spare) else { continue };
            let (left_more, more) = (
                self.freed(first.node, &left) - own,
                self.freed(first.node, &left) + self.freed(second.node, &right) - freed,
            );
            // The shift of the first of the two is that of all before it.
            let before = margins.before[at - 1] + shift;
            let fits = self.may_choose(first.node, &left, before)
                && margins.passing[at] + shift + left_more >= 0
                && self.may_choose(second.node, &right, margins.before[at] + shift + left_more)
                && margins.behind[at] + shift + more >= 0;
            if !fits {
                continue;
            }
            picks[at - 1] = Pick::new(self.nodes, picks[at - 1].node, left);
            picks[at] = Pick::new(self.nodes, picks[at].node, right);
            // The second is the first of the next two: what is freed before it has changed by the one, behind it by both.
            margins.before[at] += left_more - more;
            margins.spare += more;
            shift += more;
        }
    }

    /// The policies of two regions that together free so much and take less than theirs, at the least time.
    fn cheapest_pair(&self, first: &Pick, second: &Pick, needed: i64) -> Option<(Point, Point)> {
        let present = first.policy.time.0 + second.policy.time.0;
        let [left, right] = [first, second].map(|pick| self.nodes[pick.node].frontier.points());
        // The more the one frees, the less the other has to.
        let mut other = right.len();
        let mut best: Option<(f64, Point, Point)> = None;
        for point in left {
            let freed = self.freed(first.node, point);
            while other > 0 && freed + self.freed(second.node, &right[other - 1]) >= needed {
                other -= 1;
            }
            let Some(partner) = right.get(other) else { continue };
            let time = point.time.0 + partner.time.0;
            if best.is_none_or(|(least, ..)| time < least) {
                best = Some((time, *point, *partner));
            }
        }
        best.filter(|(time, ..)| *time < present * (1.0 - TIE)).map(|(_, left, right)| (left, right))
    }

    /// Whether a node may be chosen with a policy if so much is freed before it, as far as its own needs go.
    fn may_choose(&self, node: usize, point: &Point, before: i64) -> bool {
        before >= self.required(node, point.kept.0) && before + self.freed(node, point) >= self.after[node]
    }

    /// What a solution leaves over; `None` if it does not free enough somewhere.
    fn margins(&self, picks: &[Pick]) -> Option<Margins> {
        let count = picks.len();
        let (mut before, mut passing) = (Vec::with_capacity(count), Vec::with_capacity(count));
        // By pick, what is left over at the needs of its own.
        let mut own = Vec::with_capacity(count);
        let (mut freed, mut index, mut spare) = (0, 0, UNLIMITED);
        let left = |freed: i64, range: std::ops::Range<usize>| {
            self.to_skip[range].iter().map(|need| freed - need).fold(UNLIMITED, i64::min)
        };
        for pick in picks {
            before.push(freed);
            passing.push(left(freed, index..pick.node));
            let choosing = freed - self.required(pick.node, pick.policy.kept.0);
            freed += self.freed(pick.node, &pick.policy);
            spare = freed - self.after[pick.node];
            own.push(choosing.min(spare));
            index = self.nodes[pick.node].next;
        }
        let rest = left(freed, index..self.nodes.len());
        let mut behind = vec![rest; count];
        for at in (1..count).rev() {
            behind[at - 1] = behind[at].min(own[at]).min(passing[at]);
        }
        let least = own.iter().chain(&passing).copied().fold(rest, i64::min);
        (least >= 0).then_some(Margins { before, passing, behind, spare: spare.min(rest) })
    }
}
