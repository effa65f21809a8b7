//! A trace as a document. What holds its default is not written.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use super::rows::{
    AxisRow, CallRow, CollectiveRow, EventRow, FlagRow, LayoutRow, ModuleRow, OpRow, StorageRow, StorageWord,
    parameter_rows, row, storage_rows, tensor_rows,
};
use super::{FORMAT, FORMAT_VERSION};
use crate::{Op, Origin, Pool, StepTrace, Storage, StreamId};

#[derive(Serialize)]
pub(super) struct Document<'a> {
    format: &'static str,
    version: u32,
    origin: &'a Origin,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    place: Vec<AxisRow<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    streams: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    collectives: Vec<CollectiveRow<'a>>,
    names: &'a [String],
    layouts: Rows<'a, LayoutRow>,
    modules: Rows<'a, ModuleRow<'a>>,
    calls: Rows<'a, CallRow>,
    storages: Rows<'a, StorageRow>,
    ops: Rows<'a, OpRow>,
    events: Rows<'a, EventRow>,
}

/// The rows of a table, made one by one.
struct Rows<'a, T>(Box<dyn Fn() -> Box<dyn Iterator<Item = T> + 'a> + 'a>);

impl<'a, T> Rows<'a, T> {
    fn new<I: Iterator<Item = T> + 'a>(rows: impl Fn() -> I + 'a) -> Self {
        Rows(Box::new(move || Box::new(rows())))
    }
}

impl<T: Serialize> Serialize for Rows<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

impl<'a> Document<'a> {
    pub(super) fn from_trace(trace: &'a StepTrace) -> Self {
        let axes = trace.place.axes.iter();
        let only_compute = trace.streams == StepTrace::default().streams;
        let collectives = trace.collectives.iter();
        Document {
            format: FORMAT,
            version: FORMAT_VERSION,
            origin: &trace.origin,
            place: axes.map(|axis| AxisRow(Cow::Borrowed(&axis.name), axis.size, axis.coordinate)).collect(),
            streams: if only_compute { &[] } else { &trace.streams },
            collectives: collectives.map(|c| CollectiveRow(c.kind, c.group, Cow::Borrowed(&c.axis), c.bytes)).collect(),
            names: &trace.names,
            layouts: Rows::new(|| {
                let row =
                    |layout: &crate::Layout| LayoutRow(layout.dtype, layout.shape.clone(), layout.strides.clone());
                trace.layouts.iter().map(row)
            }),
            modules: Rows::new(|| {
                trace.modules.iter().map(|module| ModuleRow {
                    name: Cow::Borrowed(&module.name),
                    class: Cow::Borrowed(&module.class),
                    parent: module.parent.map(|parent| row(parent.index())),
                    parameters: parameter_rows(&module.parameters),
                    buffers: parameter_rows(&module.buffers),
                })
            }),
            calls: Rows::new(|| {
                trace.calls.iter().map(|call| CallRow {
                    module: row(call.module.index()),
                    inputs: storage_rows(&call.inputs),
                    keywords: storage_rows(&call.keywords),
                    outputs: storage_rows(&call.outputs),
                })
            }),
            storages: Rows::new(|| {
                trace.storages.iter().map(|storage| StorageRow {
                    bytes: storage.bytes,
                    category: storage.category,
                    birth: storage.birth.map(|op| row(op.index())),
                    words: storage_words(storage),
                })
            }),
            ops: Rows::new(|| trace.ops.iter().map(|op| op_row(trace, op))),
            events: Rows::new(|| trace.events.iter().map(|&event| EventRow::from(event))),
        }
    }
}

fn storage_words(storage: &Storage) -> Vec<StorageWord> {
    let words = [
        (storage.pool == Pool::Pinned, StorageWord::Pinned),
        (storage.released, StorageWord::Released),
        (storage.seen, StorageWord::Seen),
        (storage.share.is_some(), StorageWord::Share(storage.own_bytes())),
    ];
    words.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect()
}

fn op_row(trace: &StepTrace, op: &Op) -> OpRow {
    let flags = [
        (op.flags.view, FlagRow::View),
        (op.flags.random, FlagRow::Random),
        (op.flags.host, FlagRow::Host),
        (op.flags.holds, FlagRow::Holds),
    ];
    OpRow {
        name: row(op.name.index()),
        phase: op.phase,
        call: op.call.map(|call| row(call.index())),
        differentiates: op.differentiates.map(|forward| row(forward.index())),
        flags: flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect(),
        stream: (op.stream != StreamId::COMPUTE).then(|| row(op.stream.index())),
        collective: op.collective.map(|collective| row(collective.index())),
        mutates: storage_rows(trace.mutates(op)),
        inputs: tensor_rows(trace.inputs(op)),
        outputs: tensor_rows(trace.outputs(op)),
        saves: tensor_rows(trace.saves(op)),
    }
}
