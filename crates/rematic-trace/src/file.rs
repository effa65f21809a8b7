//! Reading and writing of `.rmt` files; `docs/trace-format.md` describes them for other programs.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::{
    CallId, Category, Dtype, Event, FileAction, FileError, Flags, Layout, LayoutId, Module, ModuleId, OpId, OpRecord,
    Parameter, Phase, StepTrace, StorageId, Tensor,
};

/// What the first field of a trace file says.
pub const FORMAT: &str = "rematic-trace";
/// The version that is written; all up to it are read.
pub const FORMAT_VERSION: u32 = 1;
/// The most text that is read: ten times the largest trace of a model with 10^6 ops.
const TEXT_LIMIT: u64 = 4 << 30;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
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
        serde_json::to_writer(&mut *writer, &Document::from_trace(self))?;
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
        let failed = |source| FileError::Io { action: FileAction::Read, path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut start = Vec::new();
        (&mut file).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start).map_err(failed)?;
        if start == ZSTD_MAGIC {
            return Self::from_json(&unpack(start.as_slice().chain(file), path)?, path);
        }
        let mut text = start;
        file.take(TEXT_LIMIT).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > TEXT_LIMIT {
            return Err(FileError::TooLarge { path: path.to_owned(), limit: TEXT_LIMIT });
        }
        Self::from_json(&text, path)
    }

    /// Reads and validates the content of a trace file, compressed or not; `path` is only for error messages.
    ///
    /// # Errors
    /// As [`StepTrace::read`].
    pub fn from_bytes(content: &[u8], path: &Path) -> Result<StepTrace, FileError> {
        if content.starts_with(&ZSTD_MAGIC) {
            return Self::from_json(&unpack(content, path)?, path);
        }
        Self::from_json(content, path)
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

    /// Reads and validates a trace from JSON text; `path` is only for error messages.
    ///
    /// # Errors
    /// As [`StepTrace::read`].
    pub fn from_json(text: &[u8], path: &Path) -> Result<StepTrace, FileError> {
        let parsed = serde_json::from_slice::<Document<'_>>(text);
        // A newer version may have any shape, so its header is looked at before the rest is judged.
        let header = match &parsed {
            Ok(document) => {
                Header { format: Some(document.format.to_string()), version: Some(u64::from(document.version)) }
            }
            Err(_) => serde_json::from_slice(text).unwrap_or_default(),
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
        let document = parsed.map_err(|source| match source.classify() {
            serde_json::error::Category::Eof => {
                FileError::Truncated { path: path.to_owned(), line: source.line(), column: source.column() }
            }
            _ => FileError::Syntax { path: path.to_owned(), place: place_of_fault(text), source },
        })?;
        let trace = document.into_trace().map_err(|(place, message)| FileError::Syntax {
            path: path.to_owned(),
            place,
            source: serde::de::Error::custom(message),
        })?;
        trace.validate().map_err(|source| FileError::Invalid { path: path.to_owned(), source })?;
        Ok(trace)
    }
}

/// The text of a compressed trace.
fn unpack(packed: impl Read, path: &Path) -> Result<Vec<u8>, FileError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        zstd::Decoder::new(packed)?.take(TEXT_LIMIT + 1).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|source| FileError::Zstd { path: path.to_owned(), source })?;
    if text.len() as u64 > TEXT_LIMIT {
        return Err(FileError::TooLarge { path: path.to_owned(), limit: TEXT_LIMIT });
    }
    Ok(text)
}

/// The row and field where the text stops to be a trace. To follow the path takes time, so only text that is known to
/// be wrong is read this way.
fn place_of_fault(text: &[u8]) -> String {
    let deserializer = &mut serde_json::Deserializer::from_slice(text);
    let place =
        serde_path_to_error::deserialize::<_, Document<'_>>(deserializer).map_err(|error| error.path().to_string());
    // A single dot is the path of the whole.
    place.err().filter(|place| place != ".").unwrap_or_default()
}

#[derive(Default, Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u64>,
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    format: Cow<'a, str>,
    version: u32,
    model: Cow<'a, str>,
    #[serde(default)]
    facts: Cow<'a, [(String, String)]>,
    names: Cow<'a, [String]>,
    layouts: Vec<LayoutRow>,
    modules: Vec<ModuleRow<'a>>,
    calls: Vec<CallRow>,
    storages: Vec<StorageRow>,
    ops: Vec<OpRow>,
    events: Vec<EventRow>,
}

/// Element type, extents, strides.
#[derive(Serialize, Deserialize)]
struct LayoutRow(String, Vec<u64>, Vec<u64>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModuleRow<'a> {
    name: Cow<'a, str>,
    class: Cow<'a, str>,
    parent: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<ParameterRow<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    buffers: Vec<ParameterRow<'a>>,
}

