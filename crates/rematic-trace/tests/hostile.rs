//! Small files that unpack to gigabytes are refused in little memory. Each is read in a process of its own, whose highest
//! memory the system tells.

#![expect(clippy::print_stdout, reason = "one process tells another what it took")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use rematic_trace::StepTrace;

/// The most memory that reading may take, whatever the file.
const MOST: u64 = 200 << 20;
/// What each file unpacks to, at least.
const UNPACKED: u64 = 8 << 30;
const PIECE: usize = 64 << 20;
/// Names the file in the process that reads it.
const FILE: &str = "REMATIC_HOSTILE_FILE";
/// What the error must say.
const TOLD: &str = "REMATIC_HOSTILE_TOLD";

fn frame(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 3).unwrap()
}

/// Text that begins one way and then repeats itself without end. Frames behind each other unpack to one text.
fn bomb(path: &Path, head: &str, again: &str) {
    let piece = again.as_bytes().repeat(PIECE / again.len() + 1);
    let packed = frame(&piece);
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&frame(head.as_bytes())).unwrap();
    for _ in 0..UNPACKED.div_ceil(piece.len() as u64) {
        file.write_all(&packed).unwrap();
    }
}

/// A trace that is fine up to a table, with the table open.
fn before(table: &str) -> String {
    let head = r#"{"format":"rematic-trace","version":2,"origin":{"model":"m"}"#;
    let tables = ["names", "layouts", "modules", "calls", "storages", "ops", "events"];
    let empty: String =
        tables.into_iter().filter(|other| *other != table).map(|other| format!(",\"{other}\":[]")).collect();
    format!("{head}{empty},\"{table}\":[")
}

#[test]
fn files_that_unpack_to_gigabytes_are_refused_in_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("zeros", String::new(), "\0"),
        ("blanks", String::new(), " "),
        ("blanks inside", before("events"), " "),
        ("a list", "[".to_owned(), "0,"),
        ("brackets", String::new(), "["),
        ("a text", r#"{"format":""#.to_owned(), "a"),
        ("names", before("names"), "\"\","),
        ("layouts", before("layouts"), "[\"f8\",[],[]],"),
        ("modules", before("modules"), r#"{"name":"","class":"","parent":0},"#),
        ("calls", before("calls"), r#"{"module":0},"#),
        ("storages", before("storages"), "[0,\"temp\",0],"),
        ("ops", before("ops"), r#"{"name":0,"phase":"forward"},"#),
        ("inputs", before("ops") + r#"{"name":0,"phase":"forward","inputs":["#, "[0,0],"),
        ("events", before("events"), r#"{"op":0},"#),
        (
            "options",
            r#"{"format":"rematic-trace","version":2,"origin":{"model":"m","options":["#.to_owned(),
            "[\"\",\"\"],",
        ),
        ("unknown", r#"{"format":"rematic-trace","version":9,"rows":["#.to_owned(), "[1,2],"),
    ];
    for (name, head, again) in cases {
        let path = folder.path().join(format!("{name}.rmt.zst"));
        bomb(&path, &head, again);
        let peak = peak_of_reading(&path, "unpacks to more than 50 times its size");
        println!("{name}: {} kB packed, {} MB", std::fs::metadata(&path).unwrap().len() / 1000, peak >> 20);
        assert!(peak < MOST, "{name}: {} MB", peak >> 20);
        std::fs::remove_file(path).unwrap();
    }
}

/// Text as large as it may be, in rows that take more memory than text: just below the limit they are read, and refused for
/// what they say.
#[test]
fn files_just_below_the_limit_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, table, row) in [
        ("names", "names", "\"\","),
        ("layouts", "layouts", "[\"f8\",[],[]],"),
        ("calls", "calls", r#"{"module":0},"#),
        ("ops", "ops", r#"{"name":0,"phase":"forward"},"#),
    ] {
        let path = folder.path().join(format!("{name}.rmt.zst"));
        let noise: Vec<u8> = (0..PACKED).scan(1_u64, |state, _| Some(next_byte(state))).collect();
        // A frame that readers skip: it makes the file larger, and holds nothing.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18], &PACKED.to_le_bytes()[..], &noise].concat();
        let rows = row.as_bytes().repeat(PACKED as usize * 49 / row.len());
        std::fs::write(&path, [frame(before(table).as_bytes()), skipped, frame(&rows)].concat()).unwrap();
        let peak = peak_of_reading(&path, "cut off");
        println!("{name}: {} MB", peak >> 20);
        assert!((16 << 20..MOST).contains(&peak), "{name}: {} MB", peak >> 20);
    }
}

const PACKED: u32 = 300_000;

/// Numbers that do not compress.
fn next_byte(state: &mut u64) -> u8 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 56) as u8
}

/// The highest memory of a process that reads the file and is told this about it.
fn peak_of_reading(path: &Path, told: &str) -> u64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "reads_one_file"])
        .env(FILE, path)
        .env(TOLD, told)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", path.display());
    said.split("peak ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
}

/// Not a test of its own: the process that the tests above start.
#[test]
#[ignore = "run by another test"]
fn reads_one_file() {
    let path = std::env::var_os(FILE).expect("the file is named");
    let message = StepTrace::read(Path::new(&path)).unwrap_err().to_string();
    let told = std::env::var(TOLD).expect("what it is told is named");
    assert!(message.contains(".rmt.zst") && message.contains(&told) && message.contains("trace it again"), "{message}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("peak {} bytes", peak << 10);
}

/// What repeats itself no more than traces do is read, also where it is small.
#[test]
fn real_traces_are_far_from_the_limit() {
    use rematic_fake::models::{Model, Options};
    let model = Model::builtin("llama-3-70b").unwrap().with(&Options::default()).unwrap();
    let mut text = Vec::new();
    model.trace().unwrap().to_writer(&mut text).unwrap();
    let packed = zstd::encode_all(text.as_slice(), 12).unwrap();
    let ratio = text.len() / packed.len();
    assert!((5..20).contains(&ratio), "{ratio}");
    assert!(StepTrace::from_bytes(&packed, "t.rmt.zst".as_ref()).is_ok());
}
