//! Torch's own answers about a step: those of `torch.distributed._tools`, under torch's names. What Rematic itself plans
//! with is in `rematic-plan`, and neither uses the other.
//!
//! [`StepStats`] joins the measured memory ([`rematic_replay::Timeline`]) and the estimated time
//! ([`rematic_cost::Costs`]) of a step into the table that `ilp_utils` calls `ModStats`.
//!
//! A [`SacRegion`] is one call of a module that has children. From a trace and its costs, [`SacFacts`] gives the
//! [`SacStats`] of every region; from these follow the [`OpGroups`] that share one fate, the [`GreedyOrder`] in which they
//! are best recomputed, the [`TradeoffCurve`] of time against memory, and the lines fitted to it ([`PiecewiseFit`]).
//! [`Tradeoffs`] holds all of it for all regions. The names and numbers are those of torch's `SACEstimator`.
//!
//! Two of torch's planners have their equal here: [`optimal_policy`] (`get_optimal_checkpointing_policy_per_module`) says
//! which operators of one region to save, and [`milp()`] (`sac_milp`) which modules of a [`ModuleGraph`] to checkpoint.
//!
//! What torch's tools count while a program runs, a [`Tally`] (memory) and [`Runtimes`] (time) count; a [`TorchOrder`] has
//! torch's rules as they are.
//!
//! ```
//! use rematic_trace::{Bytes, Millis};
//! use rematic_torch::{SacStats, Tradeoff};
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
//! # Ok::<(), rematic_torch::TorchError>(())
//! ```

mod curve;
mod error;
mod fit;
mod graph;
mod groups;
mod milp;
mod order;
mod policy;
mod runtimes;
mod sac_region;
mod sac_stats;
mod stats;
mod tally;
mod torch_order;
mod tradeoff;

pub use curve::{DISCARD_OFFSET, TradeoffCurve};
pub use error::TorchError;
pub use fit::PiecewiseFit;
pub use graph::{GraphModule, GraphTradeoff, ModuleGraph};
pub use groups::{Fate, OpGroup, OpGroups};
pub use milp::{MilpChoice, MilpMethod, MilpOptions, MilpOutcome, MilpPlan, milp};
pub use order::{GreedyOrder, Msps};
pub use policy::{nearest_policy, optimal_policy};
pub use runtimes::{Runtime, Runtimes, torch_roofline};
pub use sac_region::{ALWAYS_SKIPPED, SacFacts, SacRegion};
pub use sac_stats::SacStats;
pub use stats::{Baseline, ModuleStats, StepStats};
pub use tally::{Direction, Row, Tally, Usage};
pub use torch_order::{TorchOrder, TorchTradeoff};
pub use tradeoff::{SEGMENTS, Tradeoff, Tradeoffs};
