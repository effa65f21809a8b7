use std::process::{Command, Stdio};

use crate::run::{refused, run};

const TINY: [&str; 13] =
    ["seed-transformer", "--layers", "1", "--dim", "8", "--heads", "2", "--vocab", "16", "--seq", "4", "--batch", "2"];

fn trace_to(path: &str) -> Vec<&str> {
    [["trace"].as_slice(), &TINY, &["-o", path]].concat()
}

#[test]
fn output_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/folder/step.rmt");
    let missing = missing.to_str().unwrap();
    refused(&trace_to(missing), &["cannot write", missing, "No such file or directory", "folder that exists"]);
    let directory = folder.path().to_str().unwrap();
    refused(&trace_to(directory), &["cannot write", directory, "directory", "name a file"]);
    refused(&trace_to(""), &["--output"]);
}

/// What is piped into a file is code, or nothing.
#[test]
fn without_a_plan_nothing_is_emitted() {
    let emitted = run(&[["plan"].as_slice(), &TINY, &["--budget", "1KiB", "--emit", "python"]].concat());
    assert_eq!((emitted.code, emitted.stdout.as_str()), (Some(3), ""));
    assert!(emitted.stderr.contains("Cannot fit 1.00 KiB"), "{}", emitted.stderr);
}

#[test]
fn a_full_disk_is_reported() {
    if std::path::Path::new("/dev/full").exists() {
        refused(&trace_to("/dev/full"), &["cannot write /dev/full", "No space left"]);
    }
}

/// What is there already is not replaced by half a file.
#[test]
fn a_failed_trace_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.rmt");
    std::fs::write(&path, "old").unwrap();
    refused(&["trace", "gpt2", "--seq", "5000", "-o", path.to_str().unwrap()], &["5000"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn results_go_to_stdout_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.rmt.zst");
    let commands =
        [[["stats"].as_slice(), &TINY].concat(), vec!["devices"], vec!["models"], trace_to(path.to_str().unwrap())];
    for command in commands {
        let text = run(&command);
        assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""), "{command:?}");
        assert!(!text.stdout.is_empty() && !text.stdout.contains('\u{1b}'), "{command:?}");
        let json = run(&[command.as_slice(), &["--json"]].concat());
        assert_eq!((json.code, json.stderr.as_str()), (Some(0), ""), "{command:?}");
        assert!(serde_json::from_str::<serde_json::Value>(&json.stdout).unwrap().is_object(), "{command:?}");
    }
}

/// As `rematic … | head -1` does: the reader goes away before everything is written.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [
        ["stats", "gpt2", "--json", "--timeline"].as_slice(),
        &["stats", "gpt2"],
        &["devices", "--json"],
        &["devices"],
        &["models"],
        &["--help"],
        &["stats", "--help"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rematic"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}
