//! A document as a trace. Each row goes into its table as it is read; nothing is kept twice.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::rows::{
    AxisRow, CallRow, CollectiveRow, EventRow, FlagRow, LayoutRow, ModuleRow, OpRow, StorageRow, StorageWord, storages,
    tensors,
};
use super::text::{Text, unreadable};
use super::{FORMAT, FORMAT_VERSION};
use crate::trace::{COMPUTE_STREAM, extend};
use crate::{
    Axis, Call, CallId, Collective, CollectiveId, Event, FileError, Flags, Layout, Module, ModuleId, NameId, Op, OpId,
    Origin, Pool, StepTrace, Storage, StreamId,
};

/// Reads and validates a trace.
pub(super) fn read(mut text: Text<'_>, path: &Path) -> Result<StepTrace, FileError> {
    let parsed = text.parse(Document);
    // A newer version may have any shape, so its header is looked at before the rest is judged.
    let header = match &parsed {
        Ok(tables) => Header { format: Some(tables.format.clone()), version: Some(u64::from(tables.version)) },
        Err(_) => text.parse(PhantomData::<Header>).unwrap_or_default(),
    };
    if let Some(found) = header.format.filter(|format| format != FORMAT) {
        return Err(FileError::OtherFormat { path: path.to_owned(), found, expected: FORMAT });
    }
    if let Some(found) = header.version.filter(|version| *version > u64::from(FORMAT_VERSION)) {
        return Err(FileError::NewerVersion { path: path.to_owned(), found, known: FORMAT_VERSION });
    }
    if header.version == Some(0) {
        return Err(FileError::NoVersion { path: path.to_owned(), known: FORMAT_VERSION });
    }
    let tables = parsed.map_err(|source| match source.classify() {
        serde_json::error::Category::Io => unreadable(path, source.into()),
        serde_json::error::Category::Eof => {
            FileError::Truncated { path: path.to_owned(), line: source.line(), column: source.column() }
        }
        _ => FileError::Syntax { path: path.to_owned(), place: place_of_fault(&mut text), source },
    })?;
    tables.check_version(path)?;
    let trace = tables.into_trace().map_err(|(place, message)| FileError::Syntax {
        path: path.to_owned(),
        place,
        source: serde_json::Error::custom(message),
    })?;
    trace.validate().map_err(|source| FileError::Invalid { path: path.to_owned(), source })?;
    Ok(trace)
}

#[derive(Default, Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u64>,
}

/// The row and field where the text stops to be a trace. To follow the path takes time, so only text that is known to
/// be wrong is read this way.
fn place_of_fault(text: &mut Text<'_>) -> String {
    struct Tracked<'t>(&'t mut serde_path_to_error::Track);

    impl<'de> DeserializeSeed<'de> for Tracked<'_> {
        type Value = Tables;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tables, D::Error> {
            Document.deserialize(serde_path_to_error::Deserializer::new(deserializer, self.0))
        }
    }
    let mut track = serde_path_to_error::Track::new();
    let place = text.parse(Tracked(&mut track)).map_err(|_| track.path().to_string());
    // A single dot is the path of the whole.
    place.err().filter(|place| place != ".").unwrap_or_default()
}

/// What a document says.
#[derive(Default)]
struct Tables {
    format: String,
    version: u32,
    /// Of version 1.
    model: Option<String>,
    facts: Vec<(String, String)>,
    /// The collective of which version 1 says no more than that it is one.
    unknown: Option<CollectiveId>,
    /// The first words that only version 1, or only version 2 has.
    of_version_1: Option<&'static str>,
    of_version_2: Option<&'static str>,
    trace: StepTrace,
}

impl Tables {
    fn check_version(&self, path: &Path) -> Result<(), FileError> {
        let (word, needs) = match (self.version, self.of_version_1, self.of_version_2) {
            (1, _, Some(word)) => (word, 2),
            (2, Some(word), _) => (word, 1),
            _ => return Ok(()),
        };
        Err(FileError::WordOfVersion { path: path.to_owned(), found: self.version, word, needs })
    }

