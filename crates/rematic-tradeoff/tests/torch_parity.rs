//! Regions of native models against what torch 2.15's SACEstimator says about the same models.
//!
//! `golden/*.json.zst` hold its `SACStats` and `SACTradeOffStats`, from `oracle/torch_tools.py`; the fits there are those of
//! `pwlf`, which searches at random.

use std::collections::BTreeMap;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_memory::Allocator;
use rematic_trace::{Millis, StepTrace};
use rematic_tradeoff::{SacStats, Tradeoffs};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    sac: BTreeMap<String, SacStats>,
    tradeoff: BTreeMap<String, GoldenTradeoff>,
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
    (trace, golden(include_bytes!("golden/seed-transformer.json.zst")))
}

fn gpt2() -> (StepTrace, Golden) {
    let options = Options { batch: Some(4), seq: Some(512), ..Options::default() };
    let trace = Model::builtin("gpt2").unwrap().with(&options).unwrap().trace().unwrap();
    (trace, golden(include_bytes!("golden/gpt2.json.zst")))
}

/// The goldens' tensors are meta tensors, whose bytes torch's estimator does not round.
fn tradeoffs(trace: &StepTrace) -> BTreeMap<String, rematic_tradeoff::Tradeoff> {
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
        let torchs = &golden.sac[module];
        let without_times = |stats: &SacStats| SacStats { runtimes: Vec::new(), ..stats.clone() };
        assert_eq!(without_times(&tradeoff.stats), without_times(torchs), "{module}");
        for (&Millis(time), &Millis(expected)) in tradeoff.stats.runtimes.iter().zip(&torchs.runtimes) {
            assert_close(time, expected, module);
        }
        let torchs = &golden.tradeoff[module];
        assert_eq!(tradeoff.sac_memory.0, torchs.sac_memory, "{module}");
        assert_close(tradeoff.sac_runtime.0, torchs.sac_runtime, module);
        assert_eq!(tradeoff.curve.points.len(), torchs.tradeoff_curve.len(), "{module}");
        for (point, expected) in tradeoff.curve.points.iter().zip(&torchs.tradeoff_curve) {
            assert_close(point.0, expected.0, module);
            assert_close(point.1, expected.1, module);
        }
        check_fit(tradeoff, torchs, module);
    }
}

fn check_fit(tradeoff: &rematic_tradeoff::Tradeoff, torchs: &GoldenTradeoff, module: &str) {
    let fit = tradeoff.fit.as_ref().unwrap();
    assert_eq!(fit.n_segments(), torchs.n_segments, "{module}");
    let theirs = torchs.squares(&tradeoff.curve.shifted());
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
