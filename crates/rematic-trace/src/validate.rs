use std::collections::HashSet;

use crate::error::Spot;
use crate::trace::with_storage;
use crate::{
    CallId, Event, Fault, InvalidTrace, Layout, LayoutId, Module, ModuleId, Op, OpId, StepTrace, StorageId, StreamId,
    Table, Tensor,
};

/// The deepest that modules nest: Python's own limit of recursion. Full names take as much room as the tree is deep, so
/// without a limit a small file could ask for more memory than there is.
const MAX_DEPTH: usize = 1000;

impl StepTrace {
    /// Checks every rule that consumers rely on, in time linear in the trace.
    ///
    /// # Errors
    /// The first broken rule, with its place.
    pub fn validate(&self) -> Result<(), InvalidTrace> {
        self.check_mesh()?;
        self.check_tables()?;
        for (id, op) in self.ops.entries() {
            self.check_op(id, op).map_err(|fault| self.at_op(id, fault))?;
        }
        self.check_births()?;
        Walk::new(self).run()
    }

    fn check_tables(&self) -> Result<(), InvalidTrace> {
        for (row, layout) in self.layouts.iter().enumerate() {
            check_layout(layout).map_err(|fault| InvalidTrace { at: Spot::Row("layouts", row), fault })?;
        }
        let mut total: u64 = 0;
        for (row, storage) in self.storages.iter().enumerate() {
            let at = || Spot::Row("storages", row);
            total = with_storage(total, storage.bytes)
                .ok_or_else(|| InvalidTrace { at: at(), fault: Fault::StoragesTooLarge })?;
            if let Some(op) = storage.birth {
                check_id("op", op.index(), self.ops.len()).map_err(|fault| InvalidTrace { at: at(), fault })?;
                if storage.released {
                    return Err(InvalidTrace { at: at(), fault: Fault::ReleasedBeforeBirth { op } });
                }
            }
            if let Some(share) = storage.share.filter(|share| *share > storage.bytes) {
                let fault = Fault::ShareTooLarge { share, bytes: storage.bytes };
                return Err(InvalidTrace { at: at(), fault });
            }
        }
        let mut names = HashSet::new();
        let mut depths: Table<ModuleId, usize> = Table::default();
        for (row, module) in self.modules.iter().enumerate() {
            self.check_module(row, module, &mut names)
                .and_then(|()| {
                    let depth = module.parent.map_or(0, |parent| depths[parent]) + 1;
                    depths.push(depth);
                    if depth > MAX_DEPTH { Err(Fault::TooDeep { limit: MAX_DEPTH }) } else { Ok(()) }
                })
                .map_err(|fault| InvalidTrace { at: Spot::Row("modules", row), fault })?;
        }
        for (row, call) in self.calls.iter().enumerate() {
            let check = || {
                check_id("module", call.module.index(), self.modules.len())?;
                call.inputs
                    .iter()
                    .chain(&call.keywords)
                    .chain(&call.outputs)
                    .try_for_each(|storage| self.check_storage(*storage))
            };
            check().map_err(|fault| InvalidTrace { at: Spot::Row("calls", row), fault })?;
        }
        Ok(())
    }

    /// One pass over all outputs: an optimizer's operator may return a storage for each of a million parameters.
    fn check_births(&self) -> Result<(), InvalidTrace> {
        let mut returned = self.storages.filled(false);
        for (id, op) in self.ops.entries() {
            for &Tensor { storage, .. } in self.outputs(op) {
                if self.storages.get(storage).is_some_and(|storage| storage.birth == Some(id)) {
                    returned[storage] = true;
                }
            }
        }
        for (id, storage) in self.storages.entries() {
            if let Some(op) = storage.birth.filter(|_| !returned[id]) {
                return Err(self.at_op(op, Fault::BirthNotReturned { storage: id }));
            }
        }
        Ok(())
    }

    fn check_module<'a>(
        &'a self,
        row: usize,
        module: &'a Module,
        names: &mut HashSet<(Option<usize>, &'a str)>,
    ) -> Result<(), Fault> {
        match module.parent {
            Some(parent) if parent.index() >= row => return Err(Fault::ModuleCycle { parent: parent.index() }),
            None if row > 0 => return Err(Fault::SecondRoot),
            _ => {}
        }
        if !names.insert((module.parent.map(|parent| parent.index()), &module.name)) {
            return Err(Fault::DuplicateName { name: module.name.clone() });
        }
        for parameter in module.parameters.iter().chain(&module.buffers) {
            self.check_tensor(Tensor { storage: parameter.storage, layout: parameter.layout })?;
        }
        Ok(())
    }