    /// The trace, or the place of a fault and what it is.
    fn into_trace(self) -> Result<StepTrace, (String, String)> {
        let mut trace = self.trace;
        if let Some(model) = self.model {
            trace.origin = Origin::from_facts(&model, &self.facts);
        }
        if trace.streams.is_empty() {
            trace.streams.push(COMPUTE_STREAM.to_owned());
        }
        if let Some((row, op)) = trace.ops.iter().enumerate().find(|(_, op)| trace.names.get(op.name).is_none()) {
            let fault = format!("unknown op name {}; there are {}", op.name, trace.names.len());
            return Err((format!("ops[{row}].name"), fault));
        }
        trace.index();
        Ok(trace)
    }

    fn op(&mut self, row: OpRow) {
        let mut flags = Flags::default();
        let mut collective = row.collective.map(|id| CollectiveId::new(id as usize));
        for flag in row.flags {
            match flag {
                FlagRow::View => flags.view = true,
                FlagRow::Random => flags.random = true,
                FlagRow::Host => flags.host = true,
                FlagRow::Holds => flags.holds = true,
                FlagRow::Collective => {
                    self.of_version_1.get_or_insert("collective among flags");
                    let table = &mut self.trace.collectives;
                    collective = Some(*self.unknown.get_or_insert_with(|| {
                        table.push(Collective::unknown());
                        CollectiveId::new(table.len() - 1)
                    }));
                }
            }
        }
        if row.stream.is_some() {
            self.of_version_2.get_or_insert("stream");
        }
        if row.collective.is_some() {
            self.of_version_2.get_or_insert("collective");
        }
        let trace = &mut self.trace;
        trace.ops.push(Op {
            name: NameId::new(row.name as usize),
            phase: row.phase,
            call: row.call.map(|call| CallId::new(call as usize)),
            differentiates: row.differentiates.map(|op| OpId::new(op as usize)),
            flags,
            stream: StreamId::new(row.stream.unwrap_or(0) as usize),
            collective,
            mutates: extend(&mut trace.mutated, storages(&row.mutates)),
            inputs: extend(&mut trace.tensors, tensors(&row.inputs)),
            outputs: extend(&mut trace.tensors, tensors(&row.outputs)),
            saves: extend(&mut trace.tensors, tensors(&row.saves)),
        });
    }

    fn storage(&mut self, row: &StorageRow) {
        let is = |word| row.words.contains(&word);
        if !row.words.is_empty() {
            self.of_version_2.get_or_insert("pinned, released, seen or share among storages");
        }
        self.trace.storages.push(Storage {
            bytes: row.bytes,
            category: row.category,
            birth: row.birth.map(|op| OpId::new(op as usize)),
            pool: if is(StorageWord::Pinned) { Pool::Pinned } else { Pool::Device },
            released: is(StorageWord::Released),
            seen: is(StorageWord::Seen),
            share: row
                .words
                .iter()
                .find_map(|word| if let StorageWord::Share(bytes) = word { Some(*bytes) } else { None }),
        });
    }

    fn event(&mut self, row: EventRow) {
        if let Some(word) = row.of_version_2() {
            self.of_version_2.get_or_insert(word);
        }
        self.trace.events.push(Event::from(row));
    }
}

const FIELDS: [&str; 15] = [
    "format",
    "version",
    "model",
    "facts",
    "origin",
    "place",
    "streams",
    "collectives",
    "names",
    "layouts",
    "modules",
    "calls",
    "storages",
    "ops",
    "events",
];
const IN_BOTH_VERSIONS: [&str; 9] =
    ["format", "version", "names", "layouts", "modules", "calls", "storages", "ops", "events"];

/// Reads the whole.
struct Document;

