//! What a planner knows about each module of a step.
//!
//! [`StepStats`] joins the measured memory ([`rematic_memory::Timeline`]) and the estimated time
//! ([`rematic_cost::Costs`]) of a step into the table that PyTorch's `ilp_utils` calls `ModStats`.

mod error;
mod graph;
mod milp;
mod policy;
mod stats;

pub use error::PlanError;
pub use graph::{GraphModule, GraphTradeoff, ModuleGraph};
pub use milp::{MilpChoice, MilpMethod, MilpOptions, MilpOutcome, MilpPlan, milp};
pub use policy::{Decision, optimal_policy};
pub use stats::{Baseline, ModuleStats, StepStats};
