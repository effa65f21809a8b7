//! What each region of a step can drop between its forward and its backward, and what that costs in recomputation.

mod candidate;
mod frontier;
mod lifetime;

pub use candidate::{Candidate, Candidates, Item};
pub use frontier::{Frontier, Point};
pub use lifetime::Lifetimes;