impl<'de> DeserializeSeed<'de> for Document {
    type Value = Tables;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tables, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document {
    type Value = Tables;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Tables, A::Error> {
        let mut tables = Tables::default();
        tables.trace.streams.items_mut().clear();
        let mut seen = [false; FIELDS.len()];
        while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
            let field = FIELDS.iter().position(|field| *field == name);
            let field = field.ok_or_else(|| A::Error::unknown_field(&name, &FIELDS))?;
            if std::mem::replace(&mut seen[field], true) {
                return Err(A::Error::duplicate_field(FIELDS[field]));
            }
            tables.read_field(FIELDS[field], &mut fields)?;
        }
        let about = if tables.version == 1 { "model" } else { "origin" };
        for needed in IN_BOTH_VERSIONS.into_iter().chain([about]) {
            if !FIELDS.iter().zip(seen).any(|(field, seen)| seen && *field == needed) {
                return Err(A::Error::missing_field(needed));
            }
        }
        Ok(tables)
    }
}

impl Tables {
    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &'static str, fields: &mut A) -> Result<(), A::Error> {
        match field {
            "model" | "facts" => self.of_version_1 = self.of_version_1.or(Some(field)),
            "origin" | "place" | "streams" | "collectives" => self.of_version_2 = self.of_version_2.or(Some(field)),
            _ => {}
        }
        let trace = &mut self.trace;
        match field {
            "format" => self.format = fields.next_value()?,
            "version" => self.version = fields.next_value()?,
            "model" => self.model = Some(fields.next_value()?),
            "facts" => self.facts = fields.next_value()?,
            "origin" => trace.origin = fields.next_value()?,
            "place" => each(fields, |AxisRow(name, size, coordinate)| {
                trace.place.axes.push(Axis { name: name.into_owned(), size, coordinate });
            })?,
            "streams" => trace.streams = fields.next_value()?,
            "collectives" => each(fields, |CollectiveRow(kind, group, axis, bytes)| {
                trace.collectives.push(Collective { kind, group, axis: axis.into_owned(), bytes });
            })?,
            "names" => trace.names = fields.next_value()?,
            "layouts" => each(fields, |LayoutRow(dtype, shape, strides)| {
                trace.layouts.push(Layout { dtype, shape, strides });
            })?,
            "modules" => each(fields, |row: ModuleRow<'_>| {
                trace.modules.push(module(row));
            })?,
            "calls" => each(fields, |row: CallRow| {
                trace.calls.push(call(&row));
            })?,
            "storages" => each(fields, |row| self.storage(&row))?,
            "ops" => each(fields, |row| self.op(row))?,
            _ => each(fields, |row| self.event(row))?,
        }
        Ok(())
    }
}

fn module(row: ModuleRow<'_>) -> Module {
    Module {
        name: row.name.into_owned(),
        class: row.class.into_owned(),
        parent: row.parent.map(|parent| ModuleId::new(parent as usize)),
        parameters: row.parameters.into_iter().map(Into::into).collect(),
        buffers: row.buffers.into_iter().map(Into::into).collect(),
    }
}

fn call(row: &CallRow) -> Call {
    Call {
        module: ModuleId::new(row.module as usize),
        inputs: storages(&row.inputs).collect(),
        keywords: storages(&row.keywords).collect(),
        outputs: storages(&row.outputs).collect(),
    }
}

/// Hands over each row of a table as soon as it is there.
fn each<'de, A: MapAccess<'de>, T: Deserialize<'de>>(fields: &mut A, take: impl FnMut(T)) -> Result<(), A::Error> {
    struct Each<T, F>(F, PhantomData<T>);

    impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Each<T, F> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_seq(self)
        }
    }

    impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<T, F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<S: SeqAccess<'de>>(mut self, mut rows: S) -> Result<(), S::Error> {
            while let Some(row) = rows.next_element()? {
                (self.0)(row);
            }
            Ok(())
        }
    }
    fields.next_value_seed(Each(take, PhantomData))
}
