//! Continuous piecewise-linear least squares with free breakpoints.
//!
//! Given points `(x, y)` with ascending `x` and a number of segments `n`, minimise `Σ (f(x) - y)²` over all continuous
//! functions that are linear on each of `n` intervals between the first and the last `x`.
//!
//! # Two segments, exactly
//! Let the breakpoint `b` lie between two neighbouring data points. The derivative of the least sum with respect to `b`
//! is `2c · Σ_{x > b} residual`, where `c` is the change of slope. It vanishes only where `c = 0` (a single line: no
//! better than any other breakpoint) or where the residuals right of `b` add up to zero; with the normal equations, both
//! sides are then ordinary regressions of their own, and `b` is where these two lines meet. So a best breakpoint is
//! a data point, or the meeting point of the two regressions if that lies between the two neighbours. (Hudson,
//! *Fitting segmented curves whose join points have to be estimated*, 1966.) The sum of the two free regressions' squares
//! is a lower bound for every breakpoint in between, and prefix sums give it in constant time: most are never tried.
//!
//! # More segments
//! Dynamic programming finds the best *discontinuous* lines; from their borders each breakpoint in turn is moved to its
//! best place among the data points and then between them, until nothing gets better. That is a local optimum.

/// A continuous piecewise-linear function; `slopes`, `intercepts` and `fit_breaks` as in torch's `SACTradeOffStats`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PiecewiseFit {
    /// Slope of each segment.
    pub slopes: Vec<f64>,
    /// Value of each segment's line at zero.
    pub intercepts: Vec<f64>,
    /// The ends of the segments; one more than there are segments.
    pub fit_breaks: Vec<f64>,
    /// The sum of squared residuals that was reached.
    pub squared_residuals: f64,
}

/// A step of a search counts only if it lowers the sum of squares by this share; below it is rounding.
const IMPROVEMENT: f64 = 1e-12;
/// Most sweeps over all breakpoints when there are more than two segments. Each lowers the sum, and few are needed.
const MAX_SWEEPS: usize = 100;
/// Steps of a golden-section search; each shrinks the interval by 0.618, so that 60 leave 3e-13 of it.
const GOLDEN_STEPS: usize = 60;

impl PiecewiseFit {
    /// Fits at most `segments` segments to points with strictly ascending first coordinates. Like torch, it takes no
    /// more segments than the points determine: two fewer than there are points, but one at least. Without points there
    /// is nothing to fit.
    #[must_use]
    pub fn new(points: &[(f64, f64)], segments: usize) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        if points.len() == 1 {
            return Some(PiecewiseFit {
                slopes: vec![0.0],
                intercepts: vec![first.1],
                fit_breaks: vec![first.0; 2],
                squared_residuals: 0.0,
            });
        }
        let search = Search { points, first: first.0, last: last.0 };
        let breaks = match segments.min(points.len().saturating_sub(2)).max(1) {
            1 => Vec::new(),
            2 => vec![search.best_of_two()],
            more => search.best_of_many(more),
        };
        Some(search.fit(&breaks))
    }

    /// The number of segments.
    #[must_use]
    pub fn n_segments(&self) -> usize {
        self.slopes.len()
    }

    /// The function's value; the first and the last line go on beyond the ends.
    #[must_use]
    pub fn value(&self, x: f64) -> f64 {
        let inner = &self.fit_breaks[1..self.fit_breaks.len() - 1];
        let segment = inner.partition_point(|&end| end < x);
        self.slopes[segment] * x + self.intercepts[segment]
    }
}

struct Search<'a> {
    points: &'a [(f64, f64)],
    first: f64,
    last: f64,
}

