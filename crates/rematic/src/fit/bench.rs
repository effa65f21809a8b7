use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use rematic_layout::{Fsdp2, fsdp2, layers};
use rematic_report::{FitAnswer, FitFound, FitQuestion, FitSetup, Memory};
use rematic_trace::{Bytes, StepTrace, Verdict};

use super::axis::Axis;
use super::setup::{Key, Setup};
use super::{FitRequest, StepSize};
use crate::error::Error;
use crate::planning::EXACT;
use crate::room::Effort;
use crate::study::Study;
use crate::target::Target;

/// What came of trying a set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Fits,
    Exceeds,
    /// There is no such step: the model has no more positions, or sizes exceed 64 bits.
    Impossible,
}

/// Answers that are asked for again. Two may work out the same one at once: it is the same.
struct Known<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Known(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Known<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn keep(&self, key: K, value: V) -> V {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, value.clone());
        value
    }
}

/// Where set-ups are tried, each once.
pub(crate) struct Bench<'a> {
    pub(crate) request: FitRequest<'a>,
    /// The sizes that there is a step of for sure.
    base: StepSize,
    wholes: Known<StepSize, Arc<StepTrace>>,
    tried: Known<(Key, bool), Tried>,
    taken: Known<(Key, bool), Option<Bytes>>,
    made: Known<(Key, bool), FitSetup>,
    /// Studies that nobody has just now, the latest last.
    kept: Mutex<VecDeque<(Key, Study)>>,
}

/// So many are kept: the next question is often about a set-up that was just looked at.
const KEPT: usize = 6;

impl<'a> Bench<'a> {
    pub(crate) fn new(request: FitRequest<'a>, first: Arc<StepTrace>, base: &Setup) -> Self {
        let size = StepSize { ranks: 1, ..base.size() };
        let wholes = Known::default();
        wholes.keep(size, first);
        let (tried, taken, made) = (Known::default(), Known::default(), Known::default());
        Bench { request, base: size, wholes, tried, taken, made, kept: Mutex::default() }
    }

    pub(crate) fn axis(&self, question: FitQuestion, base: &Setup) -> Axis {
        match question {
            FitQuestion::LargestBatch => Axis::batch(base),
            FitQuestion::LongestSequence => Axis::seq(base),
            FitQuestion::FewestGpus => Axis::gpus(base),
            FitQuestion::SmallestDevice => Axis::devices(base, &self.request.devices),
        }
    }

    fn whole(&self, size: StepSize) -> Result<Arc<StepTrace>, Error> {
        // What a model needs to know of the ranks is that there are some.
        let size = StepSize { ranks: size.ranks.min(2), ..size };
        if let Some(step) = self.wholes.get(&size) {
            return Ok(step);
        }
        let varies = |given: Option<u64>, free: bool| given.filter(|_| free);
        let steps = self.request.steps;
        let (batch, seq) = (varies(size.batch, steps.varies_batch()), varies(size.seq, steps.varies_seq()));
        Ok(self.wholes.keep(size, Arc::new(steps.step(&StepSize { batch, seq, ..size })?)))
    }

