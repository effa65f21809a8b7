//! What stands behind an opcode: numbers of fixed width, counted bytes, lines.

use super::document::Value;
use super::machine::PickleError;

/// The file, and how far it is read.
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Arguments { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn byte(&mut self) -> Result<u8, PickleError> {
        let byte = self.bytes.get(self.at).copied().ok_or(self.ended(1))?;
        self.at += 1;
        Ok(byte)
    }

    /// So many bytes, with where they begin.
    pub(crate) fn take(&mut self, count: u64) -> Result<(usize, &'a [u8]), PickleError> {
        let start = self.at;
        let end = usize::try_from(count).ok().and_then(|count| start.checked_add(count));
        let bytes = end.and_then(|end| self.bytes.get(start..end)).ok_or(self.ended(count))?;
        self.at += bytes.len();
        Ok((start, bytes))
    }

    /// Bytes that were read before.
    pub(crate) fn within(&self, start: usize, length: usize) -> &'a [u8] {
        start.checked_add(length).and_then(|end| self.bytes.get(start..end)).unwrap_or(&[])
    }

    fn ended(&self, wanted: u64) -> PickleError {
        PickleError::Ended { at: self.at, wanted, length: self.bytes.len() }
    }

    /// A number of so many bytes, the lowest first.
    pub(crate) fn number(&mut self, width: u64) -> Result<u64, PickleError> {
        let (_, bytes) = self.take(width)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Up to the end of the line, which is not part of it.
    pub(crate) fn line(&mut self) -> Result<(usize, &'a [u8]), PickleError> {
        let start = self.at;
        let rest = &self.bytes[start.min(self.bytes.len())..];
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(self.ended(rest.len() as u64 + 1))?;
        self.at += length + 1;
        Ok((start, &rest[..length]))
    }

    /// A line with a whole number.
    pub(crate) fn decimal(&mut self) -> Result<Value, PickleError> {
        let (start, line) = self.line()?;
        let text = std::str::from_utf8(line).unwrap_or("").trim();
        let digits = text.strip_suffix('L').unwrap_or(text);
        if let Ok(number) = digits.parse() {
            return Ok(Value::Int(number));
        }
        if let Ok(number) = digits.parse() {
            return Ok(Value::Unsigned(number));
        }
        let unsigned = digits.strip_prefix('-').unwrap_or(digits);
        if !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Value::Huge);
        }
        Err(PickleError::Number { at: start, found: shown(line) })
    }

    /// A line with a number of the memo.
    pub(crate) fn index(&mut self) -> Result<u64, PickleError> {
        let at = self.at;
        match self.decimal()? {
            Value::Int(number) => u64::try_from(number).map_err(|_| PickleError::Memo { at }),
            _ => Err(PickleError::Memo { at }),
        }
    }
}

/// A whole number in two's complement, the lowest byte first.
pub(crate) fn long(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let mut digits = bytes;
    while digits.len() > 8 && digits.last() == Some(&fill) {
        digits = &digits[..digits.len() - 1];
    }
    if digits.len() > 8 {
        return Value::Huge;
    }
    let mut wide = [fill; 8];
    wide[..digits.len()].copy_from_slice(digits);
    match (negative, i64::from_le_bytes(wide)) {
        (false, number) if number >= 0 => Value::Int(number),
        (true, number) if number < 0 => Value::Int(number),
        (false, _) => Value::Unsigned(u64::from_le_bytes(wide)),
        (true, _) => Value::Huge,
    }
}

/// The start of something from the file, for a message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    let text: String = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]).chars().take(LONGEST).collect();
    text.replace(|character: char| character.is_control(), "\u{fffd}")
}
