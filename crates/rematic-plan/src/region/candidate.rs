use rematic_cost::Costs;
use rematic_replay::{Checkpoint, Ledger, Readings, Region, RegionId, Regions, births};
use rematic_trace::{Bytes, Event, Millis, OpId, StepTrace, StorageId, Table};

use super::{Bundle, Fate, Lifetimes, Skipping, Writes, bundles};

/// Operators of a region that are saved or recomputed together.
///
/// Most are single operators; [`bundles`] says what joins them.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The operators, as distances from the first one of the region.
    pub ops: Vec<usize>,
    /// Further ones that run again only if these do: nothing else reads what they make. They are never kept.
    pub skipped: Vec<usize>,
    /// What keeping their outputs costs between the region's forward and backward.
    pub bytes: Bytes,
    /// What running them again costs, and those that do so only with them.
    pub time: Millis,
}

/// A region with everything that decides about its policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What autograd alone holds of it when its backward begins.
    pub held_by_autograd: Bytes,
    /// Inputs that checkpointing it keeps, and that are gone without: the input of a layer whose backward needs only a
    /// copy of it in another type.
    pub kept_inputs: Bytes,
    /// What is freed between its forward and its backward if as little as possible is saved.
    pub droppable: Bytes,
    /// What must be recomputed whatever the policy: operators that cannot be saved, and those whose outputs are changed in
    /// place after the region has returned.
    pub fixed_time: Millis,
    /// What can be saved; views cost nothing and are never, nor is what recomputation does not reach.
    pub items: Vec<Item>,
    /// Saved under every policy: operators that change memory from outside the region, and cannot run twice, and those that
    /// read such memory as it is not any more when the region runs again.
    pub always_saved: Vec<usize>,
    /// Operators that never run again, views among them: nothing reads what they make, whatever is saved.
    pub unread: Vec<usize>,
    /// The most bytes made inside it that are alive at once while it runs again, whatever was saved.
    pub rebuilt: Bytes,
    /// Position of the event after which nothing that an item makes is referred to from outside: only from here on what
    /// is saved costs its bytes. At least the end of the region.
    pub settled: usize,
}

impl Candidate {
    /// The same region if it may only be recomputed as a whole.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.fixed_time += self.items.iter().map(|item| item.time).sum();
        self.items.clear();
        self
    }

    /// The region, which begins with operator `start`, checkpointed with some of its items saved.
    #[must_use]
    pub fn checkpoint(&self, region: RegionId, start: usize, items: impl Iterator<Item = usize>) -> Checkpoint {
        let (mut saved, mut skipped) = (self.always_saved.clone(), self.unread.clone());
        for item in items.map(|item| &self.items[item]) {
            saved.extend(&item.ops);
            skipped.extend(&item.skipped);
        }
        let in_order = |mut ops: Vec<usize>| {
            ops.sort_unstable();
            ops.into_iter().map(|op| OpId::new(start + op)).collect()
        };
        Checkpoint { region, saved: in_order(saved), offloaded: Vec::new(), skipped: in_order(skipped) }
    }

    /// Equal for regions that have the same choices: equal layers.
    #[must_use]
    pub fn signature(&self) -> Vec<u64> {
        let mut signature = vec![
            self.held_by_autograd.0,
            self.kept_inputs.0,
            self.droppable.0,
            self.rebuilt.0,
            self.fixed_time.0.to_bits(),
            self.always_saved.len() as u64,
        ];
        signature.extend(self.always_saved.iter().map(|op| *op as u64));
        signature.push(self.unread.len() as u64);
        signature.extend(self.unread.iter().map(|op| *op as u64));
        for item in &self.items {
            signature.extend([item.ops.len() as u64, item.skipped.len() as u64, item.bytes.0, item.time.0.to_bits()]);
            signature.extend(item.ops.iter().chain(&item.skipped).map(|op| *op as u64));
        }
        signature
    }
}

/// What counts as kept by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// Only what is surely in memory on its account at all moments between the region's return and its backward: bounds
    /// that follow hold for every plan.
    Low,
    /// All that is in memory on its account at any of them: plans that follow rarely need more than they say.
    High,
}

/// What is known of a step whatever its regions are.
#[derive(Debug)]
pub struct Facts {
    pub(crate) lifetimes: Lifetimes,
    writes: Writes,
    /// Positions of the events with which modules return.
    exits: Vec<usize>,
}

impl Facts {
    /// In linear time.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        let is_exit = |event: &Event| matches!(event, Event::Exit(_));
        let exits = trace.events().iter().enumerate().filter(|(_, event)| is_exit(event)).map(|(at, _)| at).collect();
        Facts { lifetimes: Lifetimes::new(trace), writes: Writes::new(trace), exits }
    }
}

