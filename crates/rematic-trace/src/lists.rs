use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::Id;

/// A list of items for every id of a kind, all in one piece of memory.
#[derive(Clone, Debug)]
pub struct Lists<I, T> {
    items: Vec<T>,
    /// Where the list of each id begins, and at the end where the last one ends.
    first: Vec<usize>,
    id: PhantomData<fn(I) -> T>,
}

impl<I: Id, T: Copy> Lists<I, T> {
    /// Sorts items by the ids that they belong to, of which there are `ids`; each list keeps their order.
    ///
    /// # Panics
    /// If an item belongs to another id.
    #[must_use]
    pub fn new(ids: usize, entries: impl Iterator<Item = (I, T)> + Clone) -> Self {
        let mut first = vec![0; ids + 1];
        for (id, _) in entries.clone() {
            first[id.position() + 1] += 1;
        }
        for index in 1..first.len() {
            first[index] += first[index - 1];
        }
        let mut next = first.clone();
        let mut items: Vec<T> = entries.clone().map(|(_, item)| item).collect();
        for (id, item) in entries {
            let place = &mut next[id.position()];
            items[*place] = item;
            *place += 1;
        }
        Lists { items, first, id: PhantomData }
    }
}

impl<I: Id, T> Index<I> for Lists<I, T> {
    type Output = [T];

    fn index(&self, id: I) -> &[T] {
        &self.items[self.first[id.position()]..self.first[id.position() + 1]]
    }
}

impl<I: Id, T> IndexMut<I> for Lists<I, T> {
    fn index_mut(&mut self, id: I) -> &mut [T] {
        &mut self.items[self.first[id.position()]..self.first[id.position() + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::Lists;
    use crate::StorageId;

    #[test]
    fn items_are_sorted_by_their_ids_and_keep_their_order() {
        let entries = [(2, 'a'), (0, 'b'), (2, 'c')].map(|(id, item)| (StorageId::new(id), item));
        let lists = Lists::new(4, entries.into_iter());
        assert_eq!(
            [0, 1, 2, 3].map(|id| lists[StorageId::new(id)].to_vec()),
            [vec!['b'], vec![], vec!['a', 'c'], vec![]]
        );
    }
}
