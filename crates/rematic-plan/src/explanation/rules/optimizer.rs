use std::collections::HashSet;

use rematic_replay::births;
use rematic_trace::{Category, Event, Millis, OpId, Phase, StorageId};

use super::super::flow::operator;
use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::{Change, Scale};
use super::Step;

/// 8-bit optimizers leave smaller states as they are (`min_8bit_size` of bitsandbytes, and torchao's rule).
const LEAST_ELEMENTS: u64 = 4096;
/// Elements that share a scale, which is a 32-bit float.
const BLOCK: u64 = 256;

/// The temporaries of a foreach optimizer, which exist for all parameters at once.
///
/// Assumes that one parameter is updated after the other, as with `foreach=False`: of each operator's temporaries only the
/// largest is alive. A fused kernel makes none at all, so with `fused=True` it is a little less.
pub(super) fn without_temporaries(step: &Step<'_>) -> Option<Proposal> {
    let trace = step.trace;
    let dropped: HashSet<StorageId> = trace
        .events()
        .iter()
        .filter_map(|event| if let Event::Drop(storage) = event { Some(*storage) } else { None })
        .collect();
    let mut scales = Vec::new();
    for op in (0..trace.ops().len()).map(OpId::new).filter(|&op| trace.op(op).phase == Phase::Optimizer) {
        if !operator(trace, op).starts_with("_foreach_") {
            continue;
        }
        // What outlives the step is state.
        let mut made: Vec<StorageId> = births(trace, op).filter(|storage| dropped.contains(storage)).collect();
        made.sort_by_key(|storage| std::cmp::Reverse(trace.storages()[*storage].bytes));
        scales.extend(made.into_iter().skip(1).map(|storage| (storage, Scale::NOTHING)));
    }
    if scales.is_empty() {
        return None;
    }
    Some(Proposal {
        kind: RemedyKind::OptimizerTemporaries,
        title: "Update one parameter after the other".to_owned(),
        how: "give the optimizer fused=True, or foreach=False".to_owned(),
        assumption: "The temporaries of the largest parameter stay; fused=True takes no longer".to_owned(),
        extra: Some(Millis(0.0)),
        numerics: Numerics::Rounding,
        change: Change { scales, ..Change::default() },
    })
}

/// Optimizer state in 8 bits instead of its own type.
///
/// Assumes a byte for each element and a 32-bit scale for each block of 256, as bitsandbytes and torchao store it, for states
/// of at least 4096 elements of a wider float; and no extra time, because the update moves fewer bytes than before.
pub(super) fn in_8_bits(step: &Step<'_>) -> Option<Proposal> {
    let mut scales = Vec::new();
    for (index, storage) in step.trace.storages().iter().enumerate() {
        if storage.birth.is_some() || storage.category != Category::Optimizer {
            continue;
        }
        let id = StorageId::new(index);
        let Some(layout) = step.flow.layout(step.trace, id) else { continue };
        if !layout.dtype.is_float() || layout.dtype.size() < 2 {
            continue;
        }
        let elements = storage.bytes / layout.dtype.size();
        if elements < LEAST_ELEMENTS {
            continue;
        }
        let bytes = elements + elements.div_ceil(BLOCK) * 4;
        scales.push((id, Scale { part: bytes, of: storage.bytes }));
    }
    if scales.is_empty() {
        return None;
    }
    Some(Proposal {
        kind: RemedyKind::OptimizerState,
        title: "Keep optimizer state in 8 bits".to_owned(),
        how: "an 8-bit optimizer, such as Adam8bit of bitsandbytes or AdamW8bit of torchao".to_owned(),
        assumption: "States of 4096 elements or more, with a scale for every 256; updates become approximate"
            .to_owned(),
        extra: Some(Millis(0.0)),
        numerics: Numerics::Approximate,
        change: Change { scales, ..Change::default() },
    })
}
