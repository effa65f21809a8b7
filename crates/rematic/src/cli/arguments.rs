mod comparing;
mod explaining;
mod reading;
mod rehearsing;

use std::path::{Path, PathBuf};

use super::explore::ExploreArguments;
use super::recipe::RecipeArguments;
use super::values::{count, devices, named, points, probability, several};
use crate::options::{self, Reshard};
use crate::{
    Allocator, AttentionKernel, Bytes, CostRule, CostSource, Dtype, Error, Fsdp2, HostBandwidth, Link, Network,
    Optimizer, Options, Origin, Planner, Recipe, Snapshot, Target,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use comparing::{CheckArguments, DiffArguments, FitArguments, LockArguments, SpreadArguments};
pub(crate) use explaining::ExplainArguments;
pub(crate) use reading::ManArguments;
pub(crate) use rehearsing::RehearseArguments;

/// Plans the memory of deep-learning training: without a GPU, says what one training step takes, and why.
#[derive(Parser)]
#[command(name = "rematic", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// No progress and no warnings; results and errors stay.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Trace one training step into a file.
    #[command(after_help = "Example: rematic trace llama-3-8b --batch 2 -o step.rmt.zst")]
    Trace(TraceArguments),
    /// Say what fits: the largest batch, the longest sequence, the fewest GPUs and the smallest device, and the fastest set-ups.
    #[command(after_help = "Example: rematic fit llama-3-8b --device h100 --gpus 8")]
    Fit(FitArguments),
    /// Show the memory and time of one training step: where it peaks, and why.
    #[command(after_help = "Example: rematic stats llama-3-8b --batch 2 --seq 8192 --device h100")]
    Stats(StatsArguments),
    /// Say why the step peaks where it does, and the cheapest ways down; or, of a memory snapshot, why it ran out.
    #[command(after_help = "Example: rematic explain llama-3-8b --batch 2 --seq 8192")]
    Explain(ExplainArguments),
    /// Find what to drop and recompute so that the step fits a budget, at the least extra time.
    #[command(after_help = "Example: rematic plan seed-transformer --budget 1.6GiB -o plan.json")]
    Plan(PlanArguments),
    /// Show the extra time for budgets from "nothing dropped" down to the least that can be reached.
    #[command(after_help = "Example: rematic curve gpt2 --points 20")]
    Curve(CurveArguments),
    /// Replay a step under a saved plan, and check that the plan is for this model.
    #[command(after_help = "Example: rematic replay seed-transformer --plan plan.json")]
    Replay(ReplayArguments),
    /// Write one HTML page that shows the step, its peak, its plan and the plans for other budgets.
    #[command(after_help = "Example: rematic report llama-3-8b --budget 70GiB -o report.html")]
    Report(ReportArguments),
    /// Open a page in the browser whose controls (model, device, GPUs, batch, …) the planner answers at once.
    #[command(after_help = "Example: rematic explore llama-3-8b")]
    Explore(ExploreArguments),
    /// Compare two steps: models, traces, plans or saved answers of `stats --json`; says what grew, by category and by module.
    #[command(after_help = "Example: rematic diff before.json after.json")]
    Diff(DiffArguments),
    /// Write what a step takes into a file that is kept with the code, for check.
    #[command(after_help = "Example: rematic lock llama-3-8b --batch 2 --fsdp 8")]
    Lock(LockArguments),
    /// Compare all steps of the lock file with what they take now; exits with 3 if one grew.
    #[command(after_help = "Example: rematic check --allow 100MiB")]
    Check(CheckArguments),
    /// Run your own training script on a GPU that is not there: what it takes, whether it fits, or the line where it runs out.
    #[command(after_help = "Example: rematic rehearse --device a100-80 -- python train.py --batch-size 16")]
    Rehearse(RehearseArguments),
    /// List the devices that the cost model knows.
    #[command(after_help = "Example: rematic devices --device-file my-devices.toml")]
    Devices(DevicesArguments),
    /// List the built-in models.
    #[command(after_help = "Example: rematic models")]
    Models {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the completions of a shell.
    #[command(after_help = "Example: rematic completions bash > ~/.local/share/bash-completion/completions/rematic")]
    Completions {
        /// The shell.
        #[arg(value_enum, value_name = "SHELL")]
        shell: Shell,
    },
    /// Print the manual page, of the command or of one of its verbs.
    #[command(after_help = "Example: rematic man plan | man -l -")]
    Man(ManArguments),
}

#[derive(Args)]
pub(crate) struct SourceArguments {
    /// A built-in model's name, a Hugging Face config.json or a model's id in its local cache, or a saved trace; for explain and report
    /// also a memory snapshot.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Sequences in the batch [default: the model's own]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    batch: Option<u64>,
    /// Positions in a sequence [default: the model's own]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    seq: Option<u64>,
    /// Type of parameters and activations [default: the model's own]
    #[arg(long, value_name = "DTYPE", value_parser = named(options::DTYPES))]
    dtype: Option<Dtype>,
    /// Optimizer; unless fused, in PyTorch's foreach implementation [default: adamw-fused; adam for seed-transformer]
    #[arg(long, value_name = "OPTIMIZER", value_parser = named(options::OPTIMIZERS))]
    optimizer: Option<Optimizer>,
    /// Attention kernel [default: auto]
    #[arg(long, value_name = "ATTENTION", value_parser = named(options::ATTENTION))]
    attention: Option<AttentionKernel>,
    /// Number of layers.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    layers: Option<u64>,
    /// All dropout probabilities.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = probability)]
    dropout: Option<f64>,
    /// Width (seed-transformer only).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    dim: Option<u64>,
    /// Attention heads (seed-transformer only).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    heads: Option<u64>,
    /// Vocabulary (seed-transformer only).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    vocab: Option<u64>,
    #[command(flatten)]
    pub(crate) recipe: RecipeArguments,
    #[command(flatten)]
    sharding: ShardingArguments,
}

/// What one rank of several runs.
#[derive(Args)]
struct ShardingArguments {
    /// Share the model and the sequence among so many GPUs: tensor parallelism, for decoders of Llama's kind.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = several)]
    tp: Option<u32>,
    /// With --tp: the rank whose step it is, among those that share the model [default: 0]
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, requires = "tp")]
    tp_rank: Option<u32>,
    /// Shard the layers and the model with FSDP2 over so many GPUs: the step of the first, with all buffers.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = several)]
    fsdp: Option<u32>,
    /// With --fsdp: so many groups of GPUs, each with a copy of the model (HSDP) [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "fsdp", value_parser = devices)]
    replicate: Option<u32>,
    /// With --fsdp: the rank whose step it is, within its group [default: 0]
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, requires = "fsdp")]
    fsdp_rank: Option<u32>,
    /// With --fsdp: whether the weights of a layer go after its forward, and are gathered again for its backward [default: yes]
    #[arg(long, value_name = "WHETHER", requires = "fsdp", value_parser = named(options::RESHARD))]
    reshard: Option<Reshard>,
}

