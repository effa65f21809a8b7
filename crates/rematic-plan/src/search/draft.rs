use rematic_replay::Checkpoint;
use rematic_trace::{OpId, StorageId};

use super::heights::{ABSENT, Heights};
use super::{Axis, Lives};
use crate::problem::Problem;

/// A plan that is changed step by step, with its peak and its time.
pub(crate) struct Draft<'a> {
    problem: &'a Problem,
    axis: &'a Axis,
    lives: &'a Lives,
    heights: Heights,
    /// By node.
    chosen: Vec<bool>,
    /// By operator: the chosen node that it belongs to.
    node_of: Vec<u32>,
    /// By operator: whether it does not run again if its region is checkpointed: its outputs are saved, or nothing reads them.
    saved: Vec<bool>,
    /// By storage: until when it lives.
    until: Vec<usize>,
    time: f64,
    /// Lives changed so far: the work done.
    changes: usize,
}

const NONE: u32 = u32::MAX;

impl<'a> Draft<'a> {
    /// The step as it is.
    pub(crate) fn new(problem: &'a Problem, axis: &'a Axis, lives: &'a Lives) -> Self {
        let height = |&(op, before): &(OpId, bool)| {
            let bytes = if before { problem.before(op) } else { problem.after(op) };
            i64::try_from(bytes.0).unwrap_or(i64::MAX / 8)
        };
        let mut heights: Vec<i64> = axis.ops().iter().map(height).collect();
        for block in &axis.blocks {
            heights[block.start..block.end()].iter_mut().for_each(|height| *height += ABSENT / 2);
        }
        let ops = problem.trace.ops().len();
        Draft {
            problem,
            axis,
            lives,
            heights: Heights::new(&heights),
            chosen: vec![false; problem.nodes.len()],
            node_of: vec![NONE; ops],
            saved: vec![false; ops],
            until: lives.storages.iter().map(|life| life.plain).collect(),
            time: 0.0,
            changes: 0,
        }
    }

    /// The highest bytes in use.
    pub(crate) fn peak(&self) -> u64 {
        let start = i64::try_from(self.problem.start_bytes().0).unwrap_or(i64::MAX);
        u64::try_from(self.heights.highest().max(start)).unwrap_or(0)
    }

    /// Time of the operators that run again.
    pub(crate) fn time(&self) -> f64 {
        self.time
    }