    fn check_op(&self, id: OpId, op: &Op) -> Result<(), Fault> {
        for &tensor in self.inputs(op).iter().chain(self.outputs(op)).chain(self.saves(op)) {
            self.check_tensor(tensor)?;
        }
        for &storage in self.mutates(op) {
            self.check_storage(storage)?;
        }
        if let Some(call) = op.call {
            check_id("call", call.index(), self.calls.len())?;
        }
        self.check_stream(op.stream)?;
        if let Some(collective) = op.collective {
            check_id("collective", collective.index(), self.collectives.len())?;
        }
        if let Some(forward) = op.differentiates {
            check_id("op", forward.index(), self.ops.len())?;
        }
        match op.differentiates {
            Some(forward) if forward >= id => Err(Fault::DifferentiatesLater { later: forward }),
            _ => Ok(()),
        }
    }

    fn check_tensor(&self, tensor: Tensor) -> Result<(), Fault> {
        self.check_storage(tensor.storage)?;
        check_layout_id(tensor.layout, self.layouts.len())?;
        let bytes = self.storages[tensor.storage].bytes;
        let needed = span(self.layout_of(tensor));
        if needed > bytes {
            return Err(Fault::TensorPastStorage { storage: tensor.storage, needed, bytes });
        }
        Ok(())
    }

    fn check_storage(&self, storage: StorageId) -> Result<(), Fault> {
        check_id("storage", storage.index(), self.storages.len())
    }

    pub(crate) fn check_stream(&self, stream: StreamId) -> Result<(), Fault> {
        check_id("stream", stream.index(), self.streams.len())
    }

    fn at_op(&self, id: OpId, fault: Fault) -> InvalidTrace {
        InvalidTrace { at: Spot::Op(id, self.op_name(self.op(id)).to_owned()), fault }
    }
}

pub(crate) fn check_id(kind: &'static str, id: usize, len: usize) -> Result<(), Fault> {
    if id < len { Ok(()) } else { Err(Fault::UnknownId { kind, id, len }) }
}

fn check_layout_id(layout: LayoutId, len: usize) -> Result<(), Fault> {
    check_id("layout", layout.index(), len)
}

fn check_layout(layout: &Layout) -> Result<(), Fault> {
    if layout.shape.len() != layout.strides.len() {
        return Err(Fault::RaggedLayout { extents: layout.shape.len(), strides: layout.strides.len() });
    }
    layout.checked_bytes()?;
    Ok(())
}

/// Bytes from the first element of a tensor to the end of its last.
fn span(layout: &Layout) -> u64 {
    if layout.shape.contains(&0) {
        return 0;
    }
    layout
        .shape
        .iter()
        .zip(&layout.strides)
        .fold(1, |last: u64, (&extent, &stride)| last.saturating_add((extent - 1).saturating_mul(stride)))
        .saturating_mul(layout.dtype.size())
}

/// Walks the events and follows who holds what.
struct Walk<'a> {
    trace: &'a StepTrace,
    held: Table<StorageId, bool>,
    saved: Table<StorageId, u32>,
    released: Table<StorageId, bool>,
    /// The bytes that the rank has of each storage.
    own: Table<StorageId, u64>,
    unsaved: Table<OpId, bool>,
    returned_from: Table<OpId, bool>,
    next_op: usize,
    next_call: usize,
    next_micro_batch: u32,
    open: Vec<CallId>,
    returned: Table<CallId, bool>,
}

impl<'a> Walk<'a> {
    fn new(trace: &'a StepTrace) -> Self {
        Walk {
            trace,
            held: trace.storages.iter().map(|storage| storage.birth.is_none()).collect(),
            saved: trace.storages.filled(0),
            released: trace.storages.iter().map(|storage| storage.released).collect(),
            own: trace.storages.iter().map(crate::Storage::own_bytes).collect(),
            unsaved: trace.ops.filled(false),
            returned_from: trace.ops.filled(false),
            next_op: 0,
            next_call: 0,
            next_micro_batch: 0,
            open: Vec::new(),
            returned: trace.calls.filled(false),
        }
    }

    fn run(mut self) -> Result<(), InvalidTrace> {
        for (row, &event) in self.trace.events.iter().enumerate() {
            self.step(event).map_err(|fault| match event {
                Event::Op(op) if op.index() < self.trace.ops.len() => self.trace.at_op(op, fault),
                _ => InvalidTrace { at: Spot::Event(row, event), fault },
            })?;
        }
        let fault = if let Some((call, _)) = self.returned.entries().find(|(_, returned)| !**returned) {
            Fault::CallOpen { call }
        } else if self.next_op < self.trace.ops.len() {
            Fault::OpsMissing { ran: self.next_op, len: self.trace.ops.len() }
        } else {
            return Ok(());
        };
        Err(InvalidTrace { at: Spot::End, fault })
    }