/// Where times come from; without a rule, they are measured.
type Cost = Option<CostRule>;

impl SourceArguments {
    /// The file, if it is a memory snapshot.
    pub(crate) fn snapshot(&self) -> Option<&Path> {
        let path = Path::new(&self.source);
        let is_builtin = crate::BUILTIN.iter().any(|model| model.name == self.source);
        (!is_builtin && Snapshot::recognizes(path)).then_some(path)
    }

    /// The options, with those that are not given as a plan's facts have them.
    pub(crate) fn options_like(&self, facts: &[(String, String)]) -> Options {
        let origin = Origin::from_facts("", facts);
        let given = self.options_of(Fsdp2::from_facts(facts).is_some() || self.sharding.fsdp.is_some());
        let optimizer = || options::find(options::OPTIMIZERS, origin.optimizer.as_deref()?);
        let attention = || options::find(options::ATTENTION, origin.attention.as_deref()?);
        let planned = Options::shared_like(facts);
        Options {
            batch: given.batch.or(origin.batch),
            seq: given.seq.or(origin.seq),
            dtype: given.dtype.or(origin.precision),
            optimizer: given.optimizer.or_else(optimizer),
            attention: given.attention.or_else(attention),
            card: origin.card,
            tp: given.tp.or(planned.0),
            tp_rank: given.tp_rank.or(planned.1.filter(|_| given.tp.is_none())),
            recipe: given.recipe.or(Recipe::from_facts(facts)),
            ..given
        }
    }

    /// How the step is sharded, if it is.
    pub(crate) fn sharding(&self) -> Option<Fsdp2> {
        let given = &self.sharding;
        given.fsdp.map(|ranks| Fsdp2 {
            replicas: given.replicate.unwrap_or(1),
            rank: given.fsdp_rank.unwrap_or(0),
            reshard: given.reshard != Some(Reshard::Nothing),
            shards: self.recipe.is_mixed().then_some(Dtype::F32),
            ..Fsdp2::over(ranks)
        })
    }

