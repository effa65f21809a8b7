//! The least time as a function of the bytes that must at least be saved.

/// A nondecreasing function on `[0, end]` that is linear between finitely many points, where it may jump up. At a jump
/// the lower value holds: saving exactly so much is still possible at the lower price.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cost {
    /// The value at 0, where there may be a jump as well.
    at_zero: f64,
    /// Each holds from its start, exclusive, to the start of the next; the first starts at 0. None if the end is 0.
    pieces: Vec<Piece>,
    end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    start: f64,
    /// The value just after the start.
    value: f64,
    slope: f64,
}

impl Piece {
    fn at(&self, x: f64) -> f64 {
        self.value + self.slope * (x - self.start)
    }
}

/// A convex run that begins at `start` with `value`, given by its slopes and their lengths, together with a price.
fn convolve(start: f64, value: f64, own: impl Iterator<Item = (f64, f64)>, price: &Price, limit: f64) -> Cost {
    let mut slopes: Vec<(f64, f64)> = own.chain(price.slopes.iter().copied()).collect();
    slopes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut value = value + price.fixed;
    let mut cost = Cost { at_zero: value, pieces: Vec::with_capacity(slopes.len() + 1), end: 0.0 };
    if start > 0.0 {
        // Less than the start can be had for the price of the start.
        cost.push(0.0, value, 0.0);
    }
    let mut at = start;
    for (slope, length) in slopes {
        if at >= limit {
            break;
        }
        if length > 0.0 {
            cost.push(at, value, slope);
            at += length;
            value += slope * length;
        }
    }
    cost.end = at.min(limit);
    cost
}

/// A convex, nondecreasing price: something fixed, and slopes that rise, each over a length.
#[derive(Clone, Debug)]
pub(super) struct Price {
    pub(super) fixed: f64,
    pub(super) slopes: Vec<(f64, f64)>,
}

/// Values (around 1) that differ by less are the same.
const SAME: f64 = 1e-13;
/// Bytes (around 1) by which a need may lie beyond the end of a function, from rounding of sums.
const BEYOND: f64 = 1e-12;

impl Cost {
    /// Saving nothing costs nothing, and nothing else is possible.
    pub(super) fn nothing() -> Self {
        Cost { at_zero: 0.0, pieces: Vec::new(), end: 0.0 }
    }

