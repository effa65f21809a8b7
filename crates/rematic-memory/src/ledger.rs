use rematic_trace::{Bytes, Category, Event, OpId, Pool, StepTrace, Storage, StorageId};

use crate::{Allocator, Life, Snapshot};

/// Who holds which storage, and the bytes that are in use because of it.
///
/// Each storage has one ordinary hold (there is a reference to it, or there is none) and a number of autograd holds
/// (one per tensor that some operator saved). It is alive while it has any and is not released; its bytes count exactly
/// then, if it lies on the device.
///
/// [`Ledger::apply`] follows the events of a plain step. A replay under a plan calls the holds directly: a storage that
/// is recomputed is simply held again.
///
/// Every method takes constant time, allocates nothing, and ignores storages that the trace does not have. What never
/// happened cannot be undone: dropping what is not held, unsaving what is not saved, or restoring what is not released,
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Ledger {
    accounts: Vec<Account>,
    snapshot: Snapshot,
    /// Parameters, gradients and optimizer state are spread evenly over so many devices.
    world_size: u64,
    /// What lives from when to when, for those who want to know.
    pub(crate) journal: Option<Journal>,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    footprint: Bytes,
    saves: u32,
    held: bool,
    released: bool,
    category: Category,
}

impl Account {
    fn is_alive(&self) -> bool {
        self.is_referred_to() && !self.released
    }

    fn is_referred_to(&self) -> bool {
        self.held || self.saves > 0
    }

    /// The bytes that this device bears of it.
    fn counted(&self, world_size: u64) -> Bytes {
        match self.category {
            Category::Parameter | Category::Gradient | Category::Optimizer => {
                Bytes(self.footprint.0.div_ceil(world_size))
            }
            _ => self.footprint,
        }
    }
}

impl Ledger {
    /// The state before the step: the storages that exist then are held, all others are not born.
    #[must_use]
    pub fn new(trace: &StepTrace, allocator: Allocator) -> Self {
        Ledger::with_sizes(trace, allocator, |storage| Bytes(trace.storages()[storage.index()].bytes))
    }

    /// The same with other sizes than the trace has, as requested from the allocator: what if a storage were smaller?
    #[must_use]
    pub fn with_sizes(trace: &StepTrace, allocator: Allocator, size: impl Fn(StorageId) -> Bytes) -> Self {
        let mut snapshot = Snapshot::default();
        let account = |(index, storage): (usize, &Storage)| {
            let footprint = match storage.pool {
                Pool::Device => allocator.footprint(size(StorageId::new(index))),
                // It takes the host's memory, not the device's.
                Pool::Pinned => Bytes(0),
            };
            let held = storage.birth.is_none();
            let account = Account { footprint, saves: 0, held, released: storage.released, category: storage.category };
            if account.is_alive() {
                snapshot.add(storage.category, footprint);
            }
            account
        };
        let accounts = trace.storages().iter().enumerate().map(account).collect();
        Ledger { accounts, snapshot, world_size: 1, journal: None }
    }

    /// The same state with parameters, gradients and optimizer state divided evenly by `world_size`, rounded up.
    #[must_use]
    pub fn sharded(mut self, world_size: u64) -> Self {
        self.world_size = world_size.max(1);
        let mut snapshot = Snapshot::default();
        for account in self.accounts.iter().filter(|account| account.is_alive()) {
            snapshot.add(account.category, account.counted(self.world_size));
        }
        self.snapshot = snapshot;
        self
    }

    /// The same state with room for a copy of every storage: one that recomputation makes anew while the first may still
    /// be there. See [`Ledger::copy_of`].
    #[must_use]
    pub fn with_copies(mut self) -> Self {
        let unborn = |account: &Account| Account { saves: 0, held: false, released: false, ..*account };
        self.accounts.extend_from_within(..);
        let copies = self.accounts.len() / 2;
        for account in &mut self.accounts[copies..] {
            *account = unborn(account);
        }
        self
    }

    /// The copy of a storage, in a ledger that has room for copies.
    #[must_use]
    pub fn copy_of(&self, storage: StorageId) -> StorageId {
        StorageId::new(storage.index() + self.accounts.len() / 2)
    }

    /// The bytes in use now.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The bytes that a storage takes while it is alive.
    #[must_use]
    pub fn footprint(&self, storage: StorageId) -> Bytes {
        self.accounts.get(storage.index()).map_or(Bytes(0), |account| account.footprint)
    }

    /// What a storage is counted as now.
    #[must_use]
    pub fn category(&self, storage: StorageId) -> Option<Category> {
        self.accounts.get(storage.index()).map(|account| account.category)
    }

    /// Whether there is an ordinary reference to a storage.
    #[must_use]
    pub fn is_held(&self, storage: StorageId) -> bool {
        self.accounts.get(storage.index()).is_some_and(|account| account.held)
    }

    /// Whether a storage is in memory.
    #[must_use]
    pub fn is_alive(&self, storage: StorageId) -> bool {
        self.accounts.get(storage.index()).is_some_and(Account::is_alive)
    }

    /// An operator makes the storage, or makes it again: there is an ordinary reference to it.
    pub fn hold(&mut self, storage: StorageId) {
        self.change(storage, |account| account.held = true);
    }

