//! The rules. Each looks at the step by operators' names, layouts, phases and the flow of data, never by the names of modules,
//! and says which storages its remedy makes smaller, and at what time. One that does not apply says nothing.

mod attention;
mod batch;
mod chunks;
mod optimizer;
mod output;
mod planner;
mod sharding;

use super::Step;
use super::remedy::Proposal;

/// What says which storages become smaller.
pub(super) type Rule = fn(&Step<'_>) -> Option<Proposal>;

/// Those that a plan can be compared with: on the same devices, and no plan themselves.
pub(super) const BESIDE_PLANS: [Rule; 5] = [
    output::previous_output,
    optimizer::without_temporaries,
    attention::fused,
    chunks::chunked_loss,
    batch::accumulated,
];

/// All of them; the order decides between equals.
pub(super) const ALL: [Rule; 8] = [
    output::previous_output,
    optimizer::without_temporaries,
    optimizer::in_8_bits,
    attention::fused,
    chunks::chunked_loss,
    planner::checkpointing,
    batch::accumulated,
    sharding::sharded,
];