/// Looks at the regions of one step.
pub struct Candidates<'a> {
    trace: &'a StepTrace,
    ledger: &'a Ledger,
    costs: &'a Costs,
    regions: &'a Regions,
    facts: &'a Facts,
    /// Storages that regions beside each other read: which of them keeps one is not known before the plan is.
    shared: Table<StorageId, bool>,
    /// Holds per storage, while a region is run through; zero in between.
    holds: Table<StorageId, u32>,
    /// What is known per storage, while a region is run through; nothing in between.
    marks: Table<StorageId, Marks>,
    /// Who reads what, where operators need not run again of which nothing reads the results.
    readings: Option<Readings<'a>>,
}

impl<'a> Candidates<'a> {
    /// The same with [`Limits::skips`](crate::Limits::skips).
    #[must_use]
    pub fn skipping(self, skips: bool) -> Self {
        let end = self.regions.all().iter().map(|region| region.ops.end).max().unwrap_or(0);
        Candidates { readings: skips.then(|| Readings::new(self.trace, 0..end)), ..self }
    }

    /// `facts` are those of the trace, `ledger` tells the size of storages, `costs` how long operators take.
    #[must_use]
    pub fn new(
        trace: &'a StepTrace,
        facts: &'a Facts,
        regions: &'a Regions,
        ledger: &'a Ledger,
        costs: &'a Costs,
    ) -> Self {
        let storages = trace.storages();
        let mut shared = storages.filled(false);
        let mut last_reader_ends = storages.filled(usize::MAX);
        for region in regions.all() {
            for &input in &region.inputs {
                let ends = std::mem::replace(&mut last_reader_ends[input], region.ops.end);
                shared[input] |= ends <= region.ops.start;
            }
        }
        let (holds, marks) = (storages.filled(0), storages.filled(Marks::default()));
        Candidates { trace, ledger, costs, regions, facts, shared, holds, marks, readings: None }
    }

    /// The regions of the step.
    pub(crate) fn regions(&self) -> &'a Regions {
        self.regions
    }

    fn inside<'b>(&self, region: &'b Region) -> Inside<'b>
    where
        'a: 'b,
    {
        let Facts { lifetimes, exits, .. } = self.facts;
        let next = exits.partition_point(|exit| *exit <= region.events.end);
        let next_exit = exits.get(next).copied().unwrap_or(usize::MAX).min(region.trigger);
        Inside { trace: self.trace, region, lifetimes, next_exit }
    }

    /// Whether what an operator saves is still waited for when the step is over.
    fn outlives_step(&self, op: OpId) -> bool {
        !self.trace.saves(self.trace.op(op)).is_empty() && self.facts.lifetimes.unsaved(op) == self.trace.events().len()
    }

    /// Whether a region that ends before this one counts what keeping the storage costs. If both are checkpointed it must
    /// not count twice.
    fn counted_before(&self, region: &Region, storage: StorageId) -> bool {
        let birth = self.trace.storages()[storage].birth;
        let mut maker = birth.and_then(|birth| self.regions.innermost(birth));
        while let Some(index) = maker {
            let other = &self.regions.all()[index];
            if other.ops.end > region.ops.start {
                return false;
            }
            let inside = self.inside(other);
            if inside.released(storage) < inside.next_exit {
                return true;
            }
            maker = other.parent;
        }
        false
    }

    /// Looks at one region, in time linear in its events. `None` if it cannot be checkpointed: because of what is changed in
    /// place ([`bundles`]), or because a part of its graph outlives the step, and with it all that checkpointing keeps.
    pub fn candidate(&mut self, region: &Region, pricing: Pricing) -> Option<Candidate> {
        if region.ops.clone().map(OpId::new).any(|op| self.outlives_step(op)) {
            return None;
        }
        let bundles = bundles(self.trace, &self.facts.writes, region)?;
        let mut holds = std::mem::take(&mut self.holds);
        let inside = self.inside(region);
        let mut fixed_time = Millis(0.0);
        let mut items = Vec::new();
        let mut always_saved = Vec::new();
        let mut always_kept = Bytes(0);
        let mut settled = region.events.end;
        let Skipping { always: unread, with, goes } = match &self.readings {
            Some(readings) => Skipping::new(self.trace, readings, region, self.ledger, &bundles),
            None => Skipping::nothing(region, &bundles),
        };
        for ((Bundle { mut ops, fate }, skipped), goes) in bundles.into_iter().zip(with).zip(goes) {
            // What never runs again, or only if another does, is never kept.
            ops.retain(|&op| !unread[op]);
            if goes || ops.is_empty() {
                continue;
            }
            let Worth { bytes, released, makes_something, mut time } = self.worth(&inside, &ops, pricing);
            time += skipped.iter().map(|op| self.costs.time(OpId::new(region.ops.start + op))).sum();
            if fate != Fate::Recompute {
                settled = settled.max(released);
            }
            if fate == Fate::Store {
                always_saved.extend(ops);
                always_kept += bytes;
            } else if !makes_something || fate == Fate::Recompute {
                fixed_time += time;
            } else if time.0 > 0.0 {
                items.push(Item { ops, skipped, bytes, time });
            }
            // What is free to recompute is never worth keeping.
        }
        always_saved.sort_unstable();
        let (kept_inputs, inputs_released) = self.kept_inputs(region, pricing);
        settled = if pricing == Pricing::High { region.events.end } else { settled.max(inputs_released) };
        let held_by_autograd = inside.held_by_autograd(self.ledger);
        let droppable = held_by_autograd.saturating_sub(always_kept).saturating_sub(kept_inputs);
        let (mut savable, mut may_be_missing) = (vec![false; region.ops.len()], unread.clone());
        let ops = items.iter().flat_map(|item| &item.ops);
        ops.chain(&always_saved).for_each(|op| savable[*op] = true);
        items.iter().flat_map(|item| &item.skipped).for_each(|op| may_be_missing[*op] = true);
        let rebuilt = inside.rebuilt(self.ledger, &savable, &may_be_missing, &mut holds);
        self.holds = holds;
        let unread = (0..unread.len()).filter(|&op| unread[op]).collect();
        Some(Candidate {
            held_by_autograd,
            kept_inputs,
            droppable,
            fixed_time,
            items,
            always_saved,
            unread,
            rebuilt,
            settled,
        })
    }
}

