//! Values of a document with the path that leads to them, so that what is wrong can be named.

use std::fmt;

use crate::error::ContentError;
use crate::pickle::{DictId, Document, ListId, Value};

/// No dictionary that is looked into has more keys. Looking for one takes time for each.
const MOST_KEYS: usize = 64;

#[derive(Clone, Copy)]
enum Step {
    Root,
    Key(&'static str),
    Index(usize),
}

/// The way to a value, from the inside out.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only as deep as the format itself, which is five.
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => f.write_str("the snapshot"),
            Step::Key(key) => write!(f, "['{key}']"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A value, and where it is.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) document: &'a Document,
    pub(crate) value: Value,
    pub(crate) path: Path<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn root(document: &'a Document) -> Self {
        Field { document, value: document.root, path: Path { parent: None, step: Step::Root } }
    }

    fn kind(&self, wanted: &'static str) -> ContentError {
        ContentError::Kind { path: self.path.to_string(), found: self.value.kind(), wanted }
    }

    pub(crate) fn dict(&self) -> Result<DictId, ContentError> {
        let Value::Dict(dict) = self.value else { return Err(self.kind("a dict")) };
        let found = self.document.dict(dict).len();
        if found > MOST_KEYS {
            return Err(ContentError::Keys { path: self.path.to_string(), found });
        }
        Ok(dict)
    }

    /// The value of a key, unless it is missing or `None`.
    pub(crate) fn find<'b>(&'b self, key: &'static str) -> Result<Option<Field<'b>>, ContentError> {
        let entries = self.document.dict(self.dict()?);
        let is_key = |value: Value| matches!(value, Value::Text(text) if self.document.text(text) == key);
        // Of equal keys Python takes the last.
        let found = entries.iter().rev().find(|(name, _)| is_key(*name)).map(|(_, value)| *value);
        let found = found.filter(|value| *value != Value::None);
        let path = Path { parent: Some(&self.path), step: Step::Key(key) };
        Ok(found.map(|value| Field { document: self.document, value, path }))
    }

    pub(crate) fn get<'b>(&'b self, key: &'static str) -> Result<Field<'b>, ContentError> {
        self.find(key)?.ok_or_else(|| ContentError::Missing { path: self.path.to_string(), key })
    }

    /// A list or tuple.
    pub(crate) fn list(&self) -> Result<ListId, ContentError> {
        match self.value {
            Value::List(list) | Value::Tuple(list) => Ok(list),
            _ => Err(self.kind("a list")),
        }
    }

    pub(crate) fn items<'b>(&'b self) -> Result<impl ExactSizeIterator<Item = Field<'b>>, ContentError> {
        let items = self.document.list(self.list()?).iter();
        Ok(items.enumerate().map(|(index, value)| Field {
            document: self.document,
            value: *value,
            path: Path { parent: Some(&self.path), step: Step::Index(index) },
        }))
    }

    pub(crate) fn text(&self) -> Result<&'a str, ContentError> {
        match self.value {
            Value::Text(text) => Ok(self.document.text(text)),
            _ => Err(self.kind("a str")),
        }
    }

    pub(crate) fn flag(&self) -> Result<bool, ContentError> {
        match self.value {
            Value::Bool(flag) => Ok(flag),
            Value::Int(number @ (0 | 1)) => Ok(number == 1),
            _ => Err(self.kind("a bool")),
        }
    }

    /// A whole number that is not negative.
    pub(crate) fn count(&self) -> Result<u64, ContentError> {
        match self.value {
            Value::Int(number) => u64::try_from(number).map_err(|_| self.range(number, "0 or more")),
            Value::Unsigned(number) => Ok(number),
            _ => Err(self.kind("an int")),
        }
    }

    /// Bytes of memory: less than any machine could have.
    pub(crate) fn bytes(&self) -> Result<u64, ContentError> {
        let count = self.count()?;
        if count >= rematic_allocator::EXABYTE {
            return Err(self.range(count, "less than 1 EiB"));
        }
        Ok(count)
    }

    /// Any whole number, such as a stream's handle.
    pub(crate) fn bits(&self) -> Result<u64, ContentError> {
        match self.value {
            Value::Int(number) => Ok(number.cast_unsigned()),
            Value::Unsigned(number) => Ok(number),
            _ => Err(self.kind("an int")),
        }
    }

    /// A number; -1 stands for no limit.
    pub(crate) fn number(&self) -> Result<f64, ContentError> {
        match self.value {
            #[expect(clippy::cast_precision_loss, reason = "only used for settings, which are small numbers")]
            Value::Int(number) => Ok(number as f64),
            Value::Float(number) => Ok(number),
            _ => Err(self.kind("a number")),
        }
    }

    fn range(&self, found: impl fmt::Display, wanted: &'static str) -> ContentError {
        ContentError::Range { path: self.path.to_string(), found: found.to_string(), wanted }
    }
}