    /// How many lives have been changed so far.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    pub(crate) fn is_chosen(&self, node: usize) -> bool {
        self.chosen[node]
    }

    /// Whether an item of a node is saved, or would be.
    pub(crate) fn is_saved(&self, node: usize, item: usize) -> bool {
        let node = &self.problem.nodes[node];
        node.candidate.items[item].ops.iter().all(|op| self.saved[node.start + op])
    }

    /// Chooses a node with what its items say, or leaves it out. None around it or inside it may be chosen.
    pub(crate) fn choose(&mut self, index: usize, chosen: bool) {
        if self.chosen[index] == chosen {
            return;
        }
        let node = &self.problem.nodes[index];
        if chosen {
            // What was saved for another region may not be legal here.
            self.settle(index);
        }
        self.chosen[index] = chosen;
        let name = if chosen { u32::try_from(index).unwrap_or(NONE) } else { NONE };
        self.node_of[node.start..node.end].fill(name);
        let block = &self.axis.blocks[index];
        let sign = if chosen { 1 } else { -1 };
        for at in 0..block.length {
            let op = block.first_op + at;
            if !self.saved[op] {
                self.heights.add(block.start + at, block.start + at + 1, -sign * (ABSENT / 2));
                self.time += sign as f64 * self.problem.costs.time(OpId::new(op)).0;
            }
        }
        let lives = &self.lives.nodes[index];
        for birth in &lives.births {
            if birth.reached && !self.saved[birth.op] {
                let bytes = self.lives.storages[birth.storage.index()].bytes;
                self.heights.add(birth.from, birth.until, sign * bytes);
            }
            self.renew(birth.storage);
        }
        for &input in &lives.inputs {
            self.renew(input);
        }
    }

    /// Brings what is saved of a node that is not chosen in line with its items.
    fn settle(&mut self, index: usize) {
        let node = &self.problem.nodes[index];
        let items: Vec<bool> = (0..node.candidate.items.len()).map(|item| self.is_saved(index, item)).collect();
        self.saved[node.start..node.end].fill(false);
        for (item, _) in items.iter().enumerate().filter(|(_, saved)| **saved) {
            let item = &node.candidate.items[item];
            for op in item.ops.iter().chain(&item.skipped) {
                self.saved[node.start + op] = true;
            }
        }
        for op in node.candidate.always_saved.iter().chain(&node.candidate.unread) {
            self.saved[node.start + op] = true;
        }
    }

    /// Saves an item of a chosen node, or recomputes it.
    pub(crate) fn flip(&mut self, index: usize, item: usize) {
        let node = &self.problem.nodes[index];
        let saved = !self.is_saved(index, item);
        let block = &self.axis.blocks[index];
        let sign = if saved { -1 } else { 1 };
        let item = &node.candidate.items[item];
        for &op in item.ops.iter().chain(&item.skipped) {
            let op = node.start + op;
            if self.saved[op] == saved {
                continue;
            }
            self.saved[op] = saved;
            let at = op - block.first_op;
            if !self.chosen[index] {
                continue;
            }
            if at < block.length {
                self.heights.add(block.start + at, block.start + at + 1, -sign * (ABSENT / 2));
                self.time += sign as f64 * self.problem.costs.time(OpId::new(op)).0;
            }
            let lives = &self.lives.nodes[index];
            let first = lives.births.partition_point(|birth| birth.op < op);
            for birth in lives.births[first..].iter().take_while(|birth| birth.op == op) {
                if birth.reached {
                    let bytes = self.lives.storages[birth.storage.index()].bytes;
                    self.heights.add(birth.from, birth.until, sign * bytes);
                }
                self.renew(birth.storage);
            }
        }
    }

    /// Saves an item of a chosen node, or does not, whatever was.
    pub(crate) fn save(&mut self, index: usize, item: usize, saved: bool) {
        if self.is_saved(index, item) != saved {
            self.flip(index, item);
        }
    }

    /// The moment of the peak.
    pub(crate) fn highest_moment(&self) -> usize {
        self.heights.highest_at()
    }

    /// The bytes in use at a moment.
    pub(crate) fn height(&self, moment: usize) -> i64 {
        self.heights.at(moment)
    }

    /// Until when a storage lives under the plan.
    fn renew(&mut self, storage: StorageId) {
        self.changes += 1;
        let life = &self.lives.storages[storage.index()];
        let mut until = life.dropped;
        let owner = life.birth.map_or(NONE, |birth| self.node_of[birth.index()]);
        let kept = life.birth.is_some_and(|birth| self.saved[birth.index()]);
        for &saver in self.lives.savers(storage) {
            let node = self.node_of[saver.index()];
            if node == NONE {
                until = until.max(self.lives.unsaved[saver.index()]);
            } else if node != owner {
                until = until.max(self.lives.returned(saver));
            }
        }
        if owner != NONE && kept {
            let lives = &self.lives.nodes[owner as usize];
            let op = life.birth.map_or(0, OpId::index);
            let first = lives.births.partition_point(|birth| birth.op < op);
            let mut made = lives.births[first..].iter().take_while(|birth| birth.op == op);
            if let Some(birth) = made.find(|birth| birth.storage == storage && !birth.is_skipped) {
                until = until.max(if birth.reached { birth.until } else { lives.over });
            }
        }
        for &reader in self.lives.readers(storage) {
            if self.chosen[reader as usize] {
                until = until.max(self.lives.nodes[reader as usize].over);
            }
        }
        let before = std::mem::replace(&mut self.until[storage.index()], until);
        if before < until {
            self.heights.add(before, until, life.bytes);
        } else {
            self.heights.add(until, before, -life.bytes);
        }
    }

    /// What is saved of a range of operators.
    pub(crate) fn saved(&self, start: usize, end: usize) -> Vec<bool> {
        self.saved[start..end].to_vec()
    }

    /// Sets what is saved of a range of operators, none of which is in a chosen region.
    pub(crate) fn set_saved(&mut self, start: usize, saved: &[bool]) {
        self.saved[start..start + saved.len()].copy_from_slice(saved);
    }

    /// Becomes another plan.
    pub(crate) fn read(&mut self, checkpoints: &[Checkpoint]) {
        for index in 0..self.chosen.len() {
            self.choose(index, false);
        }
        for checkpoint in checkpoints {
            let Ok(index) = self.problem.nodes.binary_search_by_key(&checkpoint.region, |node| node.region) else {
                continue;
            };
            let node = &self.problem.nodes[index];
            self.saved[node.start..node.end].fill(false);
            checkpoint.saved.iter().for_each(|op| self.saved[op.index()] = true);
            self.choose(index, true);
        }
        // Sums of many small changes drift.
        self.time = (0..self.chosen.len()).filter(|&index| self.chosen[index]).map(|index| self.time_of(index)).sum();
    }

    fn time_of(&self, index: usize) -> f64 {
        let block = &self.axis.blocks[index];
        let ops = (block.first_op..block.first_op + block.length).filter(|&op| !self.saved[op]);
        ops.map(|op| self.problem.costs.time(OpId::new(op)).0).sum()
    }

    /// The plan.
    pub(crate) fn write(&self) -> Vec<Checkpoint> {
        let chosen = (0..self.chosen.len()).filter(|&index| self.chosen[index]);
        chosen
            .map(|index| {
                let items = 0..self.problem.nodes[index].candidate.items.len();
                self.problem.checkpoint(index, items.filter(|&item| self.is_saved(index, item)))
            })
            .collect()
    }
}
