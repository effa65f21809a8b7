//! Plans that make a training step fit.
//!
//! A [`Problem`] is a step with all that planning needs to know about it: its [`Candidates`], regions that may be
//! checkpointed, each with the [`Frontier`] of what it may drop and recompute. The planners [`Problem::exact`] and
//! [`Problem::greedy`] choose among them, and promise what the replay says. A plan that is saved is a [`PlanDocument`];
//! an [`Explanation`] says why a step peaks where it does, and what brings the peak down.

mod bounded;
mod cancel;
mod document;
mod enumeration;
mod error;
mod exact;
mod explanation;
mod fitted;
mod greedy;
mod large;
mod node;
mod offload;
mod planner;
mod problem;
mod region;
mod replayed;
mod runs;
mod search;
mod selection;

pub use cancel::Cancel;
pub use document::{
    DocumentError, PLAN_FORMAT, PLAN_VERSION, PlanDocument, PlanVariant, PlannedCall, PlannedLoss, PlannedMoves,
    PlannedOffload, PlannedOp, PlannedRegion,
};
pub use error::PlanError;
pub use explanation::{
    CategoryBytes, Explanation, Moment, Numerics, Place, Remedy, RemedyKind, ResidentGroup, Together, resident_groups,
};
pub use planner::{Outcome, Solution};
pub use problem::{Limits, Problem};
pub use region::{
    Bundle, Candidate, Candidates, Facts, Fate, Frontier, Item, Lifetimes, Point, Pricing, Writes, bundles,
    nearest_saved,
};
pub use replayed::{Offload, PlannedMoment, Replayed};
