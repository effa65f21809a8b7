//! What each region of a step may drop and recompute, and what that costs.
//!
//! A [`SacRegion`] is one call of a module that has children. From a trace and its costs, [`SacFacts`] gives the
//! [`SacStats`] of every region; from these follow the [`OpGroups`] that share one fate, the [`GreedyOrder`] in which they
//! are best recomputed, the [`TradeoffCurve`] of time against memory, and the lines fitted to it ([`PiecewiseFit`]).
//! [`Tradeoffs`] holds all of it for all regions. The names and numbers are those of torch's `SACEstimator`.
//!
//! [`Candidates`] and their exact [`Frontier`] are what the planner that replays works with.
//!
//! ```
//! use rematic_trace::{Bytes, Millis};
//! use rematic_tradeoff::{SacStats, Tradeoff};
//!
//! let stats = SacStats {
//!     func_names: ["mm", "relu", "mm"].map(String::from).to_vec(),
//!     runtimes: [8.0, 1.0, 1.0].map(Millis).to_vec(),
//!     memory: [100, 100, 0].map(Bytes).to_vec(),
//!     ..SacStats::default()
//! };
//! let tradeoff = Tradeoff::new(stats, 2)?;
//! let order: Vec<usize> = tradeoff.order.msps_meta.iter().map(|group| group.op_idx).collect();
//! assert_eq!(order, [1, 0, 2]); // relu frees as much as mm in less time; the output is never worth it
//! # Ok::<(), rematic_tradeoff::TradeoffError>(())
//! ```

mod bundle;
mod candidate;
mod curve;
mod error;
mod fit;
mod frontier;
mod groups;
mod lifetime;
mod order;
mod sac_region;
mod sac_stats;
mod tradeoff;
mod writes;

pub use bundle::{Bundle, bundles, nearest_saved};
pub use candidate::{Candidate, Candidates, Item, Pricing};
pub use curve::{DISCARD_OFFSET, TradeoffCurve};
pub use error::TradeoffError;
pub use fit::PiecewiseFit;
pub use frontier::{Frontier, Point};
pub use groups::{Fate, OpGroup, OpGroups};
pub use lifetime::Lifetimes;
pub use order::{GreedyOrder, Msps};
pub use sac_region::{ALWAYS_SKIPPED, SacFacts, SacRegion};
pub use sac_stats::SacStats;
pub use tradeoff::{SEGMENTS, Tradeoff, Tradeoffs};
pub use writes::Writes;
