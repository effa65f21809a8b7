use std::borrow::Cow;

use rematic_trace::{Axis, Category, Event, StepTrace, StorageId};

/// The axis of the mesh that the shards lie along.
const AXIS: &str = "shard";

/// Why a step is not spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvenShards {
    /// Over no rank.
    NoRanks,
    /// Over more ranks than a mesh can have.
    TooManyRanks,
    /// It is the step of one rank of another number already.
    ShardedAlready,
}

/// The step of one of so many ranks, among which parameters, gradients and optimizer state are spread evenly: it has a share
/// of each, rounded up to whole bytes. A gradient is whole until it becomes one of a parameter, and a share from then on.
///
/// It is a lower bound of what sharding takes, as if weights were whole without being gathered anywhere, and it takes no time:
/// what a run of many devices can come down to. A step that is already one of so many ranks stays as it is.
///
/// # Errors
/// If there are no ranks or too many, or if the step is already that of one rank of several.
pub fn even_shards(trace: &StepTrace, ranks: u64) -> Result<Cow<'_, StepTrace>, EvenShards> {
    if ranks == 0 {
        return Err(EvenShards::NoRanks);
    }
    if ranks == 1 || trace.place.ranks() == Some(ranks) {
        return Ok(Cow::Borrowed(trace));
    }
    if !trace.place.axes.is_empty() {
        return Err(EvenShards::ShardedAlready);
    }
    let size = u32::try_from(ranks).map_err(|_| EvenShards::TooManyRanks)?;
    let share = |bytes: u64| bytes.div_ceil(ranks);
    let mut sharded = trace.clone();
    sharded.place.axes.push(Axis { name: AXIS.to_owned(), size, coordinate: 0 });
    for (index, storage) in trace.storages().iter().enumerate() {
        if is_spread(storage.category) {
            sharded.set_share(StorageId::new(index), share(storage.bytes));
        }
    }
    sharded.rewrite(|event, events| {
        events.push(event);
        if let Event::Recategorize(storage, category) = event {
            let record = &trace.storages()[storage];
            if is_spread(category) && !is_spread(record.category) {
                events.push(Event::Shrink(storage, share(record.bytes)));
            }
        }
    });
    Ok(Cow::Owned(sharded))
}

fn is_spread(category: Category) -> bool {
    matches!(category, Category::Parameter | Category::Gradient | Category::Optimizer)
}
