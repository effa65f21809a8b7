//! Damaged plans: whatever the bytes, the reader answers with a plan or an error, and a plan that it accepts is replayed or
//! refused. The tests are built with overflow checks.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{Limits, Outcome, PlanDocument, Problem};
use rematic_trace::{Bytes, StepTrace, Verdict};
use serde_json::{Value, json};

/// A second in all; `PROPTEST_CASES` asks for more.
const CASES: u32 = 1000;

static STEP: LazyLock<(StepTrace, Costs)> = LazyLock::new(|| {
    let options = Options {
        batch: Some(4),
        seq: Some(64),
        layers: Some(2),
        dim: Some(8),
        heads: Some(2),
        vocab: Some(16),
        ..Options::default()
    };
    let trace = Model::builtin("seed-transformer").unwrap().with(&options).unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    (trace, costs)
});

/// A plan that takes regions of several levels.
static PLAN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let problem = problem();
    let budget = Bytes(330 << 10);
    let Outcome { verdict: Verdict::Planned, solution } = problem.exact(budget) else {
        panic!("330 KiB can be reached")
    };
    serde_json::to_vec(&PlanDocument::new(&problem, &solution, budget, "h100")).unwrap()
});

/// The same twice, as two variants.
static VARIANTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let plan = PlanDocument::from_json(&PLAN, Path::new("plan.json")).unwrap();
    let variants = ["one", "other"].map(|name| (name.to_owned(), &STEP.0, plan.clone()));
    serde_json::to_vec(&PlanDocument::of_variants(variants.into()).unwrap()).unwrap()
});

fn problem() -> Problem {
    let (trace, costs) = &*STEP;
    // A plan for several variants has none.
    let limits = Limits { runs: false, ..Limits::default() };
    Problem::new(trace.clone(), costs.clone(), limits).unwrap()
}

/// What became of a damaged plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is no plan.
    Unread,
    /// It is one, for another step.
    Unfit,
    Replayed,
}

/// Panics only if Rematic does, or if a result contradicts itself.
fn consume(bytes: &[u8]) -> Fate {
    thread_local!(static PROBLEM: Problem = problem());
    let plan = match PlanDocument::from_json(bytes, Path::new("plan.json")) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(error.to_string().starts_with("plan.json "), "{error}");
            return Fate::Unread;
        }
    };
    let text = serde_json::to_vec(&plan).unwrap();
    assert_eq!(PlanDocument::from_json(&text, Path::new("again.json")).unwrap(), plan);
    PROBLEM.with(|problem| match plan.for_step(&STEP.0, problem.regions()) {
        Err(error) => {
            assert!(error.to_string().contains("plan"), "{error}");
            Fate::Unfit
        }
        Ok((plan, checkpoints)) => {
            let replayed = problem.replay(&checkpoints);
            assert_eq!(checkpoints.len(), plan.regions.len());
            assert!(replayed.recompute.0.is_finite() && replayed.recompute.0 >= 0.0);
            assert_eq!(replayed.snapshot.total(), replayed.peak);
            Fate::Replayed
        }
    })
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Delete(Index, usize),
    Insert(Index, Vec<u8>),
    Truncate(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Digits and punctuation keep the text near JSON; any byte does not.
    let telling = select(b"0123456789-.eE\"[]{},:tfn \\".to_vec());
    let insert = prop_oneof![
        prop::collection::vec(telling, 1..6),
        prop::collection::vec(any::<u8>(), 1..4),
        Just(b"[".repeat(200))
    ];
    prop_oneof![
        (any::<Index>(), 1..=u8::MAX).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        (any::<Index>(), 1..200_usize).prop_map(|(at, count)| Damage::Delete(at, count)),
        (any::<Index>(), insert).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        any::<Index>().prop_map(Damage::Truncate),
    ]
}

fn damaged(mut text: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if text.is_empty() {
            break;
        }
        match damage {
            Damage::Flip(at, mask) => {
                let at = at.index(text.len());
                text[at] ^= mask;
            }
            Damage::Delete(at, count) => {
                let at = at.index(text.len());
                let end = (at + count).min(text.len());
                text.drain(at..end);
            }
            Damage::Insert(at, bytes) => {
                let at = at.index(text.len());
                text.splice(at..at, bytes.iter().copied());
            }
            Damage::Truncate(at) => text.truncate(at.index(text.len())),
        }
    }
    text
}

