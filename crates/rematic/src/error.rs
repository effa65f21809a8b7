use std::io;
use std::path::PathBuf;

use rematic_allocator::SettingsError;
use rematic_cost::CostError;
use rematic_fake::FakeError;
use rematic_layout::Fsdp2Error;
use rematic_plan::{DocumentError, PlanError};
use rematic_rehearsal::RehearsalError;
use rematic_snapshot::SnapshotError;
use rematic_torch::TorchError;
use rematic_trace::{Bytes, FileError, Opt};

/// Anything that can go wrong between a source and a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Host memory of no size.
    #[error("{} is 0: nothing can be moved there; leave it out for plans that move nothing", Opt("host-memory"))]
    NoHostMemory,
    /// Host memory for a planner that moves nothing.
    #[error("{} is for the planner exact, and {planner} moves nothing; leave one of them out", Opt("host-memory"))]
    HostMemoryPlanner {
        /// The planner.
        planner: &'static str,
    },
    /// Host memory for several variants.
    #[error(
        "{} is for one step, and there are {variants} variants; plan one of them, or leave it out",
        Opt("host-memory")
    )]
    HostMemoryVariants {
        /// How many.
        variants: usize,
    },
    /// A plan as code that moves outputs to the host.
    #[error(
        "the plan moves {bytes} to the host and back, which the emitted Python cannot; train with rematic.apply, or plan without {}",
        Opt("host-memory")
    )]
    EmitsOffload {
        /// What it moves.
        bytes: Bytes,
    },
    /// The model cannot be traced.
    #[error(transparent)]
    Model(#[from] FakeError),
    /// The trace file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The device is unknown, or has no rate for the step's types.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The step cannot be spread by FSDP2.
    #[error("{option}: {0}", option = Opt("fsdp"))]
    Fsdp2(#[from] Fsdp2Error),
    /// A plan for the step of one of other ranks.
    #[error("the plan is for one of {plan} devices, and the step is that of one of {step}; shard it as the plan was")]
    OtherRanks {
        /// Those of the plan.
        plan: u64,
        /// Those of the step.
        step: u64,
    },
    /// Devices that cannot be spread evenly over nodes.
    #[error(
        "{} spreads {ranks} {} unevenly; give a number that divides {ranks}",
        Opt("nodes").to(&nodes.to_string()),
        if *ranks == 1 { "GPU" } else { "GPUs" }
    )]
    Nodes {
        /// The nodes that were asked for.
        nodes: u32,
        /// The devices.
        ranks: u64,
    },
    /// GPUs that cannot be shared so.
    #[error("{} is not a multiple of {}; give a number of GPUs that {tp} divides", Opt("gpus").to(gpus), Opt("tp").to(tp))]
    GpusAndTp {
        /// All GPUs.
        gpus: u32,
        /// Those that share the model.
        tp: u32,
    },
    /// A function that makes steps has none for this size.
    #[error("there is no step of this size: {why}")]
    NoStep {
        /// Why.
        why: String,
    },
    /// Something that `fit` works out itself.
    #[error(
        "fit tries numbers of GPUs itself, and looks at the first of them, so {option} means nothing here; drop it"
    )]
    NotForFit {
        /// The option.
        option: Opt,
    },
    /// What stays gathered is chosen together with a plan.
    #[error("{} chooses together with a plan, so it is for the verb plan; give yes or no", Opt("reshard").to("auto"))]
    ReshardingChosen,
    /// How the loss is computed is chosen together with a plan.
    #[error("{} chooses together with a plan, so it is for the verbs plan and fit; give plain or chunked", Opt("loss").to("auto"))]
    LossChosen,
    /// Other losses are tried of models that are traced natively.
    #[error("{} is for models that `rematic models` lists, and for a config.json of such a one; leave it out", Opt("loss").to("auto"))]
    LossOfFit,
    /// A plan as code that computes the loss in chunks.
    #[error(
        "the plan computes the loss of `{head}` in chunks, which the emitted Python cannot; train with rematic.apply, or plan with {}",
        Opt("loss").to("plain")
    )]
    EmitsLoss {
        /// The layer.
        head: String,
    },
    /// A step of which no other is known.
    #[error(
        "this trace knows only the plain loss, so {} has nothing to take; capture it with {}",
        Opt("loss").to(asked), Opt("loss").to("auto")
    )]
    OneLoss {
        /// What was asked for.
        asked: &'static str,
    },
    /// The rate of a link that nothing would use.
    #[error(
        "{} is for plans that move outputs to the host, and without {} none does; give that too, or leave it out",
        Opt("host-bandwidth"),
        Opt("host-memory")
    )]
    UnusedHostBandwidth,
    /// What a saved step computes in is known.
    #[error(
        "a saved step has its types already; {} is for a model, or for a step in half precision with {}",
        Opt("precision").to("mixed"), Opt("fsdp").to("GPUS")
    )]
    MixedTrace,
    /// What `torch.compile` makes of a step is known when it has run.
    #[error(
        "what torch.compile fuses and keeps is not known before it has compiled the step; `rematic explain` \
         with {} rehearses a model of Hugging Face's, and `rematic rehearse -- python train.py` your own script",
        Opt("with-compile")
    )]
    Compiled,
    /// Nothing to build the model from.
    #[error(
        "{name} has no config of Hugging Face's, so that its model cannot be compiled here; run your script on a GPU that is not \
         there, with `rematic rehearse -- python train.py`, and torch.compile in it"
    )]
    NoConfig {
        /// What was given.
        name: String,
    },
    /// An option that the rehearsal of a compiled model does not know.
    #[error(
        "{option} is not rehearsed under torch.compile; drop one of them, or rehearse your own script with `rematic rehearse -- \
         python train.py`"
    )]
    NotCompiled {
        /// The option.
        option: Opt,
    },
    /// The model does not run under `torch.compile`.
    #[error("{name} could not be rehearsed under torch.compile: {reason}")]
    Compile {
        /// The model.
        name: String,
        /// Why.
        reason: String,
    },
    /// A port that cannot be listened on.
    #[error("cannot listen on 127.0.0.1:{port}: {source}; give another {}, or none for any that is free", Opt("port"))]
    Port {
        /// The port; 0 for any.
        port: u16,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A source is a directory.
    #[error("{} is a directory; give {}", path.display(), path.join("config.json").display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The allocator's settings are none.
    #[error("{option}: {0}", option = Opt("alloc-conf"))]
    Settings(#[from] SettingsError),
    /// Settings of an allocator that does not serve the step.
    #[error(
        "{} sets PyTorch's allocator for CUDA, and this step is counted as the CPU's allocator does; drop it, or add {}",
        Opt("alloc-conf"), Opt("allocator").to("cuda")
    )]
    SettingsOnCpu,
    /// A memory snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An option that a memory snapshot has no use for.
    #[error("{} is a memory snapshot of a run, for which {option} means nothing; drop it", path.display())]
    OptionForSnapshot {
        /// The file.
        path: PathBuf,
        /// The option.
        option: String,
    },
    /// A pickle in place of a model.
    #[error(
        "{file} is a pickle, as memory snapshots are, and not a model; of a snapshot, `rematic explain {file}` says what was in \
         memory, and `rematic report {file}` shows it", file = path.display()
    )]
    SnapshotForModel {
        /// The file.
        path: PathBuf,
    },
    /// A script where a model is to be named.
    #[error(
        "{file} is a Python script, and not a model; `rematic rehearse -- python {file}` runs it on a GPU that is not there, \
         and `rematic.capture` in it saves its step as a trace", file = path.display()
    )]
    ScriptForModel {
        /// The file.
        path: PathBuf,
    },
    /// An option that only a memory snapshot takes.
    #[error(
        "`{source_name}` is not a memory snapshot, and {option} is for those; drop it, or give a file that torch.cuda.memory._dump_snapshot wrote"
    )]
    SnapshotOnly {
        /// What was given.
        source_name: String,
        /// The option.
        option: Opt,
    },
    /// The rehearsal has no answer.
    #[error(transparent)]
    Rehearsal(#[from] RehearsalError),
    /// A card that CUDA does not run on, or of which too little is known.
    #[error(
        "{device} has no `capability` and `processors` in the list of devices, which a rehearsal needs; give an NVIDIA card \
         that `rematic devices` lists, or add them in {}",
        Opt("device-file")
    )]
    NoChip {
        /// The device.
        device: String,
    },
    /// A plan file cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The problem cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Torch's planners have no answer.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// A budget that nothing fits.
    #[error("the budget is {found}; give the memory that the step may use, like 38GiB")]
    NoBudget {
        /// The budget.
        found: Bytes,
    },
    /// The milp planner decides about shares.
    #[error(
        "{} chooses a share of each module; drop {}, or use {} or greedy",
        Opt("planner").to("milp"), Opt("whole"), Opt("planner").to("exact")
    )]
    WholeMilp,
    /// An option that the chosen planner would not look at.
    #[error("{option} is for {0}, and the planner is {planner}; add {0}, or drop {option}", Opt("planner").to("milp"))]
    MilpOnly {
        /// The option.
        option: Opt,
        /// The planner.
        planner: &'static str,
    },
    /// A manual page of something that is not a verb.
    #[error("there is no verb `{found}`; `rematic man` takes {}", known.join(", "))]
    NoVerb {
        /// What was asked for.
        found: String,
        /// The verbs.
        known: Vec<String>,
    },
    /// Manual pages cannot be written.
    #[error("cannot write the manual pages to {}: {source}; give a directory that exists", path.display())]
    Manual {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Measured times without a table.
    #[error("measured times need a table; measure one with rematic.benchmark, and give it with {}", Opt("cost-table").to("FILE"))]
    NoTable,
    /// A table that nothing would look at.
    #[error("a cost table is only used for measured times; add {}", Opt("cost").to("measured"))]
    UnusedTable,
    /// There is no lock file to compare with.
    #[error("cannot read the lock file {}: {source}; `rematic lock MODEL` makes one", path.display())]
    NoLock {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A lock file that cannot be used.
    #[error("{} is not a lock file: {why}; give one that `rematic lock` wrote, or remove it and lock again", path.display())]
    BrokenLock {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A step of a lock file that there is no more.
    #[error("{} has the step `{step}`, but {source}", path.display())]
    LockedStep {
        /// The file.
        path: PathBuf,
        /// The step as it was typed.
        step: String,
        /// Why there are no figures of it.
        source: Box<Error>,
    },
    /// A config file cannot be read.
    #[error("cannot read {}: {source}; give a config.json, a saved trace, or a model that `rematic models` lists", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A model id that the local cache of the hub does not have.
    #[error(
        "`{id}` is neither a file nor a model in the Hugging Face cache, {}; nothing is downloaded here: fetch its config with \
         `hf download {id} config.json`, give a config.json, or a model that `rematic models` lists{}",
        cache.display(), like_it(id)
    )]
    NotInHub {
        /// The id.
        id: String,
        /// The cache.
        cache: PathBuf,
    },
    /// No Python can capture the model.
    #[error(
        "{why}. Its step can be captured with transformers, but {} rematic and transformers; install them, and run it again:\n  \
         pip install rematic torch transformers\n  {}=python3 rematic stats {name}",
        no_python(tried),
        crate::PYTHON
    )]
    NoPython {
        /// The model.
        name: String,
        /// Why it is not native.
        why: String,
        /// The Pythons that were tried.
        tried: Vec<String>,
    },
    /// Python cannot capture the model.
    #[error("{name} cannot be captured: {reason}")]
    Capture {
        /// The model.
        name: String,
        /// Why.
        reason: String,
    },
    /// A plan alone does not say what its model does.
    #[error(
        "{} is a plan for `{model}`, which is not a built-in model; give its trace, and the plan with {}",
        path.display(), Opt("plan").to(path.display())
    )]
    PlanWithoutModel {
        /// The plan.
        path: PathBuf,
        /// What it is for.
        model: String,
    },
    /// A plan in place of a model, and another plan.
    #[error("{} is a plan itself; drop {}, or give a model or a trace", path.display(), Opt("plan"))]
    TwoPlans {
        /// The first plan.
        path: PathBuf,
    },
    /// A report cannot be written.
    #[error("cannot write {}: {source}; name a file in a folder that exists and has room", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An option that only a model takes was given with a saved trace.
    #[error("{} is a saved trace, which has its sizes already; drop {option}, or trace the model again with it", path.display())]
    OptionsForTrace {
        /// The file.
        path: PathBuf,
        /// The option.
        option: Opt,
    },
}

/// `neither a nor b has`.
fn no_python(tried: &[String]) -> String {
    match tried {
        [only] => format!("`{only}` does not have"),
        several => format!("neither {} has", several.join(" nor ")),
    }
}

/// The built-in model that an id of the hub stands for, if there is one.
fn like_it(id: &str) -> String {
    let name = id.rsplit('/').next().unwrap_or(id).to_lowercase();
    let known = crate::BUILTIN.iter().map(|model| model.name).filter(|known| name.contains(known));
    known.max_by_key(|known| known.len()).map_or_else(String::new, |known| format!(", like `{known}`"))
}
