//! A reader of pickles that knows plain data only, and runs nothing.
//!
//! A pickle is a program for a small stack machine, and can call any function of Python. Here it can only make `None`,
//! booleans, numbers, texts, bytes, lists, tuples and dictionaries; whatever else it asks for is refused by name. Values
//! are numbers of entries in tables, so that one that is shared a thousand times is there once, a cycle is no danger, and
//! nesting takes no room on the native stack. What the tables take is bounded by the size of the file.

mod arguments;
mod document;
mod machine;

pub(crate) use document::{DictId, Document, ListId, TextId, Value};
pub use machine::PickleError;

/// Whether a file begins as pickles do. Those of protocols 0 and 1 have no mark of their own; a snapshot is a dictionary.
#[must_use]
pub fn is_pickle(start: &[u8]) -> bool {
    matches!(start, [0x80, 0..=5, ..] | [b'(', b'd', ..] | [b'}', b'q' | b'r' | b'(' | b'.', ..])
}

/// Reads a pickle whole.
pub(crate) fn read(bytes: Vec<u8>) -> Result<Document, PickleError> {
    machine::run(bytes)
}

#[cfg(test)]
mod tests;
