//! The regions of a plan, as every planner's report shows them.

use std::collections::HashMap;
use std::fmt::Write;

use rematic_memory::Ran;
use rematic_plan::{Choice, PlannedRegion};
use rematic_trace::{Bytes, Millis, StepTrace, any_layer};
use serde::Serialize;

use crate::shorten::Shorten;
use crate::stats::short;
use crate::style::Style;
use crate::table::{Column, Table};

/// The most rows of regions that the text shows.
const ROWS: usize = 12;
/// Names of modules are not cut below this width while a column can be left out instead.
const MODULE: usize = 24;

#[derive(Serialize)]
pub(crate) struct RegionJson<'a> {
    pub(crate) module: &'a str,
    pub(crate) discard: f64,
    pub(crate) freed_bytes: Bytes,
    pub(crate) recompute_ms: Millis,
    pub(crate) policy: Vec<OpJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct OpJson<'a> {
    op: &'a str,
    decision: Choice,
}

/// The decisions of a region.
pub(crate) fn policy(region: &PlannedRegion) -> Vec<OpJson<'_>> {
    region.policy.iter().map(|op| OpJson { op: &op.op, decision: op.decision }).collect()
}

/// A row of the table.
pub(crate) struct Row<'a> {
    pub(crate) module: &'a str,
    pub(crate) freed: Bytes,
    pub(crate) discard: String,
    pub(crate) recompute: Millis,
    /// Where its decisions are.
    pub(crate) region: Option<&'a PlannedRegion>,
}

/// The regions, equal ones of equal layers in one row.
pub(crate) fn table<'a>(regions: impl Iterator<Item = Row<'a>>, style: Style) -> String {
    let mut rows: Vec<([String; 5], usize)> = Vec::new();
    let mut places = HashMap::new();
    for row in regions {
        let cells = [
            any_layer(row.module),
            row.freed.to_string(),
            row.discard,
            row.recompute.to_string(),
            row.region.map_or_else(|| "nothing".to_owned(), saves),
        ];
        let index = *places.entry(cells.clone()).or_insert_with(|| {
            rows.push((cells, 0));
            rows.len() - 1
        });
        rows[index].1 += 1;
    }
    if rows.is_empty() {
        return "Nothing is checkpointed.\n".to_owned();
    }
    let mut table = Table::new([
        Column::text("checkpoint, each").shorten(Shorten::Outer, MODULE),
        Column::number(""),
        Column::number("frees"),
        Column::number("discards").leave_out(1),
        Column::number("recomputes"),
        Column::text("saves").wrap().leave_out(0),
    ]);
    let more = rows.len().saturating_sub(ROWS);
    for ([name, freed, discard, time, saved], count) in rows.into_iter().take(ROWS) {
        let count = if count > 1 { format!("{count}×") } else { String::new() };
        table.row([name, count, freed, discard, time, saved]);
    }
    let mut text = table.render(style);
    if more > 0 {
        let _ = writeln!(text, "and {more} more kinds of regions; -o FILE writes them all");
    }
    text
}

/// The operators that a region saves, each name once.
fn saves(region: &PlannedRegion) -> String {
    let mut saved: Vec<&str> =
        region.policy.iter().filter(|op| op.decision == Choice::Save).map(|op| short(&op.op)).collect();
    saved.sort_unstable();
    saved.dedup();
    if saved.is_empty() { "nothing".to_owned() } else { saved.join(", ") }
}

/// Where a replayed step peaks, as the end of a sentence.
pub(crate) fn place(trace: &StepTrace, at: Option<Ran>) -> String {
    let Some(ran) = at else { return String::new() };
    let op = trace.op(ran.op);
    let module = trace.module_of(op).map_or_else(String::new, |module| format!(" in {}", trace.path(module)));
    let phase = if ran.again { "recomputed".to_owned() } else { op.phase.to_string() };
    format!(", at {}{module} ({phase})", short(trace.op_name(op)))
}
