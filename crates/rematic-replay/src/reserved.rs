use rematic_allocator::{Allocation, AllocatorError, Counters, Device, Settings};
use rematic_trace::{Bytes, Category, ModuleId, OpId, Phase, StepTrace, StorageId, Table};

use crate::course::{Course, Deed};
use crate::scratch::{Scratch, Use};
use crate::{BufferId, Ledger, Ran, Schedule};

/// How often a step is run: the second finds the optimizer's state, the third also finds the segments as the second left them.
const STEPS: usize = 3;

/// What PyTorch's caching allocator takes from the device in the first steps of training.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Its counters when the last step is over.
    pub counters: Counters,
}

impl Reserved {
    /// Runs a step several times through the allocator, from a model that has just been made.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(
        trace: &StepTrace,
        schedule: &Schedule<'_>,
        settings: Settings,
        device: Device,
        scratch: &Scratch,
    ) -> Result<Self, AllocatorError> {
        Reserved::of(&Course::new(trace, schedule), settings, device, scratch)
    }

    /// The same for a step that is written down.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn of(
        course: &Course<'_>,
        settings: Settings,
        device: Device,
        scratch: &Scratch,
    ) -> Result<Self, AllocatorError> {
        let mut occupancy = Occupancy::new(course, settings, device, scratch);
        occupancy.run()?;
        Ok(Reserved { counters: *occupancy.allocator.counters() })
    }

    /// The same, with all that was asked of the allocator from the model's first parameter on, in order.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn recorded(
        trace: &StepTrace,
        schedule: &Schedule<'_>,
        settings: Settings,
        device: Device,
        scratch: &Scratch,
    ) -> Result<(Self, Vec<Request>), AllocatorError> {
        let course = Course::new(trace, schedule);
        let mut occupancy = Occupancy::new(&course, settings, device, scratch);
        occupancy.requests = Some(Vec::new());
        occupancy.run()?;
        let requests = occupancy.requests.take().unwrap_or_default();
        Ok((Reserved { counters: *occupancy.allocator.counters() }, requests))
    }
}

/// Something that a step asked of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operator that runs, or that ran last.
    pub op: Option<OpId>,
    /// The bytes that are asked for; nothing if a block is given back.
    pub takes: Option<u64>,
    /// Where the block lies.
    pub address: u64,
}

impl<'a> Occupancy<'a> {
    fn new(course: &'a Course<'a>, settings: Settings, device: Device, scratch: &'a Scratch) -> Self {
        Occupancy {
            course,
            trace: course.trace,
            scratch,
            allocator: rematic_allocator::Allocator::new(settings, device),
            blocks: Table::new(course.start.buffers(), Allocation::NOTHING),
            has_state: false,
            taken: Vec::new(),
            outputs: Vec::new(),
            defers: false,
            into: None,
            failed: None,
            running: None,
            stream: 0,
            requests: None,
        }
    }

    fn run(&mut self) -> Result<(), AllocatorError> {
        self.begin(self.course.start);
        for _ in 0..STEPS {
            self.step()?;
        }
        Ok(())
    }

    /// The model, as if it were built on the device, and its batch. Where modules share a parameter, each has made its own first:
    /// those go when they are tied, as soon as the module around both is whole, and the segments that they lay in stay.
    fn begin(&mut self, start: &Ledger) {
        let trace = self.trace;
        let mut owners: Table<StorageId, Option<ModuleId>> = trace.storages().filled(None);
        let mut tied: Vec<(ModuleId, Allocation)> = Vec::new();
        for (id, module) in trace.modules().entries() {
            self.give_back_tied(&mut tied, |around| !is_within(trace, id, around));
            for storage in module.parameters.iter().map(|parameter| parameter.storage) {
                if !start.is_alive(storage) {
                    continue;
                }
                if let Some(owner) = owners[storage] {
                    let block = self.take(start.footprint(storage).0);
                    tied.push((around_both(trace, owner, id), block));
                } else {
                    self.alloc(storage.into(), start.footprint(storage));
                    owners[storage] = Some(id);
                }
            }
        }
        for category in [Category::Parameter, Category::Buffer] {
            self.take_before(category, start);
        }
        self.give_back_tied(&mut tied, |_| true);
        self.take_before(Category::Other, start);
    }

