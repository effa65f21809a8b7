//! Plans that move outputs to the host: within both budgets, never slower than those that do not, and as their files say.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_layout::even_shards;
use rematic_plan::{DocumentError, Limits, Outcome, PlanDocument, Problem};
use rematic_replay::{Checkpoint, Host, Recording};
use rematic_trace::{Bytes, Decision, Verdict};

const PLENTY: Bytes = Bytes(1 << 40);

fn problem(name: &str, layers: u64, ranks: u64, host: Option<Bytes>) -> Problem {
    let options = Options { layers: Some(layers), batch: Some(2), ..Options::default() };
    let trace = Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
    let trace = even_shards(&trace, ranks).unwrap().into_owned();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    Problem::new(trace, costs, Limits { host_memory: host, ..Limits::default() }).unwrap()
}

fn budgets(problem: &Problem) -> Vec<Bytes> {
    let (high, low) = (problem.baseline().peak.0, problem.least().replayed.peak.0);
    (0..4).map(|part| Bytes(low + (high - low) / 4 * part)).collect()
}

/// What goes to the host comes back, and the step leaves what it leaves without.
fn is_whole(problem: &Problem, checkpoints: &[Checkpoint]) -> (Bytes, Bytes) {
    let mut host = Host::new(problem.trace());
    let end = problem.schedule(checkpoints).replay(&mut host);
    let plain = problem.schedule(&[]).replay(&mut |_, _: &_| {});
    assert_eq!(end.snapshot(), plain.snapshot());
    assert_eq!(host.out(), host.back());
    (host.out(), host.pinned())
}

#[test]
fn plans_keep_both_budgets_and_are_never_slower() {
    for (name, layers, ranks) in [("llama-3-8b", 6, 8), ("gpt2", 5, 1), ("qwen3-8b", 4, 8)] {
        let mut faster = 0;
        let problem = problem(name, layers, ranks, Some(PLENTY));
        for budget in budgets(&problem) {
            let without = problem.exact(budget);
            let with = problem.offloading(budget, without.clone());
            let replayed = &with.solution.replayed;
            assert_eq!(with.verdict, Verdict::Planned);
            assert!(
                replayed.peak <= budget && replayed.extra() <= without.solution.replayed.extra(),
                "{name} {budget}"
            );
            assert_eq!(
                is_whole(&problem, &with.solution.checkpoints),
                (replayed.offload.bytes, replayed.offload.pinned)
            );
            assert_eq!(problem.offloading(budget, without.clone()), with, "{name} {budget}");
            if replayed.offload.bytes > Bytes(0) {
                assert!(replayed.extra() < without.solution.replayed.extra());
                assert_eq!(with.solution.lower_bound.0, 0.0);
                faster += 1;
            } else {
                assert_eq!(with, without);
            }
        }
        assert!(faster > 0, "{name}");
    }
}

#[test]
fn what_the_host_has_limits_what_moves() {
    let all = problem("llama-3-8b", 6, 8, Some(PLENTY));
    let budget = budgets(&all)[0];
    let moved = all.offloading(budget, all.exact(budget)).solution.replayed;
    assert!(moved.offload.pinned > Bytes(1 << 29), "{:?}", moved.offload);
    let half = Bytes(moved.offload.pinned.0 / 2);
    let some = problem("llama-3-8b", 6, 8, Some(half));
    let less = some.offloading(budget, some.exact(budget)).solution.replayed;
    assert!(less.offload.pinned <= half && less.offload.bytes > Bytes(0), "{:?}", less.offload);
    assert!(moved.extra() <= less.extra());
    // Less than any output takes; and none at all.
    for host in [Some(Bytes(1000)), None] {
        let none = problem("llama-3-8b", 6, 8, host);
        let outcome = none.exact(budget);
        assert_eq!(none.offloading(budget, outcome.clone()), outcome);
    }
}

#[test]
fn a_curve_falls_with_the_budget() {
    let problem = problem("llama-3-8b", 6, 8, Some(PLENTY));
    let plain = problem.curve(6, || {});
    let curve = problem.offloading_curve(plain.clone());
    assert_eq!(curve.len(), plain.len());
    for ((budget, with), (same, without)) in curve.iter().zip(&plain) {
        assert_eq!(budget, same);
        assert!(with.replayed.peak <= *budget && with.replayed.extra() <= without.replayed.extra());
    }
    assert!(curve.windows(2).all(|pair| pair[0].1.replayed.extra() <= pair[1].1.replayed.extra()));
}

