//! Replays of steps that are written by hand, and of random ones against a slow reference.

mod building;
mod lifetimes;
mod modules;
mod offload;
mod random;
mod reference;
mod script;
