use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rematic::options::LossChoice;
use rematic::{
    Bytes, Error, LossKind, Memory, Origin, PlanAnswer, PlanDocument, PlanReport, Planner, StepTrace, Study, Style,
    Target, Verdict, Ways, variants_text,
};
use rematic_trace::Decision;

use crate::device::{DeviceName, no_budget_for_host};
use crate::error::{PlanError, exception, infeasible, warn};
use crate::option::{self, HostRate, Patterns, TableOrPath, target};
use crate::study::Question;
use crate::trace::facts;
use crate::variant::{CHUNKED_LOSS, Traces, Variant};
use crate::work::interruptible;

/// What to drop and recompute in a step, with what was promised.
#[pyclass(frozen, eq, module = "rematic")]
pub(crate) struct Plan {
    pub(crate) document: PlanDocument,
    /// What the step under it takes of the device: known only to who made the plan.
    memory: Option<Memory>,
    /// Where the peak is, and what was measured, in words: known only to who made the plan.
    text: Option<String>,
}

/// Plans are equal if they decide and promise the same.
impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.document == other.document
    }
}

/// One call of a module, or a run of calls, that is checkpointed.
#[pyclass(frozen, get_all, module = "rematic")]
pub(crate) struct Region {
    /// The module's full name.
    module: String,
    /// Which of the module's calls in the step; the first is 0.
    call: usize,
    /// The calls that follow directly and are checkpointed together with it, as one: their modules, and which of the calls.
    then: Vec<(String, usize)>,
    /// The share of what autograd would hold that is freed.
    discard: f64,
    /// Bytes freed between its forward and its backward.
    freed: u64,
    /// Time of recomputation.
    recompute_ms: f64,
    /// All of its forward operators in order: name, and whether its output is saved, on the device or on the host.
    policy: Vec<(String, bool)>,
    /// The positions of those whose outputs lie on the host between forward and backward.
    offloaded: Vec<usize>,
    /// The positions of those that do not run again, as nothing reads what they make.
    skipped: Vec<usize>,
    /// Bytes that go to the host, and come back.
    offload_bytes: u64,
    /// The region of the plan, from 0, with the end of whose forward these outputs leave the device.
    leaves_with: Option<usize>,
    /// The region with the beginning of whose recomputation they come back.
    returns_with: Option<usize>,
}

#[pymethods]
impl Region {
    /// The operators whose output is saved, in order.
    #[getter]
    fn saved(&self) -> Vec<&str> {
        self.policy.iter().filter(|(_, saved)| *saved).map(|(name, _)| name.as_str()).collect()
    }

    fn __repr__(&self) -> String {
        let (saved, ops) = (self.saved().len(), self.policy.len());
        let to = self.then.last().map(|(module, _)| format!(" to {module}")).unwrap_or_default();
        format!("<rematic.Region {}{to}, call {}: saves {saved} of {ops} operators>", self.module, self.call)
    }
}

impl Plan {
    pub(crate) fn of(answer: PlanAnswer) -> Self {
        let text = answer.text(Style::default());
        Plan { document: answer.document, memory: answer.memory, text: Some(text) }
    }

    /// The plan for several variants, each with its name, step and answer.
    fn of_variants(variants: Vec<(String, &StepTrace, PlanAnswer)>) -> Option<Self> {
        let texts: Vec<String> = variants.iter().map(|(_, _, answer)| answer.text(Style::default())).collect();
        let memory = variants.iter().filter_map(|(_, _, answer)| answer.memory).max_by_key(|memory| memory.reserved);
        let documents = variants.into_iter().map(|(name, step, answer)| (name, step, answer.document)).collect();
        let document = PlanDocument::of_variants(documents)?;
        let worst = document.worst();
        let at = document.each().iter().position(|variant| variant.name == worst.name).unwrap_or(0);
        let text = texts.get(at).map(|text| with_variants(&document, &worst, text));
        Some(Plan { document, memory, text })
    }

    /// What the command line says, as far as the plan alone knows it.
    fn text_without_step(&self) -> String {
        let worst = self.document.worst();
        with_variants(&self.document, &worst, &Self::text_of(&worst))
    }

    fn text_of(document: &PlanDocument) -> String {
        let mut trace = StepTrace::new(&document.source);
        trace.origin = Origin::from_facts(&document.source, &document.facts);
        let report = PlanReport {
            trace: &trace,
            verdict: if fits(document) { Verdict::Fits } else { Verdict::Planned },
            document,
            replayed: None,
            moments: &[],
            on_device: None,
            pace: None,
            measured: None,
            ways: &Ways::default(),
            loss: None,
        };
        report.text(Style::default())
    }