    /// The study of a set-up, which is to be kept for others when it is no longer needed.
    fn study(&self, setup: &Setup) -> Result<Study, Error> {
        let known = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let at = kept.iter().position(|(key, _)| *key == setup.key());
            at.and_then(|at| kept.remove(at))
        };
        if let Some((_, study)) = known {
            return Ok(study);
        }
        let whole = self.whole(setup.size())?;
        let target = Target { device: setup.device.clone(), ..self.request.target.clone() };
        let limits = self.request.limits.clone();
        if setup.ranks() < 2 {
            return Study::new(whole, target, limits);
        }
        let how = Fsdp2 { ranks: setup.ranks(), reshard: setup.reshard, ..self.request.sharding };
        Study::new(fsdp2(&whole, &how, &layers(&whole))?, target, limits)
    }

    fn keep(&self, setup: &Setup, study: Study) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((setup.key(), study));
        // Dropped when the others may go on.
        let oldest = if kept.len() > KEPT { kept.pop_front() } else { None };
        drop(kept);
        drop(oldest);
    }

    /// Whether there is such a step.
    pub(crate) fn can_be(&self, setup: &Setup) -> bool {
        self.study(setup).map(|study| self.keep(setup, study)).is_ok()
    }

    /// As it is, or with any plan.
    fn fits(&self, setup: &Setup, planned: bool) -> Result<Tried, Error> {
        let key = (setup.key(), planned);
        if let Some(tried) = self.tried.get(&key) {
            return Ok(tried);
        }
        let tried = match self.study(setup) {
            Ok(study) => {
                let fits = study.fits_as_it_is() || planned && study.has_plan()?;
                self.keep(setup, study);
                if fits { Tried::Fits } else { Tried::Exceeds }
            }
            // Of the first step it is known that it can be; on several GPUs only if they were asked for.
            Err(error) if setup.size() == self.base => return Err(error),
            Err(error) if self.is_asked_for(setup) => return Err(error),
            Err(_) => Tried::Impossible,
        };
        Ok(self.tried.keep(key, tried))
    }

    /// Whether somebody named the number of its GPUs, with the sizes of the first step.
    fn is_asked_for(&self, setup: &Setup) -> bool {
        let first = StepSize { ranks: setup.ranks(), ..self.base };
        setup.size() == first && self.request.fixed.gpus == Some(setup.gpus)
    }

    /// Whether a set-up fits.
    pub(crate) fn does_fit(&self, setup: &Setup, planned: bool) -> Result<bool, Error> {
        Ok(self.fits(setup, planned)? == Tried::Fits)
    }

    /// What tensors of a set-up take, without limit: as it is, or with the plan of the lowest peak that is quickly found.
    fn takes(&self, setup: &Setup, planned: bool) -> Result<Option<Bytes>, Error> {
        let key = (setup.key(), planned);
        if let Some(taken) = self.taken.get(&key) {
            return Ok(taken);
        }
        let Ok(study) = self.study(setup) else { return Ok(self.taken.keep(key, None)) };
        let taken = if planned {
            let problem = study.problem()?;
            let least = study.limits.cancel.catch(|| problem.quick_greedy(Bytes(1)).solution)?;
            study.taken(Some((problem, &least)))?
        } else {
            study.taken(None)?
        };
        self.keep(setup, study);
        Ok(self.taken.keep(key, Some(taken)))
    }

    /// Both answers to a question.
    pub(crate) fn answer(&self, axis: &Axis) -> Result<FitAnswer, Error> {
        let (as_it_is, with_a_plan) = rayon::join(|| self.found(axis, false), || self.found(axis, true));
        Ok(FitAnswer { question: axis.question, as_it_is: as_it_is?, with_a_plan: with_a_plan? })
    }

    /// The last place that fits, such that the next one does not.
    pub(crate) fn found(&self, axis: &Axis, planned: bool) -> Result<FitFound, Error> {
        let room = |setup: &Setup| {
            let target =
                Target { device: setup.device.clone(), ranks: setup.gpus.into(), ..self.request.target.clone() };
            target.room()
        };
        let hint = axis.hint(|setup| self.takes(setup, planned), room)?;
        let last = last(axis.most, hint, |place| self.does_fit(&axis.setup(place), planned))?;
        let next = last.map_or(1, |last| last + 1);
        let is_there = next <= axis.most && self.fits(&axis.setup(next), planned)? != Tried::Impossible;
        let neighbour = is_there.then(|| axis.value(next));
        let Some(last) = last else { return Ok(FitFound { neighbour, ..FitFound::default() }) };
        let setup = Some(self.setup(&axis.setup(last), planned)?);
        Ok(FitFound { value: Some(axis.value(last)), neighbour, setup })
    }

    /// A set-up that fits, with what it takes.
    pub(crate) fn setup(&self, setup: &Setup, planned: bool) -> Result<FitSetup, Error> {
        let key = (setup.key(), planned);
        if let Some(made) = self.made.get(&key) {
            return Ok(made);
        }
        let study = self.study(setup)?;
        let plain = study.fits_as_it_is();
        let (memory, pace) = if planned && !plain {
            let problem = study.problem()?;
            let found = study.limits.cancel.catch(|| study.for_device(problem, EXACT, Effort::Some))?;
            (found.memory, study.pace_under(problem, &found.outcome.solution.checkpoints))
        } else {
            (study.memory().copied(), *study.pace())
        };
        let made = FitSetup {
            means: self.means(setup, planned && !plain),
            batch: setup.batch,
            seq: setup.seq,
            gpus: setup.gpus.into(),
            tp: setup.tp,
            device: setup.device.name.clone(),
            memory,
            step_ms: pace.step,
            tokens_per_second: None,
            command: self.command(setup, planned && !plain),
        };
        self.keep(setup, study);
        Ok(self.made.keep(key, made.paced(&pace)))
    }

    fn means(&self, setup: &Setup, planned: bool) -> Vec<String> {
        let mut means = Vec::new();
        let mut add = |is: bool, what: String| means.extend(is.then_some(what));
        add(setup.fused, "fused optimizer".to_owned());
        add(setup.chunked, "chunked loss".to_owned());
        add(setup.parts > 1, format!("{} micro-batches", setup.parts));
        add(setup.tp > 1, format!("tensor parallelism over {}", setup.tp));
        add(setup.ranks() > 1, format!("FSDP over {}", setup.ranks()));
        add(setup.ranks() > 1 && !setup.reshard && self.request.sharding.reshard, "weights stay gathered".to_owned());
        add(planned, "plan".to_owned());
        means
    }

    fn command(&self, setup: &Setup, planned: bool) -> Option<String> {
        let step = self.request.steps.command(&setup.size())?;
        let reshard = if setup.ranks() > 1 && !setup.reshard { " --reshard no" } else { "" };
        let verb = if planned { "plan" } else { "stats" };
        Some(format!("rematic {verb} {step}{reshard} --device {}", setup.device.name))
    }
}

