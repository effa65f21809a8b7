//! What is known of the bytes on the device.
//!
//! What is copied to the device is kept here, follows copies on the device, and comes back with its values. A kernel may
//! have changed it since: nobody can tell, so that what a tensor was uploaded with is what it has until its memory is given
//! to another one. `forget` is called then.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest piece that is kept: parameters are uploaded too, and nothing decides by them.
const LARGEST: usize = 64 << 20;
/// All that is kept.
const ROOM: usize = 1 << 30;

/// Known bytes from an address on.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Bytes(Vec<u8>),
    /// So many bytes of one value.
    Filled(u8, usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Filled(_, size) => *size,
        }
    }

    /// What it takes on the host.
    fn weight(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Filled(..) => 0,
        }
    }

    fn part(&self, from: usize, to: usize) -> Piece {
        match self {
            Piece::Bytes(bytes) => Piece::Bytes(bytes[from..to].to_vec()),
            Piece::Filled(value, _) => Piece::Filled(*value, to - from),
        }
    }

    fn read(&self, from: usize, out: &mut [u8]) {
        match self {
            Piece::Bytes(bytes) => out.copy_from_slice(&bytes[from..from + out.len()]),
            Piece::Filled(value, _) => out.fill(*value),
        }
    }
}

/// Pieces that do not overlap, by address.
#[derive(Default)]
pub struct Shadow {
    pieces: BTreeMap<usize, Piece>,
    weight: usize,
}

static SHADOW: Mutex<Shadow> = Mutex::new(Shadow { pieces: BTreeMap::new(), weight: 0 });

pub fn shadow() -> MutexGuard<'static, Shadow> {
    SHADOW.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shadow {
    /// Bytes are on the device now.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.forget(at, bytes.len());
        if bytes.len() <= LARGEST && self.weight + bytes.len() <= ROOM {
            self.insert(at, Piece::Bytes(bytes.to_vec()));
        }
    }

    /// All bytes of a range have one value now.
    pub fn fill(&mut self, at: usize, value: u8, size: usize) {
        self.forget(at, size);
        self.insert(at, Piece::Filled(value, size));
    }

    fn insert(&mut self, at: usize, piece: Piece) {
        if piece.len() > 0 {
            self.weight += piece.weight();
            self.pieces.insert(at, piece);
        }
    }

    /// Nothing is known of a range any more.
    pub fn forget(&mut self, at: usize, size: usize) {
        let end = at.saturating_add(size);
        for start in self.overlapping(at, end) {
            let Some(piece) = self.pieces.remove(&start) else { continue };
            self.weight -= piece.weight();
            let stop = start + piece.len();
            if start < at {
                self.insert(start, piece.part(0, at - start));
            }
            if stop > end {
                self.insert(end, piece.part(end - start, piece.len()));
            }
        }
    }

    /// Where the pieces begin that have bytes of a range.
    fn overlapping(&self, at: usize, end: usize) -> Vec<usize> {
        if at >= end {
            return Vec::new();
        }
        let first = self.pieces.range(..at).next_back().filter(|(start, piece)| *start + piece.len() > at);
        first.into_iter().chain(self.pieces.range(at..end)).map(|(start, _)| *start).collect()
    }

    /// A copy on the device: what is known of the one range is known of the other.
    pub fn copy(&mut self, to: usize, from: usize, size: usize) {
        let end = from.saturating_add(size);
        let known: Vec<(usize, Piece)> =
            self.overlapping(from, end).iter().map(|start| self.part(*start, from, end)).collect();
        self.forget(to, size);
        for (low, part) in known {
            if self.weight + part.weight() <= ROOM {
                self.insert(to + (low - from), part);
            }
        }
    }

    /// What of the piece at `start` lies in a range, and where.
    fn part(&self, start: usize, from: usize, end: usize) -> (usize, Piece) {
        let piece = &self.pieces[&start];
        let (low, high) = (start.max(from), (start + piece.len()).min(end));
        (low, piece.part(low - start, high - start))
    }

    /// Reads a range; unknown bytes are zeros. Says whether all were known.
    pub fn read(&self, at: usize, out: &mut [u8]) -> bool {
        let end = at.saturating_add(out.len());
        out.fill(0);
        let mut known = 0;
        for start in self.overlapping(at, end) {
            let piece = &self.pieces[&start];
            let (low, high) = (start.max(at), (start + piece.len()).min(end));
            piece.read(low - start, &mut out[low - at..high - at]);
            known += high - low;
        }
        known == out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(shadow: &Shadow, at: usize, size: usize) -> (Vec<u8>, bool) {
        let mut out = vec![9; size];
        let known = shadow.read(at, &mut out);
        (out, known)
    }

    #[test]
    fn what_was_uploaded_comes_back() {
        let mut shadow = Shadow::default();
        shadow.write(100, &[1, 2, 3, 4]);
        assert_eq!(read(&shadow, 100, 4), (vec![1, 2, 3, 4], true));
        assert_eq!(read(&shadow, 101, 2), (vec![2, 3], true));
        assert_eq!(read(&shadow, 98, 4), (vec![0, 0, 1, 2], false));
        assert_eq!(read(&shadow, 200, 2), (vec![0, 0], false));
        assert_eq!(read(&shadow, 200, 0), (vec![], true));
    }

    #[test]
    fn copies_on_the_device_take_values_along() {
        let mut shadow = Shadow::default();
        shadow.write(100, &[1, 2, 3, 4]);
        shadow.fill(104, 7, 4);
        shadow.copy(202, 102, 4);
        assert_eq!(read(&shadow, 202, 4), (vec![3, 4, 7, 7], true));
        shadow.copy(200, 300, 4);
        assert_eq!(read(&shadow, 202, 4), (vec![0, 0, 7, 7], false));
    }

    #[test]
    fn memory_that_another_tensor_has_is_forgotten() {
        let mut shadow = Shadow::default();
        shadow.write(100, &[1, 2, 3, 4, 5, 6]);
        shadow.forget(102, 2);
        assert_eq!(read(&shadow, 100, 6), (vec![1, 2, 0, 0, 5, 6], false));
        assert_eq!(shadow.weight, 4);
        shadow.forget(0, usize::MAX);
        assert!(shadow.pieces.is_empty() && shadow.weight == 0);
    }

    #[test]
    fn large_uploads_are_not_kept() {
        let mut shadow = Shadow::default();
        shadow.write(0, &vec![1; LARGEST + 1]);
        assert_eq!(shadow.weight, 0);
        shadow.fill(0, 0, usize::MAX);
        assert!(read(&shadow, 5, 3).1, "a fill takes no memory, whatever its size");
    }
}
