//! What the planner says to the page's questions, and which of them it still works on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::question::{Catalog, Question, Stage};
use super::recent::Recent;
use crate::cli::{Failure, Warnings, planning, trace_of, unsharded};
use crate::{
    Cancel, Error, ExploreAnswer, ExploreCurve, Fsdp2, Limits, PlanAnswer, PlanError, Planner, Resharding, StepTrace,
    Study, Verdict, explore_refusal,
};
use rematic_replay::{Highest, Ledger, Schedule};

/// Steps, studies and answers that are kept: somebody who goes back and forth gets them at once. A step of the largest models
/// takes a few hundred megabytes with its study.
const STEPS: usize = 8;
const STUDIES: usize = 4;
const ANSWERS: usize = 256;
/// So many budgets show the form of a curve; each is a plan.
const POINTS: usize = 16;

/// The planner behind the page.
pub(super) struct Answers {
    catalog: Catalog,
    device_file: Option<PathBuf>,
    warnings: Warnings,
    steps: Mutex<Recent<Arc<StepTrace>>>,
    studies: Mutex<Recent<Arc<Study>>>,
    said: Mutex<Recent<String>>,
    /// By page, the newest question, and what ends the work on it.
    newest: Mutex<HashMap<String, (u64, Option<Cancel>)>>,
}

/// Why there is no answer.
enum NoAnswer {
    /// In words.
    Refused(String),
    /// A later question took its place.
    Superseded,
}

impl From<Error> for NoAnswer {
    fn from(error: Error) -> Self {
        match error {
            Error::Plan(PlanError::Cancelled) => NoAnswer::Superseded,
            other => NoAnswer::Refused(other.to_string()),
        }
    }
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Rematic(error) => error.into(),
            other => NoAnswer::Refused(other.to_string()),
        }
    }
}

impl Answers {
    pub(super) fn new(catalog: Catalog, device_file: Option<PathBuf>, warnings: Warnings) -> Self {
        Answers {
            catalog,
            device_file,
            warnings,
            steps: Mutex::new(Recent::new(STEPS)),
            studies: Mutex::new(Recent::new(STUDIES)),
            said: Mutex::new(Recent::new(ANSWERS)),
            newest: Mutex::new(HashMap::new()),
        }
    }

    /// The answer to what the page sent, as JSON.
    pub(super) fn answer(&self, body: &str) -> String {
        let question = match Question::read(body, &self.catalog, self.device_file.as_deref()) {
            Ok(question) => question,
            Err(why) => return explore_refusal(Some(&why)),
        };
        if !self.begin(&question) {
            return explore_refusal(None);
        }
        let name = format!("{:?} {}", question.stage, question.command);
        if let Some(said) = locked(&self.said).get(&name) {
            return said;
        }
        match self.stage(&question) {
            Ok(said) => {
                locked(&self.said).put(&name, said.clone());
                said
            }
            Err(NoAnswer::Refused(why)) => explore_refusal(Some(&why)),
            Err(NoAnswer::Superseded) => explore_refusal(None),
        }
    }

    /// Ends the work on the page's older questions; whether this one is not older itself.
    fn begin(&self, question: &Question) -> bool {
        let mut newest = locked(&self.newest);
        let (number, running) = newest.entry(question.tab.clone()).or_insert((0, None));
        if question.number < *number {
            return false;
        }
        if question.number > *number {
            *number = question.number;
            if let Some(older) = running.take() {
                older.cancel();
            }
        }
        true
    }

    /// From now on a newer question ends this work; whether it is not too late.
    fn working(&self, question: &Question, cancel: &Cancel) -> Result<(), NoAnswer> {
        let mut newest = locked(&self.newest);
        match newest.get_mut(&question.tab) {
            Some((number, running)) if *number == question.number => *running = Some(cancel.clone()),
            _ => return Err(NoAnswer::Superseded),
        }
        Ok(())
    }

    /// The work on it is over: what ends later ends nothing.
    fn done(&self, question: &Question) {
        if let Some((number, running)) = locked(&self.newest).get_mut(&question.tab)
            && *number == question.number
        {
            *running = None;
        }
    }