impl Study {
    /// Whether the device has what the step takes.
    pub(crate) fn fits_as_it_is(&self) -> bool {
        if self.is_far_too_large() {
            return false;
        }
        match self.memory() {
            Some(memory) => memory.fits(),
            None => self.statistics().timeline.peak().total() <= self.room(),
        }
    }

    /// Whether a plan is found under which it fits, as for [`Study::plan`] without a budget.
    pub(crate) fn has_plan(&self) -> Result<bool, Error> {
        let problem = self.problem()?;
        let found = self.limits.cancel.catch(|| self.for_device(problem, EXACT, Effort::Verdict))?;
        Ok(found.outcome.verdict != Verdict::Infeasible)
    }

    /// The highest bytes of its tensors on a device that has enough, with a plan or without. The allocator reserves more, but
    /// where that is too much it empties its cache.
    fn taken(&self, plan: Option<(&rematic_plan::Problem, &rematic_plan::Solution)>) -> Result<Bytes, Error> {
        let memory: Option<Memory> = match plan {
            Some((problem, solution)) => self.memory_under(problem, &solution.checkpoints),
            None => self.memory().copied(),
        };
        Ok(match (memory, plan) {
            (Some(memory), _) => memory.allocated,
            (None, Some((_, solution))) => solution.replayed.peak,
            (None, None) => self.problem()?.baseline().peak,
        })
    }
}

/// A hint is trusted to this share of itself.
const TRUSTED: u64 = 64;

/// The last place up to `most` that fits; near a hint, from which strides double, and then by bisection. Either it is the last of all or the
/// next one was tried.
fn last<E>(most: u64, hint: u64, mut fits: impl FnMut(u64) -> Result<bool, E>) -> Result<Option<u64>, E> {
    if most == 0 {
        return Ok(None);
    }
    let hint = hint.clamp(1, most);
    let (mut low, mut high);
    let mut stride = (hint / TRUSTED).max(1);
    if fits(hint)? {
        low = hint;
        loop {
            if low == most {
                return Ok(Some(most));
            }
            let next = low.saturating_add(stride).min(most);
            if !fits(next)? {
                high = next;
                break;
            }
            (low, stride) = (next, stride * 2);
        }
    } else {
        high = hint;
        loop {
            if high == 1 {
                return Ok(None);
            }
            let next = high.saturating_sub(stride).max(1);
            if fits(next)? {
                low = next;
                break;
            }
            (high, stride) = (next, stride * 2);
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

#[cfg(test)]
mod tests {
    use super::last;

    #[test]
    fn the_last_place_is_found_from_any_hint() {
        for answer in 0..=40 {
            for hint in 0..=50 {
                let found = last(40, hint, |place| Ok::<_, ()>(place <= answer)).unwrap();
                assert_eq!(found, (answer > 0).then_some(answer), "hint {hint}");
            }
        }
        for (answer, hint) in [(0, 1000), (1, 1000), (3, 900), (500, 1000), (999, 700), (1000, 640), (1000, 1)] {
            let found = last(1000, hint, |place| Ok::<_, ()>(place <= answer)).unwrap();
            assert_eq!(found, (answer > 0).then_some(answer), "hint {hint}");
        }
        assert_eq!(last(0, 3, |_| Ok::<_, ()>(true)), Ok(None));
    }

    #[test]
    fn where_places_alternate_the_next_one_does_not_fit() {
        let fits = |place: u64| place < 20 && !place.is_multiple_of(3) || place == 31;
        for hint in 1..=40 {
            let found = last(40, hint, |place| Ok::<_, ()>(fits(place))).unwrap().unwrap();
            assert!(fits(found) && !fits(found + 1), "hint {hint}: {found}");
        }
    }
}
