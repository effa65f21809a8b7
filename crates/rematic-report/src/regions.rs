//! The regions of a plan, as every planner's report shows them.

use std::collections::HashMap;
use std::fmt::Write;

use rematic_plan::{PlanDocument, PlannedCall, PlannedRegion};
use rematic_replay::Ran;
use rematic_trace::{Bytes, Decision, Millis, StepTrace, any_layer, short};
use serde::Serialize;

use crate::shorten::Shorten;
use crate::style::{Style, visible};
use crate::table::{Column, Table};

/// The most rows of regions that the text shows.
const ROWS: usize = 12;
/// The most runs of layers that a name lists.
const RUNS: usize = 4;
/// Names of modules are not cut below this width while a column can be left out instead.
const MODULE: usize = 24;

#[derive(Serialize)]
pub(crate) struct RegionJson<'a> {
    pub(crate) module: &'a str,
    /// The further calls of a run.
    #[serde(skip_serializing_if = "<[PlannedCall]>::is_empty")]
    pub(crate) then: &'a [PlannedCall],
    pub(crate) discard: f64,
    pub(crate) freed_bytes: Bytes,
    pub(crate) recompute_ms: Millis,
    pub(crate) policy: Vec<OpJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct OpJson<'a> {
    op: &'a str,
    decision: Decision,
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

/// Regions that are alike but for the layer that they belong to.
#[derive(Serialize)]
pub(crate) struct Kind {
    /// The modules.
    pub(crate) name: String,
    pub(crate) count: usize,
    /// Of each.
    pub(crate) frees: String,
    pub(crate) discards: String,
    pub(crate) recomputes: String,
    pub(crate) saves: String,
}

/// The regions, equal ones of equal layers as one.
pub(crate) fn kinds<'a>(regions: impl Iterator<Item = Row<'a>>) -> Vec<Kind> {
    let mut rows: Vec<([String; 5], Vec<Names<'_>>)> = Vec::new();
    let mut places = HashMap::new();
    for row in regions {
        let last = row.region.and_then(|region| region.then.last()).map(|last| last.module.as_str());
        let cells = [
            any_layer(row.module) + &last.map_or_else(String::new, any_layer),
            row.freed.to_string(),
            row.discard,
            row.recompute.to_string(),
            row.region.map_or_else(|| "nothing".to_owned(), saves),
        ];
        let index = *places.entry(cells.clone()).or_insert_with(|| {
            rows.push((cells, Vec::new()));
            rows.len() - 1
        });
        rows[index].1.push((row.module, last));
    }
    let kind = |([_, frees, discards, recomputes, saves], modules): ([String; 5], Vec<Names<'_>>)| Kind {
        name: named(&modules),
        count: modules.len(),
        frees,
        discards,
        recomputes,
        saves,
    };
    rows.into_iter().map(kind).collect()
}

/// A plan's regions as rows.
pub(crate) fn rows(plan: &PlanDocument) -> impl Iterator<Item = Row<'_>> {
    plan.regions.iter().map(|region| Row {
        module: &region.module,
        freed: region.freed_bytes,
        discard: format!("{:.0} %", region.discard * 100.0),
        recompute: region.recompute_ms,
        region: Some(region),
    })
}