    fn give_back_tied(&mut self, tied: &mut Vec<(ModuleId, Allocation)>, is_whole: impl Fn(ModuleId) -> bool) {
        for (_, block) in tied.extract_if(.., |(around, _)| is_whole(*around)) {
            self.give_back(block);
        }
    }

    fn step(&mut self) -> Result<(), AllocatorError> {
        self.allocator.reset_peaks();
        for &deed in &self.course.deeds {
            self.follow(deed);
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
        }
        self.hand_over(&self.course.end);
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Whether a module is another one, or lies inside it.
fn is_within(trace: &StepTrace, inner: ModuleId, outer: ModuleId) -> bool {
    std::iter::successors(Some(inner), |id| trace.module(*id).parent).any(|id| id == outer)
}

/// The innermost module that two of them are or lie inside of.
fn around_both(trace: &StepTrace, first: ModuleId, second: ModuleId) -> ModuleId {
    let outwards = std::iter::successors(Some(second), |id| trace.module(*id).parent);
    outwards
        .take_while(|id| *id != ModuleId::new(0))
        .find(|id| is_within(trace, first, *id))
        .unwrap_or(ModuleId::new(0))
}

struct Occupancy<'a> {
    course: &'a Course<'a>,
    trace: &'a StepTrace,
    scratch: &'a Scratch,
    allocator: rematic_allocator::Allocator,
    /// For every buffer, the block that it has.
    blocks: Table<BufferId, Allocation>,
    /// Whether the optimizer has made its state.
    has_state: bool,
    /// What the operator that runs has taken for itself so far.
    taken: Vec<Allocation>,
    /// What it makes, until its turn comes.
    outputs: Vec<Option<(BufferId, Bytes)>>,
    /// Whether an operator runs that does more with memory than to make what it returns.
    defers: bool,
    /// The storage in whose block it puts what it returns.
    into: Option<StorageId>,
    failed: Option<AllocatorError>,
    running: Option<OpId>,
    /// The stream of the operator that runs, whose pool serves it.
    stream: u64,
    /// What was asked for, if anybody wants to know.
    requests: Option<Vec<Request>>,
}

impl Occupancy<'_> {
    fn take_before(&mut self, category: Category, start: &Ledger) {
        for (id, storage) in self.trace.storages().entries() {
            let is_there = self.blocks[BufferId::from(id)] != Allocation::NOTHING;
            if storage.birth.is_none() && storage.category == category && start.is_alive(id) && !is_there {
                self.alloc(id.into(), start.footprint(id));
            }
        }
    }

    fn alloc(&mut self, buffer: BufferId, bytes: Bytes) {
        if self.blocks.len() <= buffer.index() {
            // Copies are there only under a plan.
            self.blocks.items_mut().resize(buffer.index() + 1, Allocation::NOTHING);
        }
        let block = match self.into.take() {
            Some(storage) => std::mem::replace(&mut self.blocks[BufferId::from(storage)], Allocation::NOTHING),
            None => self.take(bytes.0),
        };
        self.blocks[buffer] = block;
    }

    fn take(&mut self, bytes: u64) -> Allocation {
        match self.allocator.alloc(bytes, self.stream) {
            Ok(block) => {
                self.note(block, Some(bytes));
                block
            }
            Err(error) => {
                self.failed.get_or_insert(error);
                Allocation::NOTHING
            }
        }
    }

    fn note(&mut self, block: Allocation, takes: Option<u64>) {
        if let Some(requests) = &mut self.requests
            && let Ok((address, _)) = self.allocator.place(block)
            && block != Allocation::NOTHING
        {
            requests.push(Request { op: self.running, takes, address });
        }
    }

