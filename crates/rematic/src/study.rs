use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use rematic_allocator::Settings;
use rematic_cost::{Costs, Device, Measured};
use rematic_layout::even_shards;
use rematic_plan::{Explanation, Limits, PlanDocument, PlanError, Problem, Solution};
use rematic_replay::{Allocator, Checkpoint, Course, Ledger, Schedule, Scratch, Timeline};
use rematic_report::{Compiled, ExplanationReport, Memory, Pace, Setup, StatsReport, TriedSetting};
use rematic_torch::StepStats;
use rematic_trace::{Bytes, Millis, StepTrace};

use crate::error::Error;
use crate::target::Target;

type Change = fn(&mut Settings);

/// Settings that often help, each on top of those that are given.
const TRIED: [(&str, Change); 4] = [
    ("expandable_segments:True", |settings| settings.expandable_segments = true),
    ("max_split_size_mb:128", |settings| settings.max_split_size = Some(128 << 20)),
    ("max_split_size_mb:512", |settings| settings.max_split_size = Some(512 << 20)),
    ("large_segment_size_mb:64", |settings| settings.large_segment_size = 64 << 20),
];

/// A step on a target, with all that is worked out about it: each thing once, when it is first asked for. Every verb asks it.
pub struct Study {
    pub(crate) target: Target,
    /// The step as it was given.
    pub(crate) whole: Arc<StepTrace>,
    /// The step of one rank.
    pub(crate) trace: Arc<StepTrace>,
    pub(crate) costs: Arc<Costs>,
    pub(crate) limits: Limits,
    problem: OnceLock<Problem>,
    statistics: OnceLock<Statistics>,
    /// What tensors take at most in the step as it is.
    plain_peak: OnceLock<Bytes>,
    scratch: OnceLock<Scratch>,
    memory: OnceLock<Option<Memory>>,
    pub(crate) pace: OnceLock<Pace>,
}

/// Why a step peaks where it does, and what of it fits.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Why, and what helps.
    pub explanation: Explanation,
    setup: Setup,
    device: Device,
    memory: Option<Memory>,
    budget: Option<Bytes>,
    settings: Vec<TriedSetting>,
    measured: Option<Measured>,
    /// The step under `torch.compile`, where it was rehearsed.
    pub compiled: Option<Compiled>,
}

impl Explained {
    /// What the command line says about it.
    #[must_use]
    pub fn report(&self) -> ExplanationReport<'_> {
        ExplanationReport {
            setup: &self.setup,
            explanation: &self.explanation,
            device: &self.device,
            memory: self.memory.as_ref(),
            budget: self.budget,
            settings: &self.settings,
            compiled: self.compiled.as_ref(),
            measured: self.measured.as_ref(),
        }
    }

    /// Whether tensors stay within the budget; `None` if there is none.
    #[must_use]
    pub fn within_budget(&self) -> Option<bool> {
        self.budget.map(|budget| self.explanation.peak_bytes <= budget)
    }
}

/// What is said of every module of the whole step.
pub(crate) struct Statistics {
    pub(crate) timeline: Timeline,
    pub(crate) stats: StepStats,
}

