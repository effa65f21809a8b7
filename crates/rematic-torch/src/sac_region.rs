//! From a trace to the facts about each region's operators.
//!
//! A region's operators are a run of consecutive forward operators, and most facts about an operator do not depend on
//! the region that looks at it. They are computed once; a region then copies its slice. All regions together cost as
//! much as the sum of their lengths: operators times the depth of the module tree.

use std::collections::HashMap;
use std::ops::Range;

use rematic_cost::Costs;
use rematic_replay::Allocator;
use rematic_trace::{Bytes, CallId, Event, Millis, ModuleId, NameId, Op, OpId, Phase, StepTrace, StorageId, Table};

use crate::SacStats;

/// Operators that selective checkpointing never sees, so that no policy decides about them: torch's
/// `OPS_TO_ALWAYS_SKIP`. Autograd adds `detach` as it pleases; the others are queries, or belong to the compiler.
pub const ALWAYS_SKIPPED: [&str; 19] = [
    "clone.default",
    "detach.default",
    "dim.default",
    "is_contiguous.default",
    "is_contiguous.memory_format",
    "is_non_overlapping_and_dense.default",
    "is_strides_like_format.default",
    "lift_fresh.default",
    "numel.default",
    "prim.device.default",
    "prim.layout.default",
    "profiler._record_function_exit._RecordFunction",
    "size.default",
    "storage_offset.default",
    "stride.default",
    "sym_numel.default",
    "sym_size.default",
    "sym_storage_offset.default",
    "sym_stride.default",
];

/// One call of a module that has children, as torch's `SACEstimator` sees it: whether or not its backward needs anything,
/// which [`rematic_replay::Region`] asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SacRegion {
    /// The call.
    pub call: CallId,
    /// Its module.
    pub module: ModuleId,
    /// The operators that run in it, as a range of [`rematic_trace::OpId`] indices; skipped ones are among them.
    pub ops: Range<usize>,
}

impl SacRegion {
    /// The regions of a step, in the order in which their forward begins.
    #[must_use]
    pub fn all(trace: &StepTrace) -> Vec<SacRegion> {
        let mut has_children = trace.modules().filled(false);
        for module in trace.modules() {
            if let Some(parent) = module.parent {
                has_children[parent] = true;
            }
        }
        let mut regions: Table<CallId, Option<SacRegion>> = trace.calls().filled(None);
        let mut ops_run = 0;
        for &event in trace.events() {
            match event {
                Event::Op(op) => ops_run = op.index() + 1,
                Event::Enter(call) => {
                    let module = trace.call(call).module;
                    if has_children[module] {
                        regions[call] = Some(SacRegion { call, module, ops: ops_run..ops_run });
                    }
                }
                Event::Exit(call) => {
                    if let Some(region) = &mut regions[call] {
                        region.ops.end = ops_run;
                    }
                }
                _ => {}
            }
        }
        // Calls are numbered in the order in which they begin.
        regions.into_iter().flatten().collect()
    }

    /// The operators that a policy decides about, in the order of [`SacStats`].
    pub fn decided_ops<'a>(&self, trace: &'a StepTrace) -> impl Iterator<Item = OpId> + use<'a> {
        let ops = self.ops.clone().map(OpId::new);
        ops.filter(|&op| {
            let op = trace.op(op);
            op.phase == Phase::Forward && !ALWAYS_SKIPPED.contains(&trace.op_name(op))
        })
    }
}

/// Facts about one operator that hold in every region.
#[derive(Clone, Debug)]
struct Facts {
    op: OpId,
    memory: Bytes,
    view: bool,
    random: bool,
    in_place: bool,
    /// The operator with which the last of its output storages is saved for autograd.
    saved_at: Option<OpId>,
}

/// What every region of a step is made from.
#[derive(Debug)]
pub struct SacFacts<'a> {
    trace: &'a StepTrace,
    times: &'a Table<OpId, Millis>,
    /// The forward operators that are not skipped.
    kept: Vec<Facts>,
    /// For the storages that in-place operators change: the kept operators that have them among their outputs.
    writers: HashMap<StorageId, Vec<usize>>,
}

impl<'a> SacFacts<'a> {
    /// Reads a step once. `allocator` says how many bytes a storage takes; torch's estimator counts the bytes that a
    /// CUDA tensor really takes, and those that any other tensor asks for.
    #[must_use]
    pub fn new(trace: &'a StepTrace, costs: &'a Costs, allocator: Allocator) -> Self {
        let skipped: Table<NameId, bool> =
            trace.names().iter().map(|name| ALWAYS_SKIPPED.contains(&name.as_str())).collect();
        let in_place: Table<NameId, bool> = trace.names().iter().map(|name| is_in_place(packet(name))).collect();
        let first_saved = first_saved(trace);
        let mut kept = Vec::new();
        let mut writers: HashMap<StorageId, Vec<usize>> = HashMap::new();
        for (id, op) in trace.ops().entries() {
            if op.phase != Phase::Forward || skipped[op.name] {
                continue;
            }
            let outputs = output_storages(trace, op);
            if in_place[op.name] {
                for &storage in &outputs {
                    writers.entry(storage).or_default();
                }
            }
            let bytes = outputs.iter().map(|storage| allocator.footprint(Bytes(trace.storages()[*storage].bytes)));
            kept.push(Facts {
                op: id,
                memory: if op.flags.view { Bytes(0) } else { bytes.fold(Bytes(0), saturating_add) },
                view: op.flags.view,
                random: op.flags.random,
                in_place: in_place[op.name],
                // An operator without outputs counts as saved from the start, as torch's subset test has it.
                saved_at: outputs
                    .iter()
                    .map(|storage| first_saved[*storage])
                    .try_fold(OpId::new(0), |latest, at| at.map(|at| latest.max(at))),
            });
        }
        for (position, facts) in kept.iter().enumerate() {
            for storage in output_storages(trace, trace.op(facts.op)) {
                if let Some(writers) = writers.get_mut(&storage) {
                    writers.push(position);
                }
            }
        }
        SacFacts { trace, times: costs.times(), kept, writers }
    }

