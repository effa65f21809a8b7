//! Recordings of torch's allocator. `tests/allocator/recording.py` says what their lines mean.

use std::fmt::Write as _;

/// What is asked of the allocator. Blocks and pools are named by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Alloc { size: u64, stream: u64 },
    Free(usize),
    RecordStream { block: usize, stream: u64 },
    EmptyCache,
    CreatePool { flags: u32 },
    Begin(usize),
    End(usize),
    Drop(usize),
}

/// A call, and what torch's allocator did then.
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) call: Call,
    /// Events in the letters of the recording; none stands for the two of a usual free.
    pub(crate) events: Vec<String>,
    /// What the block of a request has beyond a multiple of 512.
    pub(crate) extra: u64,
}

pub(crate) struct Recording {
    pub(crate) settings: String,
    pub(crate) device: u64,
    pub(crate) lines: Vec<Line>,
}

/// Reads a recording, compressed or not.
pub(crate) fn read(path: &std::path::Path) -> Recording {
    let bytes = std::fs::read(path).expect("a recording");
    let bytes = match path.extension().is_some_and(|ending| ending == "zst") {
        true => zstd::decode_all(&bytes[..]).expect("zstd"),
        false => bytes,
    };
    let text = String::from_utf8(bytes).expect("text");
    let mut lines = text.lines();
    let mut head = |name: &str| {
        let line = lines.next().expect("a head");
        line.strip_prefix(name).unwrap_or_else(|| panic!("'{name}' in '{line}'")).trim().to_owned()
    };
    let settings = head("settings");
    let device = head("device").parse().expect("bytes");
    Recording { settings, device, lines: lines.map(line).collect() }
}

fn line(text: &str) -> Line {
    let (call, events) = text.split_once('|').unwrap_or((text, ""));
    let (extras, events): (Vec<&str>, Vec<&str>) = events.split_whitespace().partition(|word| word.starts_with('+'));
    let extra = extras.first().map_or(0, |word| word.parse().expect("bytes"));
    let events = events.into_iter().map(str::to_owned).collect();
    Line { text: text.to_owned(), call: parse(call), events, extra }
}

fn parse(text: &str) -> Call {
    let mut words = text.split_whitespace();
    let kind = words.next().expect("a call");
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let index = |number: u64| usize::try_from(number).expect("an index");
    match kind {
        "a" => Call::Alloc { size: number(), stream: number() },
        "f" => Call::Free(index(number())),
        "r" => Call::RecordStream { block: index(number()), stream: number() },
        "e" => Call::EmptyCache,
        "p" => Call::CreatePool { flags: u32::try_from(number()).expect("flags") },
        "b" => Call::Begin(index(number())),
        "n" => Call::End(index(number())),
        "x" => Call::Drop(index(number())),
        _ => panic!("'{text}' is not a call"),
    }
}

/// Lines of two lists of events, side by side.
pub(crate) fn side_by_side(theirs: &[String], ours: &[String]) -> String {
    let mut text = String::new();
    writeln!(text, "    torch: {}", theirs.join(" ")).expect("a string");
    writeln!(text, "    here:  {}", ours.join(" ")).expect("a string");
    text
}
