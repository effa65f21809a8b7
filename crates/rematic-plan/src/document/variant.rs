//! Variants: one plan for the different operators that a model runs from batch to batch.
//!
//! A batch without padding drops its mask, a batch of one makes other views. Each such variant is a step of its own, planned
//! by itself for the same budget. The document of the first holds the others.

use std::cmp::Reverse;
use std::path::Path;

use rematic_replay::{Checkpoint, Regions};
use rematic_trace::{Bytes, Millis, Phase, StepTrace, short};
use serde::{Deserialize, Serialize};

use super::{DocumentError, PlanDocument, PlannedRegion, SINGLE_VERSION, SKIP_VERSION, VARIANTS_VERSION};

/// The fact that says what the model was given.
const INPUTS: &str = "inputs";
/// Operators that run no kernel, and are counted by nobody who follows a plan.
const UNCOUNTED: [&str; 3] = ["_local_scalar_dense", "detach", "lift_fresh"];

/// A further variant: what is its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanVariant {
    /// What it is called.
    pub name: String,
    /// The first operators of its forward, up to where it differs from each other variant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<String>,
    /// How it was traced.
    pub facts: Vec<(String, String)>,
    /// The peak without a plan.
    pub baseline_peak_bytes: Bytes,
    /// The peak under the plan, as replayed.
    pub peak_bytes: Bytes,
    /// Time of the step without recomputation.
    pub step_ms: Millis,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// No plan within the budget takes less.
    pub lower_bound_ms: Millis,
    /// The regions, in the order of forward.
    pub regions: Vec<PlannedRegion>,
}

impl PlanDocument {
    /// One document for several variants, each with its name, its step and its plan. `None` if there is none.
    #[must_use]
    pub fn of_variants(variants: Vec<(String, &StepTrace, PlanDocument)>) -> Option<PlanDocument> {
        let steps: Vec<&StepTrace> = variants.iter().map(|(_, step, _)| *step).collect();
        let mut openings = openings(&steps).into_iter();
        let has_skips =
            |(_, _, plan): &(String, &StepTrace, PlanDocument)| plan.regions.iter().any(PlannedRegion::skips);
        let skips = variants.iter().any(has_skips);
        let mut variants = variants.into_iter();
        let (name, _, mut first) = variants.next()?;
        let opening = openings.next().unwrap_or_default();
        if variants.len() > 0 {
            let version = match &first.loss {
                _ if skips => SKIP_VERSION,
                Some(_) => first.version,
                None => VARIANTS_VERSION,
            };
            (first.version, first.name, first.opening) = (version, name, opening);
        }
        first.variants = variants
            .zip(openings)
            .map(|((name, _, plan), opening)| PlanVariant {
                name,
                opening,
                facts: plan.facts,
                baseline_peak_bytes: plan.baseline_peak_bytes,
                peak_bytes: plan.peak_bytes,
                step_ms: plan.step_ms,
                recompute_ms: plan.recompute_ms,
                lower_bound_ms: plan.lower_bound_ms,
                regions: plan.regions,
            })
            .collect();
        Some(first)
    }

    /// Each variant as a document of its own, the first first. They keep their names and openings.
    #[must_use]
    pub fn each(&self) -> Vec<PlanDocument> {
        let first = PlanDocument { variants: Vec::new(), ..self.head(&self.regions) };
        let others = self.variants.iter().map(|variant| PlanDocument {
            name: variant.name.clone(),
            opening: variant.opening.clone(),
            facts: variant.facts.clone(),
            baseline_peak_bytes: variant.baseline_peak_bytes,
            peak_bytes: variant.peak_bytes,
            step_ms: variant.step_ms,
            recompute_ms: variant.recompute_ms,
            lower_bound_ms: variant.lower_bound_ms,
            ..self.head(&variant.regions)
        });
        std::iter::once(first).chain(others).collect()
    }

    /// The variant with the highest peak; of equal ones the first.
    #[must_use]
    pub fn worst(&self) -> PlanDocument {
        let each = self.each();
        let worst = (0..each.len()).max_by_key(|&index| (each[index].peak_bytes, Reverse(index)));
        each.into_iter().nth(worst.unwrap_or(0)).unwrap_or_else(|| self.clone())
    }

