//! What the chosen modules save, without the solver's tolerances.
//!
//! For fixed `y` the problem is to minimise a sum of convex piecewise-linear functions of the saved bytes `d_i`, with lower
//! bounds on their running sums. Going through the needs from the first to the last, and meeting each by raising whatever
//! costs least per byte among the modules before it, is optimal: what an earlier need forces cannot be undone by a later
//! one, which every module before the earlier need serves equally well; and costs per byte only rise.

use super::model::{Candidate, Model};

/// Bytes that each of the chosen candidates saves, in their order; `None` if that breaks a cap. (Raising one module may
/// then be forbidden where raising another is not.)
pub(super) fn refine(model: &Model<'_>, chosen: &[usize]) -> Option<Vec<f64>> {
    let chosen: Vec<&Candidate> = chosen.iter().map(|&index| &model.candidates[index]).collect();
    let mut saved: Vec<f64> = chosen.iter().map(|candidate| cheapest(candidate)).collect();
    for need in &model.needs {
        let before = chosen.iter().take_while(|candidate| candidate.position < need.position).count();
        let mut missing = need.bytes - saved[..before].iter().sum::<f64>();
        while missing > 0.0 {
            let next = (0..before)
                .filter_map(|index| step(chosen[index], saved[index]).map(|(rate, end)| (rate, index, end)))
                .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            // The solver met the need up to its tolerance; if all is used up, so have we.
            let Some((_, index, end)) = next else { break };
            let raise = missing.min(end - saved[index]);
            if raise < end - saved[index] {
                saved[index] += raise;
                break;
            }
            saved[index] = end;
            missing -= raise;
        }
    }
    respects_caps(model, &chosen, &saved).then_some(saved)
}

fn respects_caps(model: &Model<'_>, chosen: &[&Candidate], saved: &[f64]) -> bool {
    model.caps.iter().all(|&(position, cap)| {
        let sum: f64 = chosen
            .iter()
            .zip(saved)
            .filter(|(candidate, _)| candidate.position < position)
            .map(|(_, bytes)| bytes)
            .sum();
        sum <= cap
    })
}

/// The least bytes at which a candidate costs least. More than none only if its first line falls.
pub(super) fn cheapest(candidate: &Candidate) -> f64 {
    let mut at = 0.0;
    while let Some((rate, end)) = step(candidate, at) {
        if rate >= 0.0 {
            break;
        }
        at = end;
    }
    at
}

/// Time per byte just above `bytes`, and how far it holds; `None` if the candidate saves all it can.
pub(super) fn step(candidate: &Candidate, bytes: f64) -> Option<(f64, f64)> {
    if bytes >= candidate.savable {
        return None;
    }
    let all = candidate.savable + candidate.unsaved;
    // Lines over the saved bytes, with the floor at zero.
    let lines: Vec<(f64, f64)> = candidate
        .lines
        .iter()
        .map(|(slope, intercept)| (slope / all, slope * candidate.unsaved / all + intercept))
        .chain([(0.0, 0.0)])
        .collect();
    let value = |line: &(f64, f64)| line.0 * bytes + line.1;
    let top = lines.iter().map(value).fold(f64::NEG_INFINITY, f64::max);
    // On the top line, the steepest counts from here on. Lines that meet here up to rounding are on top.
    let slack = 1e-12 * top.abs().max(1.0);
    let mut here =
        lines.iter().filter(|line| value(line) >= top - slack).map(|line| line.0).fold(f64::NEG_INFINITY, f64::max);
    loop {
        let (end, steeper) = lines
            .iter()
            .filter(|line| line.0 > here)
            .map(|line| (bytes + (top - value(line)) / (line.0 - here), line.0))
            .fold((candidate.savable, here), |nearest, next| if next.0 < nearest.0 { next } else { nearest });
        if end > bytes {
            return Some((here * candidate.time, end));
        }
        // Where they meet is nearer than the next number: it is steeper from here on.
        here = steeper;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_meet_closer_than_numbers_go_do_not_stand_still() {
        // Saving from 2^53 bytes on, numbers are two apart; the lines meet within one.
        let bytes = 9_007_199_254_740_992.0;
        let candidate = Candidate {
            module: 0,
            position: 0,
            savable: 2.0 * bytes,
            unsaved: 0.0,
            time: 1.0,
            lines: vec![(1.0, 0.0), (4.0, -1.5 - 1e-9)],
        };
        let mut at = 0.0;
        let mut steps = 0;
        while let Some((_, end)) = step(&candidate, at) {
            assert!(end > at, "{end} after {at}");
            (at, steps) = (end, steps + 1);
        }
        assert_eq!((at, steps <= 3), (candidate.savable, true));
        assert!(step(&candidate, 0.5 * candidate.savable).is_some_and(|(_, end)| end > bytes));
    }
}
