/// The bytes in use at every moment: a range of moments is raised, and the highest one is known, in logarithmic time.
#[derive(Clone, Debug)]
pub(crate) struct Heights {
    /// A power of two, at least the number of moments.
    size: usize,
    /// By node of the tree, the root first: the highest below it, what is added to it and below it included.
    highest: Vec<i64>,
    /// By inner node: what is added to all below it.
    added: Vec<i64>,
}

/// Lower than any height, and far from overflow.
pub(crate) const ABSENT: i64 = i64::MIN / 4;

impl Heights {
    pub(crate) fn new(heights: &[i64]) -> Self {
        let size = heights.len().next_power_of_two();
        let mut highest = vec![ABSENT; 2 * size];
        highest[size..size + heights.len()].copy_from_slice(heights);
        for node in (1..size).rev() {
            highest[node] = highest[2 * node].max(highest[2 * node + 1]);
        }
        Heights { size, highest, added: vec![0; size] }
    }

    /// Raises the moments from `start` to before `end`.
    pub(crate) fn add(&mut self, start: usize, end: usize, bytes: i64) {
        if start >= end {
            return;
        }
        let (mut left, mut right) = (start + self.size, end + self.size);
        let (mut first, mut last) = (left, right - 1);
        while left < right {
            if left & 1 == 1 {
                self.raise(left, bytes);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.raise(right, bytes);
            }
            left >>= 1;
            right >>= 1;
        }
        // All above the two, which soon is the same.
        while first > 1 {
            (first, last) = (first >> 1, last >> 1);
            self.renew(first);
            if last != first {
                self.renew(last);
            }
        }
    }

    fn raise(&mut self, node: usize, bytes: i64) {
        self.highest[node] += bytes;
        if node < self.size {
            self.added[node] += bytes;
        }
    }

    fn renew(&mut self, node: usize) {
        self.highest[node] = self.highest[2 * node].max(self.highest[2 * node + 1]) + self.added[node];
    }

    /// The highest of all.
    pub(crate) fn highest(&self) -> i64 {
        self.highest[1]
    }

    /// The first moment with the highest.
    pub(crate) fn highest_at(&self) -> usize {
        let mut node = 1;
        while node < self.size {
            node = if self.highest[2 * node] >= self.highest[2 * node + 1] { 2 * node } else { 2 * node + 1 };
        }
        node - self.size
    }

    /// The height of one moment.
    pub(crate) fn at(&self, moment: usize) -> i64 {
        let mut node = moment + self.size;
        let mut height = self.highest[node];
        while node > 1 {
            node >>= 1;
            height += self.added[node];
        }
        height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_that_of_a_plain_list() {
        let mut list: Vec<i64> = (0..37).map(|at| at * 7919 % 101).collect();
        let mut heights = Heights::new(&list);
        let mut dice: usize = 1;
        for _ in 0..500 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, length) = ((dice >> 33) % 37, (dice >> 40) % 12);
            let end = (start + length).min(37);
            let bytes = i64::try_from((dice >> 50) % 41).unwrap() - 20;
            heights.add(start, end, bytes);
            list[start..end].iter_mut().for_each(|height| *height += bytes);
            assert_eq!(heights.highest(), *list.iter().max().unwrap());
            assert_eq!((heights.at(start), list[heights.highest_at()]), (list[start], heights.highest()));
        }
    }
}
