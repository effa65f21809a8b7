//! The order in which torch goes through its private pools: that of a hash table.

use crate::private::PoolId;

/// 2^64 divided by the golden ratio, which spreads numbers that follow each other.
const SPREAD: u64 = 11_400_714_819_323_198_485;
/// A table has this many places at least, and a key is found within as many.
const LEAST: usize = 4;

/// A set of pools that is gone through in the order of torch's.
///
/// The table keeps keys near the place that their number gives: a key that is further from its place takes the place of
/// one that is nearer, and when one goes, those behind it move up. At most half of the places are taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolSet {
    /// Keys, with how far each is from its place.
    entries: Vec<Option<(PoolId, usize)>>,
    places: usize,
    keys: usize,
}

impl PoolSet {
    pub(crate) fn iter(&self) -> impl Iterator<Item = PoolId> {
        self.entries.iter().flatten().map(|&(id, _)| id)
    }

    pub(crate) fn contains(&self, id: PoolId) -> bool {
        self.iter().any(|other| other == id)
    }

    pub(crate) fn insert(&mut self, id: PoolId) {
        if self.contains(id) {
            return;
        }
        while 2 * (self.keys + 1) > self.places || !self.place(id) {
            self.grow();
        }
        self.keys += 1;
    }

    /// Puts a key in, unless one would be further from its place than it may be.
    fn place(&mut self, id: PoolId) -> bool {
        let mut entries = self.entries.clone();
        let (mut key, mut distance) = (id, 0);
        for entry in entries.iter_mut().skip(self.home(id)) {
            if distance > self.entries.len() - self.places {
                return false;
            }
            match entry {
                None => {
                    *entry = Some((key, distance));
                    self.entries = entries;
                    return true;
                }
                Some((other, nearer)) if *nearer < distance => {
                    std::mem::swap(other, &mut key);
                    std::mem::swap(nearer, &mut distance);
                }
                Some(_) => {}
            }
            distance += 1;
        }
        false
    }

    pub(crate) fn remove(&mut self, id: PoolId) {
        let Some(mut at) = self.entries.iter().position(|entry| entry.is_some_and(|(other, _)| other == id)) else {
            return;
        };
        self.keys -= 1;
        while let Some(&Some((next, distance @ 1..))) = self.entries.get(at + 1) {
            self.entries[at] = Some((next, distance - 1));
            at += 1;
        }
        self.entries[at] = None;
    }

    fn grow(&mut self) {
        let keys: Vec<PoolId> = self.iter().collect();
        self.places = (2 * self.places).max(LEAST);
        let reach = (self.places.ilog2() as usize).max(LEAST);
        self.entries = vec![None; self.places + reach - 1];
        self.keys = 0;
        for key in keys {
            self.insert(key);
        }
    }

    fn home(&self, id: PoolId) -> usize {
        let spread = SPREAD.wrapping_mul(u64::from(id.0));
        usize::try_from(spread >> (u64::BITS - self.places.ilog2())).unwrap_or(0)
    }
}
