//! One plan for several steps of a model: each is found again, and no other.

use std::path::Path;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_plan::{DocumentError, Limits, Outcome, PlanDocument, Problem};
use rematic_trace::{Bytes, StepTrace, Verdict};

fn step(dropout: f64, batch: u64) -> StepTrace {
    let options = Options {
        batch: Some(batch),
        seq: Some(64),
        layers: Some(2),
        dim: Some(8),
        heads: Some(2),
        vocab: Some(16),
        dropout: Some(dropout),
        ..Options::default()
    };
    Model::builtin("seed-transformer").unwrap().with(&options).unwrap().trace().unwrap()
}

fn costs(step: &StepTrace) -> Costs {
    Costs::new(step, &Device::find("h100").unwrap(), CostRule::Physical).unwrap()
}

fn plan(step: &StepTrace, share: f64) -> PlanDocument {
    let costs = costs(step);
    let problem = Problem::new(step.clone(), costs.clone(), Limits::default()).unwrap();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a few bytes")]
    let budget = Bytes((problem.baseline().peak.0 as f64 * share) as u64);
    let Outcome { verdict: Verdict::Planned, solution } = problem.exact(budget) else {
        panic!("{share} of the peak can be reached")
    };
    PlanDocument::new(&problem, &solution, budget, "h100")
}

/// The name of the variant that a step is, or the error.
fn found(plan: &PlanDocument, step: &StepTrace) -> Result<String, DocumentError> {
    let costs = costs(step);
    let problem = Problem::new(step.clone(), costs.clone(), Limits::default()).unwrap();
    plan.for_step(step, problem.regions()).map(|(variant, _)| variant.name)
}

#[test]
fn each_variant_is_found_by_its_operators() {
    let (with, without) = (step(0.1, 4), step(0.0, 4));
    let variants = [("dropout", &with), ("none", &without)];
    let variants = variants.map(|(name, step)| (name.to_owned(), step, plan(step, 0.9)));
    let joined = PlanDocument::of_variants(variants.into()).unwrap();
    assert_eq!((joined.version, joined.variants.len(), joined.names().as_str()), (6, 1, "`dropout`, `none`"));
    // They part where one draws and the other does not.
    let (own, other) = (&joined.opening, &joined.variants[0].opening);
    assert_eq!((own.len(), own[..own.len() - 1] == other[..other.len() - 1]), (other.len(), true));
    assert_ne!(own.last(), other.last());
    assert_eq!(found(&joined, &with).unwrap(), "dropout");
    assert_eq!(found(&joined, &without).unwrap(), "none");
    let again = PlanDocument::from_json(&serde_json::to_vec(&joined).unwrap(), Path::new("plan.json")).unwrap();
    assert_eq!(again, joined);
    assert_eq!(again.worst().peak_bytes, joined.peak_bytes.max(joined.variants[0].peak_bytes));
    assert!(joined.single().unwrap_err().to_string().contains("a Python file follows one"));
}

#[test]
fn equal_operators_have_no_opening_and_equal_inputs_are_preferred() {
    let mut steps = [step(0.0, 4), step(0.0, 2)];
    for (step, inputs) in steps.iter_mut().zip(["x=int64[4,64]", "x=int64[2,64]"]) {
        step.origin.note("inputs", inputs);
    }
    let [large, small] = &steps;
    let variants = [("large", large), ("small", small)].map(|(name, step)| (name.to_owned(), step, plan(step, 0.9)));
    let joined = PlanDocument::of_variants(variants.into()).unwrap();
    assert!(joined.opening.is_empty() && joined.variants[0].opening.is_empty());
    assert_eq!(found(&joined, large).unwrap(), "large");
    assert_eq!(found(&joined, small).unwrap(), "small");
}

#[test]
fn a_step_that_is_none_of_them_is_refused() {
    let (one, other, third) = (step(0.1, 4), step(0.1, 2), step(0.0, 4));
    let variants = [("one", &one), ("other", &other)].map(|(name, step)| (name.to_owned(), step, plan(step, 0.7)));
    let joined = PlanDocument::of_variants(variants.into()).unwrap();
    let error = found(&joined, &third).unwrap_err().to_string();
    assert!(error.contains("this one is none of its variants, `one`, `other` (of the first: "), "{error}");
}

#[test]
fn one_step_gives_a_document_as_ever() {
    let step = step(0.0, 4);
    let single = plan(&step, 0.9);
    let joined = PlanDocument::of_variants(vec![("only".to_owned(), &step, single.clone())]).unwrap();
    assert_eq!(joined, single);
    // It skips operators.
    assert_eq!(joined.version, 6);
    assert!(PlanDocument::of_variants(Vec::new()).is_none());
}
