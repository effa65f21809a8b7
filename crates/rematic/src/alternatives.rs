use rayon::prelude::*;
use rematic_fake::models::{LossKind, Options};
use rematic_plan::{Limits, Numerics, Place, Problem, Remedy, RemedyKind};
use rematic_report::Ways;
use rematic_trace::{Bytes, Millis, Opt, StepTrace, Verdict};

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
    pub shard: &'a (dyn Fn(StepTrace) -> Result<StepTrace, Error> + Sync),
}

impl Alternatives<'_> {
    /// Those that fit the device of a study, which is of the step as it is, without a plan; the cheapest first.
    #[must_use]
    pub fn fitting(&self, study: &Study) -> Vec<Remedy> {
        let Ok(problem) = study.problem() else { return Vec::new() };
        // What is there before the step and does not depend on the batch, and what layers hold when the last one has returned.
        let (room, state, held) = (study.room(), problem.state_bytes(), problem.held_by_layers());
        let may_fit = |other: &Other| match other.kind {
            RemedyKind::OptimizerTemporaries => held <= room,
            RemedyKind::GradientAccumulation => Bytes(state.0 + held.saturating_sub(state).0 / 2) <= room,
            _ => state <= room,
        };
        let others = self.others().into_iter().filter(may_fit);
        let mut found: Vec<Remedy> = others.filter_map(|other| self.tried(study, other)).collect();
        found.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        found
    }

    /// What the chunked loss and accumulation would bring, each under a plan that is quickly found: within a budget, or on the device.
    #[must_use]
    pub fn planned(&self, study: &Study, budget: Option<Bytes>) -> Vec<(Verdict, Remedy)> {
        // Whatever the loss and the batch, this stays.
        let state = study.problem().map_or(Bytes(0), Problem::state_bytes);
        if state > budget.unwrap_or_else(|| study.room()) {
            return Vec::new();
        }
        let others: Vec<Other> = [self.with_chunks(), self.halved()].into_iter().flatten().collect();
        others.into_par_iter().filter_map(|other| self.planned_other(study, budget, other)).collect()
    }

    fn planned_other(&self, study: &Study, budget: Option<Bytes>, other: Other) -> Option<(Verdict, Remedy)> {
        let step = (self.shard)(self.source.clone().trace(&other.options).ok()?).ok()?;
        let planned = Study::new(step, study.target().clone(), study.limits().clone()).ok()?;
        let (verdict, solution) = planned.quickly(budget).ok()?;
        let problem = planned.problem().ok()?;
        let taken = planned.pace_under(problem, &solution.checkpoints).step;
        let found = (solution.replayed.peak, taken, Place::of(problem, &solution));
        Some((verdict, other.remedy(study, "Traced and planned as it would run", found)?))
    }

    /// The other options, with what they are.
    fn others(&self) -> Vec<Other> {
        [self.fused(), self.with_chunks(), self.halved()].into_iter().flatten().collect()
    }

    fn fused(&self) -> Option<Other> {
        let Source::Model(model) = self.source else { return None };
        let fused = self.options.optimizer.unwrap_or_else(|| model.optimizer()).fused()?;
        let options = Options { optimizer: Some(fused), ..self.options.clone() };
        Some(Other { kind: RemedyKind::OptimizerTemporaries, how: Opt("optimizer").to(fused).to_string(), options })
    }

    /// With the loss over parts of the positions, unless it was said how it is computed.
    fn with_chunks(&self) -> Option<Other> {
        let Source::Model(_) = self.source else { return None };
        if self.options.recipe.loss.is_some() {
            return None;
        }
        let mut options = self.options.clone();
        options.recipe.loss = Some(LossKind::Chunked);
        let how = format!("{}, or {}, which takes the faster loss", Opt("loss").to("chunked"), Opt("loss").to("auto"));
        Some(Other { kind: RemedyKind::ChunkedLoss, how, options })
    }

    /// With half the batch, and twice as many of them.
    fn halved(&self) -> Option<Other> {
        let Source::Model(model) = self.source else { return None };
        let given = self.options;
        let batch = Some(given.batch.unwrap_or_else(|| model.batch())).filter(|batch| batch.is_multiple_of(2))? / 2;
        let accumulate = given.recipe.accumulate.unwrap_or(1).saturating_mul(2);
        let mut options = Options { batch: Some(batch), ..given.clone() };
        options.recipe.accumulate = Some(accumulate);
        let how = format!("{} {}", Opt("batch").to(batch), Opt("accumulate").to(accumulate));
        Some(Other { kind: RemedyKind::GradientAccumulation, how, options })
    }

    /// What does not trace is no alternative.
    fn tried(&self, study: &Study, other: Other) -> Option<Remedy> {
        let step = (self.shard)(self.source.clone().trace(&other.options).ok()?).ok()?;
        let tried = Study::new(step, study.target().clone(), Limits::default()).ok()?;
        if tried.is_far_too_large() || !tried.memory()?.fits() {
            return None;
        }
        let problem = tried.problem().ok()?;
        let found = (problem.baseline().peak, tried.pace().step, Place::of_baseline(problem));
        other.remedy(study, "Traced as it would run", found)
    }
}

/// Another step of a model.
struct Other {
    kind: RemedyKind,
    how: String,
    options: Options,
}

impl Other {
    /// What it brings to a study: its peak, the time of its step, and where it peaks.
    fn remedy(self, study: &Study, assumption: &str, (peak, step, at): (Bytes, Millis, Place)) -> Option<Remedy> {
        Some(Remedy {
            kind: self.kind,
            title: self.kind.words().to_owned(),
            how: self.how,
            assumption: assumption.to_owned(),
            peak_bytes: peak,
            freed_bytes: study.problem().ok()?.baseline().peak.saturating_sub(peak),
            extra_ms: Some(Millis((step.0 - study.pace().step.0).max(0.0))),
            numerics: Numerics::Rounding,
            at,
        })
    }
}

/// Adds what was planned to other ways. It is more exact than what was worked out from the step as it is, which goes.
pub fn add_planned(planned: Vec<(Verdict, Remedy)>, ways: &mut Ways) {
    for (verdict, remedy) in planned {
        for known in [&mut ways.alone, &mut ways.with_plan] {
            known.retain(|known| known.kind != remedy.kind);
        }
        match verdict {
            Verdict::Fits => insert(&mut ways.alone, remedy),
            Verdict::Planned => insert(&mut ways.with_plan, remedy),
            Verdict::Infeasible => {}
        }
    }
}

/// Before the first that takes more time.
fn insert(remedies: &mut Vec<Remedy>, remedy: Remedy) {
    let at = remedies.iter().position(|known| cost(known) > cost(&remedy)).unwrap_or(remedies.len());
    remedies.insert(at, remedy);
}

fn cost(remedy: &Remedy) -> f64 {
    remedy.extra_ms.map_or(f64::INFINITY, |extra| extra.0)
}
