//! What a rehearsal says: as text, as JSON and as a page.

mod json;

use std::path::Path;

use rematic_cost::Device;
use rematic_rehearsal::{Assumption, Line, OutOfMemory, Record, Resident, Snapshot};
use rematic_trace::Bytes;

use crate::html::{escaped, table};
use crate::memory::Memory;
use crate::shorten::Shorten;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};
use json::{Json, JsonOutOfMemory, JsonStreams};

/// Width below which a shortened line of a script says little.
const PLACE: usize = 24;
/// Lines of reads, and of an assumption, that the text shows.
const LINES: usize = 3;

/// What a rehearsal says.
#[derive(Clone, Copy)]
pub struct RehearsalReport<'a> {
    /// The command, as it was given.
    pub command: &'a [String],
    /// The device that was not there.
    pub device: &'a Device,
    /// What the CUDA context takes.
    pub context: Bytes,
    /// What was seen.
    pub record: &'a Record,
    /// What was seen where other streams are behind, if the script depends on it.
    pub late: Option<&'a Record>,
    /// How many ranks there seemed to be, and which of them this was.
    pub ranks: (u32, u32),
    /// Where PyTorch's snapshot is.
    pub snapshot: Option<&'a Path>,
}

fn reserved(record: &Record) -> u64 {
    record.memory.as_ref().map_or(0, |memory| memory.reserved)
}

