//! Planning that somebody cancels.

use std::time::{Duration, Instant};

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::Model;
use rematic_layout::even_shards;
use rematic_plan::{Cancel, Limits, PlanError, Problem};

#[test]
fn a_cancelled_planner_ends_without_an_answer() {
    let trace = Model::builtin("llama-3-8b").unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("a100-80").unwrap(), CostRule::Physical).unwrap();
    let cancel = Cancel::default();
    let trace = even_shards(&trace, 64).unwrap().into_owned();
    let limits = Limits { cancel: cancel.clone(), ..Limits::default() };
    let problem = Problem::new(trace.clone(), costs.clone(), limits.clone()).unwrap();
    let cancelled = std::thread::scope(|scope| {
        let work = scope.spawn(|| cancel.catch(|| problem.curve(10_000, || {})));
        std::thread::sleep(Duration::from_millis(300));
        cancel.cancel();
        let asked = Instant::now();
        let answer = work.join().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "it went on for {:?}", asked.elapsed());
        answer
    });
    assert!(matches!(cancelled, Err(PlanError::Cancelled)));
    // What begins later ends at once.
    let later =
        cancel.catch(|| Problem::new(trace.clone(), costs.clone(), limits).map(|problem| problem.baseline().peak));
    assert!(matches!(later, Err(PlanError::Cancelled)));
}

#[test]
fn another_panic_goes_on() {
    let caught = std::panic::catch_unwind(|| Cancel::default().catch(|| std::panic::resume_unwind(Box::new("other"))));
    assert_eq!(caught.map(|_: Result<(), _>| ()).unwrap_err().downcast_ref::<&str>(), Some(&"other"));
}
