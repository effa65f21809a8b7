//! What a planner knows about each module of a step, and planners.
//!
//! [`StepStats`] joins the measured memory ([`rematic_memory::Timeline`]) and the estimated time
//! ([`rematic_cost::Costs`]) of a step into the table that PyTorch's `ilp_utils` calls `ModStats`.
//!
//! Two of torch's planners have their equal here: [`optimal_policy`] (`get_optimal_checkpointing_policy_per_module`) says
//! which operators of one region to save, and [`milp()`] (`sac_milp`) which modules of a [`ModuleGraph`] to checkpoint.
//! [`Problem::replay_milp`] puts the two together, and says what the replay says.

mod cancel;
mod document;
mod enumeration;
mod error;
mod exact;
mod explanation;
mod graph;
mod greedy;
mod large;
mod milp;
mod planner;
mod policy;
mod problem;
mod replayed;
mod selection;
mod stats;

pub use cancel::Cancel;
pub use document::{
    Choice, DocumentError, PLAN_FORMAT, PLAN_VERSION, PlanDocument, PlanVariant, PlannedOp, PlannedRegion,
};
pub use error::PlanError;
pub use explanation::{
    CategoryBytes, Explanation, Place, Remedy, RemedyKind, ResidentGroup, Together, resident_groups,
};
pub use graph::{GraphModule, GraphTradeoff, ModuleGraph};
pub use milp::{MilpChoice, MilpMethod, MilpOptions, MilpOutcome, MilpPlan, milp};
pub use planner::{Infeasible, Outcome, Solution};
pub use policy::{Decision, optimal_policy};
pub use problem::{Limits, Problem};
pub use replayed::{PlannedMoment, Replayed};
pub use stats::{Baseline, ModuleStats, StepStats};
