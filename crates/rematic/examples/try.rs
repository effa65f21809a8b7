//! x
use rematic::*;
use rematic_plan::{Limits, Outcome, Problem};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t0 = std::time::Instant::now();
    let o = Options { layers: a.get(3).and_then(|x| x.parse().ok()), ..Default::default() };
    let trace = Source::open(&a[1]).unwrap().trace(&o).unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let t1 = std::time::Instant::now();
    let p = Problem::new(
        &trace,
        &costs,
        Limits { world_size: a.get(2).and_then(|x| x.parse().ok()).unwrap_or(1), ..Default::default() },
    )
    .unwrap();
    let t2 = std::time::Instant::now();
    eprintln!("trace {:?} problem {:?} baseline {}", t1 - t0, t2 - t1, p.baseline().peak);
    let least = p.least();
    eprintln!("least {} in {:?}", least.replayed.peak, t2.elapsed());
    for k in 0..20 {
        let f = 0.95 - k as f64 * (0.95 - least.replayed.peak.0 as f64 / p.baseline().peak.0 as f64) / 19.0;
        let b = Bytes((p.baseline().peak.0 as f64 * f).ceil() as u64 + 1);
        let t = std::time::Instant::now();
        match p.exact(b) {
            Outcome::Planned(s) => eprintln!(
                "{:.3} {} peak {} recompute {:.3} lb {:.3} regions {} in {:?}",
                f,
                b,
                s.replayed.peak,
                s.replayed.recompute.0,
                s.lower_bound.0,
                s.checkpoints.len(),
                t.elapsed()
            ),
            Outcome::Fits => eprintln!("fits"),
            Outcome::Infeasible(i) => eprintln!("infeasible {} in {:?}", i.least.replayed.peak, t.elapsed()),
        }
    }
}
