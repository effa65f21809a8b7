use rematic_fake::models::{LossKind, Options};
use rematic_plan::{Limits, Numerics, Place, Remedy, RemedyKind};
use rematic_trace::{Millis, StepTrace};

use crate::error::Error;
use crate::source::Source;
use crate::study::Study;

/// Other steps of a model that compute the same on the same devices, each of which is traced and asked whether it fits: what can be
/// said of a device, where the allocator decides, and not the bytes of tensors alone.
pub struct Alternatives<'a> {
    /// The model.
    pub source: &'a Source,
    /// What is said of it.
    pub options: &'a Options,
    /// How one rank's step is made of the model's.
    pub shard: &'a dyn Fn(StepTrace) -> Result<StepTrace, Error>,
}

impl Alternatives<'_> {
    /// Those that fit the device of a study, which is of the step as it is, without a plan; the cheapest first.
    #[must_use]
    pub fn fitting(&self, study: &Study) -> Vec<Remedy> {
        let mut found: Vec<Remedy> = self.options().into_iter().filter_map(|other| self.tried(study, other)).collect();
        found.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        found
    }

    /// The other options, with what they are.
    fn options(&self) -> Vec<(RemedyKind, String, Options)> {
        let Source::Model(model) = self.source else { return Vec::new() };
        let given = self.options;
        let mut others = Vec::new();
        let optimizer = given.optimizer.unwrap_or_else(|| model.optimizer());
        if let Some(fused) = optimizer.fused() {
            let how = format!("--optimizer {fused}");
            let options = Options { optimizer: Some(fused), ..given.clone() };
            others.push((RemedyKind::OptimizerTemporaries, how, options));
        }
        if given.recipe.loss != Some(LossKind::Chunked) {
            let mut options = given.clone();
            options.recipe.loss = Some(LossKind::Chunked);
            others.push((RemedyKind::ChunkedLoss, "--loss chunked (rematic.chunked_loss)".to_owned(), options));
        }
        let batch = given.batch.unwrap_or_else(|| model.batch());
        if batch.is_multiple_of(2) {
            let mut options = Options { batch: Some(batch / 2), ..given.clone() };
            let accumulate = given.recipe.accumulate.unwrap_or(1).saturating_mul(2);
            options.recipe.accumulate = Some(accumulate);
            let how = format!("--batch {} --accumulate {accumulate}", batch / 2);
            others.push((RemedyKind::GradientAccumulation, how, options));
        }
        others
    }

    /// What does not trace is no alternative.
    fn tried(&self, study: &Study, (kind, how, options): (RemedyKind, String, Options)) -> Option<Remedy> {
        let step = (self.shard)(self.source.clone().trace(&options).ok()?).ok()?;
        let other = Study::new(step, study.target().clone(), Limits::default()).ok()?;
        if !other.memory()?.fits() {
            return None;
        }
        let problem = other.problem().ok()?;
        let peak = problem.baseline().peak;
        Some(Remedy {
            kind,
            title: kind.words().to_owned(),
            how,
            assumption: "Traced as it would run".to_owned(),
            peak_bytes: peak,
            freed_bytes: study.problem().ok()?.baseline().peak.saturating_sub(peak),
            extra_ms: Some(Millis((other.pace().step.0 - study.pace().step.0).max(0.0))),
            numerics: Numerics::Rounding,
            at: Place::of_baseline(problem),
        })
    }
}

fn cost(remedy: &Remedy) -> f64 {
    remedy.extra_ms.map_or(f64::INFINITY, |extra| extra.0)
}
