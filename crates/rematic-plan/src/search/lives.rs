use rematic_replay::{Ledger, Regions, births};
use rematic_trace::{Event, Lists, OpId, StepTrace, StorageId};

use super::axis::Axis;
use crate::node::Node;
use crate::region::Lifetimes;

/// Until when who holds what, as far as it does not depend on the plan. Moments are those of the [`Axis`].
pub(crate) struct Lives {
    /// By storage; what no plan changes has no bytes.
    pub(super) storages: Vec<Life>,
    savers: Lists<StorageId, OpId>,
    /// The nodes that are given a storage.
    readers: Lists<StorageId, u32>,
    /// By operator: until when what it saves is held, if it is not checkpointed.
    pub(super) unsaved: Vec<usize>,
    /// By operator: until when what it saves is held after it has run again, if that does not end while it does.
    returned: Vec<usize>,
    /// By node.
    pub(super) nodes: Vec<NodeLives>,
}

/// One storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) bytes: i64,
    /// The operator that makes it.
    pub(super) birth: Option<OpId>,
    /// Until when there is an ordinary reference.
    pub(super) dropped: usize,
    dropped_at: usize,
    /// Until when it lives without any plan.
    pub(super) plain: usize,
}

/// What the plan of a node changes.
#[derive(Clone, Debug)]
pub(super) struct NodeLives {
    /// When its backward is over.
    pub(super) over: usize,
    /// The storages that it is given.
    pub(super) inputs: Vec<StorageId>,
    /// What it makes: the operator, the storage, and the life of the copy where recomputation makes one.
    pub(super) births: Vec<Birth>,
}

/// A storage that a region makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) op: usize,
    pub(super) storage: StorageId,
    /// Whether recomputation gets to its operator.
    pub(super) reached: bool,
    /// Whether it is never kept: where its operator does not run again, nothing reads it.
    pub(super) is_skipped: bool,
    /// The life of what recomputation makes anew, or until when it holds what was saved.
    pub(super) from: usize,
    pub(super) until: usize,
}

impl Lives {
    pub(crate) fn new(
        trace: &StepTrace,
        lifetimes: &Lifetimes,
        regions: &Regions,
        nodes: &[Node],
        axis: &Axis,
        ledger: &Ledger,
    ) -> Self {
        let ops = || (0..trace.ops().len()).map(OpId::new);
        let saves =
            trace.ops().entries().flat_map(|(id, op)| trace.saves(op).iter().map(move |saved| (saved.storage, id)));
        let savers = Lists::new(trace.storages().len(), saves);
        let given = nodes.iter().enumerate().flat_map(|(index, node)| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            regions.all()[node.region].inputs.iter().map(move |input| (*input, index))
        });
        let readers = Lists::new(trace.storages().len(), given);
        let unsaved: Vec<usize> = ops().map(|op| axis.at(lifetimes.unsaved(op))).collect();
        let returned: Vec<usize> = ops().map(|op| lifetimes.returned(op)).collect();
        let mut storages: Vec<Life> = (0..trace.storages().len())
            .map(StorageId::new)
            .map(|storage| {
                let dropped_at = lifetimes.dropped(storage);
                let dropped = axis.at(dropped_at);
                let plain = savers[storage].iter().map(|op| unsaved[op.index()]).fold(dropped, usize::max);
                let bytes = i64::try_from(ledger.footprint(storage).0).unwrap_or(i64::MAX / 8);
                Life { bytes, birth: trace.storages()[storage].birth, dropped, dropped_at, plain }
            })
            .collect();
        for &event in trace.events() {
            // Nothing that is planned makes or reads these: what a plan changes about their holders does not matter.
            if let Event::Release(storage) | Event::Restore(storage) | Event::Shrink(storage, _) = event {
                storages[storage.index()].bytes = 0;
            }
        }
        let mut lives = Lives { storages, savers, readers, unsaved, returned, nodes: Vec::new() };
        for index in 0..nodes.len() {
            let node = lives.node(trace, regions, nodes, axis, lifetimes, index);
            lives.nodes.push(node);
        }
        for op in ops() {
            lives.returned[op.index()] = axis.at(lifetimes.returned(op));
        }
        lives
    }

    fn node(
        &self,
        trace: &StepTrace,
        regions: &Regions,
        nodes: &[Node],
        axis: &Axis,
        lifetimes: &Lifetimes,
        index: usize,
    ) -> NodeLives {
        let region = &regions.all()[nodes[index].region];
        let block = &axis.blocks[index];
        let ops = || region.ops.clone().map(OpId::new);
        let over = ops()
            .filter(|op| !trace.saves(trace.op(*op)).is_empty())
            .map(|op| self.unsaved[op.index()])
            .max()
            .unwrap_or(0);
        let candidate = &nodes[index].candidate;
        let mut skipped = vec![false; region.ops.len()];
        for &op in candidate.items.iter().flat_map(|item| &item.skipped).chain(&candidate.unread) {
            skipped[op] = true;
        }
        let mut made = Vec::new();
        for op in ops() {
            for storage in births(trace, op).filter(|storage| self.storages[storage.index()].bytes > 0) {
                let reached = region.reaches(op);
                let from = block.start + (op.index() - region.ops.start);
                let mut until = axis.again(block, self.storages[storage.index()].dropped_at);
                for &saver in self.savers[storage].iter().filter(|saver| region.contains(**saver)) {
                    until = until.max(if self.returned[saver.index()] >= block.trigger {
                        axis.at(self.returned[saver.index()])
                    } else if region.reaches(saver) {
                        // Thrown away once, it is thrown away again.
                        axis.again(block, lifetimes.unsaved(saver))
                    } else {
                        0
                    });
                }
                let is_skipped = skipped[op.index() - region.ops.start];
                made.push(Birth { op: op.index(), storage, reached, is_skipped, from, until });
            }
        }
        NodeLives { over, inputs: region.inputs.clone(), births: made }
    }

    /// The operators that save a storage.
    pub(super) fn savers(&self, storage: StorageId) -> &[OpId] {
        &self.savers[storage]
    }

    /// The nodes that are given a storage.
    pub(super) fn readers(&self, storage: StorageId) -> &[u32] {
        &self.readers[storage]
    }

    /// Until when an operator of a region that has run again holds what was there before it.
    pub(super) fn returned(&self, op: OpId) -> usize {
        self.returned[op.index()]
    }
}