    /// How the parameters of several GPUs are spread, whatever their number.
    pub(crate) fn spreading(&self) -> Fsdp2 {
        let shards = self.recipe.is_mixed().then_some(Dtype::F32);
        Fsdp2 { reshard: self.sharding.reshard != Some(Reshard::Nothing), shards, ..Fsdp2::over(0) }
    }

    /// All GPUs of the step, if they were given, and how many of them share the model.
    pub(crate) fn gpus(&self) -> (Option<u32>, Option<u32>) {
        let given = &self.sharding;
        let all = given.fsdp.map(|ranks| ranks.saturating_mul(given.tp.unwrap_or(1)));
        (all, given.tp)
    }

    /// Whether it is to be chosen which weights stay gathered.
    pub(crate) fn chooses_resharding(&self) -> bool {
        self.sharding.reshard == Some(Reshard::Chosen)
    }

    pub(crate) fn options(&self) -> Options {
        self.options_of(self.sharding.fsdp.is_some())
    }

    /// The options of a step that is sharded with FSDP2, or is not: it has a rule of its own for mixed precision.
    fn options_of(&self, is_sharded: bool) -> Options {
        Options {
            batch: self.batch,
            seq: self.seq,
            dtype: self.dtype.or_else(|| self.recipe.dtype(is_sharded)),
            optimizer: self.optimizer,
            attention: self.attention,
            card: None,
            layers: self.layers,
            dropout: self.dropout,
            dim: self.dim,
            heads: self.heads,
            vocab: self.vocab,
            tp: self.sharding.tp,
            tp_rank: self.sharding.tp_rank,
            recipe: self.recipe.recipe(is_sharded),
        }
    }
}

#[derive(Args)]
pub(crate) struct DeviceArguments {
    /// The device; `rematic devices` lists them.
    #[arg(long, value_name = "NAME", default_value = options::DEVICE)]
    pub(crate) device: String,
    /// A file with more devices, in the format of the built-in list.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct TraceArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Where to write; a name that ends in .zst compresses.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A step, and how its memory and time are counted.
#[derive(Args)]
pub(crate) struct StepArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// How an operator's time is estimated.
    #[arg(long, value_name = "COST", value_parser = named(options::COSTS), default_value = options::COST)]
    cost: Cost,
    /// With --cost measured: the table of measured times.
    #[arg(long, value_name = "FILE")]
    cost_table: Option<PathBuf>,
    /// How memory is rounded [default: cuda; cpu for a step that was captured on the CPU]
    #[arg(long, value_name = "ALLOCATOR", value_parser = named(options::ALLOCATORS))]
    allocator: Option<Allocator>,
    /// Settings of PyTorch's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Option<String>,
    #[command(flatten)]
    links: LinkArguments,
}

/// How the GPUs of a run are connected.
#[derive(Args)]
struct LinkArguments {
    /// Spread the GPUs of the step evenly over so many nodes [default: as few as hold them]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = devices)]
    nodes: Option<u32>,
    /// What connects the GPUs of a node: nvlink2 to nvlink5, pcie3 to pcie5, or NCCL's bus bandwidth in GB/s [default: the device's]
    #[arg(long, value_name = "LINK", allow_negative_numbers = true)]
    link: Option<Link>,
    /// What connects each GPU to other nodes: edr, hdr, ndr, xdr, or GB/s [default: the device's]
    #[arg(long, value_name = "NETWORK", allow_negative_numbers = true)]
    network: Option<Network>,
    /// What copies to the host and back reach: pcie3 to pcie5, or GB/s of one direction [default: the device's]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    host_bandwidth: Option<HostBandwidth>,
}

/// What the host has for a step.
#[derive(Args)]
pub(crate) struct HostArguments {
    /// Let plans move outputs to the host and back, in at most so much of its pinned memory per GPU: 64GiB, 64GB or bytes [default:
    /// nothing is moved]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    host_memory: Option<Bytes>,
}

impl HostArguments {
    /// The host's memory, together with which alone the rate of the link to it is of use.
    pub(crate) fn host_memory(&self, step: &StepArguments) -> Result<Option<Bytes>, Error> {
        match (self.host_memory, step.links.host_bandwidth) {
            (None, Some(_)) => Err(Error::UnusedHostBandwidth),
            (memory, _) => Ok(memory),
        }
    }
}