/// Name, storage, layout.
#[derive(Serialize, Deserialize)]
struct ParameterRow<'a>(Cow<'a, str>, u32, u32);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallRow {
    module: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keywords: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<u32>,
}

/// Bytes, category, the op that makes it.
#[derive(Serialize, Deserialize)]
struct StorageRow(u64, Category, Option<u32>);

/// Storage, layout.
type TensorRow = (u32, u32);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpRow {
    name: u32,
    phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    differentiates: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    flags: Vec<FlagRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mutates: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<TensorRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<TensorRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    saves: Vec<TensorRow>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FlagRow {
    View,
    Random,
    Collective,
    Host,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventRow {
    Op(u32),
    Drop(u32),
    Return(u32),
    Unsave(u32),
    Recategorize(u32, Category),
    Enter(u32),
    Exit(u32),
    EnterBackward(u32),
    ExitBackward(u32),
}

/// Ids are made from `u32` only, so they always fit.
fn row(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn tensor_rows(tensors: &[Tensor]) -> Vec<TensorRow> {
    tensors.iter().map(|tensor| (row(tensor.storage.index()), row(tensor.layout.index()))).collect()
}

fn storage_rows(storages: &[StorageId]) -> Vec<u32> {
    storages.iter().map(|storage| row(storage.index())).collect()
}

fn parameter_rows(parameters: &[Parameter]) -> Vec<ParameterRow<'_>> {
    parameters
        .iter()
        .map(|parameter| {
            ParameterRow(Cow::Borrowed(&parameter.name), row(parameter.storage.index()), row(parameter.layout.index()))
        })
        .collect()
}

impl<'a> Document<'a> {
    fn from_trace(trace: &'a StepTrace) -> Self {
        Document {
            format: Cow::Borrowed(FORMAT),
            version: FORMAT_VERSION,
            model: Cow::Borrowed(&trace.model),
            facts: Cow::Borrowed(&trace.facts),
            names: Cow::Borrowed(&trace.names),
            layouts: trace
                .layouts
                .iter()
                .map(|layout| LayoutRow(layout.dtype.name().to_owned(), layout.shape.clone(), layout.strides.clone()))
                .collect(),
            modules: trace
                .modules
                .iter()
                .map(|module| ModuleRow {
                    name: Cow::Borrowed(&module.name),
                    class: Cow::Borrowed(&module.class),
                    parent: module.parent.map(|parent| row(parent.index())),
                    parameters: parameter_rows(&module.parameters),
                    buffers: parameter_rows(&module.buffers),
                })
                .collect(),
            calls: trace
                .calls
                .iter()
                .map(|call| CallRow {
                    module: row(call.module.index()),
                    inputs: storage_rows(&call.inputs),
                    keywords: storage_rows(&call.keywords),
                    outputs: storage_rows(&call.outputs),
                })
                .collect(),
            storages: trace
                .storages
                .iter()
                .map(|storage| StorageRow(storage.bytes, storage.category, storage.birth.map(|op| row(op.index()))))
                .collect(),
            ops: trace.ops.iter().map(|op| OpRow::from_op(trace, op)).collect(),
            events: trace.events.iter().map(|&event| EventRow::from(event)).collect(),
        }
    }

    /// The trace, or the place of a fault and what it is.
    fn into_trace(self) -> Result<StepTrace, (String, String)> {
        let mut trace = StepTrace::new(&self.model);
        trace.facts = self.facts.into_owned();
        for (row, LayoutRow(dtype, shape, strides)) in self.layouts.into_iter().enumerate() {
            let dtype = dtype.parse().map_err(|()| {
                (format!("layouts[{row}][0]"), format!("unknown dtype `{dtype}`; known are {}", Dtype::names()))
            })?;
            trace.layouts.push(Layout { dtype, shape, strides });
        }
        for module in self.modules {
            let parameters = |rows: Vec<ParameterRow<'_>>| {
                rows.into_iter()
                    .map(|ParameterRow(name, storage, layout)| Parameter {
                        name: name.into_owned(),
                        storage: StorageId::new(storage as usize),
                        layout: LayoutId::new(layout as usize),
                    })
                    .collect()
            };
            trace.add_module(Module {
                name: module.name.into_owned(),
                class: module.class.into_owned(),
                parent: module.parent.map(|parent| ModuleId::new(parent as usize)),
                parameters: parameters(module.parameters),
                buffers: parameters(module.buffers),
            });
        }
        let storages = |rows: Vec<u32>| rows.into_iter().map(|id| StorageId::new(id as usize)).collect::<Vec<_>>();
        for call in self.calls {
            let id = trace.enter(ModuleId::new(call.module as usize), storages(call.inputs));
            trace.set_keywords(id, storages(call.keywords));
            trace.exit(id, storages(call.outputs));
        }
        for (row, op) in self.ops.into_iter().enumerate() {
            op.run(&mut trace, &self.names).map_err(|message| (format!("ops[{row}].name"), message))?;
        }
        for StorageRow(bytes, category, birth) in self.storages {
            let birth = birth.map(|op| OpId::new(op as usize));
            trace.storages.push(crate::Storage { bytes, category, birth });
        }
        trace.events = self.events.into_iter().map(Event::from).collect();
        Ok(trace)
    }
}

impl OpRow {
    fn from_op(trace: &StepTrace, op: &crate::Op) -> Self {
        let flags = [
            (op.flags.view, FlagRow::View),
            (op.flags.random, FlagRow::Random),
            (op.flags.collective, FlagRow::Collective),
            (op.flags.host, FlagRow::Host),
        ];
        OpRow {
            name: row(op.name.index()),
            phase: op.phase,
            call: op.call.map(|call| row(call.index())),
            differentiates: op.differentiates.map(|forward| row(forward.index())),
            flags: flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect(),
            mutates: storage_rows(trace.mutates(op)),
            inputs: tensor_rows(trace.inputs(op)),
            outputs: tensor_rows(trace.outputs(op)),
            saves: tensor_rows(trace.saves(op)),
        }
    }

    fn run(self, trace: &mut StepTrace, names: &[String]) -> Result<(), String> {
        let name = names
            .get(self.name as usize)
            .ok_or_else(|| format!("unknown op name {}; there are {}", self.name, names.len()))?;
        let mut flags = Flags::default();
        for flag in self.flags {
            match flag {
                FlagRow::View => flags.view = true,
                FlagRow::Random => flags.random = true,
                FlagRow::Collective => flags.collective = true,
                FlagRow::Host => flags.host = true,
            }
        }
        let tensors = |rows: Vec<TensorRow>| {
            rows.into_iter()
                .map(|(storage, layout)| Tensor {
                    storage: StorageId::new(storage as usize),
                    layout: LayoutId::new(layout as usize),
                })
                .collect::<Vec<_>>()
        };
        trace.run(OpRecord {
            name,
            phase: self.phase,
            call: self.call.map(|call| CallId::new(call as usize)),
            differentiates: self.differentiates.map(|op| OpId::new(op as usize)),
            flags,
            mutates: &self.mutates.into_iter().map(|id| StorageId::new(id as usize)).collect::<Vec<_>>(),
            inputs: &tensors(self.inputs),
            outputs: &tensors(self.outputs),
            saves: &tensors(self.saves),
            births: &[],
        });
        Ok(())
    }
}

impl From<Event> for EventRow {
    fn from(event: Event) -> Self {
        match event {
            Event::Op(op) => EventRow::Op(row(op.index())),
            Event::Drop(storage) => EventRow::Drop(row(storage.index())),
            Event::Return(op) => EventRow::Return(row(op.index())),
            Event::Unsave(op) => EventRow::Unsave(row(op.index())),
            Event::Recategorize(storage, category) => EventRow::Recategorize(row(storage.index()), category),
            Event::Enter(call) => EventRow::Enter(row(call.index())),
            Event::Exit(call) => EventRow::Exit(row(call.index())),
            Event::EnterBackward(call) => EventRow::EnterBackward(row(call.index())),
            Event::ExitBackward(call) => EventRow::ExitBackward(row(call.index())),
        }
    }
}

/// An event as the file has it.
pub(crate) fn event_json(event: Event) -> String {
    // Numbers and fixed words always make JSON.
    serde_json::to_string(&EventRow::from(event)).unwrap_or_default()
}

impl From<EventRow> for Event {
    fn from(event: EventRow) -> Self {
        let op = |id: u32| OpId::new(id as usize);
        let storage = |id: u32| StorageId::new(id as usize);
        let call = |id: u32| CallId::new(id as usize);
        match event {
            EventRow::Op(id) => Event::Op(op(id)),
            EventRow::Drop(id) => Event::Drop(storage(id)),
            EventRow::Return(id) => Event::Return(op(id)),
            EventRow::Unsave(id) => Event::Unsave(op(id)),
            EventRow::Recategorize(id, category) => Event::Recategorize(storage(id), category),
            EventRow::Enter(id) => Event::Enter(call(id)),
            EventRow::Exit(id) => Event::Exit(call(id)),
            EventRow::EnterBackward(id) => Event::EnterBackward(call(id)),
            EventRow::ExitBackward(id) => Event::ExitBackward(call(id)),
        }
    }
}