    /// This document, if it has no variants: for what follows only one.
    ///
    /// # Errors
    /// If it has.
    pub fn single(&self) -> Result<&PlanDocument, DocumentError> {
        if self.variants.is_empty() { Ok(self) } else { Err(DocumentError::Variants { names: self.names() }) }
    }

    /// The names of the variants, between commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names = std::iter::once(&self.name).chain(self.variants.iter().map(|variant| &variant.name));
        names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }

    /// What all variants share, with some of the regions.
    fn head(&self, regions: &[PlannedRegion]) -> PlanDocument {
        PlanDocument {
            format: self.format.clone(),
            version: self.version,
            source: self.source.clone(),
            name: self.name.clone(),
            opening: self.opening.clone(),
            facts: self.facts.clone(),
            device: self.device.clone(),
            loss: self.loss.clone(),
            regions: regions.to_vec(),
            variants: Vec::new(),
            ..*self
        }
    }

    /// The variant that a step is, with the checkpoints that it means. Of several that it may be, the first that was
    /// captured with the same inputs.
    ///
    /// # Errors
    /// If it is none of them; of a plan without variants, the first operator that differs is named.
    pub fn for_step(
        &self,
        trace: &StepTrace,
        regions: &Regions,
    ) -> Result<(PlanDocument, Vec<Checkpoint>), DocumentError> {
        let runs = opening_ops(trace);
        let inputs = trace.origin.inputs.as_deref();
        let mut found = Vec::new();
        let mut refused = None;
        for variant in self.each() {
            match variant.checkpoints(trace, regions) {
                Ok(checkpoints) if runs.iter().zip(&variant.opening).all(|(runs, planned)| runs == planned) => {
                    found.push((variant, checkpoints));
                }
                Ok(_) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let at = found.iter().position(|(variant, _)| inputs_in(&variant.facts) == inputs).unwrap_or(0);
        match found.into_iter().nth(at) {
            Some(found) => Ok(found),
            None if self.variants.is_empty() => Err(refused.unwrap_or_else(|| self.no_variant(None))),
            None => Err(self.no_variant(refused)),
        }
    }

    fn no_variant(&self, first: Option<DocumentError>) -> DocumentError {
        DocumentError::NoVariant {
            planned: self.source.clone(),
            names: self.names(),
            why: first.map_or_else(String::new, |error| format!(" (of the first: {error})")),
        }
    }

    /// Checks what documents with variants have and others have not.
    pub(super) fn check_variants(&self, path: &Path) -> Result<(), DocumentError> {
        let has_variants = !self.variants.is_empty() || !self.opening.is_empty() || !self.name.is_empty();
        if self.version == SINGLE_VERSION && has_variants {
            return Err(DocumentError::VariantsVersion { path: path.to_owned(), found: self.version });
        }
        let mut names: Vec<&str> = self.variants.iter().map(|variant| variant.name.as_str()).collect();
        names.push(&self.name);
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(DocumentError::SameName { path: path.to_owned(), name: pair[0].to_owned() }),
            None => Ok(()),
        }
    }
}

fn inputs_in(facts: &[(String, String)]) -> Option<&str> {
    facts.iter().find(|(name, _)| name == INPUTS).map(|(_, value)| value.as_str())
}

/// The operators of the first forward, in order.
fn opening_ops(trace: &StepTrace) -> Vec<&str> {
    let forward = trace.ops().iter().skip_while(|op| op.phase != Phase::Forward);
    let inside = forward.take_while(|op| op.phase == Phase::Forward).filter(|op| op.call.is_some());
    inside.map(|op| trace.op_name(op)).filter(|name| !UNCOUNTED.contains(&short(name))).collect()
}

/// For each step the first operators of its forward, up to the one that tells it from each other step.
fn openings(steps: &[&StepTrace]) -> Vec<Vec<String>> {
    let forwards: Vec<Vec<&str>> = steps.iter().map(|step| opening_ops(step)).collect();
    let until = |one: &[&str], other: &[&str]| {
        let alike = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        if alike == one.len() && alike == other.len() { 0 } else { alike + 1 }
    };
    let opening = |one: &Vec<&str>| {
        let length = forwards.iter().map(|other| until(one, other)).max().unwrap_or(0);
        one.iter().take(length).map(|name| (*name).to_owned()).collect()
    };
    forwards.iter().map(opening).collect()
}