/// The regions as text.
pub(crate) fn table<'a>(regions: impl Iterator<Item = Row<'a>>, style: Style) -> String {
    let kinds = kinds(regions);
    if kinds.is_empty() {
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
    let more = kinds.len().saturating_sub(ROWS);
    for kind in kinds.into_iter().take(ROWS) {
        let count = if kind.count > 1 { format!("{}×", kind.count) } else { String::new() };
        table.row([kind.name, count, kind.frees, kind.discards, kind.recomputes, kind.saves]);
    }
    let mut text = table.render(style);
    if more > 0 {
        let _ = writeln!(text, "and {more} more kinds of regions; -o FILE writes them all");
    }
    text
}

/// The module of a region; of a run the first, and the last.
type Names<'a> = (&'a str, Option<&'a str>);

/// Regions of one kind.
fn named(regions: &[Names<'_>]) -> String {
    let firsts: Vec<&str> = regions.iter().map(|(first, _)| *first).collect();
    let runs: Option<Vec<(&str, &str)>> = regions.iter().map(|(first, last)| Some((*first, (*last)?))).collect();
    match runs {
        None => layers(&firsts),
        Some(runs) => format!("{} as one", spans(&runs)),
    }
}

/// Runs of modules by the first and the last of each: `layers.0-3,4-7`.
fn spans(runs: &[(&str, &str)]) -> String {
    let numbered = |(first, last): &(&str, &str)| {
        let (first, last) = (inner(first), inner(last));
        let (list, from) = first.rsplit_once('.').unwrap_or(("", first));
        let (other, to) = last.rsplit_once('.').unwrap_or(("", last));
        let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
        (list == other && from < to).then(|| (list.to_owned(), format!("{from}-{to}")))
    };
    let found: Option<Vec<(String, String)>> = runs.iter().map(numbered).collect();
    let Some(found) = found.filter(|found| found.iter().all(|(list, _)| *list == found[0].0)) else {
        let named = runs.iter().map(|(first, last)| format!("{} to {}", inner(first), inner(last)));
        let named: Vec<String> = named.take(RUNS).collect();
        return named.join(", ") + if runs.len() > RUNS { ", …" } else { "" };
    };
    let ranges: Vec<&str> = found.iter().map(|(_, range)| range.as_str()).collect();
    let listed = if ranges.len() > RUNS { "*".to_owned() } else { ranges.join(",") };
    if found[0].0.is_empty() { listed } else { format!("{}.{listed}", found[0].0) }
}

/// Modules that differ in their positions in lists: `layers.0-6,8.mlp`. Where more than one position differs, they are left
/// open.
fn layers(modules: &[&str]) -> String {
    let parts: Vec<Vec<String>> =
        modules.iter().map(|path| inner(path).split('.').map(str::to_owned).collect()).collect();
    let Some(first) = parts.first() else { return String::new() };
    let differs = |at: &usize| parts.iter().any(|path| path.get(*at) != first.get(*at));
    let places: Vec<usize> = (0..first.len()).filter(differs).collect();
    let numbers: Option<Vec<u64>> = match places[..] {
        [] => return first.join("."),
        [place] => parts.iter().map(|path| path.get(place)?.parse().ok()).collect(),
        _ => None,
    };
    let Some(mut numbers) = numbers else { return any_layer(modules[0]) };
    numbers.sort_unstable();
    numbers.dedup();
    let runs: Vec<String> = numbers
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            [one, two] => format!("{one},{two}"),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect();
    let listed = if runs.len() > RUNS { "*".to_owned() } else { runs.join(",") };
    let named = |(at, part): (usize, &String)| if at == places[0] { listed.clone() } else { part.clone() };
    first.iter().enumerate().map(named).collect::<Vec<_>>().join(".")
}

/// A module's name as it is called in code: without the root's, unless it is the root.
pub(crate) fn inner(path: &str) -> &str {
    path.split_once('.').map_or(path, |(_, inner)| inner)
}

/// The operators that a region saves, each name once, and what of it on the host.
fn saves(region: &PlannedRegion) -> String {
    let named = |decision: Decision| {
        let ops = region.policy.iter().filter(|op| op.decision == decision);
        let mut names: Vec<&str> = ops.map(|op| short(&op.op)).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    };
    let saved = Some(named(Decision::Save)).filter(|names| !names.is_empty());
    let moved = region.offload.map(|moves| format!("{} on the host ({})", moves.bytes, named(Decision::Offload)));
    let parts: Vec<String> = saved.into_iter().chain(moved).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

/// Where a replayed step peaks, as the end of a sentence.
pub(crate) fn place(trace: &StepTrace, at: Option<Ran>) -> String {
    let Some(ran) = at else { return String::new() };
    let op = trace.op(ran.op);
    let module = trace.module_of(op).map_or_else(String::new, |module| format!(" in {}", trace.path(module)));
    let phase = if ran.again { "recomputed".to_owned() } else { op.phase.to_string() };
    visible(&format!(", at {}{module} ({phase})", short(trace.op_name(op))))
}

#[cfg(test)]
mod tests {
    use super::{layers, named};

    #[test]
    fn runs_are_named_by_their_first_and_last_modules() {
        assert_eq!(named(&[("M.layers.0", Some("M.layers.3"))]), "layers.0-3 as one");
        assert_eq!(named(&[("M.h.0", Some("M.h.3")), ("M.h.4", Some("M.h.7"))]), "h.0-3,4-7 as one");
        assert_eq!(named(&[("S.0", Some("S.19"))]), "0-19 as one");
        assert_eq!(named(&[("M.conv", Some("M.layer1"))]), "conv to layer1 as one");
        assert_eq!(named(&[("M.h.0", Some("M.norm"))]), "h.0 to norm as one");
        let many: Vec<_> = ["M.h.0", "M.h.2", "M.h.4", "M.h.6", "M.h.8"].map(|first| (first, Some("M.h.9"))).to_vec();
        assert_eq!(named(&many), "h.* as one");
    }

    #[test]
    fn modules_are_named_with_their_layers() {
        assert_eq!(layers(&["Model.layers.3"]), "layers.3");
        assert_eq!(layers(&["Model"]), "Model");
        assert_eq!(layers(&["Model.layers.0.mlp", "Model.layers.1.mlp", "Model.layers.2.mlp"]), "layers.0-2.mlp");
        assert_eq!(layers(&["M.h.7", "M.h.0", "M.h.3", "M.h.4"]), "h.0,3,4,7");
        assert_eq!(layers(&["M.a.0.b.1", "M.a.1.b.2"]), "a.*.b.*");
        assert_eq!(layers(&["M.h.0", "M.h.2", "M.h.4", "M.h.6", "M.h.8"]), "h.*");
        // One module called twice.
        assert_eq!(layers(&["M.h.0", "M.h.0"]), "h.0");
    }
}
