use rematic_trace::{Bytes, Category, Pool, StepTrace, Storage, StorageId, Table};

use crate::action::{Action, BufferId};
use crate::{Allocator, Snapshot};

/// Who holds which buffer, and the bytes that are in use because of it.
///
/// Each buffer has one ordinary hold (there is a reference to it, or there is none) and a number of other holds: one per
/// tensor in it that autograd or a checkpoint keeps. It is alive while it has any and is not released; its bytes count
/// exactly then, if it lies on the device.
///
/// Every change takes constant time, allocates nothing, and ignores buffers that the step does not have. What never
/// happened cannot be undone: dropping what is not held, unsaving what is not saved, or restoring what is not released,
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Ledger {
    accounts: Table<BufferId, Account>,
    snapshot: Snapshot,
    storages: usize,
    allocator: Allocator,
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
}

impl Ledger {
    /// The state before the step: the storages that exist then are held, all others are not born.
    #[must_use]
    pub fn new(trace: &StepTrace, allocator: Allocator) -> Self {
        Ledger::with_sizes(trace, allocator, |storage| Bytes(trace.storages()[storage].own_bytes()))
    }

    /// The same with other sizes than the trace has, as requested from the allocator: what if a storage were smaller?
    #[must_use]
    pub fn with_sizes(trace: &StepTrace, allocator: Allocator, size: impl Fn(StorageId) -> Bytes) -> Self {
        let mut snapshot = Snapshot::default();
        let account = |(id, storage): (StorageId, &Storage)| {
            let footprint = match storage.pool {
                Pool::Device => allocator.footprint(size(id)),
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
        let accounts: Table<BufferId, _> = trace.storages().entries().map(account).collect();
        Ledger { storages: accounts.len(), accounts, snapshot, allocator }
    }

    /// Makes room for a copy of every storage, which recomputation makes anew while the first may still be there.
    pub(crate) fn make_room_for_copies(&mut self) {
        let accounts = self.accounts.items_mut();
        accounts.truncate(self.storages);
        accounts.extend_from_within(..);
        for account in &mut accounts[self.storages..] {
            *account = Account { saves: 0, held: false, released: false, ..*account };
        }
    }

    /// The copy of a storage.
    pub(crate) fn copy_of(&self, storage: StorageId) -> BufferId {
        BufferId::from(StorageId::new(storage.index() + self.storages))
    }

    /// The storage of a buffer, and whether it is a copy that recomputation makes.
    #[must_use]
    pub fn storage_of(&self, buffer: BufferId) -> (StorageId, bool) {
        match buffer.index().checked_sub(self.storages) {
            Some(copied) => (StorageId::new(copied), true),
            None => (StorageId::new(buffer.index()), false),
        }
    }

    /// How many buffers there may be.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.accounts.len()
    }

    /// The bytes in use now.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The bytes that a buffer takes while it is alive.
    #[must_use]
    pub fn footprint(&self, buffer: impl Into<BufferId>) -> Bytes {
        self.account(buffer).map_or(Bytes(0), |account| account.footprint)
    }

    /// What a buffer is counted as now.
    #[must_use]
    pub fn category(&self, buffer: impl Into<BufferId>) -> Option<Category> {
        self.account(buffer).map(|account| account.category)
    }

    /// Whether there is an ordinary reference to a buffer.
    #[must_use]
    pub fn is_held(&self, buffer: impl Into<BufferId>) -> bool {
        self.account(buffer).is_some_and(|account| account.held)
    }

    /// Whether a buffer is in memory.
    #[must_use]
    pub fn is_alive(&self, buffer: impl Into<BufferId>) -> bool {
        self.account(buffer).is_some_and(Account::is_alive)
    }

    fn account(&self, buffer: impl Into<BufferId>) -> Option<&Account> {
        self.accounts.get(buffer.into())
    }

    /// An operator makes the buffer: there is an ordinary reference to it.
    pub(crate) fn hold(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.held = true)
    }

    /// The last ordinary reference goes.
    pub(crate) fn drop(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.held = false)
    }

    /// Something besides takes hold of a tensor in the buffer.
    pub(crate) fn save(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.saves = account.saves.saturating_add(1))
    }

    /// It lets go of one tensor in the buffer.
    pub(crate) fn unsave(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.saves = account.saves.saturating_sub(1))
    }

    /// The bytes of the buffer go, while those who hold it still do.
    pub(crate) fn release(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.released = account.is_referred_to())
    }

    /// The bytes of a released buffer come back.
    pub(crate) fn restore(&mut self, buffer: BufferId) -> Option<Action> {
        self.change(buffer, |account| account.released = false)
    }

    /// The buffer keeps only so many of its bytes.
    pub(crate) fn shrink(&mut self, buffer: BufferId, bytes: Bytes) -> Option<Action> {
        let footprint = self.allocator.footprint(bytes);
        let account = self.accounts.get_mut(buffer)?;
        let before = account.footprint;
        account.footprint = footprint.min(before);
        account.is_alive().then(|| {
            self.snapshot.subtract(account.category, before);
            self.snapshot.add(account.category, account.footprint);
            Action::Shrink(buffer, before)
        })
    }

    /// The buffer is from now on counted in another category.
    pub(crate) fn recategorize(&mut self, buffer: BufferId, category: Category) -> Option<Action> {
        let account = self.accounts.get_mut(buffer)?;
        let before = std::mem::replace(&mut account.category, category);
        account.is_alive().then(|| {
            self.snapshot.subtract(before, account.footprint);
            self.snapshot.add(category, account.footprint);
            Action::Recategorize(buffer, before)
        })
    }

    /// What happens to the buffer by a change of its holds, if anything.
    fn change(&mut self, buffer: BufferId, change: impl FnOnce(&mut Account)) -> Option<Action> {
        let account = self.accounts.get_mut(buffer)?;
        let before = *account;
        change(account);
        match (before.is_alive(), account.is_alive()) {
            (false, true) => {
                self.snapshot.add(account.category, account.footprint);
                Some(Action::Alloc(buffer))
            }
            (true, false) => {
                self.snapshot.subtract(account.category, account.footprint);
                Some(Action::Free(buffer))
            }
            _ => (before.held != account.held).then_some(Action::Refer(buffer)),
        }
    }
}