    /// The facts about one region's operators, in time linear in their number.
    #[must_use]
    pub fn stats(&self, region: &SacRegion) -> SacStats {
        let start = self.kept.partition_point(|facts| facts.op.index() < region.ops.start);
        let end = self.kept.partition_point(|facts| facts.op.index() < region.ops.end);
        let inside = &self.kept[start..end.max(start)];
        let mut stats =
            SacStats { force_store_random: self.trace.call(region.call).inputs.is_empty(), ..SacStats::default() };
        let mut last = None;
        for (index, facts) in inside.iter().enumerate() {
            let op = self.trace.op(facts.op);
            stats.func_names.push(packet(self.trace.op_name(op)).to_owned());
            stats.runtimes.push(self.times[facts.op]);
            stats.memory.push(facts.memory);
            if facts.view {
                stats.view_like_ops.push(index);
            }
            if facts.random {
                stats.rand_ops.push(index);
            }
            if facts.saved_at.is_some_and(|at| at.index() < region.ops.end) {
                stats.saved_autograd_ops.push(index);
            }
            if facts.in_place {
                stats.inplace_ops.push((index, self.parent(op, start + index, region, start) - start));
            }
            if !facts.view && !facts.in_place {
                last = Some(index);
            }
        }
        if let Some(last) = last {
            stats.memory[last] = Bytes(0);
        }
        stats
    }

    /// The first kept operator of the region that has an in-place operator's storages among its outputs.
    ///
    /// A storage that is born outside the region has none but the operator itself, whatever views of it are made
    /// inside. Torch takes the first such view, and its policies then recompute the change with it: on a tensor that
    /// has already been changed once.
    fn parent(&self, op: &Op, position: usize, region: &SacRegion, start: usize) -> usize {
        let outputs = output_storages(self.trace, op);
        let born_inside = outputs.iter().all(|storage| {
            self.trace.storages()[*storage].birth.is_some_and(|birth| region.ops.contains(&birth.index()))
        });
        if !born_inside {
            return position;
        }
        let mut at = start;
        // Raises the position until every storage has a writer there.
        'raise: while at < position {
            for storage in &outputs {
                let writers = self.writers.get(storage).map_or(&[][..], Vec::as_slice);
                match writers.get(writers.partition_point(|&writer| writer < at)) {
                    Some(&next) if next == at => {}
                    Some(&next) => {
                        at = next;
                        continue 'raise;
                    }
                    None => return position,
                }
            }
            return at;
        }
        position
    }
}

/// For each storage, the first operator that saves it for autograd.
fn first_saved(trace: &StepTrace) -> Table<StorageId, Option<OpId>> {
    let mut first = trace.storages().filled(None);
    for (id, op) in trace.ops().entries() {
        for tensor in trace.saves(op) {
            first[tensor.storage].get_or_insert(id);
        }
    }
    first
}

fn output_storages(trace: &StepTrace, op: &Op) -> Vec<StorageId> {
    let mut storages: Vec<StorageId> = trace.outputs(op).iter().map(|tensor| tensor.storage).collect();
    storages.sort_unstable();
    storages.dedup();
    storages
}

/// A name without overload and name space: `prim.device.default` is `device`.
fn packet(name: &str) -> &str {
    let packet = name.rsplit_once('.').map_or(name, |(packet, _)| packet);
    packet.rsplit_once('.').map_or(packet, |(_, name)| name)
}

/// PyTorch marks operators that change an argument and return it by a trailing underscore, and Python's own in-place
/// operators by `__i…__`. Operators that change something else as well (`native_batch_norm`) are not among them.
fn is_in_place(packet: &str) -> bool {
    if packet.starts_with("__") && packet.ends_with("__") && packet.len() > 4 {
        return packet.starts_with("__i") && packet.len() > 5;
    }
    packet.ends_with('_')
}

fn saturating_add(sum: Bytes, bytes: Bytes) -> Bytes {
    Bytes(sum.0.saturating_add(bytes.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_overload_and_name_space() {
        for (name, expected) in
            [("mm.default", "mm"), ("add_.Tensor", "add_"), ("prim.device.default", "device"), ("odd", "odd")]
        {
            assert_eq!(packet(name), expected);
        }
    }

    #[test]
    fn in_place_operators_are_known_by_their_names() {
        for name in ["add_", "copy_", "__iadd__", "_foreach_add_"] {
            assert!(is_in_place(name), "{name}");
        }
        for name in ["add", "__and__", "_unsafe_view", "native_batch_norm"] {
            assert!(!is_in_place(name), "{name}");
        }
    }
}
