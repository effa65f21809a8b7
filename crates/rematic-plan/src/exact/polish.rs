//! The last touch on a solution that was found with few policies.

use super::case::Case;
use super::{Pick, TIE};
use crate::region::Point;

/// What is left over where nothing is needed: far from overflow.
const UNLIMITED: i64 = i64::MAX / 4;

/// What a solution frees beyond what is needed, place by place: another policy shifts all that comes behind it in its
/// micro-batch.
struct Margins {
    /// By pick: whether it is the first of a micro-batch.
    first: Vec<bool>,
    /// By pick: Σd before it.
    before: Vec<i64>,
    /// By pick: the least that is left over where the nodes before it are passed over.
    passing: Vec<i64>,
    /// By pick: the least that is left over at any need behind it, its own aside.
    behind: Vec<i64>,
    /// By pick: what is left over at the end of its micro-batch.
    spare: Vec<i64>,
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
            if margins.first[at] {
                shift = 0;
            }
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
            if margins.first[at] {
                shift = 0;
                continue;
            }
            let (first, second) = (&picks[at - 1], &picks[at]);
            if !exact(first) || !exact(second) {
                continue;
            }
            let worth = |pick: &Pick| self.freed(pick.node, &pick.policy);
            let (own, freed) = (worth(first), worth(first) + worth(second));
            let Some((left, right)) = self.cheapest_pair(first, second, freed - margins.spare[at] - shift) else {
                continue;
            };
            let left_freed = self.freed(first.node, &left);
            let (left_more, more) = (left_freed - own, left_freed + self.freed(second.node, &right) - freed);
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
        let mut margins = Margins {
            first: Vec::with_capacity(count),
            before: Vec::with_capacity(count),
            passing: Vec::with_capacity(count),
            behind: vec![UNLIMITED; count],
            spare: vec![UNLIMITED; count],
        };
        // By pick, what is left over when it is chosen, and after that.
        let mut own: Vec<(i64, i64)> = Vec::with_capacity(count);
        let (mut freed, mut index, mut least) = (0, 0, UNLIMITED);
        for pick in picks {
            let Passed { margin, rest, begins } = self.passed(freed, index, pick.node);
            freed = if begins { 0 } else { freed };
            margins.first.push(begins);
            margins.before.push(freed);
            margins.passing.push(margin);
            let choosing = freed - self.required(pick.node, pick.policy.kept.0);
            freed += self.freed(pick.node, &pick.policy);
            own.push((choosing, freed - self.after[pick.node]));
            least = least.min(margin).min(rest).min(choosing).min(freed - self.after[pick.node]);
            index = self.nodes[pick.node].next;
        }
        let end = self.passed(freed, index, self.nodes.len());
        if least.min(end.margin).min(end.rest) < 0 {
            return None;
        }
        let (mut behind, mut spare) = (end.margin, None);
        for at in (0..count).rev() {
            let (choosing, after) = own[at];
            margins.behind[at] = behind;
            let at_end = *spare.get_or_insert(after.min(behind));
            margins.spare[at] = at_end;
            behind = behind.min(choosing).min(after).min(margins.passing[at]);
            if margins.first[at] {
                // All that the micro-batch before has to do with it.
                (behind, spare) = (margins.passing[at], None);
            }
        }
        Some(margins)
    }

    /// What is left over where nodes are passed over, if so much is freed before them: up to the next micro-batch, and from there
    /// on, where nothing is freed.
    fn passed(&self, freed: i64, start: usize, end: usize) -> Passed {
        let begins = (start..=end).find(|&index| self.begins[index]);
        let left = |freed: i64, needs: &[i64]| needs.iter().map(|need| freed - need).fold(UNLIMITED, i64::min);
        let until = begins.unwrap_or(end);
        Passed {
            margin: left(freed, &self.to_skip[start..until]),
            rest: left(0, &self.to_skip[until..end]),
            begins: begins.is_some(),
        }
    }
}

/// What is left over where nodes are passed over.
struct Passed {
    margin: i64,
    rest: i64,
    begins: bool,
}
