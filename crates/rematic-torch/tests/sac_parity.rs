//! Regions of native models against what torch 2.15's SACEstimator says about the same models.
//!
//! `sac_golden/*.json.zst` hold its `SACStats` and `SACTradeOffStats`, from `oracle/torch_tools.py`; the fits there are those of
//! `pwlf`, which searches at random.
//!
//! One column is not the oracle's: `saved_autograd_ops`. Torch knows storages by their address, and a storage that gets
//! the address of a dead one counts as saved if that one was: 21 false entries in these two models, others in another
//! run. The column comes from a run of the same estimator in which every storage was kept alive; what the oracle said is
//! there as `saved_autograd_ops_as_hashed`, and must contain it.

use std::collections::BTreeMap;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_replay::Allocator;
use rematic_torch::{PiecewiseFit, SEGMENTS, SacStats, TradeoffCurve, Tradeoffs};
use rematic_trace::{Millis, StepTrace};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    sac: BTreeMap<String, GoldenStats>,
    tradeoff: BTreeMap<String, GoldenTradeoff>,
}

#[derive(Deserialize)]
struct GoldenStats {
    #[serde(flatten)]
    stats: SacStats,
    saved_autograd_ops_as_hashed: Vec<usize>,
}

#[derive(Deserialize)]
struct GoldenTradeoff {
    sac_runtime: f64,
    sac_memory: u64,
    n_segments: usize,
    slopes: Vec<f64>,
    intercepts: Vec<f64>,
    breakpoints: Vec<f64>,
    tradeoff_curve: Vec<(f64, f64)>,
}

impl GoldenTradeoff {
    fn squares(&self, points: &[(f64, f64)]) -> f64 {
        let value = |x: f64| {
            let segment = self.breakpoints[1..self.n_segments].partition_point(|&end| end < x);
            self.slopes[segment] * x + self.intercepts[segment]
        };
        points.iter().map(|&(x, y)| (value(x) - y).powi(2)).sum()
    }
}

fn golden(packed: &[u8]) -> Golden {
    serde_json::from_slice(&zstd::decode_all(packed).unwrap()).unwrap()
}

fn seed_transformer() -> (StepTrace, Golden) {
    let trace = Model::builtin("seed-transformer").unwrap().trace().unwrap();
    (trace, golden(include_bytes!("sac_golden/seed-transformer.json.zst")))
}

fn gpt2() -> (StepTrace, Golden) {
    let options = Options { batch: Some(4), seq: Some(512), ..Options::default() };
    let trace = Model::builtin("gpt2").unwrap().with(&options).unwrap().trace().unwrap();
    (trace, golden(include_bytes!("sac_golden/gpt2.json.zst")))
}

/// The goldens' tensors are meta tensors, whose bytes torch's estimator does not round.
fn tradeoffs(trace: &StepTrace) -> BTreeMap<String, rematic_torch::Tradeoff> {
    let costs = Costs::new(trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
    let all = Tradeoffs::new(trace, &costs, Allocator::Cpu).unwrap();
    all.iter().map(|(region, tradeoff)| (trace.path(region.module), tradeoff.clone())).collect()
}

fn assert_close(ours: f64, torchs: f64, what: &str) {
    assert!((ours - torchs).abs() <= 1e-9 * torchs.abs().max(1.0), "{what}: {ours}, torch says {torchs}");
}

fn check(trace: &StepTrace, golden: &Golden) {
    let ours = tradeoffs(trace);
    assert_eq!(ours.keys().collect::<Vec<_>>(), golden.sac.keys().collect::<Vec<_>>());
    for (module, tradeoff) in &ours {
        let GoldenStats { stats: torchs, saved_autograd_ops_as_hashed } = &golden.sac[module];
        assert!(tradeoff.stats.saved_autograd_ops.iter().all(|op| saved_autograd_ops_as_hashed.contains(op)));
        let without_times = |stats: &SacStats| SacStats { runtimes: Vec::new(), ..stats.clone() };
        assert!(without_times(&tradeoff.stats) == without_times(torchs), "{module}: {:?}", tradeoff.stats);
        for (&Millis(time), &Millis(expected)) in tradeoff.stats.runtimes.iter().zip(&torchs.runtimes) {
            assert_close(time, expected, module);
        }
        let torchs = &golden.tradeoff[module];
        assert_eq!(tradeoff.sac_memory.0, torchs.sac_memory, "{module}");
        assert_close(tradeoff.sac_runtime.0, torchs.sac_runtime, module);
        check_curve(&tradeoff.curve.points, &torchs.tradeoff_curve, module);
        check_fit(torchs, module);
    }
}

/// Operators with the same bytes per time may come in any order; torch leaves them as a Python set has them. The points
/// of such a run differ with the order, but all lie on one line: so the curves are compared as lines, both ways.
fn check_curve(ours: &[(f64, f64)], torchs: &[(f64, f64)], module: &str) {
    assert_eq!(ours.len(), torchs.len(), "{module}");
    for (points, line) in [(ours, torchs), (torchs, ours)] {
        for &(x, y) in points {
            let end = line.partition_point(|point| point.0 < x - 1e-9);
            let ((x0, y0), (x1, y1)) = (line[end.saturating_sub(1)], line[end]);
            let at = if x1 - x0 > 0.0 { y0 + (y1 - y0) * (x - x0) / (x1 - x0) } else { y1 };
            assert_close(at, y, module);
        }
    }
}

/// Fits torch's own curve, and compares with what `pwlf` found for it.
fn check_fit(torchs: &GoldenTradeoff, module: &str) {
    let points = TradeoffCurve { points: torchs.tradeoff_curve.clone() }.shifted();
    let fit = PiecewiseFit::new(&points, SEGMENTS).unwrap();
    assert_eq!(fit.n_segments(), torchs.n_segments, "{module}");
    let theirs = torchs.squares(&points);
    assert!(
        fit.squared_residuals <= theirs * (1.0 + 1e-6) + 1e-15,
        "{module}: {} is more than pwlf's {theirs}",
        fit.squared_residuals
    );
    // Where pwlf found the same optimum, it must be the same function.
    if theirs <= fit.squared_residuals * (1.0 + 1e-6) {
        for (ours, theirs) in [
            (&fit.slopes, &torchs.slopes),
            (&fit.intercepts, &torchs.intercepts),
            (&fit.fit_breaks, &torchs.breakpoints),
        ] {
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() <= 1e-3, "{module}: {fit:?}, pwlf says {theirs}");
            }
        }
    }
}

#[test]
fn the_seed_transformers_regions_are_torchs() {
    let (trace, golden) = seed_transformer();
    assert_eq!(golden.sac.len(), 13);
    check(&trace, &golden);
}

#[test]
fn gpt2s_regions_are_torchs() {
    let (trace, golden) = gpt2();
    assert_eq!(golden.sac.len(), 38);
    check(&trace, &golden);
}
