//! What each region of a step may drop and recompute, and what that costs.
//!
//! [`bundles`] says which operators share one fate; from them follow the [`Candidate`] with its items, and the exact
//! [`Frontier`] of memory against time.

mod bundle;
mod candidate;
mod frontier;
mod lifetime;
mod skipping;
mod writes;

pub use bundle::{Bundle, Fate, bundles, nearest_saved};
pub use candidate::{Candidate, Candidates, Facts, Item, Pricing};
pub use frontier::{Frontier, Point};
pub use lifetime::Lifetimes;
pub(crate) use skipping::Skipping;
pub use writes::Writes;