    fn verdict(&self) -> Verdict {
        if self.document.each().iter().all(fits) { Verdict::Fits } else { Verdict::Planned }
    }

    /// The highest of a number over the variants.
    fn highest(&self, bytes: impl Fn(&PlanDocument) -> Bytes) -> Bytes {
        self.document.each().iter().map(bytes).max().unwrap_or_default()
    }
}

/// Whether there is nothing to drop. A plan of `milp` may drop nothing, and yet be above the budget.
fn fits(document: &PlanDocument) -> bool {
    document.regions.is_empty() && document.peak_bytes <= document.budget_bytes
}

/// What is said of one variant, below a table of all.
fn with_variants(document: &PlanDocument, shown: &PlanDocument, text: &str) -> String {
    let table = variants_text(document, Style::default());
    if table.is_empty() { text.to_owned() } else { format!("{table}\nVariant `{}`: {text}", shown.name) }
}

/// Where operators with a decision are in a region.
fn places(region: &rematic_plan::PlannedRegion, decision: Decision) -> Vec<usize> {
    region.policy.iter().filter(|op| op.decision == decision).map(|op| op.index).collect()
}

/// The regions of a plan, as Python sees them.
pub(crate) fn regions(planned: &[rematic_plan::PlannedRegion]) -> Vec<Region> {
    let region = |region: &rematic_plan::PlannedRegion| Region {
        module: region.module.clone(),
        call: region.call,
        then: region.then.iter().map(|call| (call.module.clone(), call.call)).collect(),
        discard: region.discard,
        freed: region.freed_bytes.0,
        recompute_ms: region.recompute_ms.0,
        policy: region.policy.iter().map(|op| (op.op.clone(), op.decision.keeps())).collect(),
        offloaded: places(region, Decision::Offload),
        skipped: places(region, Decision::Skip),
        offload_bytes: region.offload.map_or(0, |moves| moves.bytes.0),
        leaves_with: region.offload.map(|moves| moves.leaves_with),
        returns_with: region.offload.map(|moves| moves.returns_with),
    };
    planned.iter().map(region).collect()
}

#[pymethods]
impl Plan {
    /// Reads a plan file.
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Self> {
        let document = PlanDocument::read(&path).map_err(exception)?;
        Ok(Plan { document, memory: None, text: None })
    }