    /// The last ordinary reference goes.
    pub fn drop(&mut self, storage: StorageId) {
        self.change(storage, |account| account.held = false);
    }

    /// Autograd takes hold of a tensor in the storage.
    pub fn save(&mut self, storage: StorageId) {
        self.change(storage, |account| account.saves = account.saves.saturating_add(1));
    }

    /// Autograd lets go of one tensor in the storage.
    pub fn unsave(&mut self, storage: StorageId) {
        self.change(storage, |account| account.saves = account.saves.saturating_sub(1));
    }

    /// The bytes of the storage go, while those who hold it still do.
    pub fn release(&mut self, storage: StorageId) {
        self.change(storage, |account| account.released = account.is_referred_to());
    }

    /// The bytes of a released storage come back.
    pub fn restore(&mut self, storage: StorageId) {
        self.change(storage, |account| account.released = false);
    }

    /// The storage is from now on counted in another category.
    pub fn recategorize(&mut self, storage: StorageId, category: Category) {
        let Some(account) = self.accounts.get_mut(storage.index()) else { return };
        if account.is_alive() {
            self.snapshot.subtract(account.category, account.counted(self.world_size));
        }
        account.category = category;
        if account.is_alive() {
            self.snapshot.add(category, account.counted(self.world_size));
            if let Some(journal) = &mut self.journal {
                journal.end(storage);
                journal.begin(storage, account, self.world_size);
            }
        }
    }

    /// An operator has run: what happens from now on is seen after the next one.
    pub(crate) fn tick(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.now += 1;
        }
    }

    /// An operator of the trace runs: its new storages are held, and what autograd needs for its backward is saved.
    pub fn run(&mut self, trace: &StepTrace, id: OpId) {
        let Some(op) = trace.ops().get(id.index()) else { return };
        for tensor in trace.outputs(op) {
            if trace.storages().get(tensor.storage.index()).is_some_and(|storage| storage.birth == Some(id)) {
                self.hold(tensor.storage);
            }
        }
        for tensor in trace.saves(op) {
            self.save(tensor.storage);
        }
    }

    /// Follows one event of the plain step. The calls of modules, streams and micro-batches hold nothing by themselves.
    pub fn apply(&mut self, trace: &StepTrace, event: Event) {
        match event {
            Event::Op(op) => self.run(trace, op),
            Event::Drop(storage) => self.drop(storage),
            Event::Unsave(op) => {
                let Some(op) = trace.ops().get(op.index()) else { return };
                for tensor in trace.saves(op) {
                    self.unsave(tensor.storage);
                }
            }
            Event::Recategorize(storage, category) => self.recategorize(storage, category),
            Event::Release(storage) => self.release(storage),
            Event::Restore(storage) => self.restore(storage),
            Event::Return(_) | Event::Enter(_) | Event::Exit(_) | Event::EnterBackward(_) | Event::ExitBackward(_) => {}
            Event::Wait { .. } | Event::MicroBatch(_) => {}
        }
    }

    fn change(&mut self, storage: StorageId, change: impl FnOnce(&mut Account)) {
        let Some(account) = self.accounts.get_mut(storage.index()) else { return };
        let before = account.is_alive();
        change(account);
        match (before, account.is_alive()) {
            (false, true) => self.snapshot.add(account.category, account.counted(self.world_size)),
            (true, false) => self.snapshot.subtract(account.category, account.counted(self.world_size)),
            _ => {}
        }
        if let Some(journal) = &mut self.journal {
            journal.note(storage, before, account, self.world_size);
        }
    }
}

/// Writes down lives as they begin and end.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    pub(crate) lives: Vec<Life>,
    /// How many operators have run.
    now: u32,
    /// For every account, its life that has not ended.
    open: Vec<Option<u32>>,
}

impl Journal {
    /// Begins with what is alive.
    pub(crate) fn new(ledger: &Ledger) -> Self {
        let mut journal = Journal { lives: Vec::new(), now: 0, open: vec![None; ledger.accounts.len()] };
        for (index, account) in ledger.accounts.iter().enumerate().filter(|(_, account)| account.is_alive()) {
            journal.begin(StorageId::new(index), account, ledger.world_size);
        }
        journal
    }

    fn note(&mut self, storage: StorageId, was_alive: bool, account: &Account, world_size: u64) {
        match (was_alive, account.is_alive()) {
            (false, true) => self.begin(storage, account, world_size),
            (true, false) => self.end(storage),
            _ => {}
        }
        if let Some(life) = self.open[storage.index()] {
            let held_until = &mut self.lives[life as usize].held_until;
            // A reference that is there lasts, as far as is known yet.
            *held_until = if account.held { u32::MAX } else { (*held_until).min(self.now) };
        }
    }

    fn begin(&mut self, storage: StorageId, account: &Account, world_size: u64) {
        self.open[storage.index()] = u32::try_from(self.lives.len()).ok();
        self.lives.push(Life {
            storage,
            again: false,
            category: account.category,
            bytes: account.counted(world_size),
            from: self.now,
            until: u32::MAX,
            held_until: if account.held { u32::MAX } else { self.now },
        });
    }

    fn end(&mut self, storage: StorageId) {
        if let Some(life) = self.open[storage.index()].take() {
            self.lives[life as usize].until = self.now;
        }
    }
}
