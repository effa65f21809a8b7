//! What can be chosen by name, and what is chosen where nothing is said: one list for the command and for Python.

use rematic_cost::CostRule;
use rematic_fake::models::LossKind;
use rematic_fake::{AttentionKernel, Optimizer};
use rematic_replay::Allocator;
use rematic_trace::Dtype;

use crate::planning::{MilpSettings, Planner};

/// The device that times are for.
pub const DEVICE: &str = "h100";
/// The model that exploring begins with.
pub const MODEL: &str = "llama-3-8b";
/// How many budgets a curve and a page have plans for.
pub const POINTS: u32 = 50;
/// Where a page is written.
pub const PAGE: &str = "report.html";
/// The file that `lock` writes and `check` reads.
pub const LOCK: &str = "rematic.lock";
/// Where the time of an operator comes from.
pub const COST: &str = "physical";
/// How to plan.
pub const PLANNER: &str = "exact";

/// Optimizer steps after which a rehearsal ends the script: the first makes the optimizer's state, the second runs with it,
/// and the third shows that the second was no exception.
pub const STEPS: u32 = 3;

/// Something that an option can be.
#[derive(Clone, Copy, Debug)]
pub struct Named<T> {
    /// What it is called.
    pub name: &'static str,
    /// What it stands for.
    pub value: T,
    /// What it means.
    pub help: &'static str,
}

const fn named<T>(name: &'static str, value: T, help: &'static str) -> Named<T> {
    Named { name, value, help }
}

/// What PyTorch calls the types.
const TORCH_NAMES: [(&str, &str); 5] =
    [("float32", "fp32"), ("float", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16"), ("half", "fp16")];

/// Where PyTorch has them.
const MODULE: &str = "torch.";

/// What a name stands for, in whatever case, and by PyTorch's names of types.
#[must_use]
pub fn find<T: Copy>(known: &[Named<T>], name: &str) -> Option<T> {
    let is_torch = name.get(..MODULE.len()).is_some_and(|head| head.eq_ignore_ascii_case(MODULE));
    let name = name.rsplit('.').next().filter(|_| is_torch).unwrap_or(name);
    let ours = TORCH_NAMES.iter().find(|(torch, _)| torch.eq_ignore_ascii_case(name)).map_or(name, |(_, ours)| ours);
    known.iter().find(|known| known.name.eq_ignore_ascii_case(ours)).map(|known| known.value)
}

/// `planner`.
pub const PLANNERS: &[Named<Planner>] = &[
    named(PLANNER, Planner::Exact, "The least recomputation under which the replayed step fits, with a proved bound"),
    named("greedy", Planner::Greedy, "The most bytes per time first: the baseline"),
    named(
        "milp",
        Planner::Milp(MilpSettings { gap: None, time_limit: None }),
        "Torch's sac_milp: its memory model and fitted curves, solved to the optimum",
    ),
];
/// `cost`; without a rule, times are measured.
pub const COSTS: &[Named<Option<CostRule>>] = &[
    named(COST, Some(CostRule::Physical), "Roofline with dense peaks and measured matmul efficiency"),
    named("torch", Some(CostRule::Torch), "What torch's RuntimeEstimator computes, for comparison with it"),
    named("measured", None, "Times from --cost-table, and physical for operators that are not in it"),
];
/// `allocator`.
pub const ALLOCATORS: &[Named<Allocator>] = &[
    named("cuda", Allocator::Cuda, "512-byte blocks, as CUDA's caching allocator"),
    named("cpu", Allocator::Cpu, "As requested"),
];
/// `optimizer`.
pub const OPTIMIZERS: &[Named<Optimizer>] = &[
    named("adam", Optimizer::Adam, "Adam without weight decay"),
    named("adamw", Optimizer::AdamW, "AdamW with decoupled weight decay"),
    named("sgd", Optimizer::Sgd, "Plain gradient descent"),
    named("sgd-momentum", Optimizer::SgdMomentum, "Gradient descent with momentum"),
    named("adam-fused", Optimizer::AdamFused, "Adam in one kernel (fused=True), without temporaries"),
    named("adamw-fused", Optimizer::AdamWFused, "AdamW in one kernel, as Hugging Face's Trainer takes it"),
    named("sgd-fused", Optimizer::SgdFused, "Plain gradient descent in one kernel"),
    named("sgd-momentum-fused", Optimizer::SgdMomentumFused, "Gradient descent with momentum in one kernel"),
    named("adamw8bit", Optimizer::AdamW8bit, "AdamW with its state in 8 bits, by the layout of bitsandbytes"),
    named("lion", Optimizer::Lion, "Lion, as lion-pytorch has it"),
    named("muon", Optimizer::Muon, "torch.optim.Muon for matrices, adamw-fused for the rest"),
    named("adafactor", Optimizer::Adafactor, "torch.optim.Adafactor"),
    named("none", Optimizer::None, "Forward and backward alone"),
];
/// `attention`.
pub const ATTENTION: &[Named<AttentionKernel>] = &[
    named("auto", AttentionKernel::Auto, "What PyTorch picks on CUDA"),
    named("flash", AttentionKernel::Flash, "Flash attention; half precision only"),
    named("efficient", AttentionKernel::Efficient, "The memory-efficient kernel"),
    named("math", AttentionKernel::Math, "Plain matrix products and softmax"),
];
/// `dtype`.
pub const DTYPES: &[Named<Dtype>] = &[
    named("fp32", Dtype::F32, "32-bit floats"),
    named("bf16", Dtype::Bf16, "bfloat16"),
    named("fp16", Dtype::F16, "16-bit floats"),
];

/// The types of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The type that it computes in.
    pub dtype: Dtype,
    /// Whether parameters, their gradients and the optimizer's state are fp32 all the same.
    pub mixed: bool,
}

impl Precision {
    /// The type of the model, and that of autocast, if it runs under it. FSDP2 has a policy of its own in its place: the model
    /// computes in the half type, and its shards are fp32.
    #[must_use]
    pub fn types(self, is_sharded: bool) -> (Dtype, Option<Dtype>) {
        if self.mixed && !is_sharded { (Dtype::F32, Some(self.dtype)) } else { (self.dtype, None) }
    }
}

/// Which layers give their weights back between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshard {
    /// All of them.
    All,
    /// None.
    Nothing,
    /// As many as is best, together with what is recomputed.
    Chosen,
}