impl RehearsalReport<'_> {
    /// Whether the script had enough memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.worst().ran_out().is_none()
    }

    /// The record that decides: where streams are behind, more is in use.
    fn worst(&self) -> &Record {
        self.late
            .filter(|late| reserved(late) >= reserved(self.record) || late.ran_out().is_some())
            .unwrap_or(self.record)
    }

    /// Where the script's own streams decide how much is reserved.
    fn streams(&self) -> Option<JsonStreams<'_>> {
        let lines = &self.record.kept_for_streams;
        (!lines.is_empty() && self.record.ran_out().is_none()).then(|| JsonStreams {
            lowest_reserved_bytes: reserved(self.record),
            highest_reserved_bytes: self.late.map(|_| reserved(self.worst())),
            lines,
        })
    }

    fn memory(&self) -> Memory {
        let (allocated, reserved, retries) =
            self.worst().memory.as_ref().map_or((0, 0, 0), |peak| (peak.allocated, peak.reserved, peak.retries));
        Memory {
            allocated: Bytes(allocated),
            reserved: Bytes(reserved),
            context: self.context,
            usable: self.device.usable,
            room: self.device.usable.saturating_sub(self.context),
            ranks: u64::from(self.ranks.0),
            has_buffers: true,
            retries: self.fits().then_some(retries),
        }
    }

    /// What was in memory where it ran out, or at the peak.
    fn largest(&self) -> &[Resident] {
        self.worst().ran_out().map_or(&self.worst().peak, |out| &out.there)
    }

    /// One JSON document, indented, with a line break at the end.
    #[must_use]
    pub fn json(&self) -> String {
        let peak = self.worst().memory.as_ref();
        let out_of_memory = self.worst().ran_out().map(|out| JsonOutOfMemory {
            line: out.line.as_ref(),
            module: out.module.as_deref(),
            phase: out.phase.as_deref(),
            step: out.steps + 1,
            asked_bytes: out.asked,
            free_bytes: out.free,
            allocated_bytes: out.allocated,
            reserved_bytes: out.reserved,
        });
        crate::json::json(&Json {
            command: self.command,
            device: &self.device.name,
            torch: self.record.torch.as_deref(),
            world_size: self.ranks.0,
            rank: self.ranks.1,
            steps: self.worst().steps,
            memory: self.memory(),
            requested_bytes: peak.map_or(0, |peak| peak.requested),
            retries: peak.map_or(0, |peak| peak.retries),
            fits: self.fits(),
            streams: self.streams(),
            out_of_memory,
            largest: self.largest(),
            reads: &self.record.reads,
            assumed: &self.record.assumed,
            snapshot: self.written(),
        })
    }

    /// For people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = plain(style, &self.rehearsed());
        match self.worst().ran_out() {
            None => text += &self.memory().text(self.device, style),
            Some(out) => text += &self.ran_out(out, style),
        }
        if !self.largest().is_empty() {
            text.push('\n');
            text += &self.table(style);
        }
        let notes = self.notes();
        if !notes.is_empty() {
            text.push('\n');
        }
        for note in notes {
            text += &plain(style, &note);
        }
        text
    }

    fn rehearsed(&self) -> String {
        let steps = plural(self.worst().steps, "optimizer step");
        let rank = match self.ranks {
            (1, _) => String::new(),
            (world, rank) => format!(" as rank {rank} of {world}"),
        };
        let torch = self.record.torch.as_deref().unwrap_or("of an unknown version");
        format!("Rehearsed{rank} on a GPU that is not there: {steps}, PyTorch {torch}")
    }

    fn ran_out(&self, out: &OutOfMemory, style: Style) -> String {
        let head = format!(" on {} ({}) in step {}", self.device.product, self.device.usable, out.steps + 1);
        let lead = ("Runs out of memory", Tone::Bad);
        let place = out.line.as_ref().map_or("in no line of Python".to_owned(), |line| {
            let text = if line.text.is_empty() { String::new() } else { format!(": {}", line.text) };
            format!("at {}:{} in {}{text}", line.file, line.line, line.function)
        });
        let mut text = style.sentence(&Sentence { lead, head: &head, gap: ", ", tail: (&place, Tone::Strong) });
        let module = match (&out.module, &out.phase) {
            (Some(module), Some(phase)) => format!("In the {phase} of {module}: it"),
            (None, Some(phase)) => format!("In {phase}: it"),
            _ => "It".to_owned(),
        };
        let left = self.device.usable.0.saturating_sub(self.context.0).saturating_sub(out.reserved);
        text += &plain(style, &format!("{module} asked for {}, and {} were left", Bytes(out.asked), Bytes(left)));
        let parts = format!(
            "{} allocated, {} reserved by PyTorch's allocator, {} for the CUDA context{}",
            Bytes(out.allocated),
            Bytes(out.reserved),
            self.context,
            if self.ranks.0 > 1 { " and NCCL" } else { "" }
        );
        text + &plain(style, &parts)
    }

    fn table(&self, style: Style) -> String {
        let mut table = Table::new([
            Column::number("largest tensors"),
            Column::number(""),
            Column::text("asked for at").shorten(Shorten::Word, PLACE),
            Column::text("in").leave_out(0),
        ]);
        for resident in self.largest() {
            let [bytes, count, place, function] = cells(resident);
            table.row([bytes, count, place, function]);
        }
        table.render(style)
    }

    /// What the answer rests on.
    fn notes(&self) -> Vec<String> {
        let record = self.record;
        let mut notes = Vec::new();
        match record.steps {
            0 if self.fits() => notes.push("No optimizer step was made: this is the memory of what ran".to_owned()),
            1 if self.fits() => notes.push(
                "Only one optimizer step was made: from the second on the optimizer's state is there from the start"
                    .to_owned(),
            ),
            _ => {}
        }
        if let Some(last) = record.out_of_memory.last().filter(|_| self.fits()) {
            let times = match record.times_out_of_memory.max(record.out_of_memory.len() as u64) {
                1 => "once".to_owned(),
                times => plural(times, "time"),
            };
            let place = last.line.as_ref().map_or(String::new(), |line| format!(" at {}:{}", line.file, line.line));
            let asked = Bytes(last.asked);
            notes.push(format!(
                "It ran out of memory {times} on the way, which the script caught: it last asked for {asked}{place}"
            ));
        }
        notes.extend(self.streams().and_then(|streams| streams.note()));
        if record.reads.unknown > 0 {
            let at = places(" (most at ", record.reads.lines.iter().map(|at| &at.line), ")");
            let reads = plural(record.reads.unknown, "read");
            notes.push(format!(
                "{reads} of values that were not computed got zeros{at}; what the script decides by them may differ"
            ));
        }
        notes.extend(record.assumed.iter().map(|Assumption { text, lines }| {
            let at = places(" (at ", lines.iter(), ")");
            format!("Assumed: {text}{at}")
        }));
        if let Some(path) = self.snapshot {
            let path = path.display();
            notes.push(match &record.snapshot {
                Some(Snapshot { problem: None }) => format!("PyTorch's snapshot: {path}"),
                Some(Snapshot { problem: Some(why) }) => format!("PyTorch's snapshot was not written to {path}: {why}"),
                None => format!("PyTorch's snapshot was not written to {path}: the script was ended before"),
            });
        }
        notes
    }

    /// Where the snapshot is, if it was written.
    fn written(&self) -> Option<String> {
        let written = matches!(&self.record.snapshot, Some(Snapshot { problem: None }));
        self.snapshot.filter(|_| written).map(|path| path.display().to_string())
    }

    /// One HTML page.
    #[must_use]
    pub fn html(&self) -> String {
        let lines = self.text(Style::default());
        let summary: Vec<&str> = lines.lines().take_while(|line| !line.is_empty()).collect();
        let rows: Vec<Vec<String>> = self.largest().iter().map(|resident| cells(resident).to_vec()).collect();
        let title = if self.fits() { "Largest at the peak" } else { "Largest where it ran out" };
        let largest = if rows.is_empty() {
            String::new()
        } else {
            format!("<h2>{title}</h2>{}", table(&["bytes", "blocks", "asked for at", "in"], &[0, 1], &rows))
        };
        let notes: String = self.notes().iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
        let verdict = if self.fits() { "Fits" } else { "Runs out of memory" };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Rehearsal: {verdict}</title>\n\
             <style>body{{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}\
             td,th{{padding:.2em .8em}}pre{{white-space:pre-wrap}}</style></head>\n\
             <body><h1>{verdict}</h1><p><code>{}</code></p><pre>{}</pre>\n{largest}\n<ul>{notes}</ul></body></html>\n",
            escaped(&self.command.join(" ")),
            escaped(&summary.join("\n")),
        )
    }
}

