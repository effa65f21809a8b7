use std::ops::Index;

use rematic_trace::{Bytes, Category};

/// The bytes in use at one moment, per category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    by_category: [Bytes; Category::ALL.len()],
}

impl Snapshot {
    /// The bytes in all categories together.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes(self.by_category.iter().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    /// The categories with their bytes, in the order in which they are shown.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Category, Bytes)> + '_ {
        Category::ALL.into_iter().zip(self.by_category)
    }

    // Both saturate: only a trace that breaks a rule reaches the limits, and it must not bring the program down.

    pub(crate) fn add(&mut self, category: Category, bytes: Bytes) {
        let sum = &mut self.by_category[category as usize];
        sum.0 = sum.0.saturating_add(bytes.0);
    }

    pub(crate) fn subtract(&mut self, category: Category, bytes: Bytes) {
        let rest = &mut self.by_category[category as usize];
        *rest = rest.saturating_sub(bytes);
    }
}

impl Index<Category> for Snapshot {
    type Output = Bytes;

    fn index(&self, category: Category) -> &Bytes {
        &self.by_category[category as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_keep_their_order_and_add_up() {
        let mut snapshot = Snapshot::default();
        for (place, category) in Category::ALL.into_iter().enumerate() {
            assert_eq!(category as usize, place);
            snapshot.add(category, Bytes(1 << place));
        }
        assert_eq!(snapshot.total(), Bytes(127));
        for (place, (category, bytes)) in snapshot.iter().enumerate() {
            assert_eq!((category, bytes), (Category::ALL[place], Bytes(1 << place)));
            assert_eq!(snapshot[category], bytes);
        }
    }

    #[test]
    fn limits_saturate() {
        let mut snapshot = Snapshot::default();
        snapshot.subtract(Category::Temp, Bytes(1));
        assert_eq!(snapshot, Snapshot::default());
        snapshot.add(Category::Temp, Bytes(u64::MAX));
        snapshot.add(Category::Temp, Bytes(1));
        snapshot.add(Category::Other, Bytes(1));
        assert_eq!(snapshot.total(), Bytes(u64::MAX));
    }
}