impl Search<'_> {
    /// The best function with these inner breakpoints, which must ascend strictly between the ends.
    fn fit(&self, breaks: &[f64]) -> PiecewiseFit {
        let mut knots = vec![self.first];
        knots.extend_from_slice(breaks);
        knots.push(self.last);
        let values = self.values_at(&knots);
        let mut fit = PiecewiseFit { fit_breaks: knots, ..PiecewiseFit::default() };
        for segment in 0..values.len() - 1 {
            let (x0, x1) = (fit.fit_breaks[segment], fit.fit_breaks[segment + 1]);
            let slope = (values[segment + 1] - values[segment]) / (x1 - x0);
            fit.slopes.push(slope);
            fit.intercepts.push(values[segment] - slope * x0);
        }
        fit.squared_residuals = self.points.iter().map(|&(x, y)| (fit.value(x) - y).powi(2)).sum();
        fit
    }

    fn squares(&self, breaks: &[f64]) -> f64 {
        self.fit(breaks).squared_residuals
    }

    /// The least-squares values at the knots. In the basis of hat functions the normal equations are tridiagonal and,
    /// as long as every hat has weight on some point, well conditioned.
    fn values_at(&self, knots: &[f64]) -> Vec<f64> {
        let n = knots.len();
        let (mut diagonal, mut beside, mut right) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        let mut segment = 0;
        for &(x, y) in self.points {
            while segment + 2 < n && x > knots[segment + 1] {
                segment += 1;
            }
            let high = (x - knots[segment]) / (knots[segment + 1] - knots[segment]);
            let low = 1.0 - high;
            diagonal[segment] += low * low;
            diagonal[segment + 1] += high * high;
            beside[segment] += low * high;
            right[segment] += low * y;
            right[segment + 1] += high * y;
        }
        for row in 1..n {
            let factor = beside[row - 1] / diagonal[row - 1];
            diagonal[row] -= factor * beside[row - 1];
            right[row] -= factor * right[row - 1];
        }
        let mut values = vec![0.0; n];
        for row in (0..n).rev() {
            let next = if row + 1 < n { beside[row] * values[row + 1] } else { 0.0 };
            values[row] = (right[row] - next) / diagonal[row];
        }
        values
    }

    /// The best single breakpoint; of equal ones, the first that the bounds lead to.
    fn best_of_two(&self) -> f64 {
        let sums = Sums::new(self.points);
        let count = self.points.len();
        // Interval k lies between the points k and k + 1.
        let mut intervals: Vec<(f64, usize)> =
            (0..count - 1).map(|k| (sums.line(0, k + 1).squares + sums.line(k + 1, count).squares, k)).collect();
        intervals.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut tried = vec![false; count];
        let mut best = (f64::INFINITY, self.points[1].0);
        let slack = sums.rounding();
        for (bound, k) in intervals {
            if bound > best.0 + slack {
                break;
            }
            let mut candidates = Vec::with_capacity(3);
            for knot in [k, k + 1] {
                if (1..count - 1).contains(&knot) && !std::mem::replace(&mut tried[knot], true) {
                    candidates.push(self.points[knot].0);
                }
            }
            // With a single point on one side, any breakpoint does as well as the data point.
            if (1..count - 2).contains(&k) {
                let meeting = sums.line(0, k + 1).meets(&sums.line(k + 1, count));
                candidates.extend(meeting.filter(|x| self.points[k].0 < *x && *x < self.points[k + 1].0));
            }
            for candidate in candidates {
                let squares = self.squares(&[candidate]);
                if squares < best.0 * (1.0 - IMPROVEMENT) {
                    best = (squares, candidate);
                }
            }
        }
        best.1
    }

    fn best_of_many(&self, segments: usize) -> Vec<f64> {
        let mut breaks = self.borders_of_lines(segments);
        let mut best = self.squares(&breaks);
        for _ in 0..MAX_SWEEPS {
            let before = best;
            for place in 0..breaks.len() {
                best = self.move_one(&mut breaks, place, best);
            }
            if best >= before * (1.0 - IMPROVEMENT) {
                break;
            }
        }
        breaks
    }

    /// Moves one breakpoint to its best place between its neighbours, and gives the sum of squares there.
    fn move_one(&self, breaks: &mut [f64], place: usize, mut best: f64) -> f64 {
        let low = if place == 0 { self.first } else { breaks[place - 1] };
        let high = breaks.get(place + 1).copied().unwrap_or(self.last);
        let mut trial = breaks.to_vec();
        let mut squares_at = |x: f64| {
            trial[place] = x;
            self.squares(&trial)
        };
        let mut consider = |x: f64, squares: f64| {
            if squares < best * (1.0 - IMPROVEMENT) {
                best = squares;
                breaks[place] = x;
            }
        };
        let inside: Vec<f64> = self.points.iter().map(|point| point.0).filter(|&x| low < x && x < high).collect();
        for &x in &inside {
            consider(x, squares_at(x));
        }
        // Between the ends every hat must keep a point under it, so the search stays between data points.
        for pair in inside.windows(2) {
            let x = golden_section(pair[0], pair[1], &mut squares_at);
            consider(x, squares_at(x));
        }
        best
    }

    /// The borders of the best `segments` lines that need not meet, each with one point at least.
    fn borders_of_lines(&self, segments: usize) -> Vec<f64> {
        let sums = Sums::new(self.points);
        let count = self.points.len();
        // best[s][e]: the least sum of squares of s + 1 lines over the first e points, and where the last line begins.
        let mut best = vec![vec![(f64::INFINITY, 0); count + 1]; segments];
        for (end, cell) in best[0].iter_mut().enumerate().skip(1) {
            *cell = (sums.line(0, end).squares, 0);
        }
        for s in 1..segments {
            for end in s + 1..=count {
                best[s][end] = (s..end)
                    .map(|start| (best[s - 1][start].0 + sums.line(start, end).squares, start))
                    .fold((f64::INFINITY, s), |least, other| if other.0 < least.0 { other } else { least });
            }
        }
        let mut borders = Vec::new();
        let mut end = count;
        for s in (1..segments).rev() {
            let start = best[s][end].1;
            borders.push(start);
            end = start;
        }
        borders.reverse();
        // Distinct inner points, however close the lines begin to each other and to the ends.
        let mut previous = 0;
        let left = borders.len();
        for (place, border) in borders.iter_mut().enumerate() {
            *border = (*border).clamp(previous + 1, count - 1 - (left - place));
            previous = *border;
        }
        borders.into_iter().map(|border| self.points[border].0).collect()
    }
}

