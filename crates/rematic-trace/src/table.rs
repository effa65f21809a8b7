use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use serde::{Deserialize, Serialize};

/// What a [`Table`] is indexed by.
pub trait Id: Copy {
    /// The id of the item at `index`.
    fn at(index: usize) -> Self;
    /// The position in the table that it points into.
    fn position(self) -> usize;
}

/// A list with an item for every id of a kind, which no other kind of id can index.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table<I, T> {
    items: Vec<T>,
    #[serde(skip)]
    id: PhantomData<fn(I) -> T>,
}

impl<I: Id, T> Table<I, T> {
    /// A table with the same item for the first `length` ids.
    #[must_use]
    pub fn new(length: usize, item: T) -> Self
    where
        T: Clone,
    {
        vec![item; length].into()
    }

    /// A table for the same ids, with one item everywhere.
    #[must_use]
    pub fn filled<U: Clone>(&self, item: U) -> Table<I, U> {
        Table::new(self.len(), item)
    }

    /// Adds an item; returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::at(self.items.len() - 1)
    }

    /// The item of an id, if there is one.
    #[must_use]
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.position())
    }

    /// The item of an id, if there is one.
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.items.get_mut(id.position())
    }

    /// The ids, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + Clone + use<I, T> {
        (0..self.items.len()).map(I::at)
    }

    /// The items with their ids, in order.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator + Clone {
        self.items.iter().enumerate().map(|(index, item)| (I::at(index), item))
    }

    /// The items as a slice, for positions that are no ids.
    #[must_use]
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// The items as a list that can grow.
    pub fn items_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.position()]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.position()]
    }
}

impl<I, T> Deref for Table<I, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<I, T> DerefMut for Table<I, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<I, T> From<Vec<T>> for Table<I, T> {
    fn from(items: Vec<T>) -> Self {
        Table { items, id: PhantomData }
    }
}

impl<I, T> FromIterator<T> for Table<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<I, T> IntoIterator for Table<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, I, T> IntoIterator for &'a Table<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

impl<'a, I, T> IntoIterator for &'a mut Table<I, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter_mut()
    }
}

// By hand, since a derive would ask the same of the ids.
impl<I, T: Clone> Clone for Table<I, T> {
    fn clone(&self) -> Self {
        self.items.clone().into()
    }
}

impl<I, T: PartialEq> PartialEq for Table<I, T> {
    fn eq(&self, other: &Self) -> bool {
        self.items == other.items
    }
}

impl<I, T: Eq> Eq for Table<I, T> {}

impl<I, T: fmt::Debug> fmt::Debug for Table<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}
