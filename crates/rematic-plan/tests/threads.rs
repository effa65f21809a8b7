//! Plans are the same however many threads work on them.

use std::sync::mpsc;
use std::time::Duration;

use rayon::prelude::*;
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Problem, Solution};
use rematic_trace::{Bytes, Millis};

/// Far more than it takes: threads that wait for each other are to fail, not to hang.
const PATIENCE: Duration = Duration::from_secs(240);

/// A new one every time: what is worked out once is what threads wait for.
fn problem() -> Problem {
    let options = Options { batch: Some(8), seq: Some(8192), layers: Some(6), ..Options::default() };
    let step = Model::builtin("llama-3-8b").unwrap().with(&options).unwrap().trace().unwrap();
    let costs = Costs::new(&step, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    Problem::new(step, costs, Limits::default()).unwrap()
}

/// What `ask` finds with so many threads.
fn with_threads<T: Send + 'static>(threads: usize, ask: impl FnOnce() -> T + Send + 'static) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (sender, found) = mpsc::channel();
    // Not joined: if it is stuck, the test is to say so.
    std::thread::spawn(move || sender.send(pool.install(ask)));
    found.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer from {threads} threads within {PATIENCE:?}"))
}

fn figures(solution: &Solution) -> (Bytes, Millis) {
    (solution.replayed.peak, solution.replayed.recompute)
}

/// The least plan, which several ask for at once, and plans for budgets from its peak on. Nothing is known when they begin.
fn plans(budgets: &[u64]) -> Vec<(Bytes, Millis)> {
    let problem = problem();
    let least = (0..8).into_par_iter().map(|_| figures(&problem.least()));
    let planned = budgets.par_iter().map(|budget| figures(&problem.exact(Bytes(*budget)).solution));
    least.chain(planned).collect()
}

#[test]
fn plans_do_not_depend_on_threads() {
    let (low, high) = (problem().least().replayed.peak.0, problem().baseline().peak.0);
    let budgets: Vec<u64> = (0..8).map(|part| low + (high - low) / 8 * part).collect();
    let [one, eight] = [1, 8].map(|threads| {
        let budgets = budgets.clone();
        with_threads(threads, move || plans(&budgets))
    });
    assert_eq!(one, eight);
    assert!(one.iter().any(|(_, time)| time.0 > 0.0), "nothing was planned: {one:?}");
}

#[test]
fn curves_do_not_depend_on_threads() {
    let curve = || problem().curve(12, || ()).iter().map(|(budget, one)| (*budget, figures(one))).collect::<Vec<_>>();
    let [one, eight] = [1, 8].map(|threads| with_threads(threads, curve));
    assert_eq!(one, eight);
    assert_eq!(one.len(), 12);
}
