//! Long lists of small numbers, as text that a page can hold: each number in as few bytes as it needs (LEB128), the bytes
//! in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

/// A list of numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Column {
    bytes: Vec<u8>,
    last: i64,
}

impl Column {
    pub(crate) fn push(&mut self, mut number: u64) {
        loop {
            let low = (number & 0x7f) as u8;
            number >>= 7;
            if number == 0 {
                self.bytes.push(low);
                return;
            }
            self.bytes.push(low | 0x80);
        }
    }

    /// As the difference from the number before, where neighbours are near.
    pub(crate) fn push_difference(&mut self, number: u64) {
        let number = number.cast_signed();
        let difference = number.wrapping_sub(self.last);
        self.last = number;
        // 0, -1, 1, -2, 2, … become 0, 1, 2, 3, 4, …
        self.push(((difference << 1) ^ (difference >> 63)).cast_unsigned());
    }
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(column: &Column) -> Vec<u64> {
        let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
        for byte in &column.bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
        numbers
    }

    #[test]
    fn numbers_come_back() {
        let numbers = [0, 1, 127, 128, 300, 1 << 40, u64::MAX];
        let mut column = Column::default();
        numbers.iter().for_each(|number| column.push(*number));
        assert_eq!(decoded(&column), numbers);
    }

    #[test]
    fn differences_are_small_numbers() {
        let mut column = Column::default();
        [5, 4, 4, 10].iter().for_each(|number| column.push_difference(*number));
        assert_eq!(decoded(&column), [10, 1, 0, 12]);
        assert_eq!(serde_json::to_string(&column).unwrap(), "\"CgEADA==\"");
    }
}