    fn stage(&self, question: &Question) -> Result<String, NoAnswer> {
        let study = self.study(question)?;
        self.working(question, &study.limits().cancel)?;
        let said = study.limits().cancel.catch(|| match question.stage {
            Stage::Step => Ok(as_it_is(question, &study)),
            Stage::Draft => self.planned(question, &study, Planner::Greedy),
            Stage::Plan => self.planned(question, &study, Planner::Exact),
            Stage::Curve => curve(question, &study),
        });
        self.done(question);
        said.unwrap_or(Err(NoAnswer::Superseded))
    }

    /// The step on its target: one that was looked at lately, unless that was cancelled.
    fn study(&self, question: &Question) -> Result<Arc<Study>, NoAnswer> {
        let known = locked(&self.studies).get(&question.step);
        if let Some(study) = known.filter(|study| !study.limits().cancel.is_cancelled()) {
            return Ok(study);
        }
        let limits = &question.plain.limits;
        let target = limits.target()?;
        let known = locked(&self.steps).get(&question.step);
        let step = match known {
            Some(step) => step,
            None => {
                let source = &limits.step.source;
                let step = Arc::new(trace_of(&source.source, source, &target, &[])?);
                self.warnings.warn_if(target.attention_warning(&step));
                locked(&self.steps).put(&question.step, Arc::clone(&step));
                step
            }
        };
        let study =
            Arc::new(Study::new(step, target, Limits { cancel: Cancel::default(), ..planning::limits(limits) })?);
        locked(&self.studies).put(&question.step, Arc::clone(&study));
        Ok(study)
    }

    fn planned(&self, question: &Question, study: &Study, planner: Planner) -> Result<String, NoAnswer> {
        let arguments = &question.arguments;
        let source = &arguments.limits.step.source;
        let found = if source.chooses_resharding() {
            let (target, limits) = (&arguments.limits.target()?, study.limits());
            let (whole, how) = unsharded(&source.source, source, target, &[], None)?;
            let resharding = Resharding { whole: &whole, target, limits, planner, budget: arguments.budget };
            resharding.plan(how.unwrap_or(Fsdp2::over(0)))?
        } else {
            study.plan(planner, arguments.budget)?
        };
        Ok(answer(question, study, &found, planner == Planner::Exact))
    }
}

/// A mutex whose holder never panics while it changes anything.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The step without a plan: the last word, if it fits.
fn as_it_is(question: &Question, study: &Study) -> String {
    let start = Ledger::new(study.trace(), study.limits().allocator);
    let mut highest = Highest::from(&start);
    Schedule::plain(study.trace(), &start).replay(&mut highest);
    let budget = question.arguments.budget;
    let fits = match (budget, study.memory()) {
        (Some(budget), _) => highest.bytes <= budget,
        (None, Some(memory)) => memory.retries == Some(0),
        (None, None) => highest.bytes <= study.target().device.memory,
    };
    // Which weights stay can be better or worse for a step that fits too.
    let chooses = question.arguments.limits.step.source.chooses_resharding();
    ExploreAnswer {
        command: &question.command,
        trace: study.trace(),
        verdict: fits.then_some(Verdict::Fits),
        is_final: fits && !chooses,
        budget,
        plan: None,
        baseline: highest.bytes,
        peak: (&highest.snapshot, highest.at),
        memory: study.memory(),
        device: &study.target().device,
        paces: (study.pace(), study.pace()),
    }
    .json()
}

fn answer(question: &Question, study: &Study, found: &PlanAnswer, is_final: bool) -> String {
    ExploreAnswer {
        command: &question.command,
        trace: &found.trace,
        verdict: Some(found.verdict),
        is_final,
        budget: question.arguments.budget,
        plan: Some(&found.document),
        baseline: found.document.baseline_peak_bytes,
        peak: (&found.replayed.snapshot, found.replayed.at),
        memory: found.memory.as_ref(),
        device: &found.device,
        paces: (study.pace(), &found.pace),
    }
    .json()
}

fn curve(question: &Question, study: &Study) -> Result<String, NoAnswer> {
    if question.arguments.limits.step.source.chooses_resharding() {
        let why = "With reshard auto, each budget has a choice of its own. Choose yes or no to see the curve.";
        return Err(NoAnswer::Refused(why.to_owned()));
    }
    let found = study.curve(POINTS, || {})?;
    let room = study.memory().map(|memory| (memory.room, found.device.name.as_str()));
    Ok(ExploreCurve { step_ms: found.step, points: &found.points, room }.json())
}
