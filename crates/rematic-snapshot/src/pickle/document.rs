//! The plain data of a pickle.

/// A text or bytes of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TextId(pub(crate) u32);

/// A list or tuple of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListId(pub(crate) u32);

/// A dictionary of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DictId(pub(crate) u32);

/// A value; what has parts is looked up in the document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number above those of `Int`.
    Unsigned(u64),
    /// A whole number that has no room in 64 bits.
    Huge,
    Float(f64),
    Text(TextId),
    Bytes,
    List(ListId),
    Tuple(ListId),
    Dict(DictId),
}

impl Value {
    /// What Python calls it.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::Unsigned(_) => "an int",
            Value::Huge => "an int of more than 64 bits",
            Value::Float(_) => "a float",
            Value::Text(_) => "a str",
            Value::Bytes => "bytes",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Dict(_) => "a dict",
        }
    }
}

/// Where a text stands: in the file, or among those that had to be decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) decoded: bool,
}

/// All values of a pickle.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) file: Vec<u8>,
    pub(crate) decoded: String,
    pub(crate) texts: Vec<Span>,
    pub(crate) lists: Vec<Vec<Value>>,
    pub(crate) dicts: Vec<Vec<(Value, Value)>>,
    pub(crate) root: Value,
}

impl Document {
    pub(crate) fn text(&self, id: TextId) -> &str {
        let Some(&Span { start, length, decoded }) = self.texts.get(id.0 as usize) else { return "" };
        if decoded {
            self.decoded.get(start..start + length).unwrap_or("")
        } else {
            // It was looked at when it was read.
            self.file.get(start..start + length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
        }
    }

    pub(crate) fn list(&self, id: ListId) -> &[Value] {
        self.lists.get(id.0 as usize).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn dict(&self, id: DictId) -> &[(Value, Value)] {
        self.dicts.get(id.0 as usize).map_or(&[], Vec::as_slice)
    }
}