    /// Reads the text of a plan file.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        Ok(Plan {
            document: PlanDocument::from_json(text.as_bytes(), Path::new("the plan")).map_err(exception)?,
            memory: None,
            text: None,
        })
    }

    /// Writes the plan to a file.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        self.document.write(&path).map_err(exception)
    }

    /// The text of a plan file.
    fn to_json(&self) -> PyResult<String> {
        let text = serde_json::to_string_pretty(&self.document);
        text.map(|text| text + "\n").map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// A Python file with a function `apply_plan(model)`, which applies the plan with torch alone.
    fn to_python(&self) -> PyResult<String> {
        rematic::emitted_python(&self.document).map_err(exception)
    }

    /// `fits` (nothing to drop) or `planned`.
    #[getter]
    fn outcome(&self) -> &'static str {
        self.verdict().word()
    }

    /// The model.
    #[getter]
    fn source(&self) -> &str {
        &self.document.source
    }

    /// How the step was traced.
    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        facts(py, &self.document.facts)
    }

    /// The device that times are for.
    #[getter]
    fn device(&self) -> &str {
        &self.document.device
    }

    /// Devices among which parameters, gradients and optimizer state are spread.
    #[getter]
    fn world_size(&self) -> u64 {
        self.document.world_size
    }

    /// The most bytes that may be in use.
    #[getter]
    fn budget(&self) -> u64 {
        self.document.budget_bytes.0
    }

    /// The peak under the plan, as replayed; of several variants the highest.
    #[getter]
    fn peak(&self) -> u64 {
        self.highest(|variant| variant.peak_bytes).0
    }

    /// The peak without a plan; of several variants the highest.
    #[getter]
    fn forward_bytes(&self) -> Option<u64> {
        self.document.forward_bytes.map(|bytes| bytes.0)
    }

    #[getter]
    fn baseline_peak(&self) -> u64 {
        self.highest(|variant| variant.baseline_peak_bytes).0
    }

    /// What the plan was made for, each with its own decisions; one if it was made for one step.
    #[getter]
    fn variants(&self) -> Vec<Variant> {
        self.document.each().into_iter().map(Variant::of).collect()
    }

    /// What the step under the plan takes of the device: `allocated_bytes`, `reserved_bytes` (by PyTorch's allocator),
    /// `context_bytes`, `usable_bytes` and `fits`; of several variants the one that reserves most. `None` for the CPU, and for
    /// a plan that was read.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(memory) = self.memory else { return Ok(None) };
        let found = PyDict::new(py);
        found.set_item("allocated_bytes", memory.allocated.0)?;
        found.set_item("reserved_bytes", memory.reserved.0)?;
        found.set_item("context_bytes", memory.context.0)?;
        found.set_item("usable_bytes", memory.usable.0)?;
        found.set_item("fits", memory.fits())?;
        Ok(Some(found))
    }

    /// Time of the step without recomputation.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.document.step_ms.0
    }

    /// Time of recomputation.
    #[getter]
    fn recompute_ms(&self) -> f64 {
        self.document.recompute_ms.0
    }

    /// Bytes that go to the host, and come back.
    #[getter]
    fn offload_bytes(&self) -> u64 {
        self.document.offload.map_or(0, |offload| offload.bytes.0)
    }

    /// What they take of the host's pinned memory.
    #[getter]
    fn host_bytes(&self) -> u64 {
        self.document.offload.map_or(0, |offload| offload.host_bytes.0)
    }

    /// How long the device waits for these copies.
    #[getter]
    fn stall_ms(&self) -> f64 {
        self.document.offload.map_or(0.0, |offload| offload.stall_ms.0)
    }

    /// The layer whose loss is computed in chunks, by its path in the model, and how many; `None` if the loss is as the model computes it.
    #[getter]
    fn loss(&self) -> Option<(String, u64)> {
        self.document.loss.as_ref().map(|loss| (loss.head.clone(), loss.chunks))
    }

    /// No plan within the budget takes less.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.document.lower_bound_ms.0
    }

    /// The checkpointed regions, in the order of forward.
    #[getter]
    fn regions(&self) -> Vec<Region> {
        regions(&self.document.regions)
    }

    fn _repr_html_(&self) -> String {
        rematic::variants_html(&self.document)
    }

    fn __repr__(&self) -> String {
        let document = self.document.worst();
        let (peak, baseline, budget) = (document.peak_bytes, document.baseline_peak_bytes, document.budget_bytes);
        match (self.verdict(), document.regions.len()) {
            (Verdict::Planned, _) if !self.document.variants.is_empty() => format!(
                "<rematic.Plan for {}: {} variants, peak {baseline} -> {peak} of {budget}>",
                document.source,
                self.document.variants.len() + 1
            ),
            (Verdict::Fits, _) => format!("<rematic.Plan for {}: fits as it is, {peak} of {budget}>", document.source),
            (_, regions) => format!(
                "<rematic.Plan for {}: {regions} regions, peak {baseline} -> {peak} of {budget}, {} of recomputation>",
                document.source, document.recompute_ms
            ),
        }
    }

    fn __str__(&self) -> String {
        let text = self.text.clone().unwrap_or_else(|| self.text_without_step());
        text.trim_end().to_owned()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((py.get_type::<Plan>().getattr("from_json")?, (self.to_json()?,)))
    }
}

/// Plans each of several variants. Those for a device share the budget of the one that may take most.
fn variants(questions: Vec<Question>, planner: Planner, budget: Option<Bytes>) -> Result<Vec<PlanAnswer>, Error> {
    let mut found = Vec::with_capacity(questions.len());
    for question in questions {
        let study = question.study()?;
        let answer = study.plan(planner, budget)?;
        found.push((study, answer));
    }
    let most = found.iter().map(|(_, answer)| answer.document.budget_bytes).max().unwrap_or_default();
    let shared = |(study, answer): (Arc<Study>, PlanAnswer)| {
        if answer.document.budget_bytes == most { Ok(answer) } else { study.with_budget(answer, most) }
    };
    found.into_iter().map(shared).collect()
}