impl Study {
    /// A step on a target. The allocator of the limits is the target's, whatever they say.
    ///
    /// # Errors
    /// If the step cannot be spread over the target's ranks, or cannot be costed there, or settings of CUDA's allocator are asked
    /// for where it is not used.
    pub fn new(step: impl Into<Arc<StepTrace>>, mut target: Target, limits: Limits) -> Result<Self, Error> {
        let whole = step.into();
        if let Some(ranks) = whole.place.ranks().filter(|_| target.ranks == 1) {
            target.ranks = ranks;
        }
        target.place_on_nodes()?;
        let ranks = target.ranks;
        let trace = match even_shards(&whole, ranks).map_err(|why| PlanError::Ranks { ranks, why })? {
            Cow::Borrowed(_) => Arc::clone(&whole),
            Cow::Owned(trace) => Arc::new(trace),
        };
        let costs = Arc::new(target.costs(&trace)?);
        let limits = Limits { allocator: target.allocator(&trace), ..limits };
        if target.asks_for_settings && limits.allocator == Allocator::Cpu {
            return Err(Error::SettingsOnCpu);
        }
        let (problem, statistics, plain_peak) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (scratch, memory, pace) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Study { target, whole, trace, costs, limits, problem, statistics, plain_peak, scratch, memory, pace })
    }

    /// A step whose statistics are wanted. Torch's tools see calls through module hooks; where times are not torch's, whole
    /// calls count.
    ///
    /// # Errors
    /// As [`Study::new`].
    pub fn of_calls(step: StepTrace, target: Target) -> Result<Self, Error> {
        let step = if target.cost.is_torch() { step } else { step.with_whole_calls() };
        let ranks = target.ranks;
        let step = even_shards(&step, ranks).map_err(|why| PlanError::Ranks { ranks, why })?.into_owned();
        Study::new(step, target, Limits::default())
    }

    /// The step of one rank.
    #[must_use]
    pub fn trace(&self) -> &Arc<StepTrace> {
        &self.trace
    }

    /// What its operators cost.
    #[must_use]
    pub fn costs(&self) -> &Arc<Costs> {
        &self.costs
    }

    /// What it is for.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What the step of one rank is trained with, and on.
    #[must_use]
    pub fn setup(&self) -> Setup {
        Setup::new(&self.trace, &self.target.device.name)
    }

    /// What may be planned.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What can be planned.
    ///
    /// # Errors
    /// If the limits leave nothing to plan, or are cancelled.
    pub fn problem(&self) -> Result<&Problem, Error> {
        if let Some(problem) = self.problem.get() {
            return Ok(problem);
        }
        let made = || Problem::new(Arc::clone(&self.trace), Arc::clone(&self.costs), self.limits.clone());
        let problem = self.limits.cancel.catch(made)??;
        Ok(self.problem.get_or_init(|| problem))
    }

    /// Why the step peaks where it does, and what brings the peak down.
    ///
    /// # Errors
    /// As [`Study::problem`].
    pub fn explain(&self) -> Result<Explanation, Error> {
        let problem = self.problem()?;
        let explanation = self.limits.cancel.catch(|| Explanation::new(problem, &self.whole, &self.target.device))?;
        // By the clocks of its streams, as everywhere else.
        Ok(Explanation { step_ms: self.pace().step, ..explanation })
    }

    /// The same with all that `rematic explain` says; `budget` is the most memory that tensors may take.
    ///
    /// # Errors
    /// As [`Study::problem`], and if the budget is zero.
    pub fn explained(&self, budget: Option<Bytes>) -> Result<Explained, Error> {
        if budget == Some(Bytes(0)) {
            return Err(Error::NoBudget { found: Bytes(0) });
        }
        Ok(Explained {
            explanation: self.explain()?,
            setup: self.setup(),
            device: self.target.device.clone(),
            memory: self.memory().copied(),
            budget,
            settings: self.tried_settings(),
            measured: self.costs.measurements().cloned(),
            compiled: None,
        })
    }

    /// What `rematic stats` says about the whole step.
    #[must_use]
    pub fn stats(&self) -> StatsReport<'_> {
        let Statistics { timeline, stats } = self.statistics();
        let (device, memory) = (&self.target.device, self.memory());
        let pace = Some(self.pace());
        StatsReport { trace: &self.whole, timeline, costs: &self.costs, stats, device, memory, pace }
    }

    /// What the step of one rank takes of the device; nothing for a step on the CPU.
    #[must_use]
    pub fn memory(&self) -> Option<&Memory> {
        let made = || self.is_cuda().then(|| self.target.memory(&self.trace));
        self.memory.get_or_init(made).as_ref()
    }

    /// What it takes with these regions checkpointed; nothing for a step on the CPU.
    pub(crate) fn memory_under(&self, problem: &Problem, checkpoints: &[Checkpoint]) -> Option<Memory> {
        if checkpoints.is_empty() {
            return self.memory().copied();
        }
        let course = || Course::new(&self.trace, &problem.schedule(checkpoints));
        self.is_cuda().then(|| self.target.memory_of(&course(), self.scratch()))
    }

    /// The same, if it fits; nothing for a step on the CPU.
    pub(crate) fn memory_within(&self, problem: &Problem, checkpoints: &[Checkpoint]) -> Option<Memory> {
        if checkpoints.is_empty() {
            return self.memory().copied().filter(Memory::fits);
        }
        let course = || Course::new(&self.trace, &problem.schedule(checkpoints));
        self.is_cuda().then(|| self.target.memory_within(&course(), self.scratch())).flatten()
    }

    /// Whether the step as it is takes so much more than there is that the allocator need not be asked: what an operator
    /// accumulates into is in use twice at most.
    pub(crate) fn is_far_too_large(&self) -> bool {
        let peak = self.plain_peak.get_or_init(|| match self.problem.get() {
            Some(problem) => problem.baseline().peak,
            None => Timeline::replay(&self.trace, self.allocator()).peak().total(),
        });
        peak.0 / 2 > self.target.room().0
    }

    /// What other settings of PyTorch's allocator would make of the step; nothing for a step on the CPU.
    #[must_use]
    pub fn tried_settings(&self) -> Vec<TriedSetting> {
        if !self.is_cuda() {
            return Vec::new();
        }
        let start = Ledger::new(&self.trace, Allocator::Cuda);
        let course = Course::new(&self.trace, &Schedule::plain(&self.trace, &start));
        let tried = |&(setting, change): &(&'static str, Change)| {
            let mut target = self.target.clone();
            change(&mut target.settings);
            let memory = target.memory_of(&course, self.scratch());
            TriedSetting { setting, reserved_bytes: memory.reserved, fits: memory.fits() }
        };
        TRIED.par_iter().map(tried).collect()
    }

    fn scratch(&self) -> &Scratch {
        self.scratch.get_or_init(|| self.target.scratch(&self.trace))
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        self.statistics.get_or_init(|| {
            let timeline = Timeline::replay(&self.whole, self.allocator());
            let stats = StepStats::new(&self.whole, &timeline, &self.costs);
            Statistics { timeline, stats }
        })
    }

    /// Whether PyTorch's caching allocator serves the step.
    pub(crate) fn is_cuda(&self) -> bool {
        self.allocator() == Allocator::Cuda
    }

    pub(crate) fn allocator(&self) -> Allocator {
        self.limits.allocator
    }

    pub(crate) fn document(&self, problem: &Problem, solution: &Solution, budget: Bytes) -> PlanDocument {
        let document = PlanDocument::new(problem, solution, budget, &self.target.device.name);
        // What runs beside each other is no sum.
        PlanDocument { step_ms: self.pace().step, ..document }
    }

    /// A plan from a document for this very step, with what the replay says about it here.
    pub(crate) fn replayed(problem: &Problem, document: &PlanDocument, budget: Bytes) -> Result<Solution, Error> {
        let (variant, checkpoints) = document.for_step(problem.trace(), problem.regions())?;
        let ranks = problem.trace().place.ranks().unwrap_or(u64::MAX);
        if ranks != document.world_size {
            return Err(Error::OtherRanks { plan: document.world_size, step: ranks });
        }
        variant.check_step(problem.trace(), problem.baseline().peak)?;
        let replayed = problem.replay(&checkpoints);
        // It holds for plans that move nothing to the host.
        let offloads = replayed.offload.bytes > Bytes(0);
        let bound = if offloads { Millis(0.0) } else { problem.lower_bound(budget).unwrap_or(Millis(0.0)) };
        let lower_bound = Millis(bound.0.min(replayed.recompute.0));
        Ok(Solution { checkpoints, replayed, lower_bound })
    }
}