/// One change of a parsed plan.
#[derive(Clone, Debug)]
enum Change {
    /// Another value for a field of the plan, of a region, or of an operator.
    Plan(&'static str, Value),
    Region(Index, &'static str, Value),
    Op(Index, Index, &'static str, Value),
    /// What was saved is recomputed, and the other way round, for some operators.
    Decisions(Index, Vec<Index>),
    Repeat(Index),
    Remove(Index),
    /// Another module, with its own operators.
    Move(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let value = select(vec![
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(0.5),
        json!(1e300),
        json!(u64::MAX),
        json!("save"),
        json!("mm.default"),
        json!([]),
        json!({}),
    ])
    .boxed();
    let fields =
        select(vec!["version", "world_size", "budget_bytes", "peak_bytes", "step_ms", "regions", "source", "facts"]);
    let of_region = select(vec!["module", "call", "discard", "freed_bytes", "recompute_ms", "policy"]);
    let of_op = select(vec!["index", "op", "decision"]);
    let at = any::<Index>;
    prop_oneof![
        1 => (fields, value.clone()).prop_map(|(field, value)| Change::Plan(field, value)),
        1 => (at(), of_region, value.clone()).prop_map(|(at, field, value)| Change::Region(at, field, value)),
        1 => (at(), at(), of_op, value).prop_map(|(region, op, field, value)| Change::Op(region, op, field, value)),
        4 => (at(), prop::collection::vec(at(), 1..20)).prop_map(|(region, ops)| Change::Decisions(region, ops)),
        1 => at().prop_map(Change::Repeat),
        1 => at().prop_map(Change::Remove),
        2 => (at(), at()).prop_map(|(region, to)| Change::Move(region, to)),
    ]
}

fn apply(plan: &mut Value, change: &Change) {
    if let Change::Plan(field, value) = change {
        plan[*field] = value.clone();
        return;
    }
    let Some(regions) = plan["regions"].as_array_mut().filter(|regions| !regions.is_empty()) else { return };
    let count = regions.len();
    match change {
        Change::Plan(..) => {}
        Change::Region(at, field, value) => regions[at.index(count)][*field] = value.clone(),
        Change::Op(at, op, field, value) => {
            if let Some(ops) = policy(&mut regions[at.index(count)]) {
                let op = op.index(ops.len());
                ops[op][*field] = value.clone();
            }
        }
        Change::Decisions(at, changed) => {
            if let Some(ops) = policy(&mut regions[at.index(count)]) {
                for op in changed {
                    let op = op.index(ops.len());
                    let other = if ops[op]["decision"] == "save" { "recompute" } else { "save" };
                    ops[op]["decision"] = json!(other);
                }
            }
        }
        Change::Repeat(at) => regions.push(regions[at.index(count)].clone()),
        Change::Remove(at) => drop(regions.remove(at.index(count))),
        Change::Move(at, to) => {
            let trace = &STEP.0;
            let problem = problem();
            let region = &problem.regions().all().items()[to.index(problem.regions().all().len())];
            let ops = trace.ops().items()[region.ops.clone()].iter().enumerate();
            let decisions = ["recompute", "save"];
            regions[at.index(count)]["module"] = json!(trace.path(region.module));
            regions[at.index(count)]["policy"] = ops
                .map(|(index, op)| json!({"index": index, "op": trace.op_name(op), "decision": decisions[index % 2]}))
                .collect();
        }
    }
}

fn policy(region: &mut Value) -> Option<&mut Vec<Value>> {
    region["policy"].as_array_mut().filter(|ops| !ops.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES.max(ProptestConfig::default().cases), ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_are_read_or_refused(damages in prop::collection::vec(damage(), 1..4)) {
        consume(&damaged(PLAN.clone(), &damages));
    }

    #[test]
    fn bytes_that_never_were_a_plan_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(consume(&bytes), Fate::Unread);
    }

    #[test]
    fn changed_plans_are_replayed_or_refused(changes in prop::collection::vec(change(), 1..4)) {
        let mut plan = serde_json::from_slice(&PLAN).unwrap();
        for change in &changes {
            apply(&mut plan, change);
        }
        consume(plan.to_string().as_bytes());
    }

    #[test]
    fn damaged_variants_are_read_or_refused(
        damages in prop::collection::vec(damage(), 1..4),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        consume(&damaged(VARIANTS.clone(), &damages));
        let mut plan: Value = serde_json::from_slice(&VARIANTS).unwrap();
        for change in &changes {
            apply(&mut plan["variants"][0], change);
        }
        consume(plan.to_string().as_bytes());
    }
}

/// The tests above mean something only if the plan is good before, and changes lead to every fate.
#[test]
fn changes_lead_to_every_fate() {
    assert_eq!(consume(&PLAN), Fate::Replayed);
    assert_eq!(consume(&VARIANTS), Fate::Replayed);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let fates: Vec<Fate> = (0..200)
        .map(|_| {
            let mut plan = serde_json::from_slice(&PLAN).unwrap();
            apply(&mut plan, &change().new_tree(&mut runner).unwrap().current());
            consume(plan.to_string().as_bytes())
        })
        .collect();
    for fate in [Fate::Unread, Fate::Unfit, Fate::Replayed] {
        let count = fates.iter().filter(|other| **other == fate).count();
        assert!(count >= 10, "{fate:?} {count} times of 200");
    }
}
