use rematic_replay::Regions;
use rematic_trace::{Event, OpId, StepTrace};

use crate::node::Node;

/// All moments right after an operator that there may be under any plan, in order: those of the plain step, and before the
/// event that a region is recomputed at one for every operator that may run again. Those of regions that are not chosen, and
/// of operators that are saved, are left out of a plan.
pub(crate) struct Axis {
    /// By position of an event: how many moments lie before it.
    before: Vec<usize>,
    /// By position of an event: how many operators run before it.
    ops_before: Vec<usize>,
    /// By node.
    pub(super) blocks: Vec<Block>,
    moments: usize,
    /// By moment: the operator that it follows, or whose event it is recomputed before.
    ops: Vec<(OpId, bool)>,
}

/// The moments at which a region's operators run again.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) start: usize,
    pub(super) length: usize,
    /// The first operator of the region.
    pub(super) first_op: usize,
    /// Where the region's forward ends, by position of its events.
    pub(super) events_end: usize,
    pub(super) trigger: usize,
}

impl Block {
    pub(super) fn end(&self) -> usize {
        self.start + self.length
    }
}

impl Axis {
    pub(crate) fn new(trace: &StepTrace, regions: &Regions, nodes: &[Node]) -> Self {
        let mut by_trigger: Vec<(usize, usize)> =
            nodes.iter().enumerate().map(|(index, node)| (regions.all()[node.region].trigger, index)).collect();
        by_trigger.sort_unstable();
        let mut coming = by_trigger.into_iter().peekable();
        let block = |node: &Node| {
            let region = &regions.all()[node.region];
            let length = (region.stop.index() - region.ops.start) + usize::from(region.stop_runs);
            let (first_op, events_end, trigger) = (region.ops.start, region.events.end, region.trigger);
            Block { start: 0, length, first_op, events_end, trigger }
        };
        let mut blocks: Vec<Block> = nodes.iter().map(block).collect();
        let count = trace.events().len();
        let (mut before, mut ops_before) = (Vec::with_capacity(count + 1), Vec::with_capacity(count + 1));
        let (mut moments, mut next_op) = (0, 0);
        let mut ops = Vec::new();
        for (position, &event) in trace.events().iter().enumerate() {
            while let Some((_, node)) = coming.next_if(|(trigger, _)| *trigger == position) {
                blocks[node].start = moments;
                moments += blocks[node].length;
                if let Event::Op(op) = event {
                    ops.extend(std::iter::repeat_n((op, true), blocks[node].length));
                }
            }
            before.push(moments);
            ops_before.push(next_op);
            if let Event::Op(op) = event {
                ops.push((op, false));
                moments += 1;
                next_op = op.index() + 1;
            }
        }
        before.push(moments);
        ops_before.push(next_op);
        Axis { before, ops_before, blocks, moments, ops }
    }

    /// The first moment that sees what an event has done.
    pub(super) fn at(&self, position: usize) -> usize {
        self.before.get(position).copied().unwrap_or(self.moments)
    }

    /// The first moment of a region's block, or behind it, that sees what an event of its forward does when it runs again.
    pub(super) fn again(&self, block: &Block, position: usize) -> usize {
        if position >= block.events_end {
            return block.end();
        }
        let ran = self.ops_before.get(position).copied().unwrap_or(0).saturating_sub(block.first_op);
        block.start + ran.min(block.length)
    }

    /// The operators of the plain step whose moments these are; `true` for those before it.
    pub(super) fn ops(&self) -> &[(OpId, bool)] {
        &self.ops
    }
}