impl Candidates<'_> {
    fn worth(&self, inside: &Inside<'_>, ops: &[usize], pricing: Pricing) -> Worth {
        let mut worth = Worth { bytes: Bytes(0), released: 0, makes_something: false, time: Millis(0.0) };
        for id in ops.iter().map(|op| OpId::new(inside.region.ops.start + op)) {
            for storage in births(self.trace, id) {
                worth.makes_something = true;
                // What outlives the region anyway costs nothing to keep while it does.
                let released = inside.released(storage);
                if released < inside.until(pricing) {
                    worth.bytes += self.ledger.footprint(storage);
                    worth.released = worth.released.max(released);
                }
            }
            if inside.region.reaches(id) {
                worth.time += self.costs.time(id);
            }
        }
        worth
    }

    /// What checkpointing a region keeps of its inputs, and after which event nothing else refers to any of that. The other regions have
    /// a say: what one that ends before it counts too is not counted, and more regions count no less.
    pub(crate) fn kept_inputs(&self, region: &Region, pricing: Pricing) -> (Bytes, usize) {
        let inside = self.inside(region);
        let until = inside.until(pricing);
        let mut kept = (Bytes(0), 0);
        for &input in &region.inputs {
            let needed_inside = self.facts.lifetimes.is_saved_within(input, &region.ops);
            let released = inside.released(input);
            let bytes = self.ledger.footprint(input);
            let twice = || self.shared[input] || self.counted_before(region, input);
            if !needed_inside && released < until && bytes.0 > 0 && (pricing == Pricing::High || !twice()) {
                kept = (kept.0 + bytes, kept.1.max(released));
            }
        }
        kept
    }

    /// What a region can have freed at the moments of its own forward: calls `note` after each of its operators with the
    /// most that any policy frees there, and with how much more than between forward and backward that may be, for every
    /// policy. The latter counts what is not yet made as if it were saved.
    pub fn own_forward(
        &mut self,
        region: &Region,
        candidate: &Candidate,
        pricing: Pricing,
        mut note: impl FnMut(OpId, u64, i64),
    ) {
        let mut marks = std::mem::take(&mut self.marks);
        let inside = self.inside(region);
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut kept = 0;
        for op in candidate.items.iter().flat_map(|item| &item.ops) {
            for storage in births(self.trace, OpId::new(region.ops.start + op)) {
                if inside.released(storage) < inside.until(pricing) {
                    marks[storage].counted = true;
                    kept += self.ledger.footprint(storage).0;
                }
            }
        }
        // Held by autograd alone, and counted as kept, so far.
        let (mut alone, mut in_cache) = (0, 0);
        for &event in &self.trace.events()[region.events.clone()] {
            match event {
                Event::Op(op) => {
                    let tensors = self.trace.saves(self.trace.op(op)).iter().map(|tensor| tensor.storage);
                    tensors
                        .filter(|storage| inside.born_inside(*storage))
                        .for_each(|storage| marks[storage].saved = true);
                    note(op, alone, signed(alone) - signed(candidate.droppable.0) + signed(kept - in_cache));
                }
                Event::Drop(storage) => {
                    let (Marks { counted, saved }, bytes) = (marks[storage], self.ledger.footprint(storage).0);
                    alone += if saved { bytes } else { 0 };
                    in_cache += if counted { bytes } else { 0 };
                }
                _ => {}
            }
        }
        for op in inside.ops() {
            births(self.trace, op).for_each(|storage| marks[storage] = Marks::default());
        }
        self.marks = marks;
    }
}