    fn step(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Op(op) => self.op(op),
            Event::Drop(storage) => {
                self.trace.check_storage(storage)?;
                if !std::mem::replace(&mut self.held[storage], false) {
                    return Err(Fault::DoubleDrop { storage });
                }
                Ok(())
            }
            Event::Return(op) => {
                check_id("op", op.index(), self.trace.ops.len())?;
                let over = op.index() >= self.next_op || self.unsaved[op];
                if over || std::mem::replace(&mut self.returned_from[op], true) {
                    return Err(Fault::NothingSaved { op });
                }
                Ok(())
            }
            Event::Unsave(op) => {
                check_id("op", op.index(), self.trace.ops.len())?;
                if op.index() >= self.next_op || std::mem::replace(&mut self.unsaved[op], true) {
                    return Err(Fault::NothingSaved { op });
                }
                for tensor in self.trace.saves(self.trace.op(op)) {
                    self.saved[tensor.storage] -= 1;
                }
                Ok(())
            }
            Event::Recategorize(storage, _) => {
                self.trace.check_storage(storage)?;
                self.alive(storage)
            }
            Event::Release(_) | Event::Restore(_) | Event::Shrink(..) => self.bytes(event),
            Event::Wait { stream, on } => {
                self.trace.check_stream(stream)?;
                self.trace.check_stream(on)?;
                if stream == on { Err(Fault::WaitsForItself { stream }) } else { Ok(()) }
            }
            Event::MicroBatch(found) => self.micro_batch(found),
            Event::Enter(_) | Event::Exit(_) | Event::EnterBackward(_) | Event::ExitBackward(_) => self.call(event),
        }
    }

    /// The bytes of a storage go, come back, or become fewer.
    fn bytes(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Release(storage) => {
                self.trace.check_storage(storage)?;
                self.present(storage)?;
                self.released[storage] = true;
            }
            Event::Restore(storage) => {
                self.trace.check_storage(storage)?;
                self.alive(storage)?;
                if !std::mem::replace(&mut self.released[storage], false) {
                    return Err(Fault::NotReleased { storage });
                }
            }
            Event::Shrink(storage, bytes) => {
                self.trace.check_storage(storage)?;
                self.present(storage)?;
                let own = &mut self.own[storage];
                if bytes > *own {
                    return Err(Fault::Grows { storage, bytes, own: *own });
                }
                *own = bytes;
            }
            _ => {}
        }
        Ok(())
    }

    /// A call of a module begins or ends.
    fn call(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Enter(call) => {
                check_id("call", call.index(), self.trace.calls.len())?;
                if call.index() != self.next_call {
                    return Err(Fault::CallNesting { call });
                }
                self.next_call += 1;
                self.open.push(call);
            }
            Event::Exit(call) => {
                if self.open.pop() != Some(call) {
                    return Err(Fault::CallNesting { call });
                }
                self.returned[call] = true;
            }
            Event::EnterBackward(call) | Event::ExitBackward(call) => {
                check_id("call", call.index(), self.trace.calls.len())?;
                if !self.returned[call] {
                    return Err(Fault::CallNesting { call });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn op(&mut self, id: OpId) -> Result<(), Fault> {
        check_id("op", id.index(), self.trace.ops.len())?;
        if id.index() != self.next_op {
            return Err(Fault::OpOutOfOrder { expected: self.next_op, found: id.index() });
        }
        self.next_op += 1;
        let op = self.trace.op(id);
        for tensor in self.trace.inputs(op) {
            self.used(op, tensor.storage)?;
        }
        for tensor in self.trace.outputs(op) {
            if self.trace.storages[tensor.storage].birth == Some(id) {
                self.held[tensor.storage] = true;
            }
            self.used(op, tensor.storage)?;
        }
        for &storage in self.trace.mutates(op) {
            self.used(op, storage)?;
        }
        for tensor in self.trace.saves(op) {
            self.used(op, tensor.storage)?;
        }
        for tensor in self.trace.saves(op) {
            self.saved[tensor.storage] += 1;
        }
        if let Some(call) = op.call.filter(|call| call.index() >= self.next_call) {
            return Err(Fault::CallNesting { call });
        }
        Ok(())
    }

    fn micro_batch(&mut self, found: u32) -> Result<(), Fault> {
        if let Some(&call) = self.open.last() {
            return Err(Fault::MicroBatchInside { call });
        }
        if found != self.next_micro_batch {
            return Err(Fault::MicroBatchOrder { expected: self.next_micro_batch, found });
        }
        self.next_micro_batch = found.saturating_add(1);
        Ok(())
    }

    /// An operator touches a storage. A view only refers to it.
    fn used(&self, op: &Op, storage: StorageId) -> Result<(), Fault> {
        if op.flags.view { self.alive(storage) } else { self.present(storage) }
    }

    /// The storage is alive, and its bytes are there.
    fn present(&self, storage: StorageId) -> Result<(), Fault> {
        self.alive(storage)?;
        if self.released[storage] { Err(Fault::Released { storage }) } else { Ok(()) }
    }

    fn alive(&self, storage: StorageId) -> Result<(), Fault> {
        if self.held[storage] || self.saved[storage] > 0 { Ok(()) } else { Err(Fault::NotAlive { storage }) }
    }
}
