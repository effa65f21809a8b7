//! Reading and writing of `.rmt` files; `docs/trace-format.md` describes them for other programs.

mod read;
mod rows;
mod text;
mod write;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

pub(crate) use rows::event_json;
use text::{Text, ZSTD_MAGIC};

use crate::{FileAction, FileError, StepTrace};

/// What the first field of a trace file says.
pub const FORMAT: &str = "rematic-trace";
/// The version that is written; all up to it are read.
pub const FORMAT_VERSION: u32 = 2;
const ZSTD_LEVEL: i32 = 3;

impl StepTrace {
    /// Writes the trace; a name that ends in `.zst` compresses it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            if path.extension().is_some_and(|extension| extension == "zst") {
                self.to_packed(&mut file)?;
            } else {
                self.to_writer(&mut file)?;
            }
            file.flush()
        };
        write().map_err(|source| FileError::Io { action: FileAction::Write, path: path.to_owned(), source })
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn to_writer(&self, writer: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *writer, &write::Document::from_trace(self))?;
        writer.write_all(b"\n")
    }

    /// Writes the trace as JSON under zstd.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn to_packed(&self, writer: &mut impl Write) -> io::Result<()> {
        let mut packed = zstd::Encoder::new(writer, ZSTD_LEVEL)?;
        self.to_writer(&mut packed)?;
        packed.finish().map(|_| ())
    }

    /// Reads and validates a trace, compressed or not.
    ///
    /// # Errors
    /// If the file cannot be read, is not a trace, is of a newer version, or breaks a rule.
    pub fn read(path: &Path) -> Result<StepTrace, FileError> {
        let file = File::open(path).map_err(|source| text::unreadable(path, source))?;
        read::read(Text::of_file(file, path)?, path)
    }

    /// Reads and validates the content of a trace file, compressed or not; `path` is only for error messages.
    ///
    /// # Errors
    /// As [`StepTrace::read`].
    pub fn from_bytes(content: &[u8], path: &Path) -> Result<StepTrace, FileError> {
        read::read(Text::of_bytes(content, path)?, path)
    }

    /// Reads and validates a trace from JSON text; `path` is only for error messages.
    ///
    /// # Errors
    /// As [`StepTrace::read`].
    pub fn from_json(text: &[u8], path: &Path) -> Result<StepTrace, FileError> {
        read::read(Text::Whole(Cow::Borrowed(text)), path)
    }

    /// Whether a file that begins like this is a trace, packed or not. The text need not be whole: its format is its first
    /// field where Rematic wrote it, and may stand anywhere in `start` otherwise.
    #[must_use]
    pub fn recognizes(start: &[u8]) -> bool {
        let mut format = FormatField::default();
        // It fails where the text ends, and stops on purpose where the format is found.
        let _ = serde_json::Deserializer::from_slice(start).deserialize_map(&mut format);
        start.starts_with(&ZSTD_MAGIC) || format.0.as_deref() == Some(FORMAT)
    }
}

/// Looks for the field `format` of an object, and for nothing else.
#[derive(Default)]
struct FormatField(Option<String>);

impl<'de> Visitor<'de> for &mut FormatField {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(field) = fields.next_key::<Cow<'_, str>>()? {
            if field == "format" {
                self.0 = Some(fields.next_value()?);
                return Ok(());
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}