/// What some operators of a region make, and what it takes to run them again.
struct Worth {
    /// What keeping it costs.
    bytes: Bytes,
    /// Position of the event after which nothing outside refers to what is kept.
    released: usize,
    makes_something: bool,
    time: Millis,
}

/// What is known of a storage that a region makes.
#[derive(Clone, Copy, Default)]
struct Marks {
    /// It counts as kept.
    counted: bool,
    /// An operator of the region has saved it.
    saved: bool,
}

struct Inside<'a> {
    trace: &'a StepTrace,
    region: &'a Region,
    lifetimes: &'a Lifetimes,
    /// Where the next module returns after the region has.
    next_exit: usize,
}

impl Inside<'_> {
    /// What is released before this counts as kept.
    fn until(&self, pricing: Pricing) -> usize {
        match pricing {
            Pricing::Low => self.next_exit,
            Pricing::High => self.region.trigger,
        }
    }

    /// Position of the event after which nothing outside the region refers to a storage.
    fn released(&self, storage: StorageId) -> usize {
        self.lifetimes.dropped(storage).max(self.lifetimes.unsaved_outside(storage, &self.region.ops))
    }

    fn ops(&self) -> impl Iterator<Item = OpId> + '_ {
        self.region.ops.clone().map(OpId::new)
    }

    fn born_inside(&self, storage: StorageId) -> bool {
        self.trace.storages()[storage].birth.is_some_and(|birth| self.region.contains(birth))
    }

    /// Bytes that only the region's own operators hold for autograd when its backward begins.
    fn held_by_autograd(&self, ledger: &Ledger) -> Bytes {
        let mut storages: Vec<StorageId> = self
            .ops()
            .flat_map(|op| self.trace.saves(self.trace.op(op)))
            .map(|tensor| tensor.storage)
            .filter(|storage| self.born_inside(*storage))
            .collect();
        storages.sort_unstable();
        storages.dedup();
        let trigger = self.region.trigger;
        storages.retain(|&storage| self.released(storage) < trigger);
        storages.into_iter().map(|storage| ledger.footprint(storage)).sum()
    }

    /// The most bytes made inside that are alive at once while the region runs again, at least, whatever was saved.
    ///
    /// What is still in use outside when backward begins is not made anew if it was saved, an operator that was saved does not run,
    /// and what nothing may read is not made: none of these counts.
    fn rebuilt(
        &self,
        ledger: &Ledger,
        savable: &[bool],
        may_be_missing: &[bool],
        holds: &mut Table<StorageId, u32>,
    ) -> Bytes {
        let is_made = |op: OpId| self.region.contains(op) && !may_be_missing[op.index() - self.region.ops.start];
        let made_anew = |storage: StorageId| {
            self.trace.storages()[storage].birth.is_some_and(is_made) && self.released(storage) < self.region.trigger
        };
        let mut now = 0;
        let mut most = 0;
        for &event in &self.trace.events()[self.region.events.clone()] {
            match event {
                Event::Op(op) if self.region.reaches(op) => {
                    for storage in births(self.trace, op).filter(|storage| made_anew(*storage)) {
                        holds[storage] = 1;
                        now += ledger.footprint(storage).0;
                    }
                    let at = op.index() - self.region.ops.start;
                    if !savable[at] && !may_be_missing[at] {
                        most = most.max(now);
                    }
                    // What was thrown away before is not waited for.
                    let waiting = self.lifetimes.returned(op) >= self.region.trigger;
                    for tensor in self.trace.saves(self.trace.op(op)).iter().filter(|_| waiting) {
                        if made_anew(tensor.storage) {
                            holds[tensor.storage] += 1;
                        }
                    }
                    if op == self.region.stop {
                        break;
                    }
                }
                Event::Op(_) => break,
                Event::Drop(storage) if holds[storage] > 0 => {
                    holds[storage] -= 1;
                    if holds[storage] == 0 {
                        now -= ledger.footprint(storage).0;
                    }
                }
                _ => {}
            }
        }
        for op in self.ops() {
            for storage in births(self.trace, op) {
                holds[storage] = 0;
            }
        }
        Bytes(most)
    }
}
