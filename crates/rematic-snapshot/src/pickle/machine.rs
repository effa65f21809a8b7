//! The stack machine, without the opcodes that make objects.

use std::collections::HashMap;
use std::mem::take;

use rematic_trace::Bytes;

use super::arguments::{Arguments, long, shown};
use super::document::{DictId, Document, ListId, Span, TextId, Value};

/// What the tables may take beside [`PER_BYTE`] for every byte of the file.
const FLOOR: usize = 16 << 20;
/// An entry of a real snapshot takes four bytes in the tables for each one in the file.
const PER_BYTE: usize = 16;

/// Why a pickle is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// It is newer than what is known.
    #[error("it is a pickle of protocol {0}, and the newest that is known is 5")]
    Protocol(u8),
    /// It ends too early.
    #[error(
        "it ends too early: at byte {at} of {length}, {wanted} more are needed; it was not written to its end, or cut"
    )]
    Ended {
        /// Where.
        at: usize,
        /// What is missing.
        wanted: u64,
        /// The file's length.
        length: usize,
    },
    /// It would make an object.
    #[error("it holds an object of class {class} (byte {at}); a snapshot is plain data, and nothing else is loaded")]
    Class {
        /// Where.
        at: usize,
        /// The class or function.
        class: String,
    },
    /// It would call something, or make what plain data does not have.
    #[error("it holds {what} (byte {at}, opcode {opcode}); a snapshot is plain data, and nothing else is loaded")]
    Foreign {
        /// Where.
        at: usize,
        /// The opcode's name.
        opcode: &'static str,
        /// What that is.
        what: &'static str,
    },
    /// There is no such opcode.
    #[error("byte {at} is {found:#04x}, which means nothing in a pickle; the file is damaged")]
    Opcode {
        /// Where.
        at: usize,
        /// The byte.
        found: u8,
    },
    /// The stack has too little, or something else.
    #[error("byte {at} works on a value that is not there; the file is damaged")]
    Stack {
        /// Where.
        at: usize,
    },
    /// A value is asked for that was not kept.
    #[error("byte {at} asks for a value that was not kept; the file is damaged")]
    Memo {
        /// Where.
        at: usize,
    },
    /// A number is none.
    #[error("at byte {at} stands `{found}` in place of a number; the file is damaged")]
    Number {
        /// Where.
        at: usize,
        /// What stands there.
        found: String,
    },
    /// The values take more memory than any snapshot of this size.
    #[error(
        "its values take more than {limit}, which no snapshot of {length} bytes does; it was made to fill the memory"
    )]
    TooMuch {
        /// What they may take.
        limit: Bytes,
        /// The file's length.
        length: usize,
    },
}

struct Machine<'a> {
    input: Arguments<'a>,
    /// Where the current opcode stands.
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    /// Values by number: those in order, and the others.
    memo: Vec<Value>,
    far_memo: HashMap<u64, Value>,
    decoded: String,
    texts: Vec<Span>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    /// What the tables take.
    used: usize,
    limit: usize,
}

/// Runs a pickle to its end.
pub(crate) fn run(file: Vec<u8>) -> Result<Document, PickleError> {
    let mut machine = Machine {
        input: Arguments::new(&file),
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        far_memo: HashMap::new(),
        decoded: String::new(),
        texts: Vec::new(),
        lists: Vec::new(),
        dicts: Vec::new(),
        used: 0,
        limit: file.len().saturating_mul(PER_BYTE).saturating_add(FLOOR),
    };
    let root = loop {
        if let Some(root) = machine.step(file.len())? {
            break root;
        }
    };
    let Machine { decoded, texts, lists, dicts, .. } = machine;
    Ok(Document { file, decoded, texts, lists, dicts, root })
}

