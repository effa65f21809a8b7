use rematic_trace::{Bytes, Category};

use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::Change;
use super::Step;

/// Devices to spread over: those of a usual node.
const NODE: u64 = 8;
/// FSDP gathers the parameters for forward and again for backward, and scatters the gradients.
const TRANSFERS: u128 = 3;

/// Parameters, gradients and optimizer state spread over the devices of a node; over twice as many where they are spread
/// so far already.
///
/// Assumes an even spread. What gathering one layer takes for a moment is not counted. The time is that of all transfers over the
/// device's link if none of them overlaps with computing, so it is at most that.
pub(super) fn sharded(step: &Step<'_>) -> Option<Proposal> {
    // The step of a rank, as it was traced, has its own share already.
    if step.whole.place.ranks() != Some(1) {
        return None;
    }
    let world_size = if step.world_size < NODE { NODE } else { step.world_size.checked_mul(2)? };
    let parameters: u64 = step
        .trace
        .storages()
        .iter()
        .filter(|storage| storage.birth.is_none() && storage.category == Category::Parameter)
        .map(|storage| storage.bytes)
        .fold(0, u64::saturating_add);
    let moved = |devices: u64| {
        let whole = u128::from(parameters) * TRANSFERS;
        whole - whole / u128::from(devices)
    };
    let more = u64::try_from(moved(world_size) - moved(step.world_size.max(1))).unwrap_or(u64::MAX);
    Some(Proposal {
        kind: RemedyKind::Sharding,
        title: format!("Shard over {world_size} devices"),
        how: format!("FSDP: fully_shard each layer and the model, with --world-size {world_size} here"),
        assumption: "At most so much longer, if no transfer overlaps; gathered layers are not counted".to_owned(),
        extra: step.device.link.map(|link| link.time(Bytes(more))),
        numerics: Numerics::Rounding,
        change: Change { world_size: Some(world_size), ..Change::default() },
    })
}
