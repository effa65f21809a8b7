//! The exact solution where modules nest.
//!
//! Let the modules be numbered in the order in which their forwards return, and let `V_k(s)` be the least time with which
//! modules 1…k, no two of them nested, meet the needs 1…k and save `s` bytes or more. A module returns right after the
//! modules inside it, so those are the ones from `first(k)` to `k - 1`, and either module `k` is checkpointed and none of
//! them, or it is not:
//!
//! ```text
//! stay(s)    = V_{k-1}(max(s, need_k))
//! take(s)    = min_d  V_{first(k)-1}(max(s - d, needs up to k)) + φ_k(d)
//! V_k(s)     = min(stay(s), take(s))
//! ```
//!
//! where `φ_k` is the convex price of saving `d` bytes with module `k`. Every `V_k` is a piecewise-linear function
//! ([`Cost`]) that is computed exactly; equal layers give equal pieces, which fall together. The answer is
//! `V_n(last need)`, and following the minima back gives the modules.
//!
//! There is no branching, no relaxation and no tolerance to a gap; but the number of pieces is not bounded by a polynomial.
//! 32 equal layers need some hundreds.

use std::rc::Rc;

use super::cost::{Cost, Price};
use super::model::{Candidate, Model};
use super::refine;
use crate::ModuleGraph;

/// A run of positions: the modules in the order of their returns.
struct Order<'a> {
    modules: Vec<usize>,
    /// For each, the candidate that it is, and the first position of what is inside it.
    candidates: Vec<Option<(usize, &'a Candidate, usize)>>,
}

impl<'a> Order<'a> {
    /// `None` if some module does not return right after what is inside it: it is shared, and first ran elsewhere.
    fn new(graph: &ModuleGraph, model: &'a Model<'_>) -> Option<Self> {
        let count = graph.modules.len();
        let mut modules: Vec<usize> = (0..count).collect();
        modules.sort_by_key(|&module| graph.modules[module].pos_fw_post_order);
        let mut position = vec![0; count];
        for (at, pair) in modules.windows(2).enumerate() {
            if graph.modules[pair[0]].pos_fw_post_order == graph.modules[pair[1]].pos_fw_post_order {
                return None;
            }
            position[pair[1]] = at + 1;
        }
        // Of each subtree: its size, and its first and last position. Parents stand before their children.
        let mut subtree: Vec<(usize, usize, usize)> = position.iter().map(|&at| (1, at, at)).collect();
        for module in (0..count).rev() {
            if let Some(parent) = graph.modules[module].parent {
                let (size, first, last) = subtree[module];
                let around = &mut subtree[parent];
                *around = (around.0 + size, around.1.min(first), around.2.max(last));
            }
        }
        let mut candidates = vec![None; count];
        for (index, candidate) in model.candidates.iter().enumerate() {
            let at = position[candidate.module];
            let (size, first, last) = subtree[candidate.module];
            if last != at || first + size != at + 1 {
                return None;
            }
            candidates[at] = Some((index, candidate, first));
        }
        Some(Order { modules, candidates })
    }
}

/// The best choice of candidates, ascending; `Ok(None)` if there is none. `Err` if the modules do not nest in the order of their returns.
pub(super) fn solve(graph: &ModuleGraph, model: &Model<'_>) -> Result<Option<Vec<usize>>, NotNested> {
    let order = Order::new(graph, model).ok_or(NotNested)?;
    let Some(last_need) = model.needs.last() else { return Ok(Some(Vec::new())) };
    // Bytes in units of the last need and time in units of all time, so that both are around one.
    let unit = last_need.bytes;
    let all_time: f64 = model.candidates.iter().map(|candidate| candidate.time).sum();
    let time_unit = if all_time > 0.0 { all_time } else { 1.0 };
    let prices: Vec<Price> = model.candidates.iter().map(|candidate| price(candidate, unit, time_unit)).collect();

    let end = order.modules.partition_point(|&module| graph.modules[module].pos_fw_post_order <= last_need.position);
    let mut needs = vec![0.0; end];
    let mut upcoming = model.needs.iter().peekable();
    let mut need = 0.0;
    for (at, &module) in order.modules[..end].iter().enumerate() {
        if let Some(next) = upcoming.next_if(|next| next.position == graph.modules[module].pos_fw_post_order) {
            need = next.bytes / unit;
        }
        needs[at] = need;
    }
    let start = Rc::new(Cost::nothing());
    let mut costs: Vec<Option<Rc<Cost>>> = Vec::with_capacity(end);
    let before =
        |costs: &[Option<Rc<Cost>>], at: usize| if at == 0 { Some(start.clone()) } else { costs[at - 1].clone() };
    for at in 0..end {
        let raised = at > 0 && needs[at] > needs[at - 1] || at == 0 && needs[at] > 0.0;
        let stay = before(&costs, at)
            .and_then(|cost| if raised { cost.with_need(needs[at]).map(Rc::new) } else { Some(cost) });
        let take = order.candidates[at]
            .and_then(|(index, _, first)| Some(before(&costs, first)?.with_need(needs[at])?.and(&prices[index], 1.0)));
        costs.push(match (stay, take) {
            (Some(stay), Some(take)) => Some(Rc::new(stay.lower(&take))),
            (stay, take) => stay.or(take.map(Rc::new)),
        });
    }
    Ok(follow(&order, &needs, &prices, &costs, &start))
}

/// The modules do not nest in the order of their returns.
#[derive(Debug)]
pub(super) struct NotNested;

/// Follows the minima back from the last need.
fn follow(
    order: &Order<'_>,
    needs: &[f64],
    prices: &[Price],
    costs: &[Option<Rc<Cost>>],
    start: &Rc<Cost>,
) -> Option<Vec<usize>> {
    let before = |at: usize| if at == 0 { Some(start) } else { costs[at - 1].as_ref() };
    let mut target = 1.0;
    costs.last()?.as_ref()?.at(target)?;
    let mut chosen = Vec::new();
    let mut at = needs.len();
    while at > 0 {
        at -= 1;
        let stay = before(at).and_then(|cost| cost.at(f64::max(target, needs[at])));
        let take = order.candidates[at].and_then(|(index, _, first)| {
            let (_, rest, cost) = before(first)?.with_need(needs[at])?.best_split(&prices[index], target)?;
            Some((index, first, rest, cost))
        });
        target = f64::max(target, needs[at]);
        match take {
            Some((index, first, rest, cost)) if stay.is_none_or(|stay| cost < stay) => {
                chosen.push(index);
                target = f64::max(rest, needs[at]);
                at = first;
            }
            _ => {}
        }
    }
    chosen.reverse();
    Some(chosen)
}

fn price(candidate: &Candidate, unit: f64, time_unit: f64) -> Price {
    // Where the first line falls, saving more is cheaper than saving less, so saving less costs as much as that.
    let cheapest = refine::cheapest(candidate);
    let mut slopes = vec![(0.0, cheapest / unit)];
    let mut at = cheapest;
    while let Some((rate, end)) = refine::step(candidate, at) {
        slopes.push((rate.max(0.0) * unit / time_unit, (end - at) / unit));
        at = end;
    }
    Price { fixed: candidate.time(cheapest) / time_unit, slopes }
}