/// A number in a table. Tables are bounded by the limit, which is reached before numbers end.
fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Machine<'_> {
    /// Runs one opcode; the last gives the value.
    fn step(&mut self, length: usize) -> Result<Option<Value>, PickleError> {
        self.at = self.input.at();
        let opcode = self.input.byte()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => match self.input.byte()? {
                0..=5 => {}
                newer => return Err(PickleError::Protocol(newer)),
            },
            // The frame's length helps who reads in pieces.
            0x95 => drop(self.input.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                // Python takes a mark away where one is on top.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' | 0x88 | 0x89 | b'I' | b'L' | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'F' | b'G' => self.scalar(opcode)?,
            b'S' | b'V' | b'T' | b'U' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => self.text(opcode)?,
            b']' | b'l' | b'a' | b'e' | b')' | b't' | 0x85..=0x87 => self.sequence(opcode)?,
            b'}' | b'd' | b's' | b'u' => self.mapping(opcode)?,
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memory(opcode)?,
            _ => return Err(self.refused(opcode)),
        }
        let held = self.stack.len().saturating_add(self.marks.len()).saturating_mul(size_of::<Value>());
        if self.used.saturating_add(held) > self.limit {
            return Err(PickleError::TooMuch { limit: Bytes(self.limit as u64), length });
        }
        Ok(None)
    }

    fn damaged(&self) -> PickleError {
        PickleError::Stack { at: self.at }
    }

    /// The top of the stack, above the last mark.
    fn top(&self) -> Result<Value, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.get(floor..).and_then(<[Value]>::last).copied().ok_or(self.damaged())
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// What was pushed since the last mark.
    fn since_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.marks.pop().ok_or(self.damaged())?;
        Ok(self.stack.drain(mark.min(self.stack.len())..).collect())
    }

    fn scalar(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(i64::from(self.input.byte()?)),
            b'M' => self.fixed(2)?,
            b'J' => self.fixed(4)?,
            0x8a | 0x8b => {
                let length = self.input.number(if opcode == 0x8a { 1 } else { 4 })?;
                long(self.input.take(length)?.1)
            }
            b'G' => {
                let (_, bytes) = self.input.take(8)?;
                Value::Float(bytes.try_into().map_or(f64::NAN, f64::from_be_bytes))
            }
            b'F' => {
                let (at, line) = self.input.line()?;
                let number = std::str::from_utf8(line).ok().and_then(|text| text.trim().parse().ok());
                Value::Float(number.ok_or_else(|| PickleError::Number { at, found: shown(line) })?)
            }
            _ => match self.input.decimal()? {
                // `I00` and `I01` were booleans before there was an opcode for them.
                Value::Int(number @ (0 | 1)) if opcode == b'I' && self.input.at() - self.at == 4 => {
                    Value::Bool(number == 1)
                }
                other => other,
            },
        };
        self.stack.push(value);
        Ok(())
    }

    /// A number of two or four bytes; the longer one has a sign.
    fn fixed(&mut self, width: u64) -> Result<Value, PickleError> {
        let number = i64::try_from(self.input.number(width)?).unwrap_or(i64::MAX);
        let negative = width == 4 && number >= 1 << 31;
        Ok(Value::Int(if negative { number - (1 << 32) } else { number }))
    }

    fn text(&mut self, opcode: u8) -> Result<(), PickleError> {
        let width = match opcode {
            b'S' | b'V' => {
                let (start, line) = self.input.line()?;
                return self.push_line(opcode, start, line);
            }
            b'U' | 0x8c | b'C' => 1,
            b'T' | b'X' | b'B' => 4,
            _ => 8,
        };
        let length = self.input.number(width)?;
        let (start, bytes) = self.input.take(length)?;
        if matches!(opcode, b'B' | b'C' | 0x8e | 0x96) {
            self.stack.push(Value::Bytes);
        } else {
            self.push_text(start, bytes);
        }
        Ok(())
    }

    /// A text in a line: quoted, or with escapes.
    fn push_line(&mut self, opcode: u8, start: usize, line: &[u8]) -> Result<(), PickleError> {
        let (start, line) = match line {
            [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] if opcode == b'S' => (start + 1, inner),
            _ if opcode == b'S' => return Err(self.damaged()),
            _ => (start, line),
        };
        if line.is_ascii() && !line.contains(&b'\\') {
            self.push_text(start, line);
        } else {
            let text = unescaped(line);
            self.push_decoded(&text);
        }
        Ok(())
    }

    fn push_text(&mut self, start: usize, bytes: &[u8]) {
        if std::str::from_utf8(bytes).is_ok() {
            self.push_span(Span { start, length: bytes.len(), decoded: false });
        } else {
            self.push_decoded(&String::from_utf8_lossy(bytes));
        }
    }

    fn push_decoded(&mut self, text: &str) {
        let start = self.decoded.len();
        self.decoded += text;
        self.used += text.len();
        self.push_span(Span { start, length: text.len(), decoded: true });
    }

    fn push_span(&mut self, span: Span) {
        self.stack.push(Value::Text(TextId(number(self.texts.len()))));
        self.texts.push(span);
        self.used += size_of::<Span>();
    }

    fn new_list(&mut self, values: Vec<Value>) -> ListId {
        self.used += size_of::<Vec<Value>>() + values.len() * size_of::<Value>();
        self.lists.push(values);
        ListId(number(self.lists.len() - 1))
    }

    fn sequence(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b']' => Value::List(self.new_list(Vec::new())),
            b')' => Value::Tuple(self.new_list(Vec::new())),
            b'l' | b't' => {
                let values = self.since_mark()?;
                let list = self.new_list(values);
                if opcode == b'l' { Value::List(list) } else { Value::Tuple(list) }
            }
            0x85..=0x87 => {
                let mut values = Vec::with_capacity(3);
                for _ in 0x85..=opcode {
                    values.push(self.pop()?);
                }
                values.reverse();
                Value::Tuple(self.new_list(values))
            }
            _ => {
                let values = if opcode == b'a' { vec![self.pop()?] } else { self.since_mark()? };
                let Value::List(list) = self.top()? else { return Err(self.damaged()) };
                self.used += values.len() * size_of::<Value>();
                self.lists[list.0 as usize].extend(values);
                return Ok(());
            }
        };
        self.stack.push(value);
        Ok(())
    }

    fn mapping(&mut self, opcode: u8) -> Result<(), PickleError> {
        let values = match opcode {
            b'}' => Vec::new(),
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.since_mark()?,
        };
        let (pairs, []) = values.as_chunks::<2>() else { return Err(self.damaged()) };
        if matches!(opcode, b'}' | b'd') {
            self.used += size_of::<Vec<(Value, Value)>>();
            self.dicts.push(Vec::new());
            self.stack.push(Value::Dict(DictId(number(self.dicts.len() - 1))));
        }
        let Value::Dict(dict) = self.top()? else { return Err(self.damaged()) };
        self.used += values.len() * size_of::<Value>();
        self.dicts[dict.0 as usize].extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// Keeps the value on top under a number, or gets one that was kept.
    fn memory(&mut self, opcode: u8) -> Result<(), PickleError> {
        let index = match opcode {
            0x94 => (self.memo.len() + self.far_memo.len()) as u64,
            b'p' | b'g' => self.input.index()?,
            b'q' | b'h' => self.input.byte()?.into(),
            _ => self.input.number(4)?,
        };
        let near = usize::try_from(index).unwrap_or(usize::MAX);
        if matches!(opcode, b'g' | b'h' | b'j') {
            let kept = self.memo.get(near).or_else(|| self.far_memo.get(&index)).copied();
            self.stack.push(kept.ok_or(PickleError::Memo { at: self.at })?);
            return Ok(());
        }
        let top = self.top()?;
        if near < self.memo.len() {
            self.memo[near] = top;
        } else if near == self.memo.len() && self.far_memo.is_empty() {
            self.used += size_of::<Value>();
            self.memo.push(top);
        } else {
            // An entry of a hash table, with its share of empty places.
            self.used += 4 * size_of::<Value>();
            self.far_memo.insert(index, top);
        }
        Ok(())
    }

    /// What an opcode would do that plain data does not need.
    fn refused(&mut self, opcode: u8) -> PickleError {
        let at = self.at;
        let class =
            |module: &[u8], name: &[u8]| PickleError::Class { at, class: format!("{}.{}", shown(module), shown(name)) };
        let foreign = |opcode, what| PickleError::Foreign { at, opcode, what };
        match opcode {
            b'c' | b'i' => match (self.input.line(), self.input.line()) {
                (Ok((_, module)), Ok((_, name))) => class(module, name),
                (Err(error), _) | (_, Err(error)) => error,
            },
            0x93 => match take(&mut self.stack)[..] {
                [.., Value::Text(module), Value::Text(name)] => class(self.bytes(module), self.bytes(name)),
                _ => foreign("STACK_GLOBAL", "an object of a class without a name"),
            },
            b'R' => foreign("REDUCE", "a call of a function"),
            b'b' => foreign("BUILD", "the state of an object"),
            b'o' => foreign("OBJ", "an object"),
            0x81 => foreign("NEWOBJ", "an object"),
            0x92 => foreign("NEWOBJ_EX", "an object"),
            b'P' => foreign("PERSID", "a reference to something outside of the file, as torch.save writes them"),
            b'Q' => foreign("BINPERSID", "a reference to something outside of the file, as torch.save writes them"),
            0x82..=0x84 => foreign("EXT", "an object of a registered class"),
            0x8f..=0x91 => foreign("SET", "a set"),
            0x97 | 0x98 => foreign("BUFFER", "a buffer outside of the file"),
            found => PickleError::Opcode { at, found },
        }
    }

    /// The bytes of a text, as far as they are in reach.
    fn bytes(&self, id: TextId) -> &[u8] {
        match self.texts.get(id.0 as usize) {
            Some(Span { start, length, decoded: true }) => &self.decoded.as_bytes()[*start..start + length],
            Some(Span { start, length, .. }) => self.input.within(*start, *length),
            None => &[],
        }
    }
}

/// A text with escapes as protocol 0 has them: `\uXXXX`, `\UXXXXXXXX`, `\xXX` and single characters; bytes are Latin-1.
fn unescaped(line: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            text.push(char::from(byte));
            continue;
        }
        let digits = match rest.next() {
            Some(b'u') => 4,
            Some(b'U') => 8,
            Some(b'x') => 2,
            Some(b'n') => {
                text.push('\n');
                continue;
            }
            other => {
                text.extend(other.map(char::from));
                continue;
            }
        };
        let code =
            rest.by_ref().take(digits).try_fold(0u32, |code, digit| Some(code << 4 | char::from(digit).to_digit(16)?));
        text.push(code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    text
}
