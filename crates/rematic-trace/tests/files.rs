//! Traces survive files, packed and not, and the same trace always makes the same bytes.

use rematic_fake::models::{Model, Options};
use rematic_trace::{Collective, FileError, StepTrace};

fn traces() -> Vec<StepTrace> {
    let tiny = |name: &str, options: Options| Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
    let sizes = Options { batch: Some(2), seq: Some(4), layers: Some(1), ..Options::default() };
    vec![
        StepTrace::new("nothing"),
        tiny("seed-transformer", sizes.clone()),
        tiny("gpt2", sizes.clone()),
        tiny("llama-3-8b", sizes),
    ]
}

#[test]
fn a_trace_reads_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    for mut trace in traces() {
        trace.origin.note("note", "quotes \" and \\ and é and \u{1}");
        for name in ["step.rmt", "step.rmt.zst"] {
            let path = folder.path().join(name);
            trace.write(&path).unwrap();
            let read = StepTrace::read(&path).unwrap();
            assert!(read == trace, "{} through {name}", trace.origin.model);
            let content = std::fs::read(&path).unwrap();
            assert!(StepTrace::from_bytes(&content, &path).unwrap() == trace, "{} from {name}", trace.origin.model);
        }
    }
}

#[test]
fn the_same_trace_makes_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (first, second) in traces().iter().zip(&traces()) {
        for name in ["step.rmt", "step.rmt.zst"] {
            let path = folder.path().join(name);
            let bytes = |trace: &StepTrace| {
                trace.write(&path).unwrap();
                std::fs::read(&path).unwrap()
            };
            let written = bytes(first);
            assert!(written == bytes(second), "{} in {name}", first.origin.model);
            assert!(written == bytes(&StepTrace::read(&path).unwrap()), "{} in {name}, read back", first.origin.model);
        }
    }
}

