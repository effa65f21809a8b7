//! What a memory snapshot means, for people and for programs.

mod page;

use rematic_snapshot::{Failure, MomentKind, Outcome, Start, Story};
use rematic_trace::Bytes;
use serde::Serialize;

pub use self::page::SnapshotPage;
use crate::json::json;
use crate::shorten::{Shorten, wrap};
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// How many rows the tables of the text have.
const LINES: usize = 12;
const MODULES: usize = 6;
const SEGMENTS: usize = 5;
/// Below this share of what is reserved, free memory is not worth a table.
const WORTH_A_TABLE: f64 = 0.05;
/// Widths below which shortened text says little: of lines, of modules.
const LINE: usize = 24;
const MODULE: usize = 20;

/// What a model is predicted to take, beside what the run took.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The model.
    pub model: String,
    /// The highest bytes that are allocated.
    pub allocated_bytes: Bytes,
    /// The highest bytes that are reserved.
    pub reserved_bytes: Bytes,
}

/// Everything that `rematic explain` says about a memory snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotReport<'a> {
    /// The file.
    pub file: &'a str,
    /// What it means.
    pub story: &'a Story,
    /// What was predicted, if a model was given too.
    pub prediction: Option<&'a Prediction>,
}

impl SnapshotReport<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            file: &'a str,
            #[serde(flatten)]
            story: &'a Story,
            #[serde(skip_serializing_if = "Option::is_none")]
            prediction: Option<&'a Prediction>,
        }
        json(&Json { file: self.file, story: self.story, prediction: self.prediction })
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = style.paint(&format!("{}, GPU {}", self.file, self.story.device), Tone::Strong) + "\n";
        text += &self.what_happened(style);
        text += &self.parts(style);
        text += &self.lines(style);
        text += &self.modules(style);
        text += &self.fragmentation(style);
        text += &self.settings(style);
        text += &self.against(style);
        for line in self.basis() {
            text += &quiet(&line, style);
        }
        text
    }

    fn what_happened(&self, style: Style) -> String {
        let moment = &self.story.moment;
        let (lead, tail) = match (&self.story.failure, moment.kind) {
            (Some(failure), _) => (("Out of memory:", Tone::Bad), failed(failure)),
            (None, MomentKind::Snapshot) => (
                ("When the snapshot was taken", Tone::Strong),
                format!("{} were allocated; what happened before was not recorded.", moment.allocated_bytes),
            ),
            (None, _) => (
                ("The peak", Tone::Strong),
                format!(
                    "is {} allocated, after event {} of {}.",
                    moment.allocated_bytes, moment.event, self.story.record.events
                ),
            ),
        };
        let text = style.sentence(&Sentence { lead, head: "", gap: " ", tail: (&tail, Tone::Plain) });
        let of = match &self.story.failure {
            Some(failure) => format!(" of {} that the process could have", failure.capacity_bytes),
            None => String::new(),
        };
        let numbers = format!(
            "{} requested, {} allocated, {} reserved{of}",
            moment.requested_bytes, moment.allocated_bytes, moment.reserved_bytes
        );
        text + &style.sentence(&Sentence { lead: ("", Tone::Plain), head: &numbers, gap: "", tail: ("", Tone::Plain) })
    }

    fn parts(&self, style: Style) -> String {
        let mut table =
            Table::new([Column::text("in memory"), Column::number(""), Column::number("blocks").tone(Tone::Quiet)]);
        for part in &self.story.moment.parts {
            table.row([part.part.to_string(), part.bytes.to_string(), part.count.to_string()]);
        }
        table.render(style) + "\n"
    }

    fn lines(&self, style: Style) -> String {
        let any_from = self.story.moment.groups.iter().take(LINES).any(|group| group.user.is_some());
        let mut table = Table::new([
            Column::number("largest tensors"),
            Column::number(""),
            Column::text("part").leave_out(1),
            Column::text("asked for by").shorten(Shorten::Word, LINE),
            Column::text(if any_from { "from" } else { "" }).shorten(Shorten::Word, MODULE).leave_out(0),
            Column::text("in the calls").shorten(Shorten::End, MODULE).leave_out(2),
        ]);
        for group in self.story.moment.groups.iter().take(LINES) {
            let count = if group.count > 1 { format!("{}×", group.count) } else { String::new() };
            let from = group.user.clone().unwrap_or_default();
            let line = group.line.clone();
            table.row([group.bytes.to_string(), count, group.part.to_string(), line, from, group.module.clone()]);
        }
        table.render(style) + "\n"
    }

    fn modules(&self, style: Style) -> String {
        let modules = &self.story.moment.modules;
        if modules.len() < 2 {
            return String::new();
        }
        let mut table = Table::new([
            Column::number("by module"),
            Column::number(""),
            Column::text("called at").shorten(Shorten::End, MODULE),
        ]);
        for module in modules.iter().take(MODULES) {
            let called = if module.module.is_empty() { "the outermost" } else { &module.module };
            table.row([module.bytes.to_string(), format!("{}×", module.count), called.to_owned()]);
        }
        table.render(style) + "\n"
    }

    fn fragmentation(&self, style: Style) -> String {
        let found = &self.story.fragmentation;
        let reserved = self.story.moment.reserved_bytes;
        #[expect(clippy::cast_precision_loss, reason = "a share to look at")]
        let share = found.free_bytes.0 as f64 / reserved.0.max(1) as f64;
        let tail = format!(
            "{} of {reserved} reserved were not in use ({:.1} %), in {} {}, the largest of {}; rounding took {}.",
            found.free_bytes,
            share * 100.0,
            found.pieces,
            if found.pieces == 1 { "piece" } else { "pieces" },
            found.largest_free_bytes,
            found.rounding_bytes
        );
        let lead = ("Fragmentation:", if share < WORTH_A_TABLE { Tone::Plain } else { Tone::Accent });
        let mut text = style.sentence(&Sentence { lead, head: "", gap: " ", tail: (&tail, Tone::Plain) });
        if share >= WORTH_A_TABLE && !found.pinned.is_empty() {
            let mut table = Table::new([
                Column::number("free"),
                Column::number("in a segment of"),
                Column::number("kept by").tone(Tone::Quiet),
                Column::text("the largest of them").shorten(Shorten::End, LINE),
            ]);
            for segment in found.pinned.iter().take(SEGMENTS) {
                let blocks: Vec<String> =
                    segment.blocks.iter().map(|block| format!("{} {}", block.bytes, block.line)).collect();
                let kept = if segment.live == 1 { "1 block".to_owned() } else { format!("{} blocks", segment.live) };
                table.row([segment.free_bytes.to_string(), segment.bytes.to_string(), kept, blocks.join("; ")]);
            }
            text += &table.render(style);
        }
        text + "\n"
    }

    fn settings(&self, style: Style) -> String {
        if self.story.trials.is_empty() {
            return String::new();
        }
        let mut table = Table::new([
            Column::text("with other settings").shorten(Shorten::Word, 36),
            Column::number("reserves at most"),
            Column::text("").shorten(Shorten::End, LINE),
        ]);
        let recorded = if self.story.settings.is_empty() { "torch's defaults" } else { &self.story.settings };
        let ended = if self.story.failure.is_some() { "ran out" } else { "as recorded" };
        table.row([format!("as it was: {recorded}"), self.story.reserved_peak_bytes.to_string(), ended.to_owned()]);
        for trial in &self.story.trials {
            let outcome = match trial.outcome {
                Outcome::Runs => "",
                Outcome::Saved => "would have met the request that failed",
                Outcome::RunsOut => "runs out at the same request",
                Outcome::RunsOutBefore => "runs out before",
            };
            table.row([trial.settings.clone(), trial.reserved_bytes.to_string(), outcome.to_owned()]);
        }
        table.render(style) + &self.advice(style) + "\n"
    }

    /// Whether any of the settings would have been enough.
    fn advice(&self, style: Style) -> String {
        let Some(failure) = &self.story.failure else { return String::new() };
        let needed = Bytes(self.story.moment.active_bytes.0.saturating_add(failure.wanted_bytes.0));
        let capacity = failure.capacity_bytes;
        let (lead, tail) = match self.story.trials.iter().find(|trial| trial.outcome == Outcome::Saved) {
            Some(best) => (
                ("PYTORCH_CUDA_ALLOC_CONF", Tone::Good),
                format!("={} would have met this request; what comes after it is not in the record.", best.settings),
            ),
            None if needed > capacity => (
                ("No setting helps:", Tone::Bad),
                format!(
                    "what was in use and the request are {needed}, {} more than {capacity}. Lower the peak: \
                     `rematic explain` with the model says how.",
                    needed.saturating_sub(capacity)
                ),
            ),
            None => (
                ("None of these settings is enough,", Tone::Bad),
                format!(
                    "though what was in use and the request are only {needed} of {capacity}. Lower the peak, or free \
                     what pins the segments above."
                ),
            ),
        };
        let gap = if tail.starts_with('=') { "" } else { " " };
        style.sentence(&Sentence { lead, head: "", gap, tail: (&tail, Tone::Plain) })
    }

    fn against(&self, style: Style) -> String {
        let Some(prediction) = self.prediction else { return String::new() };
        let mut table = Table::new([
            Column::text("against the prediction").shorten(Shorten::End, MODULE),
            Column::number("predicted"),
            Column::number("in the run"),
            Column::number("the run has"),
        ]);
        let rows = [
            ("allocated at its peak", prediction.allocated_bytes, self.story.allocated_peak_bytes),
            ("reserved at its peak", prediction.reserved_bytes, self.story.reserved_peak_bytes),
        ];
        for (name, predicted, found) in rows {
            let difference = if found >= predicted {
                format!("{} more", found.saturating_sub(predicted))
            } else {
                format!("{} less", predicted.saturating_sub(found))
            };
            table.row([name.to_owned(), predicted.to_string(), found.to_string(), difference]);
        }
        let mut text = table.render(style);
        if self.story.failure.is_some() {
            text += &quiet("The run ended before its step did, so that it may not have come to its peak.", style);
        }
        text + "\n"
    }

    /// What the answer is based on.
    fn basis(&self) -> Vec<String> {
        let (record, mut lines) = (&self.story.record, Vec::new());
        if self.story.moment.kind == MomentKind::Snapshot {
            lines.push(
                "Only the state was recorded; with _record_memory_history(\"all\") there would be more to say."
                    .to_owned(),
            );
            return lines;
        }
        lines.push(if record.complete {
            format!("The record has {} events and begins with the first request of the process.", record.events)
        } else {
            let blocks = if record.before_count == 1 { "block" } else { "blocks" };
            let were = if record.before_count == 1 { "was" } else { "were" };
            format!(
                "The record has {} events and begins later: {} {blocks} ({}) {were} there before, of which it knows no \
                 more.",
                record.events, record.before_count, record.before_bytes
            )
        });
        match &self.story.rerun {
            Some(rerun) if rerun.reproduced => lines.push(format!(
                "Made again with the recorded settings, the requests lead to {} of the driver.",
                match rerun.driver_calls {
                    0 => "no call, as it was,".to_owned(),
                    1 => "the same call".to_owned(),
                    calls => format!("the same {calls} calls"),
                }
            )),
            Some(rerun) => lines.push(format!(
                "Made again with the recorded settings, the requests lead to other calls of the driver after {} of {} \
                 (they reserve {}, recorded are {}), so that what is said of other settings is an estimate.",
                rerun.same, rerun.driver_calls, rerun.reserved_bytes, self.story.reserved_peak_bytes
            )),
            None => {}
        }
        if self.story.trials.iter().any(|trial| trial.start == Start::Packed) {
            lines.push(
                "Other settings are tried with the blocks from before placed anew, one behind the other.".to_owned(),
            );
        }
        let runs_out = |outcome: Outcome| matches!(outcome, Outcome::RunsOut | Outcome::RunsOutBefore);
        if self.story.trials.iter().any(|trial| runs_out(trial.outcome)) {
            lines.push(
                "Of settings that run out, what they reserve is what they would reserve on a device without that limit."
                    .to_owned(),
            );
        }
        if self.story.trials_left_out {
            lines.push("Some settings were not tried: the record is too long or too scattered for that.".to_owned());
        }
        if !record.stacks {
            lines.push("No stacks were recorded; leave out context=None to see who asked.".to_owned());
        }
        if record.misfits > 0 || !record.agrees {
            lines.push(format!(
                "Events contradict each other or the segments ({} of them plainly); the numbers may be off.",
                record.misfits
            ));
        }
        if let Some(unread) = &self.story.settings_unread {
            let nothing = if self.story.trials.is_empty() { " So no other settings can be tried." } else { "" };
            lines.push(format!("The recorded settings could not all be read: {unread}{nothing}"));
        }
        if let Some(others) = self.other_devices() {
            lines.push(others);
        }
        lines
    }

    fn other_devices(&self) -> Option<String> {
        let others = || self.story.devices.iter().filter(|device| **device != self.story.device);
        let numbers: Vec<String> = others().map(ToString::to_string).collect();
        let options: Vec<String> = others().map(|device| format!("--gpu {device}")).collect();
        let (numbers, seen) = match numbers.as_slice() {
            [] => return None,
            [one] => (format!("GPU {one}"), "it"),
            several => (format!("GPUs {}", several.join(", ")), "them"),
        };
        Some(format!("The snapshot also has {numbers}; see {seen} with {}.", options.join(" or ")))
    }
}

fn failed(failure: &Failure) -> String {
    let user = failure.user.as_ref().map_or_else(String::new, |user| format!(" (from {user})"));
    let again = if failure.count > 1 {
        format!("; this is the last of {} such failures", failure.count)
    } else {
        String::new()
    };
    format!(
        "{} were asked for by {}{user}, and the device had {} left{again}.",
        failure.wanted_bytes, failure.line, failure.device_free_bytes
    )
}

fn quiet(line: &str, style: Style) -> String {
    wrap(line, style.columns()).iter().map(|line| style.paint(line, Tone::Quiet) + "\n").collect()
}
