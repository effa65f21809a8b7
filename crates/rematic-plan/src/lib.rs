//! What a planner knows about each module of a step.
//!
//! [`StepStats`] joins the measured memory ([`rematic_memory::Timeline`]) and the estimated time
//! ([`rematic_cost::Costs`]) of a step into the table that PyTorch's `ilp_utils` calls `ModStats`.

mod exact;
mod planner;
mod problem;
mod stats;

pub use planner::{Infeasible, Outcome, Solution};
pub use problem::{Limits, LimitsError, Problem, Replayed};
pub use stats::{Baseline, ModuleStats, StepStats};