/// The ending decides how a file is written; what is in it decides how it is read.
#[test]
fn packing_follows_the_name_and_reading_the_contents() {
    let folder = tempfile::tempdir().unwrap();
    let trace = &traces()[1];
    let (plain, packed) = (folder.path().join("step.rmt"), folder.path().join("step.rmt.zst"));
    trace.write(&plain).unwrap();
    trace.write(&packed).unwrap();
    let (text, bytes) = (std::fs::read(&plain).unwrap(), std::fs::read(&packed).unwrap());
    assert!(text.starts_with(br#"{"format":"rematic-trace","version":2,"#) && text.ends_with(b"}\n"));
    assert!(bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && bytes.len() * 4 < text.len());
    std::fs::write(&plain, &bytes).unwrap();
    std::fs::write(&packed, &text).unwrap();
    assert!(StepTrace::read(&plain).unwrap() == *trace);
    assert!(StepTrace::read(&packed).unwrap() == *trace);
}

#[test]
fn files_that_cannot_be_used_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.rmt");
    assert!(matches!(StepTrace::read(&missing), Err(FileError::Io { .. })));
    assert!(matches!(traces()[0].write(folder.path()), Err(FileError::Io { .. })));
    let read = |text: &str| StepTrace::from_json(text.as_bytes(), "t.rmt".as_ref()).unwrap_err();
    assert!(matches!(read("{"), FileError::Truncated { .. }));
    assert!(matches!(read("{}"), FileError::Syntax { .. }));
    assert!(matches!(read(r#"{"format":"other"}"#), FileError::OtherFormat { .. }));
    assert!(matches!(read(r#"{"format":"rematic-trace","version":0}"#), FileError::NoVersion { .. }));
    assert!(matches!(read(r#"{"format":"rematic-trace","version":3}"#), FileError::NewerVersion { found: 3, .. }));
}

/// A file of version 1 says the same as ever, and becomes one of version 2 when it is written.
#[test]
fn version_1_is_read() {
    let old: &[u8] = include_bytes!("fixtures/version-1.rmt");
    assert!(old.starts_with(br#"{"format":"rematic-trace","version":1,"#));
    let sizes = Options {
        batch: Some(2),
        seq: Some(4),
        layers: Some(1),
        dim: Some(8),
        heads: Some(2),
        vocab: Some(16),
        ..Options::default()
    };
    let now = Model::builtin("seed-transformer").unwrap().with(&sizes).unwrap().trace().unwrap();
    let read = StepTrace::from_bytes(old, "old.rmt".as_ref()).unwrap();
    assert!(read == now);
    assert_eq!((read.origin.batch, read.origin.precision), (Some(2), Some(rematic_trace::Dtype::F32)));
    let mut text = Vec::new();
    read.to_writer(&mut text).unwrap();
    assert!(StepTrace::from_json(&text, "new.rmt".as_ref()).unwrap() == now);
    // What has its default is not written: the file has grown by the names of the origin's fields at most.
    assert!(text.len() < old.len() + 100, "{} and {}", text.len(), old.len());
}

/// Version 1 only says that an operator communicates.
#[test]
fn a_collective_of_version_1_is_one_of_unknown_kind() {
    let old = include_str!("fixtures/version-1.rmt");
    let flagged = old.replacen(r#""flags":["view"]"#, r#""flags":["view","collective"]"#, 2);
    assert_ne!(old, flagged);
    let read = StepTrace::from_json(flagged.as_bytes(), "old.rmt".as_ref()).unwrap();
    assert_eq!(read.collectives().items(), [Collective::unknown()]);
    let communicating = read.ops().iter().filter(|op| read.collective_of(op).is_some());
    assert_eq!(communicating.count(), 2);
    let mut text = Vec::new();
    read.to_writer(&mut text).unwrap();
    assert!(StepTrace::from_json(&text, "new.rmt".as_ref()).unwrap() == read);
}

#[test]
fn words_of_the_other_version_are_refused() {
    let old = include_str!("fixtures/version-1.rmt");
    let refused = |text: String| StepTrace::from_json(text.as_bytes(), "t.rmt".as_ref()).unwrap_err().to_string();
    let error = refused(old.replacen("\"version\":1", "\"version\":2", 1).replacen(
        r#""model":"#,
        r#""origin":{"model":"m"},"model":"#,
        1,
    ));
    assert!(error.contains("t.rmt says that it has format version 2, but has `model`"), "{error}");
    for (word, event) in
        [("release", "{\"release\":0}"), ("wait", "{\"wait\":[0,1]}"), ("micro_batch", "{\"micro_batch\":0}")]
    {
        let error = refused(old.replacen("\"events\":[", &format!("\"events\":[{event},"), 1));
        assert!(
            error.contains(&format!("version 1, but has `{word}`")) && error.contains("write version 2"),
            "{error}"
        );
    }
}

/// A trace too large to be kept as text is parsed while it is read, from a file and from packed bytes; faults still have
/// their places.
#[test]
fn large_traces_are_read_in_pieces() {
    let options = Options { batch: Some(1), seq: Some(4), layers: Some(500), ..Options::default() };
    let trace = Model::builtin("llama-3-8b").unwrap().with(&options).unwrap().trace().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (plain, packed) = (folder.path().join("large.rmt"), folder.path().join("large.rmt.zst"));
    trace.write(&plain).unwrap();
    trace.write(&packed).unwrap();
    let mut text = std::fs::read(&plain).unwrap();
    assert!(text.len() > 17 << 20, "{}", text.len());
    assert!(StepTrace::read(&plain).unwrap() == trace);
    assert!(StepTrace::from_bytes(&std::fs::read(&packed).unwrap(), &packed).unwrap() == trace);
    let last = text.windows(8).rposition(|window| window == b"\"unsave\"").unwrap();
    text[last + 3] = b'x';
    std::fs::write(&plain, &text).unwrap();
    let error = StepTrace::read(&plain).unwrap_err().to_string();
    assert!(error.contains("large.rmt is not a trace: events[") && error.contains("`unxave`"), "{error}");
    text.truncate(text.len() - 100);
    std::fs::write(&plain, &text[..last]).unwrap();
    assert!(matches!(StepTrace::read(&plain), Err(FileError::Truncated { .. })));
    let mut cut = std::fs::read(&packed).unwrap();
    cut.truncate(cut.len() - 10);
    std::fs::write(&packed, cut).unwrap();
    assert!(matches!(StepTrace::read(&packed), Err(FileError::Zstd { .. })));
}