/// Bytes, how many blocks, where, and in which function.
fn cells(resident: &Resident) -> [String; 4] {
    let count = if resident.blocks > 1 { format!("{}×", resident.blocks) } else { String::new() };
    let place = match (resident.file.as_deref(), resident.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(_), None) => "other lines".to_owned(),
        (None, _) => "autograd, in backward".to_owned(),
    };
    [Bytes(resident.bytes).to_string(), count, place, resident.function.clone().unwrap_or_default()]
}

/// The first lines by name, between two words; nothing if there are none.
fn places<'a>(before: &str, lines: impl Iterator<Item = &'a Line>, after: &str) -> String {
    let names: Vec<String> = lines.take(LINES).map(|line| format!("{}:{}", line.file, line.line)).collect();
    if names.is_empty() { String::new() } else { format!("{before}{}{after}", names.join(", ")) }
}

fn plain(style: Style, text: &str) -> String {
    style.sentence(&Sentence { lead: ("", Tone::Plain), head: text, gap: "", tail: ("", Tone::Plain) })
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use rematic_rehearsal::{Counters, Reads, ReadsAt};

    use super::*;

    fn line(file: &str) -> Line {
        Line { file: file.into(), line: 7, function: "main".into(), text: "loss.backward()".into() }
    }

    fn resident(file: Option<&str>, bytes: u64) -> Resident {
        let at = file.filter(|file| !file.is_empty()).map(|_| 12);
        Resident { file: file.map(str::to_owned), line: at, function: at.map(|_| "forward".into()), bytes, blocks: 2 }
    }

    fn fitting() -> Record {
        Record {
            torch: Some("2.15.0".into()),
            steps: 3,
            finished: true,
            memory: Some(Counters { requested: 1000, allocated: 1 << 30, reserved: 2 << 30, retries: 0, device: 0 }),
            peak: vec![resident(Some("model.py"), 1 << 29), resident(None, 1 << 20), resident(Some(""), 512)],
            reads: Reads { unknown: 1, known: 2, lines: vec![ReadsAt { line: line("train.py"), reads: 1, bytes: 4 }] },
            assumed: vec![
                Assumption { text: "sequences are not packed".into(), lines: Vec::new() },
                Assumption { text: "experts are balanced".into(), lines: vec![line("moe.py"), line("moe2.py")] },
            ],
            ..Record::default()
        }
    }

    fn ran_out() -> Record {
        let out = OutOfMemory {
            line: Some(line("train.py")),
            module: Some("Net.blocks.7".into()),
            phase: Some("backward".into()),
            steps: 0,
            asked: 1 << 30,
            free: 0,
            allocated: 70 << 30,
            reserved: 78 << 30,
            there: vec![resident(Some("model.py"), 60 << 30)],
        };
        Record { steps: 0, finished: false, out_of_memory: vec![out], ..fitting() }
    }

    fn with<T>(record: &Record, use_it: impl FnOnce(&RehearsalReport<'_>) -> T) -> T {
        let device = Device::find("h100").expect("built in");
        let command = ["python".to_owned(), "train.py".to_owned()];
        use_it(&RehearsalReport {
            command: &command,
            device: &device,
            context: Bytes(512 << 20),
            record,
            late: None,
            ranks: (1, 0),
            snapshot: None,
        })
    }

    #[test]
    fn a_script_that_fits_is_told_in_the_words_of_the_other_verbs() {
        let text = with(&fitting(), |report| report.text(Style::default()));
        let expected = "\
Rehearsed on a GPU that is not there: 3 optimizer steps, PyTorch 2.15.0
Fits NVIDIA H100 SXM5 80GB (79.11 GiB) with 76.61 GiB to spare
1.00 GiB allocated, 2.00 GiB reserved by PyTorch's allocator, 512.00 MiB for the CUDA context

 largest tensors      asked for at           in
      512.00 MiB  2×  model.py:12            forward
        1.00 MiB  2×  autograd, in backward
           512 B  2×  other lines

1 read of values that were not computed got zeros (most at train.py:7); what the script decides by them may differ
Assumed: sequences are not packed
Assumed: experts are balanced (at moe.py:7, moe2.py:7)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_script_that_runs_out_is_told_its_line_and_module() {
        let text = with(&ran_out(), |report| report.text(Style::default()));
        let expected = "\
Runs out of memory on NVIDIA H100 SXM5 80GB (79.11 GiB) in step 1, at train.py:7 in main: loss.backward()
In the backward of Net.blocks.7: it asked for 1.00 GiB, and 624.64 MiB were left
70.00 GiB allocated, 78.00 GiB reserved by PyTorch's allocator, 512.00 MiB for the CUDA context
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains(" largest tensors"), "{text}");
    }

    #[test]
    fn a_script_that_caught_it_fits_and_is_told_what_it_caught() {
        let mut record = Record { ended: true, succeeded: true, peak: Vec::new(), ..ran_out() };
        (record.times_out_of_memory, record.assumed, record.reads) = (25, Vec::new(), Reads::default());
        let text = with(&record, |report| report.text(Style::default()));
        let expected = "\
Rehearsed on a GPU that is not there: 0 optimizer steps, PyTorch 2.15.0
Fits NVIDIA H100 SXM5 80GB (79.11 GiB) with 76.61 GiB to spare
1.00 GiB allocated, 2.00 GiB reserved by PyTorch's allocator, 512.00 MiB for the CUDA context

No optimizer step was made: this is the memory of what ran
It ran out of memory 25 times on the way, which the script caught: it last asked for 1.00 GiB at train.py:7
";
        assert_eq!(text, expected, "and no heading of a table without rows");
        assert!(!with(&record, |report| report.html()).contains("<h2>"));
    }

    #[test]
    fn a_script_that_ends_after_one_step_is_told_what_the_second_finds() {
        let note =
            "Only one optimizer step was made: from the second on the optimizer's state is there from the start\n";
        let says = |steps: u64| {
            let record = Record { ended: true, succeeded: true, steps, ..ran_out() };
            with(&record, |report| report.text(Style::default())).contains(note)
        };
        assert_eq!([says(0), says(1), says(2)], [false, true, false]);
    }

    #[test]
    fn several_ranks_are_told_of_nccl() {
        let text = with(&ran_out(), |report| RehearsalReport { ranks: (8, 0), ..*report }.text(Style::default()));
        assert!(text.contains("512.00 MiB for the CUDA context and NCCL\n"), "{text}");
    }

    #[test]
    fn a_snapshot_that_was_not_written_is_told_so() {
        let path = Path::new("memory.pickle");
        let said = |snapshot: Option<Snapshot>| {
            let record = Record { snapshot, ..fitting() };
            with(&record, |report| {
                let report = RehearsalReport { snapshot: Some(path), ..*report };
                let value: serde_json::Value = serde_json::from_str(&report.json()).expect("a document");
                (report.notes().pop().expect("a note"), value["snapshot"].clone())
            })
        };
        let (note, json) = said(Some(Snapshot { problem: None }));
        assert_eq!((note.as_str(), json), ("PyTorch's snapshot: memory.pickle", "memory.pickle".into()));
        let (note, json) = said(Some(Snapshot { problem: Some("no space left".into()) }));
        assert_eq!(note, "PyTorch's snapshot was not written to memory.pickle: no space left");
        assert_eq!(json, serde_json::Value::Null);
        assert_eq!(said(None).0, "PyTorch's snapshot was not written to memory.pickle: the script was ended before");
    }

    #[test]
    fn json_has_the_fields_of_stats() {
        let value: serde_json::Value =
            with(&ran_out(), |report| serde_json::from_str(&report.json()).expect("a document"));
        assert_eq!(value["fits"], false);
        assert_eq!(value["memory"]["context_bytes"], 512 << 20);
        assert_eq!(value["out_of_memory"]["line"]["line"], 7);
        assert_eq!(value["out_of_memory"]["module"], "Net.blocks.7");
        let value: serde_json::Value =
            with(&fitting(), |report| serde_json::from_str(&report.json()).expect("a document"));
        assert_eq!((&value["fits"], &value["out_of_memory"]), (&true.into(), &serde_json::Value::Null));
        assert_eq!(value["memory"]["reserved_bytes"], 2u64 << 30);
        assert_eq!(value["reads"]["lines"][0]["file"], "train.py");
        assert_eq!(value["assumed"][1]["text"], "experts are balanced");
        assert_eq!(value["assumed"][1]["lines"][0]["line"], 7);
    }

    #[test]
    fn the_page_escapes_what_scripts_are_called() {
        let mut record = fitting();
        record.peak = vec![resident(Some("<script>.py"), 1)];
        let page = with(&record, |report| report.html());
        assert!(page.contains("&lt;script&gt;.py:12") && !page.contains("<script>"), "{page}");
        assert!(page.contains("<h1>Fits</h1>"));
    }
}