fn golden_section(mut low: f64, mut high: f64, f: &mut impl FnMut(f64) -> f64) -> f64 {
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut x1, mut x2) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut y1, mut y2) = (f(x1), f(x2));
    for _ in 0..GOLDEN_STEPS {
        if y1 <= y2 {
            (high, x2, y2) = (x2, x1, y1);
            x1 = high - ratio * (high - low);
            y1 = f(x1);
        } else {
            (low, x1, y1) = (x1, x2, y2);
            x2 = low + ratio * (high - low);
            y2 = f(x2);
        }
    }
    f64::midpoint(low, high)
}

/// The regression of a run of points.
struct Line {
    slope: f64,
    intercept: f64,
    squares: f64,
}

impl Line {
    fn meets(&self, other: &Line) -> Option<f64> {
        let x = (other.intercept - self.intercept) / (self.slope - other.slope);
        x.is_finite().then_some(x)
    }
}

/// Prefix sums of the points around their mean, for regressions of any run in constant time.
struct Sums {
    centre: (f64, f64),
    /// Sums of x, y, x², xy, y² over the first points.
    prefix: Vec<[f64; 5]>,
}

impl Sums {
    fn new(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let centre = (
            points.iter().map(|point| point.0).sum::<f64>() / count,
            points.iter().map(|point| point.1).sum::<f64>() / count,
        );
        let mut prefix = vec![[0.0; 5]];
        for point in points {
            let (x, y) = (point.0 - centre.0, point.1 - centre.1);
            let mut sums = prefix[prefix.len() - 1];
            for (sum, term) in sums.iter_mut().zip([x, y, x * x, x * y, y * y]) {
                *sum += term;
            }
            prefix.push(sums);
        }
        Sums { centre, prefix }
    }

    /// More than what rounding does to a sum of squares.
    fn rounding(&self) -> f64 {
        let last = &self.prefix[self.prefix.len() - 1];
        1e-12 * last[4].max(f64::MIN_POSITIVE)
    }