    fn give_back(&mut self, block: Allocation) {
        self.note(block, None);
        if let Err(error) = self.allocator.free(block) {
            self.failed.get_or_insert(error);
        }
    }

    fn launch(&mut self, ran: Ran) {
        let op = self.trace.op(ran.op);
        self.running = Some(ran.op);
        self.stream = op.stream.index() as u64;
        if op.phase == Phase::Optimizer && !self.has_state {
            self.has_state = true;
            for &(id, bytes) in &self.course.state {
                self.alloc(id.into(), bytes);
            }
        }
        self.into = self.scratch.accumulates(ran.op).filter(|_| {
            // In the forward of a region a dispatch mode looks on.
            op.phase != Phase::Forward || !self.course.watched[ran.op]
        });
        self.defers = !self.scratch.of(ran.op).is_empty();
    }

    fn ran(&mut self, ran: Ran) {
        if std::mem::take(&mut self.defers) {
            self.use_scratch(ran);
        }
        self.stream = 0;
    }

    /// The operator's own takes and gives, with what it makes in between.
    fn use_scratch(&mut self, ran: Ran) {
        for each in self.scratch.of(ran.op) {
            match *each {
                Use::Take(bytes) => {
                    let block = self.take(bytes);
                    self.taken.push(block);
                }
                Use::Give(back) => {
                    let at = self.taken.len().checked_sub(back + 1);
                    if let Some(block) = at.map(|at| std::mem::replace(&mut self.taken[at], Allocation::NOTHING)) {
                        self.give_back(block);
                    }
                }
                Use::Output(index) => self.make(index),
                Use::OnHost(index) => {
                    self.outputs.get_mut(index).map(Option::take);
                }
                Use::Outputs => (0..self.outputs.len()).for_each(|index| self.make(index)),
            }
        }
        // A copy that a plan makes of an operator may have outputs that the rule does not know.
        (0..self.outputs.len()).for_each(|index| self.make(index));
        self.outputs.clear();
        self.taken.clear();
    }

    /// Makes an output, if that has not happened yet.
    fn make(&mut self, index: usize) {
        if let Some((buffer, bytes)) = self.outputs.get_mut(index).and_then(Option::take) {
            self.alloc(buffer, bytes);
        }
    }

    /// What a step leaves, the next one finds.
    fn hand_over(&mut self, end: &Ledger) {
        let mut left: Vec<(Bytes, Allocation)> = Vec::new();
        for (id, storage) in self.trace.storages().entries() {
            if storage.birth.is_some() && end.is_alive(id) {
                let block = std::mem::replace(&mut self.blocks[BufferId::from(id)], Allocation::NOTHING);
                left.push((end.footprint(id), block));
            }
        }
        for (id, storage) in self.trace.storages().entries() {
            // What a unit gathers into has nothing between steps either.
            let gone =
                storage.birth.is_none() && !storage.released && self.blocks[BufferId::from(id)] == Allocation::NOTHING;
            if !gone {
                continue;
            }
            if let Some(at) = left.iter().position(|(bytes, _)| *bytes == end.footprint(id)) {
                self.blocks[BufferId::from(id)] = left.remove(at).1;
            }
        }
        for (_, block) in left {
            self.give_back(block);
        }
    }

    fn follow(&mut self, deed: Deed) {
        match deed {
            Deed::Launch(ran) => self.launch(ran),
            Deed::Run(ran) => self.ran(ran),
            Deed::Alloc(buffer, bytes) if self.defers => self.outputs.push(Some((buffer, bytes))),
            Deed::Alloc(buffer, bytes) => self.alloc(buffer, bytes),
            Deed::Free(buffer) => {
                let block = self.blocks.get_mut(buffer).map(|block| std::mem::replace(block, Allocation::NOTHING));
                self.give_back(block.unwrap_or(Allocation::NOTHING));
            }
            Deed::Shrink(buffer, bytes) => {
                let block = std::mem::replace(&mut self.blocks[buffer], Allocation::NOTHING);
                self.give_back(block);
                self.alloc(buffer, bytes);
            }
        }
    }
}