/// `precision`.
pub const PRECISIONS: &[Named<Precision>] = &[
    named("bf16", Precision { dtype: Dtype::Bf16, mixed: false }, "All in bfloat16"),
    named(
        "mixed",
        Precision { dtype: Dtype::Bf16, mixed: true },
        "Parameters, gradients and optimizer state in fp32; computes under torch.autocast(bfloat16), or by FSDP2's policy",
    ),
    named("fp32", Precision { dtype: Dtype::F32, mixed: false }, "All in 32-bit floats"),
    named("fp16", Precision { dtype: Dtype::F16, mixed: true }, "As mixed, in float16, with torch.amp.GradScaler"),
];
/// How the loss is computed, or that it is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossChoice {
    /// So.
    As(LossKind),
    /// As makes the planned step fastest.
    Chosen,
}

impl LossChoice {
    /// How it is computed where nothing is chosen.
    #[must_use]
    pub fn kind(self) -> Option<LossKind> {
        match self {
            LossChoice::As(kind) => Some(kind),
            LossChoice::Chosen => None,
        }
    }
}

/// `loss`.
pub const LOSSES: &[Named<LossChoice>] = &[
    named("plain", LossChoice::As(LossKind::Plain), "From the logits of all positions, as Hugging Face's models do"),
    named(
        "chunked",
        LossChoice::As(LossKind::Chunked),
        "Over 8 parts of the positions, with logits that are not kept; equal up to rounding",
    ),
    named(
        "auto",
        LossChoice::Chosen,
        "The one with which the planned step is faster, plain if they are equal; for plan and fit",
    ),
];
/// `reshard`.
pub const RESHARD: &[Named<Reshard>] = &[
    named("yes", Reshard::All, "They go: the least memory"),
    named("no", Reshard::Nothing, "They stay: less to send"),
    named("auto", Reshard::Chosen, "Those of the last layers stay, as many as make the planned step fastest; for plan"),
];
