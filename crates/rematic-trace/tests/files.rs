//! Traces survive files, packed and not, and the same trace always makes the same bytes.

use rematic_fake::models::{Model, Options};
use rematic_trace::{FileError, StepTrace};

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
        trace.fact("note", "quotes \" and \\ and é and \u{1}");
        for name in ["step.rmt", "step.rmt.zst"] {
            let path = folder.path().join(name);
            trace.write(&path).unwrap();
            let read = StepTrace::read(&path).unwrap();
            assert!(read == trace, "{} through {name}", trace.model);
            let content = std::fs::read(&path).unwrap();
            assert!(StepTrace::from_bytes(&content, &path).unwrap() == trace, "{} from {name}", trace.model);
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
            assert!(written == bytes(second), "{} in {name}", first.model);
            assert!(written == bytes(&StepTrace::read(&path).unwrap()), "{} in {name}, read back", first.model);
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
    assert!(text.starts_with(br#"{"format":"rematic-trace","version":1,"#) && text.ends_with(b"}\n"));
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
    assert!(matches!(read(r#"{"format":"rematic-trace","version":2}"#), FileError::NewerVersion { found: 2, .. }));
}