/// A plan that moves something, with the problem that it is for.
fn planned() -> (Problem, PlanDocument, Vec<Checkpoint>) {
    let problem = problem("llama-3-8b", 5, 8, Some(PLENTY));
    let budget = budgets(&problem)[2];
    let Outcome { solution, .. } = problem.offloading(budget, problem.exact(budget));
    assert!(solution.replayed.offload.bytes > Bytes(0));
    let document = PlanDocument::new(&problem, &solution, budget, "h100");
    (problem, document, solution.checkpoints)
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let (problem, document, checkpoints) = planned();
    // It skips operators too.
    assert_eq!(document.version, 6);
    let offload = document.offload.unwrap();
    assert_eq!(
        document.regions.iter().filter_map(|region| region.offload).map(|moves| moves.bytes).sum::<Bytes>(),
        offload.bytes
    );
    let text = serde_json::to_vec(&document).unwrap();
    let read = PlanDocument::from_json(&text, Path::new("plan.json")).unwrap();
    assert_eq!(read, document);
    assert_eq!(read.checkpoints(problem.trace(), problem.regions()).unwrap(), checkpoints);
    let older = serde_json::to_string(&document).unwrap().replace("\"version\":6", "\"version\":3");
    let older = older.replace("\"skip\"", "\"recompute\"");
    let refused = PlanDocument::from_json(older.as_bytes(), Path::new("plan.json")).unwrap_err();
    assert!(refused.to_string().contains("versions of the format before 4 do not have that"), "{refused}");
}

#[test]
fn what_cannot_move_is_refused_by_name() {
    let (problem, document, _) = planned();
    let refused = |change: &dyn Fn(&mut PlanDocument)| {
        let mut changed = document.clone();
        change(&mut changed);
        changed.checkpoints(problem.trace(), problem.regions()).unwrap_err()
    };
    // A view has nothing of its own.
    let view =
        document.regions[0].policy.iter().position(|op| op.op == "t.default" || op.op == "view.default").unwrap();
    let error = refused(&|plan| plan.regions[0].policy[view].decision = Decision::Offload);
    assert!(matches!(error, DocumentError::CannotOffload { index, .. } if index == view), "{error}");
    assert!(error.to_string().contains("it returns what others have made; plan again"), "{error}");
    // One output more or less, and another moment.
    let at = document.regions.iter().position(|region| region.offload.is_some()).unwrap();
    let moved = document.regions[at].policy.iter().position(|op| op.decision == Decision::Offload).unwrap();
    let less = refused(&|plan| plan.regions[at].policy[moved].decision = Decision::Save);
    let later = refused(&|plan| plan.regions[at].offload.as_mut().unwrap().leaves_with += 1);
    for error in [less, later] {
        assert!(matches!(error, DocumentError::OtherMoves { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever moves: it comes back, nothing is left over, and the recording and the replay agree.
    #[test]
    fn any_outputs_may_move(bits in prop::collection::vec(any::<bool>(), 64), part in 0_u64..4) {
        static PROBLEM: LazyLock<Problem> = LazyLock::new(|| problem("gpt2", 4, 1, None));
        let problem = &*PROBLEM;
        let (high, low) = (problem.baseline().peak.0, problem.least().replayed.peak.0);
        let mut checkpoints = problem.quick(Bytes(low + (high - low) / 4 * part)).solution.checkpoints;
        let mut bits = bits.iter().cycle();
        for checkpoint in &mut checkpoints {
            checkpoint.offloaded = checkpoint.saved.iter().copied().filter(|_| *bits.next().unwrap()).collect();
        }
        let replayed = problem.replay(&checkpoints);
        let (moved, pinned) = is_whole(problem, &checkpoints);
        prop_assert_eq!((moved, pinned), (replayed.offload.bytes, replayed.offload.pinned));
        prop_assert!(pinned >= moved);
        let recording = Recording::new(&problem.schedule(&checkpoints));
        let highest = recording.snapshots.iter().map(|snapshot| snapshot.total()).max();
        prop_assert!(highest <= Some(replayed.peak));
        prop_assert!(replayed.recompute == problem.replay(&without(&checkpoints)).recompute);
    }
}

fn without(checkpoints: &[Checkpoint]) -> Vec<Checkpoint> {
    checkpoints.iter().map(|checkpoint| Checkpoint { offloaded: Vec::new(), ..checkpoint.clone() }).collect()
}