    /// How many pieces there are.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    fn piece_at(&self, x: f64) -> usize {
        self.pieces.partition_point(|piece| piece.start < x).saturating_sub(1)
    }

    /// The least cost of saving `x` or more; `None` if that is impossible.
    pub(super) fn at(&self, x: f64) -> Option<f64> {
        (x <= self.end + BEYOND).then(|| {
            let x = x.min(self.end);
            if x > 0.0 { self.pieces[self.piece_at(x)].at(x) } else { self.at_zero }
        })
    }

    /// The function if at least `need` must be saved anyhow; `None` if that is impossible.
    pub(super) fn with_need(&self, need: f64) -> Option<Cost> {
        let value = self.at(need)?;
        let need = need.min(self.end);
        if need <= 0.0 {
            return Some(self.clone());
        }
        let mut cost = Cost { at_zero: value, pieces: Vec::with_capacity(self.len()), end: self.end };
        cost.push(0.0, value, 0.0);
        if need < self.end {
            let here = self.pieces.partition_point(|piece| piece.start <= need).saturating_sub(1);
            cost.push(need, self.pieces[here].at(need), self.pieces[here].slope);
            for piece in &self.pieces[here + 1..] {
                cost.push(piece.start, piece.value, piece.slope);
            }
        }
        Some(cost)
    }

    /// The least cost if on top something may be saved at a price: the infimal convolution with it, up to `limit`.
    ///
    /// Between jumps and falls of the slope the function is convex, and the convolution of two convex functions has
    /// the slopes of both in ascending order. The result is the least of these, one for each convex run.
    pub(super) fn and(&self, price: &Price, limit: f64) -> Cost {
        let mut runs = vec![convolve(0.0, self.at_zero, std::iter::empty(), price, limit)];
        let mut first = 0;
        while first < self.len() {
            let mut last = first;
            while last + 1 < self.len() && self.continues_convex(last) {
                last += 1;
            }
            let start = &self.pieces[first];
            let own = (first..=last).map(|piece| {
                let here = &self.pieces[piece];
                (here.slope, self.end_of(piece) - here.start)
            });
            runs.push(convolve(start.start, start.value, own, price, limit));
            first = last + 1;
        }
        while runs.len() > 1 {
            runs = runs.chunks(2).map(|pair| if let [a, b] = pair { a.lower(b) } else { pair[0].clone() }).collect();
        }
        runs.swap_remove(0)
    }

    fn end_of(&self, piece: usize) -> f64 {
        self.pieces.get(piece + 1).map_or(self.end, |next| next.start)
    }

    fn continues_convex(&self, piece: usize) -> bool {
        let (here, next) = (&self.pieces[piece], &self.pieces[piece + 1]);
        next.slope >= here.slope && next.value - here.at(next.start) <= SAME
    }

    /// The lower of two functions at each point.
    pub(super) fn lower(&self, other: &Cost) -> Cost {
        let both = self.end.min(other.end);
        let mut cost = Cost {
            at_zero: self.at_zero.min(other.at_zero),
            pieces: Vec::with_capacity(self.len() + other.len()),
            end: self.end.max(other.end),
        };
        let (mut i, mut j, mut at) = (0, 0, 0.0);
        while at < both {
            let end = self.end_of(i).min(other.end_of(j)).min(both);
            cost.push_lower(&self.pieces[i], &other.pieces[j], at, end);
            if self.end_of(i) <= end {
                i += 1;
            }
            if other.end_of(j) <= end {
                j += 1;
            }
            at = end;
        }
        let longer = if self.end > other.end { self } else { other };
        if longer.end > both {
            let here = longer.pieces.partition_point(|piece| piece.start <= both).saturating_sub(1);
            cost.push(both, longer.pieces[here].at(both), longer.pieces[here].slope);
            for piece in &longer.pieces[here + 1..] {
                cost.push(piece.start, piece.value, piece.slope);
            }
        }
        cost
    }

    fn push_lower(&mut self, f: &Piece, g: &Piece, start: f64, end: f64) {
        let (before, after) = (f.at(start) - g.at(start), f.at(end) - g.at(end));
        if before <= SAME && after <= SAME {
            self.push(start, f.at(start), f.slope);
        } else if before >= -SAME && after >= -SAME {
            self.push(start, g.at(start), g.slope);
        } else {
            let crossing = start + (end - start) * before / (before - after);
            let (low, high) = if before < 0.0 { (f, g) } else { (g, f) };
            self.push(start, low.at(start), low.slope);
            self.push(crossing, high.at(crossing), high.slope);
        }
    }

    /// Appends a piece, unless it goes on as the last one does; a piece without length gives way.
    fn push(&mut self, start: f64, value: f64, slope: f64) {
        if let Some(last) = self.pieces.last()
            && last.start >= start
        {
            self.pieces.pop();
        }
        if let Some(last) = self.pieces.last()
            && (last.at(start) - value).abs() <= SAME
            && (last.slope - slope).abs() <= SAME
        {
            return;
        }
        self.pieces.push(Piece { start, value, slope });
    }

    /// How much of `x` is best saved at a price on top of this function: the amount, what is left for the function, and
    /// the cost; `None` if `x` is out of reach.
    pub(super) fn best_split(&self, price: &Price, x: f64) -> Option<(f64, f64, f64)> {
        let reach: f64 = price.slopes.iter().map(|(_, length)| length).sum();
        let price_of = |amount: f64| {
            let mut left = amount;
            price.fixed
                + price.slopes.iter().fold(0.0, |sum, (slope, length)| {
                    let part = left.min(*length).max(0.0);
                    left -= part;
                    sum + slope * part
                })
        };
        // The sum is linear between the corners of either function.
        let mut splits: Vec<(f64, f64)> = vec![(0.0, x)];
        let mut amount = 0.0;
        for (_, length) in &price.slopes {
            amount += length;
            splits.push((amount, x - amount));
        }
        splits.extend(self.pieces.iter().map(|piece| (x - piece.start, piece.start)));
        splits.extend([(x, 0.0), (x - self.end, self.end)]);
        let mut best: Option<(f64, f64, f64)> = None;
        for (amount, rest) in splits {
            if !(-BEYOND..=reach + BEYOND).contains(&amount) {
                continue;
            }
            let rest = rest.max(0.0);
            let Some(cost) = self.at(rest) else { continue };
            let cost = cost + price_of(amount.clamp(0.0, reach));
            if best.is_none_or(|best| cost < best.2) {
                best = Some((amount.clamp(0.0, reach), rest, cost));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(fixed: f64, slopes: &[(f64, f64)]) -> Price {
        Price { fixed, slopes: slopes.to_vec() }
    }

    #[test]
    fn one_price() {
        let cost = Cost::nothing().and(&price(1.0, &[(2.0, 0.25), (8.0, 0.5)]), 1.0);
        for (x, expected) in [(0.0, Some(1.0)), (0.25, Some(1.5)), (0.5, Some(3.5)), (0.75, Some(5.5)), (0.8, None)] {
            assert_eq!(cost.at(x), expected, "{x}");
        }
        // With the choice of saving nothing, zero is free, and there is a jump just above it.
        let choice = Cost::nothing().lower(&cost);
        assert_eq!((choice.at(0.0), choice.at(0.25), choice.end), (Some(0.0), Some(1.5), 0.75));
    }

    #[test]
    fn a_need_lifts_what_lies_below_it() {
        let cost = Cost::nothing().lower(&Cost::nothing().and(&price(0.0, &[(1.0, 1.0)]), 1.0));
        let lifted = cost.with_need(0.5).unwrap();
        assert_eq!((lifted.at(0.0), lifted.at(0.5), lifted.at(1.0)), (Some(0.5), Some(0.5), Some(1.0)));
        assert_eq!(cost.with_need(1.1), None);
    }

    /// All choices among five prices by brute force, on a grid that has all their corners.
    #[test]
    fn sums_of_choices_are_exact() {
        let prices = [
            price(0.5, &[(1.0, 0.1), (3.0, 0.1)]),
            price(0.2, &[(2.0, 0.2)]),
            price(0.0, &[(4.0, 0.1), (5.0, 0.2)]),
            price(0.5, &[(1.0, 0.1), (3.0, 0.1)]),
            price(0.9, &[(0.0, 0.4)]),
        ];
        let mut cost = Cost::nothing();
        let mut grid = vec![f64::INFINITY; 14];
        grid[0] = 0.0;
        for price in &prices {
            cost = cost.lower(&cost.and(price, 10.0));
            let before = grid.clone();
            let mut amount = 0;
            let mut value = price.fixed;
            let mut corner = |amount: usize, value: f64| {
                for total in amount..grid.len() {
                    grid[total] = grid[total].min(before[total - amount] + value);
                }
            };
            corner(0, value);
            for (slope, length) in &price.slopes {
                let mut left = *length;
                while left > 0.05 {
                    left -= 0.1;
                    amount += 1;
                    value += slope * 0.1;
                    corner(amount, value);
                }
            }
        }
        for total in 0..grid.len() {
            let least = grid[total..].iter().copied().fold(f64::INFINITY, f64::min);
            let found = cost.at(total as f64 / 10.0).unwrap_or(f64::INFINITY);
            assert!((found - least).abs() < 1e-9 || found == least, "{total}: {found}, not {least}");
        }
    }
}