impl StepArguments {
    pub(crate) fn target(&self) -> Result<Target, Error> {
        let cost = match (self.cost, &self.cost_table) {
            (None, Some(table)) => CostSource::table(table)?,
            (None, None) => return Err(Error::NoTable),
            (Some(_), Some(_)) => return Err(Error::UnusedTable),
            (Some(rule), None) => CostSource::Rule(rule),
        };
        let mut target = Target::find(&self.device.device, self.device.device_file.as_deref(), cost)?;
        target.allocator = self.allocator;
        if let Some(settings) = &self.alloc_conf {
            target.settings = settings.parse().map_err(Error::from)?;
            target.asks_for_settings = true;
        }
        let LinkArguments { nodes, link, network, host_bandwidth } = self.links;
        Ok(target.connected(link, network, nodes).with_host(host_bandwidth))
    }
}

impl LimitArguments {
    pub(crate) fn target(&self) -> Result<Target, Error> {
        Ok(Target { ranks: self.world_size.unwrap_or(1).into(), ..self.step.target()? })
    }
}

#[derive(Args)]
pub(crate) struct StatsArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: also the total after every operator.
    #[arg(long, requires = "json")]
    pub(crate) timeline: bool,
    /// Exit with 3 if the step takes more than this: what PyTorch's allocator reserves, or tensors on the CPU.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) fail_above: Option<Bytes>,
    #[command(flatten)]
    pub(crate) spread: SpreadArguments,
}

/// Which part of a memory snapshot.
#[derive(Args)]
pub(crate) struct SnapshotArguments {
    /// Of a memory snapshot: the GPU [default: the one that ran out, or has most events]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpu: Option<u32>,
}

/// What may be planned.
#[derive(Args)]
pub(crate) struct LimitArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    /// Divide parameters, gradients and optimizer state by so many devices, and count no buffers: a lower bound. For a run with FSDP2
    /// take --fsdp, which counts them [default: 1, or the plan's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["fsdp", "tp"], value_parser = devices)]
    pub(crate) world_size: Option<u32>,
    /// Checkpoint only modules whose name matches, like '*.mlp'; * and ? stand for anything. May be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) only: Vec<String>,
    /// Do not checkpoint modules whose name matches. May be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) never: Vec<String>,
    /// Recompute modules only as a whole, as plain checkpointing does.
    #[arg(long)]
    pub(crate) whole: bool,
    /// Checkpoint calls of modules one by one, never several that follow one another as one.
    #[arg(long)]
    pub(crate) no_runs: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// The most memory that tensors may take: 38GiB, 40GB or bytes [default: what fits the device]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) budget: Option<Bytes>,
    /// How to plan.
    #[arg(long, value_name = "PLANNER", value_parser = named(options::PLANNERS), default_value = options::PLANNER)]
    pub(crate) planner: Planner,
    /// With --planner milp: stop at a plan proved to be at most this share slower than the best [default: 0]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = probability)]
    pub(crate) gap: Option<f64>,
    /// With --planner milp: stop after so many seconds with the best plan found.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) time_limit: Option<u64>,
    /// Write the plan with every decision to a file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the plan as code that applies it to a PyTorch model, with torch alone.
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with = "json")]
    pub(crate) emit: Option<Language>,
}

#[derive(Args)]
pub(crate) struct CurveArguments {
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Number of budgets.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = options::POINTS, value_parser = points)]
    pub(crate) points: u32,
}

#[derive(Args)]
pub(crate) struct ReplayArguments {
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    /// The plan.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: PathBuf,
    /// Print the plan as code that applies it to a PyTorch model, with torch alone.
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with = "json")]
    pub(crate) emit: Option<Language>,
}

/// What a plan can be written in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    /// A file with a function apply_plan(model)
    Python,
}

#[derive(Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    /// The most memory that tensors may take: 38GiB, 40GB or bytes [default: the plan's, or what fits the device]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) budget: Option<Bytes>,
    /// Show this plan in place of the planner's.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) snapshot: SnapshotArguments,
    /// Where to write.
    #[arg(short, long, value_name = "FILE", default_value = options::PAGE)]
    pub(crate) output: PathBuf,
    /// Also write the step under the plan for Perfetto or chrome://tracing: operators by phase, and memory.
    #[arg(long, value_name = "FILE")]
    pub(crate) chrome_trace: Option<PathBuf>,
    /// Also write the step under the plan as a table: a row per operator, with the memory after it.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct DevicesArguments {
    /// A file with more devices, in the format of the built-in list.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
