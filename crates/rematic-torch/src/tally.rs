//! Memory as torch's `MemTracker` counts it, while a program runs.
//!
//! Unlike a replay, which knows the whole step, a [`Tally`] is told one thing at a time: a storage appeared, grew, changed
//! its kind, went. It holds the bytes in use by device and kind, the highest total of each device, and the same for every
//! module that runs. Each change takes constant time; an operator takes the number of modules that run at that moment, where
//! torch's takes the number of all modules that ever ran.

use std::collections::HashMap;

/// A row of a snapshot: the bytes of each kind, and the total last.
pub type Row = Vec<u64>;

/// Bytes in use by device: the devices in the order in which they came into use, those without bytes left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage(pub Vec<(usize, Row)>);

impl Usage {
    /// The total of each device.
    pub fn totals(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(|(device, row)| (*device, total(row)))
    }

    fn row(&mut self, device: usize, kinds: usize) -> &mut Row {
        let place = self.0.iter().position(|(known, _)| *known == device).unwrap_or_else(|| {
            self.0.push((device, vec![0; kinds + 1]));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    fn put(&mut self, device: usize, row: &Row) {
        match self.0.iter_mut().find(|(known, _)| *known == device) {
            Some((_, kept)) => kept.clone_from(row),
            None => self.0.push((device, row.clone())),
        }
    }
}

fn total(row: &Row) -> u64 {
    row.last().copied().unwrap_or(0)
}

/// Whether a module runs forward or backward; each has a peak of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The module's forward.
    Forward,
    /// The module's backward.
    Backward,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    device: usize,
    kind: usize,
    size: u64,
    bytes: u64,
}

/// What is known of one module: the highest totals since a direction began, and the usage at them.
#[derive(Clone, Debug, Default)]
struct Scope {
    highest: Vec<(usize, u64)>,
    peaks: [Option<Usage>; 2],
}

#[derive(Clone, Debug, Default)]
struct Name {
    runs: bool,
    scopes: Vec<usize>,
}

/// Bytes in use by device and kind, as they change.
#[derive(Clone, Debug)]
pub struct Tally {
    kinds: usize,
    blocks: Vec<u64>,
    entries: HashMap<u64, Entry>,
    usage: Usage,
    peak: Usage,
    names: HashMap<String, usize>,
    modules: Vec<Name>,
    running: Vec<usize>,
    scopes: Vec<Scope>,
}

impl Tally {
    /// Nothing in use yet, of so many kinds.
    #[must_use]
    pub fn new(kinds: usize) -> Self {
        Tally {
            kinds,
            blocks: Vec::new(),
            entries: HashMap::new(),
            usage: Usage::default(),
            peak: Usage::default(),
            names: HashMap::new(),
            modules: Vec::new(),
            running: Vec::new(),
            scopes: Vec::new(),
        }
    }

    /// A device whose storages take whole blocks of so many bytes; returns its number.
    pub fn add_device(&mut self, block: u64) -> usize {
        self.blocks.push(block.max(1));
        self.blocks.len() - 1
    }

    /// What an operator returned: a storage that is not known yet is of this kind; of one that is known, the size may have
    /// changed. Returns whether it is new.
    pub fn see(&mut self, storage: u64, device: usize, size: u64, kind: usize) -> bool {
        if self.entries.contains_key(&storage) {
            self.resize(storage, size);
            return false;
        }
        self.add(storage, device, size, kind);
        true
    }

    /// Says what a storage is for, whatever was said before. Returns whether it is new.
    pub fn mark(&mut self, storage: u64, device: usize, size: u64, kind: usize) -> bool {
        if self.is_known(storage) {
            self.change_kind(storage, kind);
            return false;
        }
        self.add(storage, device, size, kind);
        true
    }

    /// Whether it was seen, and has not gone.
    #[must_use]
    pub fn is_known(&self, storage: u64) -> bool {
        self.entries.contains_key(&storage)
    }

    /// The bytes that it takes; 0 if it is not known.
    #[must_use]
    pub fn bytes_of(&self, storage: u64) -> u64 {
        self.entries.get(&storage).map_or(0, |entry| entry.bytes)
    }

    fn add(&mut self, storage: u64, device: usize, size: u64, kind: usize) {
        let kind = kind.min(self.kinds.saturating_sub(1));
        let bytes = self.rounded(device, size);
        self.entries.insert(storage, Entry { device, kind, size, bytes });
        if bytes > 0 {
            let row = self.usage.row(device, self.kinds);
            row[kind] += bytes;
            row[self.kinds] += bytes;
        }
    }

    fn change_kind(&mut self, storage: u64, kind: usize) {
        let kind = kind.min(self.kinds.saturating_sub(1));
        let Some(entry) = self.entries.get_mut(&storage).filter(|entry| entry.kind != kind) else { return };
        let row = self.usage.row(entry.device, self.kinds);
        row[entry.kind] -= entry.bytes;
        row[kind] += entry.bytes;
        entry.kind = kind;
    }

    /// A storage of another size, as `resize_` makes it. One that is not known does not matter.
    pub fn resize(&mut self, storage: u64, size: u64) {
        let Some(entry) = self.entries.get(&storage).filter(|entry| entry.size != size).copied() else { return };
        let bytes = self.rounded(entry.device, size);
        self.entries.insert(storage, Entry { size, bytes, ..entry });
        let row = self.usage.row(entry.device, self.kinds);
        row[entry.kind] = row[entry.kind] - entry.bytes + bytes;
        row[self.kinds] = row[self.kinds] - entry.bytes + bytes;
        self.leave_out_if_empty(entry.device);
    }

    /// A storage is gone.
    pub fn remove(&mut self, storage: u64) {
        let Some(entry) = self.entries.remove(&storage).filter(|entry| entry.bytes > 0) else { return };
        let row = self.usage.row(entry.device, self.kinds);
        row[entry.kind] -= entry.bytes;
        row[self.kinds] -= entry.bytes;
        self.leave_out_if_empty(entry.device);
    }

    fn leave_out_if_empty(&mut self, device: usize) {
        self.usage.0.retain(|(known, row)| *known != device || total(row) > 0);
    }

    fn rounded(&self, device: usize, size: u64) -> u64 {
        let block = self.blocks.get(device).copied().unwrap_or(1);
        size.checked_next_multiple_of(block).unwrap_or(size)
    }

    /// The bytes in use now.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The bytes in use where each device's total was highest.
    #[must_use]
    pub fn peak(&self) -> &Usage {
        &self.peak
    }

    /// Forgets what was reached so far.
    pub fn restart_peak(&mut self) {
        self.peak.clone_from(&self.usage);
    }

    /// A module of this name runs from now on.
    pub fn enter(&mut self, name: &str) {
        let module = self.module(name);
        if !std::mem::replace(&mut self.modules[module].runs, true) {
            self.running.push(module);
        }
    }

    /// No module of this name runs any more.
    pub fn leave(&mut self, name: &str) {
        let module = self.module(name);
        self.modules[module].runs = false;
        self.running.retain(|other| *other != module);
    }

    /// No module runs any more, as when a backward is over.
    pub fn leave_all(&mut self) {
        for module in self.running.drain(..) {
            self.modules[module].runs = false;
        }
    }

    fn module(&mut self, name: &str) -> usize {
        if let Some(&module) = self.names.get(name) {
            return module;
        }
        self.modules.push(Name::default());
        self.names.insert(name.to_owned(), self.modules.len() - 1);
        self.modules.len() - 1
    }

    /// Begins to watch a module of this name; several may have one name. Returns its number.
    pub fn watch(&mut self, name: &str) -> usize {
        let module = self.module(name);
        self.scopes.push(Scope::default());
        let scope = self.scopes.len() - 1;
        self.modules[module].scopes.push(scope);
        scope
    }

    /// Watches no module any more.
    pub fn unwatch_all(&mut self) {
        self.scopes.clear();
        for module in &mut self.modules {
            module.scopes.clear();
        }
    }

    /// A watched module begins: what is in use now is the highest so far. Returns whether there is such a module.
    pub fn begin(&mut self, scope: usize, direction: Direction) -> bool {
        let Some(scope) = self.scopes.get_mut(scope) else { return false };
        scope.highest.clear();
        scope.highest.extend(self.usage.totals());
        scope.peaks[direction as usize] = Some(self.usage.clone());
        true
    }

    /// What was in use where each device's total was highest, since a watched module last began.
    #[must_use]
    pub fn peak_of(&self, scope: usize, direction: Direction) -> Option<&Usage> {
        self.scopes.get(scope)?.peaks[direction as usize].as_ref()
    }

    /// The highest total of each device since a watched module last began.
    #[must_use]
    pub fn highest_of(&self, scope: usize) -> &[(usize, u64)] {
        self.scopes.get(scope).map_or(&[], |scope| &scope.highest)
    }

    /// An operator has run: every total that is higher than before is remembered.
    pub fn observe(&mut self, direction: Direction) {
        for (device, row) in &self.usage.0 {
            let known = self.peak.0.iter().find(|(known, _)| known == device).map_or(0, |(_, row)| total(row));
            if known < total(row) {
                self.peak.put(*device, row);
            }
        }
        for &module in &self.running {
            for &scope in &self.modules[module].scopes {
                if let Some(scope) = self.scopes.get_mut(scope) {
                    scope.rise(&self.usage, direction);
                }
            }
        }
    }
}

impl Scope {
    fn rise(&mut self, usage: &Usage, direction: Direction) {
        let Some(peak) = &mut self.peaks[direction as usize] else { return };
        for (device, row) in &usage.0 {
            let now = total(row);
            match self.highest.iter_mut().find(|(known, _)| known == device) {
                Some((_, highest)) if *highest >= now => continue,
                Some((_, highest)) => *highest = now,
                None if now == 0 => continue,
                None => self.highest.push((*device, now)),
            }
            peak.put(*device, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETER: usize = 0;
    const ACTIVATION: usize = 1;

    fn tally() -> (Tally, usize) {
        let mut tally = Tally::new(2);
        let device = tally.add_device(512);
        (tally, device)
    }

    fn now(tally: &Tally) -> Vec<(usize, Row)> {
        tally.usage().0.clone()
    }

    #[test]
    fn storages_take_whole_blocks_until_they_go() {
        let (mut tally, gpu) = tally();
        assert!(tally.see(1, gpu, 700, ACTIVATION));
        assert_eq!(now(&tally), [(gpu, vec![0, 1024, 1024])]);
        assert!(!tally.see(1, gpu, 100, PARAMETER), "known: only its size counts");
        assert_eq!(now(&tally), [(gpu, vec![0, 512, 512])]);
        assert!(!tally.mark(1, gpu, 100, PARAMETER));
        assert_eq!(now(&tally), [(gpu, vec![512, 0, 512])]);
        assert_eq!((tally.bytes_of(1), tally.bytes_of(2)), (512, 0));
        tally.remove(1);
        tally.remove(1);
        assert_eq!(now(&tally), []);
    }

    #[test]
    fn a_device_without_bytes_is_left_out_and_comes_back_last() {
        let (mut tally, gpu) = tally();
        let host = tally.add_device(1);
        tally.see(1, gpu, 1, ACTIVATION);
        tally.see(2, host, 3, ACTIVATION);
        tally.resize(1, 0);
        assert_eq!(now(&tally), [(host, vec![0, 3, 3])]);
        tally.resize(1, 513);
        assert_eq!(now(&tally), [(host, vec![0, 3, 3]), (gpu, vec![0, 1024, 1024])]);
        assert!(tally.see(3, gpu, 0, ACTIVATION), "without bytes, and known all the same");
        assert!(!tally.see(3, gpu, 0, ACTIVATION));
    }

    #[test]
    fn peaks_count_what_is_there_after_an_operator() {
        let (mut tally, gpu) = tally();
        tally.see(1, gpu, 512, ACTIVATION);
        tally.observe(Direction::Forward);
        tally.see(2, gpu, 512, ACTIVATION);
        tally.remove(2);
        tally.see(3, gpu, 1, PARAMETER);
        tally.observe(Direction::Forward);
        tally.remove(3);
        tally.observe(Direction::Forward);
        assert_eq!(tally.peak().0, [(gpu, vec![512, 512, 1024])]);
        tally.restart_peak();
        assert_eq!(tally.peak().0, [(gpu, vec![0, 512, 512])]);
    }

    #[test]
    fn a_module_has_the_peak_of_while_it_runs() {
        let (mut tally, gpu) = tally();
        let (outer, inner) = (tally.watch("M"), tally.watch("M.a"));
        tally.enter("M");
        assert!(tally.begin(outer, Direction::Forward));
        tally.see(1, gpu, 512, ACTIVATION);
        tally.observe(Direction::Forward);
        tally.enter("M.a");
        tally.begin(inner, Direction::Forward);
        tally.see(2, gpu, 512, ACTIVATION);
        tally.observe(Direction::Forward);
        tally.leave("M.a");
        tally.see(3, gpu, 512, ACTIVATION);
        tally.observe(Direction::Forward);
        assert_eq!(tally.highest_of(inner), [(gpu, 1024)]);
        assert_eq!(tally.highest_of(outer), [(gpu, 1536)]);
        assert_eq!(tally.peak_of(inner, Direction::Forward).unwrap().0, [(gpu, vec![0, 1024, 1024])]);
        assert_eq!(tally.peak_of(inner, Direction::Backward), None);
        tally.leave_all();
        tally.see(4, gpu, 512, ACTIVATION);
        tally.observe(Direction::Forward);
        assert_eq!(tally.highest_of(outer), [(gpu, 1536)]);
    }

    #[test]
    fn what_is_not_there_changes_nothing() {
        let (mut tally, gpu) = tally();
        tally.resize(7, 100);
        tally.remove(7);
        tally.leave("nobody");
        assert!(!tally.begin(3, Direction::Forward));
        assert_eq!((tally.peak_of(3, Direction::Forward), tally.highest_of(3)), (None, &[][..]));
        tally.watch("M");
        tally.unwatch_all();
        assert!(!tally.begin(0, Direction::Forward));
        assert!(tally.see(1, gpu + 9, 3, 99), "an unknown device has blocks of one byte, an unknown kind is the last");
        assert_eq!(now(&tally), [(gpu + 9, vec![0, 3, 3])]);
    }
}
