//! What is worked out about a trace, kept for the next question.

use std::sync::{Arc, Mutex, PoisonError};

use rematic::{Cancel, Error, Limits, StepTrace, Study, Target};

/// The study that was asked last: another budget on the same target asks it again.
#[derive(Default)]
pub(crate) struct LastStudy(Mutex<Option<Arc<Study>>>);

/// A question to a step, which may be asked again.
pub(crate) struct Question {
    last: Arc<LastStudy>,
    step: Arc<StepTrace>,
    target: Target,
    limits: Limits,
}

impl Question {
    /// About a step on a target. What the last study knows is taken from it if it is for the same.
    pub(crate) fn new(last: &Arc<LastStudy>, step: &Arc<StepTrace>, target: Target, limits: Limits) -> Self {
        let (last, step) = (Arc::clone(last), Arc::clone(step));
        let cancel = last.found(&target, &limits).map_or_else(Cancel::default, |study| study.limits().cancel.clone());
        Question { last, step, target, limits: Limits { cancel, ..limits } }
    }

    /// One for each of several steps, and what ends them all.
    pub(crate) fn each(
        lasts: &[Arc<LastStudy>],
        steps: &[Arc<StepTrace>],
        target: &Target,
        limits: &Limits,
    ) -> (Vec<Self>, Cancel) {
        if let ([last], [step]) = (lasts, steps) {
            let question = Question::new(last, step, target.clone(), limits.clone());
            let cancel = question.cancel();
            return (vec![question], cancel);
        }
        // Studies that are kept are ended one by one.
        let cancel = Cancel::default();
        let question = |step: &Arc<StepTrace>| Question {
            last: Arc::default(),
            step: Arc::clone(step),
            target: target.clone(),
            limits: Limits { cancel: cancel.clone(), ..limits.clone() },
        };
        (steps.iter().map(question).collect(), cancel)
    }

    /// Ends the work on it.
    pub(crate) fn cancel(&self) -> Cancel {
        self.limits.cancel.clone()
    }

    /// The study that answers.
    pub(crate) fn study(self) -> Result<Arc<Study>, Error> {
        if let Some(study) = self.last.found(&self.target, &self.limits) {
            return Ok(study);
        }
        let study = Arc::new(Study::new(self.step, self.target, self.limits)?);
        *self.last.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&study));
        Ok(study)
    }
}

impl LastStudy {
    fn found(&self, target: &Target, limits: &Limits) -> Option<Arc<Study>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |study: &&Arc<Study>| {
            let known = study.limits();
            let asked = (&limits.only, &limits.never, limits.whole, limits.runs, limits.host_memory);
            study.target() == target
                && (&known.only, &known.never, known.whole, known.runs, known.host_memory) == asked
                && !known.cancel.is_cancelled()
        };
        last.as_ref().filter(is_same).map(Arc::clone)
    }
}
