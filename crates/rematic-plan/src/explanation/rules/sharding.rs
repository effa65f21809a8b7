use std::sync::Arc;

use rematic_layout::{Fsdp2, even_shards, fsdp2, layers};
use rematic_trace::{Bytes, Category, StepTrace};

use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::Change;
use super::Step;

/// Devices to spread over: those of a usual node.
const NODE: u64 = 8;
/// FSDP gathers the parameters for forward and again for backward, and scatters the gradients.
const TRANSFERS: u128 = 3;

/// Parameters, gradients and optimizer state spread over the devices of a node by FSDP2; over twice as many where they are spread
/// so far already.
///
/// What is replayed is the step of the first of them, with all buffers. A step that FSDP2 does not take, or that is divided evenly
/// already, is divided evenly. The time is that of all transfers over the device's link if none of them overlaps with computing, so
/// it is at most that.
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
    let (other, how, counted) = match by_fsdp2(step, world_size) {
        Some(other) => (other, "--fsdp", "buffers are counted"),
        None => {
            (even_shards(step.whole, world_size).ok()?.into_owned(), "--world-size", "gathered layers are not counted")
        }
    };
    Some(Proposal {
        kind: RemedyKind::Sharding,
        title: format!("Shard over {world_size} devices"),
        how: format!("FSDP: fully_shard each layer and the model, with {how} {world_size} here"),
        assumption: format!("At most so much longer, if no transfer overlaps; {counted}"),
        extra: step.device.link.map(|link| link.time(Bytes(more))),
        numerics: Numerics::Rounding,
        change: Change { other: Some(Arc::new(other)), ..Change::default() },
    })
}

/// The step as FSDP2 shards it, unless it is divided evenly already.
fn by_fsdp2(step: &Step<'_>, devices: u64) -> Option<StepTrace> {
    let devices = u32::try_from(devices).ok().filter(|_| step.world_size == 1)?;
    fsdp2(step.whole, &Fsdp2::over(devices), &layers(step.whole)).ok()
}