    fn line(&self, start: usize, end: usize) -> Line {
        let count = (end - start) as f64;
        let mut sums = self.prefix[end];
        for (sum, before) in sums.iter_mut().zip(self.prefix[start]) {
            *sum -= before;
        }
        let [x, y, xx, xy, yy] = sums;
        let (sxx, sxy, syy) = (xx - x * x / count, xy - x * y / count, yy - y * y / count);
        let slope = if end - start > 1 && sxx > 0.0 { sxy / sxx } else { 0.0 };
        let squares = if end - start > 2 { (syy - slope * sxy).max(0.0) } else { 0.0 };
        let intercept = (y - slope * x) / count + self.centre.1 - slope * self.centre.0;
        Line { slope, intercept, squares }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn too_few_points() {
        assert_eq!(PiecewiseFit::new(&[], 2), None);
        let fit = PiecewiseFit::new(&[(0.5, 3.0)], 2).unwrap();
        assert_eq!((fit.n_segments(), fit.value(0.9)), (1, 3.0));
        let fit = PiecewiseFit::new(&[(0.0, 0.0), (1.0, 2.0)], 2).unwrap();
        assert_eq!((fit.n_segments(), fit.value(0.5)), (1, 1.0));
        assert_eq!(PiecewiseFit::new(&[(0.0, 0.0), (1.0, 2.0), (2.0, 3.0)], 2).unwrap().n_segments(), 1);
    }

    #[test]
    fn a_kink_between_points_and_a_kink_on_a_point_are_found() {
        for kink in [0.37, 0.4] {
            let points: Vec<(f64, f64)> =
                (0..=10).map(|i| f64::from(i) / 10.0).map(|x| (x, 0.5 * x + 3.0 * (x - kink).max(0.0))).collect();
            let fit = PiecewiseFit::new(&points, 2).unwrap();
            near(fit.fit_breaks[1], kink);
            near(fit.slopes[0], 0.5);
            near(fit.slopes[1], 3.5);
            near(fit.intercepts[1], -3.0 * kink);
            near(fit.squared_residuals, 0.0);
        }
    }

    /// Tries ten thousand breakpoints, as a check that shares nothing with the search but the fit at given knots.
    #[test]
    fn no_breakpoint_does_better() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f64 / (1_u64 << 24) as f64
        };
        for size in [4, 5, 8, 30] {
            for _ in 0..20 {
                let mut at = (0.0, 0.0);
                let points: Vec<(f64, f64)> = (0..size)
                    .map(|_| {
                        at = (at.0 + 0.01 + random(), at.1 + random().powi(4));
                        at
                    })
                    .collect();
                let found = PiecewiseFit::new(&points, 2).unwrap().squared_residuals;
                let search = Search { points: &points, first: points[0].0, last: at.0 };
                for step in 1..10_000 {
                    let x = search.first + (search.last - search.first) * f64::from(step) / 10_000.0;
                    // Beyond the second and the last but one point the knots are not determined.
                    if points[1].0 <= x && x <= points[size - 2].0 {
                        assert!(found <= search.squares(&[x]) * (1.0 + 1e-9) + 1e-15, "{x} of {points:?}");
                    }
                }
                let three = PiecewiseFit::new(&points, 3).unwrap();
                assert!(three.squared_residuals <= found * (1.0 + 1e-9), "three do no worse than two: {points:?}");
            }
        }
    }

    #[test]
    fn three_segments_are_found() {
        let points: Vec<(f64, f64)> = (0..=30)
            .map(|i| f64::from(i) / 30.0)
            .map(|x| (x, x + 2.0 * (x - 0.31).max(0.0) + 5.0 * (x - 0.72).max(0.0)))
            .collect();
        let fit = PiecewiseFit::new(&points, 3).unwrap();
        assert!(fit.squared_residuals < 1e-12, "{fit:?}");
        assert!((fit.fit_breaks[1] - 0.31).abs() < 1e-4 && (fit.fit_breaks[2] - 0.72).abs() < 1e-4, "{fit:?}");
    }
}
