//! The rows of the tables as the file has them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

use crate::{
    CallId, Category, CollectiveKind, Dtype, Event, LayoutId, OpId, Parameter, Phase, StorageId, StreamId, Tensor,
};

/// Element type, extents, strides.
#[derive(Serialize, Deserialize)]
pub(super) struct LayoutRow(pub(super) Dtype, pub(super) Vec<u64>, pub(super) Vec<u64>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModuleRow<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) class: Cow<'a, str>,
    pub(super) parent: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parameters: Vec<ParameterRow<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) buffers: Vec<ParameterRow<'a>>,
}

/// Name, storage, layout.
#[derive(Serialize, Deserialize)]
pub(super) struct ParameterRow<'a>(Cow<'a, str>, u32, u32);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallRow {
    pub(super) module: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) inputs: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) keywords: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) outputs: Vec<u32>,
}

/// Bytes, category, the op that makes it, and words for what most are not.
pub(super) struct StorageRow {
    pub(super) bytes: u64,
    pub(super) category: Category,
    pub(super) birth: Option<u32>,
    pub(super) words: Vec<StorageWord>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StorageWord {
    Pinned,
    Released,
    Seen,
    Share(u64),
}

impl Serialize for StorageRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_tuple(3 + self.words.len())?;
        row.serialize_element(&self.bytes)?;
        row.serialize_element(&self.category)?;
        row.serialize_element(&self.birth)?;
        for word in &self.words {
            row.serialize_element(word)?;
        }
        row.end()
    }
}

impl<'de> Deserialize<'de> for StorageRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;

        impl<'de> Visitor<'de> for Row {
            type Value = StorageRow;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a storage: bytes, category, birth")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<StorageRow, A::Error> {
                let short = |length| A::Error::invalid_length(length, &self);
                let mut storage = StorageRow {
                    bytes: row.next_element()?.ok_or_else(|| short(0))?,
                    category: row.next_element()?.ok_or_else(|| short(1))?,
                    birth: row.next_element()?.ok_or_else(|| short(2))?,
                    words: Vec::new(),
                };
                while let Some(word) = row.next_element()? {
                    let same = |other: &StorageWord| std::mem::discriminant(other) == std::mem::discriminant(&word);
                    if storage.words.iter().any(same) {
                        return Err(A::Error::custom("the same word twice"));
                    }
                    storage.words.push(word);
                }
                Ok(storage)
            }
        }
        deserializer.deserialize_seq(Row)
    }
}

/// Kind, ranks of the group, axis, bytes.
#[derive(Serialize, Deserialize)]
pub(super) struct CollectiveRow<'a>(pub(super) CollectiveKind, pub(super) u32, pub(super) Cow<'a, str>, pub(super) u64);

/// Name, ranks along it, the rank's coordinate.
#[derive(Serialize, Deserialize)]
pub(super) struct AxisRow<'a>(pub(super) Cow<'a, str>, pub(super) u32, pub(super) u32);

/// Storage, layout.
pub(super) type TensorRow = (u32, u32);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpRow {
    pub(super) name: u32,
    pub(super) phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) differentiates: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<FlagRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stream: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) collective: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) mutates: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) inputs: Vec<TensorRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) outputs: Vec<TensorRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) saves: Vec<TensorRow>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FlagRow {
    View,
    Random,
    /// Of version 1.
    Collective,
    Host,
    Holds,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EventRow {
    Op(u32),
    Drop(u32),
    Return(u32),
    Unsave(u32),
    Recategorize(u32, Category),
    Release(u32),
    Restore(u32),
    Shrink(u32, u64),
    Wait(u32, u32),
    MicroBatch(u32),
    Enter(u32),
    Exit(u32),
    EnterBackward(u32),
    ExitBackward(u32),
}

impl EventRow {
    /// Its name, if version 1 does not have it.
    pub(super) fn of_version_2(self) -> Option<&'static str> {
        match self {
            EventRow::Release(_) => Some("release"),
            EventRow::Restore(_) => Some("restore"),
            EventRow::Shrink(..) => Some("shrink"),
            EventRow::Wait(..) => Some("wait"),
            EventRow::MicroBatch(_) => Some("micro_batch"),
            _ => None,
        }
    }
}

/// Ids are made from `u32` only, so they always fit.
pub(super) fn row(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

pub(super) fn tensor_rows(tensors: &[Tensor]) -> Vec<TensorRow> {
    tensors.iter().map(|tensor| (row(tensor.storage.index()), row(tensor.layout.index()))).collect()
}

pub(super) fn storage_rows(storages: &[StorageId]) -> Vec<u32> {
    storages.iter().map(|storage| row(storage.index())).collect()
}

pub(super) fn parameter_rows(parameters: &[Parameter]) -> Vec<ParameterRow<'_>> {
    parameters
        .iter()
        .map(|parameter| {
            ParameterRow(Cow::Borrowed(&parameter.name), row(parameter.storage.index()), row(parameter.layout.index()))
        })
        .collect()
}

pub(super) fn tensors(rows: &[TensorRow]) -> impl Iterator<Item = Tensor> + '_ {
    rows.iter().map(|&(storage, layout)| Tensor {
        storage: StorageId::new(storage as usize),
        layout: LayoutId::new(layout as usize),
    })
}

pub(super) fn storages(rows: &[u32]) -> impl Iterator<Item = StorageId> + '_ {
    rows.iter().map(|&id| StorageId::new(id as usize))
}

impl From<ParameterRow<'_>> for Parameter {
    fn from(ParameterRow(name, storage, layout): ParameterRow<'_>) -> Self {
        Parameter {
            name: name.into_owned(),
            storage: StorageId::new(storage as usize),
            layout: LayoutId::new(layout as usize),
        }
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
            Event::Release(storage) => EventRow::Release(row(storage.index())),
            Event::Restore(storage) => EventRow::Restore(row(storage.index())),
            Event::Shrink(storage, bytes) => EventRow::Shrink(row(storage.index()), bytes),
            Event::Wait { stream, on } => EventRow::Wait(row(stream.index()), row(on.index())),
            Event::MicroBatch(number) => EventRow::MicroBatch(number),
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
        let stream = |id: u32| StreamId::new(id as usize);
        match event {
            EventRow::Op(id) => Event::Op(op(id)),
            EventRow::Drop(id) => Event::Drop(storage(id)),
            EventRow::Return(id) => Event::Return(op(id)),
            EventRow::Unsave(id) => Event::Unsave(op(id)),
            EventRow::Recategorize(id, category) => Event::Recategorize(storage(id), category),
            EventRow::Release(id) => Event::Release(storage(id)),
            EventRow::Restore(id) => Event::Restore(storage(id)),
            EventRow::Shrink(id, bytes) => Event::Shrink(storage(id), bytes),
            EventRow::Wait(waits, on) => Event::Wait { stream: stream(waits), on: stream(on) },
            EventRow::MicroBatch(number) => Event::MicroBatch(number),
            EventRow::Enter(id) => Event::Enter(call(id)),
            EventRow::Exit(id) => Event::Exit(call(id)),
            EventRow::EnterBackward(id) => Event::EnterBackward(call(id)),
            EventRow::ExitBackward(id) => Event::ExitBackward(call(id)),
        }
    }
}
