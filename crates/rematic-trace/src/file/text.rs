//! The text of a trace file, in pieces: memory stays in proportion to what was handed in, whatever it unpacks to.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::path::Path;
use std::rc::Rc;

use serde::de::DeserializeSeed;
use serde_json::Deserializer;

use crate::{FileAction, FileError};

pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The most text that is read: ten times the largest trace of a model with 10^6 ops.
const TEXT_LIMIT: u64 = 4 << 30;
/// The most that packed data may unpack to, as a multiple of their size. Traces of Llama 3 unpack to 8 or 9 times their size as
/// Rematic packs them (level 3), and to 14 to 16 times at level 19; 8 GB of one byte to 30,000 times.
const UNPACKED_LIMIT: u64 = 50;
/// So much text may come before that: a small file may well be all repetition.
const UNPACKED_FREE: u64 = 1 << 20;
/// Text up to this size is read as a whole, which is faster; more is parsed while it is unpacked. A trace of Llama 3 70B has
/// 3 MB.
const WHOLE_LIMIT: u64 = 16 << 20;
const BUFFER: usize = 1 << 16;

/// Text that can be gone through more than once.
pub(super) enum Text<'a> {
    /// All of it.
    Whole(Cow<'a, [u8]>),
    /// More than is kept in memory.
    Streamed { source: Box<dyn ReadSeek + 'a>, packed: bool },
}

pub(super) trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

impl<'a> Text<'a> {
    pub(super) fn of_file(file: File, path: &Path) -> Result<Self, FileError> {
        Self::new(file, path)
    }

    pub(super) fn of_bytes(content: &'a [u8], path: &Path) -> Result<Self, FileError> {
        if content.starts_with(&ZSTD_MAGIC) {
            return Self::new(Cursor::new(content), path);
        }
        Ok(Text::Whole(Cow::Borrowed(content)))
    }

    fn new(mut source: impl ReadSeek + 'a, path: &Path) -> Result<Self, FileError> {
        let mut start = Vec::new();
        (&mut source)
            .take(ZSTD_MAGIC.len() as u64)
            .read_to_end(&mut start)
            .map_err(|source| unreadable(path, source))?;
        let packed = start == ZSTD_MAGIC;
        // What cannot be gone through again, such as a pipe, is kept whatever its size.
        let limit = if source.stream_position().is_ok() { WHOLE_LIMIT } else { TEXT_LIMIT };
        let mut text = Vec::new();
        text_of(start.as_slice().chain(&mut source), packed)
            .and_then(|stream| stream.take(limit + 1).read_to_end(&mut text))
            .map_err(|source| unreadable(path, source))?;
        if text.len() as u64 <= limit {
            return Ok(Text::Whole(Cow::Owned(text)));
        }
        Ok(Text::Streamed { source: Box::new(source), packed })
    }

    /// Goes through all of the text.
    pub(super) fn parse<T>(&mut self, seed: impl for<'de> DeserializeSeed<'de, Value = T>) -> serde_json::Result<T> {
        match self {
            Text::Whole(text) => whole(Deserializer::from_slice(text), seed),
            Text::Streamed { source, packed } => {
                source.rewind().map_err(serde_json::Error::io)?;
                let stream = text_of(source, *packed).map_err(serde_json::Error::io)?;
                whole(Deserializer::from_reader(BufReader::with_capacity(BUFFER, stream)), seed)
            }
        }
    }
}

/// One value, and nothing behind it.
fn whole<'de, R: serde_json::de::Read<'de>, T>(
    mut deserializer: Deserializer<R>,
    seed: impl DeserializeSeed<'de, Value = T>,
) -> serde_json::Result<T> {
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The text behind a reader, with its limits.
fn text_of<'a>(source: impl Read + 'a, packed: bool) -> io::Result<Box<dyn Read + 'a>> {
    if !packed {
        return Ok(Box::new(Limited { stream: source, packed: None, text: 0 }));
    }
    let count = Rc::new(Cell::new(0));
    let stream = zstd::Decoder::new(Counted { source, count: Rc::clone(&count) })
        .map_err(|error| io::Error::other(Trouble::Zstd(error)))?;
    Ok(Box::new(Limited { stream, packed: Some(count), text: 0 }))
}

/// Counts what is read.
struct Counted<R> {
    source: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(buffer)?;
        self.count.set(self.count.get() + length as u64);
        Ok(length)
    }
}

/// Ends with an error where the text is larger than that of any trace.
struct Limited<R> {
    stream: R,
    /// What the stream has unpacked so far.
    packed: Option<Rc<Cell<u64>>>,
    text: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer).map_err(|error| match &self.packed {
            Some(_) => io::Error::other(Trouble::Zstd(error)),
            None => error,
        })?;
        self.text += length as u64;
        if self.text > TEXT_LIMIT {
            return Err(io::Error::other(Trouble::TooLarge));
        }
        let packed = self.packed.as_ref().map_or(u64::MAX, |packed| packed.get());
        if self.text > packed.saturating_mul(UNPACKED_LIMIT).saturating_add(UNPACKED_FREE) {
            return Err(io::Error::other(Trouble::Swollen { packed, text: self.text }));
        }
        Ok(length)
    }
}

/// What may be wrong with a stream of text, on its way through readers.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Zstd(io::Error),
    #[error("too large")]
    TooLarge,
    #[error("{packed} bytes unpack to {text} and more")]
    Swollen { packed: u64, text: u64 },
}

/// The error for a file whose text cannot be had.
pub(super) fn unreadable(path: &Path, error: io::Error) -> FileError {
    let path = path.to_owned();
    match error.downcast::<Trouble>() {
        Ok(Trouble::Zstd(source)) => FileError::Zstd { path, source },
        Ok(Trouble::TooLarge) => FileError::TooLarge { path, limit: TEXT_LIMIT },
        Ok(Trouble::Swollen { packed, text }) => FileError::Swollen { path, packed, text, limit: UNPACKED_LIMIT },
        Err(source) => FileError::Io { action: FileAction::Read, path, source },
    }
}