/// Finds what to drop and recompute so that the step, or each of several variants of it, fits a budget, at the least extra
/// time.
#[pyfunction]
#[pyo3(signature = (trace, budget=None, *, device=DeviceName::default(), device_file=None, planner="exact", cost="physical",
                    cost_table=None, only=None, never=None, whole=false, runs=true, world_size=1, allocator=None, alloc_conf=None,
                    gap=None, time_limit=None, usable=None, host_memory=None, host_bandwidth=None, loss=None))]
#[expect(clippy::too_many_arguments, reason = "the options of the command line")]
pub(crate) fn plan(
    py: Python<'_>,
    trace: &Bound<'_, PyAny>,
    budget: Option<&Bound<'_, PyAny>>,
    device: DeviceName,
    device_file: Option<PathBuf>,
    planner: &str,
    cost: &str,
    cost_table: Option<TableOrPath<'_>>,
    only: Option<Patterns>,
    never: Option<Patterns>,
    whole: bool,
    runs: bool,
    world_size: u64,
    allocator: Option<&str>,
    alloc_conf: Option<&str>,
    gap: Option<f64>,
    time_limit: Option<f64>,
    usable: Option<&Bound<'_, PyAny>>,
    host_memory: Option<&Bound<'_, PyAny>>,
    host_bandwidth: Option<HostRate>,
    loss: Option<&str>,
) -> PyResult<Plan> {
    let given = Traces::of(trace)?;
    let loss = loss.map(option::loss).transpose()?;
    let planner = option::planner(planner, gap, time_limit)?;
    let mut target =
        Target { ranks: world_size, ..target(&device.name, device_file, cost, cost_table, allocator, alloc_conf)? };
    if let Some(usable) = usable {
        target.device.usable = option::size(usable)?;
    }
    if budget.is_none() && device.is_host {
        return Err(no_budget_for_host());
    }
    let budget = budget.map(option::size).transpose()?;
    // Which variant runs is told within single calls.
    let limits = option::limits(only, never, whole, runs && given.steps.len() == 1);
    let limits = option::with_host(limits, &mut target, host_memory, host_bandwidth)?;
    if limits.host_memory.is_some() && given.steps.len() > 1 {
        return Err(exception(Error::HostMemoryVariants { variants: given.steps.len() }));
    }
    if let Some(warning) = budget.and_then(|budget| target.budget_warning(budget)) {
        warn(py, &warning)?;
    }
    if let Some(warning) = given.steps.iter().find_map(|step| target.attention_warning(step)) {
        warn(py, &warning)?;
    }
    let answers = |traces: &Traces| {
        let (questions, cancel) = Question::each(&traces.lasts, &traces.steps, &target, &limits);
        interruptible(py, &cancel, move || variants(questions, planner, budget))?.map_err(exception)
    };
    let answers = match loss {
        None | Some(LossChoice::As(LossKind::Plain)) => answers(&given)?,
        Some(LossChoice::As(LossKind::Chunked)) => {
            answers(&given.with_chunked_loss(CHUNKED_LOSS)?.map_err(PlanError::new_err)?)?
        }
        Some(LossChoice::Chosen) => {
            let chunked = given.with_chunked_loss("auto")?;
            let chunked = match chunked {
                Ok(traces) => Ok(answers(&traces)?),
                Err(why) => Err(why),
            };
            PlanAnswer::of_losses(answers(&given)?, chunked)
        }
    };
    finished(py, given.names, answers)
}

/// The plan of all variants, each with its answer, if they fit.
fn finished(py: Python<'_>, names: Vec<String>, answers: Vec<PlanAnswer>) -> PyResult<Plan> {
    let which = |at: usize| if names.len() > 1 { format!("Variant `{}`: ", names[at]) } else { String::new() };
    let unmet = answers.iter().enumerate().filter_map(|(at, answer)| Some((answer.least_budget()?, at)));
    if let Some((least, at)) = unmet.max() {
        let words = answers[at].text(Style::default());
        return Err(infeasible(py, &(which(at) + &words), answers[at].document.budget_bytes, least));
    }
    for (at, warning) in answers.iter().enumerate().filter_map(|(at, answer)| Some((at, answer.warning()?))) {
        warn(py, &(which(at) + &warning))?;
    }
    let steps: Vec<Arc<StepTrace>> = answers.iter().map(|answer| Arc::clone(&answer.trace)).collect();
    let variants = names.into_iter().zip(answers).zip(&steps).map(|((name, answer), step)| (name, &**step, answer));
    Plan::of_variants(variants.collect()).ok_or_else(Traces::none)
}
