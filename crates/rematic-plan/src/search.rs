//! Search on the replay.
//!
//! The programme of [`exact`](crate::exact) solves a relaxation, and what it leaves out only a replay knows. Where that
//! leaves a gap, plans are changed step by step and every one is judged as the replay would: flips of what is saved, swaps,
//! regions left out or added, the one around or those inside in a region's place.
//!
//! A replay of the whole step for every one of them would take too long. But under any plan a storage lives from its birth to
//! the last of a few moments that are known beforehand, and so does the copy that recomputation makes of it. So a change of
//! plan is a change of a few lives on a fixed [`Axis`] of moments, and the peak is the highest point of a tree of heights
//! ([`Draft`]). What is found is replayed as it is before it is promised.
//!
//! The same lives say how good a plan can be: [`Bound`].

#[cfg(test)]
mod agreement;
mod annealing;
mod axis;
mod bound;
mod draft;
mod heights;
mod lives;
mod prices;
mod proof;
mod refill;
mod shares;

pub(crate) use annealing::{Goal, Search};
pub(crate) use axis::Axis;
pub(crate) use bound::Bound;
pub(crate) use draft::Draft;
pub(crate) use lives::Lives;
pub(crate) use prices::Part;
pub(crate) use proof::Proven;
