//! Rematic plans the memory of deep-learning training.
//!
//! Give it a model; without a GPU it traces one training step, and says how much memory and time it takes, where the
//! memory peaks, and why. Data flow one way, each stage has a type that can be looked at:
//!
//! ```
//! use rematic::{Allocator, CostRule, Costs, Device, Options, Source, StepStats, Timeline};
//!
//! let trace = Source::open("seed-transformer")?.trace(&Options::default())?;
//! let timeline = Timeline::replay(&trace, Allocator::Cuda);
//! let costs = Costs::new(&trace, &Device::find("a100-80")?, CostRule::Physical)?;
//! let stats = StepStats::new(&trace, &timeline, &costs);
//!
//! assert_eq!(timeline.peak().total().to_string(), "2.50 GiB");
//! assert_eq!(stats.modules[0].fqn, "Transformer");
//! # Ok::<(), rematic::Error>(())
//! ```

mod alternatives;
#[cfg(feature = "cli")]
pub mod cli;
mod compiled;
mod connection;
mod error;
mod fit;
mod foreign;
mod hub;
mod lock;
mod losses;
mod milp;
pub mod options;
mod pace;
mod page;
mod planning;
mod resharding;
mod room;
mod source;
mod study;
mod target;

pub use alternatives::{Alternatives, add_planned};
pub use compiled::rehearse_compiled;
pub use connection::{HostBandwidth, Link, Network, NoConnection};
pub use error::Error;
pub use fit::{FitRequest, Fixed, MOST_GPUS, SourceSteps, StepSize, Steps};
pub use foreign::{Foreign, PYTHON};
pub use lock::{Lock, LockedStep};
pub use milp::{MilpAnswer, replay_milp};
pub use page::{PageAnswer, PageOptions};
pub use planning::{CurveAnswer, MilpSettings, PlanAnswer, Planner, emitted_python};
pub use rematic_allocator::{Settings, SettingsError};
pub use rematic_cost::{
    CostError, CostRule, CostTable, Costs, Device, Devices, Links, Measured, Signature, Signatures,
};
pub use rematic_fake::models::{BUILTIN, Builtin, LossKind, Model, Options, Recipe};
pub use rematic_fake::{AttentionKernel, FakeError, Lora, Optimizer};
pub use rematic_layout::{Fsdp2, Fsdp2Error, fsdp2, layers as fsdp2_layers};
pub use rematic_plan::{
    Cancel, CategoryBytes, DocumentError, Explanation, Limits, Moment, Numerics, Outcome, Place, PlanDocument,
    PlanError, PlannedLoss, PlannedMoment, Problem, Remedy, RemedyKind, Replayed, ResidentGroup, Solution, Together,
    resident_groups,
};
pub use rematic_rehearsal::{Card, Record, Rehearsal, RehearsalError};
pub use rematic_replay::{Allocator, Recording, Timeline};
pub use rematic_report::{
    Changed, CheckReport, ChromeTrace, Compiled, CurvePoint, CurveReport, Difference, ExplanationReport, ExploreAnswer,
    ExploreChoice, ExploreCurve, ExplorePage, Figures, Fit, FitAnswer, FitFound, FitQuestion, FitSetup, FitValue,
    LossTaken, Memory, MilpReport, Pace, PlanReport, Prediction, RehearsalReport, SavedPage, SavedReport, Setup,
    SnapshotPage, SnapshotReport, StatsReport, Style, Ways, devices_json, devices_text, explore_refusal, models_json,
    models_text, plan_html, plan_python, timeline_csv, trace_html, trace_text, variants_html, variants_text, visible,
};
pub use rematic_snapshot::{Snapshot, SnapshotError, Story};
pub use rematic_torch::{
    Baseline, MilpOptions, MilpOutcome, ModuleGraph, ModuleStats, StepStats, TorchError, Tradeoffs, milp,
    optimal_policy,
};
pub use rematic_trace::{
    Bytes, CardKind, Category, DeviceKind, Dtype, FileError, Millis, Origin, Phase, StepTrace, Verdict,
};
pub use resharding::Resharding;
pub use source::Source;
pub use study::{Explained, Study};
pub use target::{CONTEXT, CostSource, NCCL, Target};

/// Write a model of your own: tensors, modules, and the step.
pub mod fake {
    pub use rematic_fake::{
        ArangeOverload, Attention, AttentionKernel, Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn,
    };
}
