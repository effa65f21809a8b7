use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::run::{refused, refused_source, run};

/// A small trace in a folder of its own, packed and not.
struct Saved {
    folder: TempDir,
    trace: Value,
}

impl Saved {
    fn new() -> Saved {
        let folder = tempfile::tempdir().unwrap();
        for name in ["step.rmt", "step.rmt.zst"] {
            let path = folder.path().join(name);
            let sizes = "--layers 1 --dim 8 --heads 2 --vocab 16 --seq 4 --batch 2";
            let mut arguments = vec!["trace", "seed-transformer", "-o", path.to_str().unwrap()];
            arguments.extend(sizes.split(' '));
            assert_eq!(run(&arguments).code, Some(0));
            assert_eq!(run(&["stats", path.to_str().unwrap()]).code, Some(0));
        }
        let text = std::fs::read(folder.path().join("step.rmt")).unwrap();
        Saved { trace: serde_json::from_slice(&text).unwrap(), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn refused_bytes(&self, name: &str, bytes: &[u8], parts: &[&str]) {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        refused_source(&path, parts);
    }

    /// The trace with one place changed (a JSON pointer) must be refused.
    #[track_caller]
    fn refused_with(&self, place: &str, value: Value, parts: &[&str]) {
        let mut trace = self.trace.clone();
        *trace.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        self.refused_bytes("changed.rmt", trace.to_string().as_bytes(), parts);
    }

    fn row(&self, table: &str, holds: impl Fn(&Value) -> bool) -> usize {
        self.trace[table].as_array().unwrap().iter().position(holds).unwrap()
    }
}

/// A name may say anything, but only say it.
#[test]
fn names_do_not_speak_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.rmt");
    let path = path.to_str().unwrap();
    let tiny =
        ["trace", "seed-transformer", "--layers", "1", "--dim", "8", "--heads", "2", "--vocab", "16", "--seq", "4"];
    assert_eq!(run(&[tiny.as_slice(), &["-o", path]].concat()).code, Some(0));
    let evil = "\\u001b[2J\\u001b]0;owned\\u0007\\n\\u202e";
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("\"seed-transformer\"", &format!("\"{evil}\""));
    let text = text.replace("gelu.default", &format!("{evil}gelu")).replace("\"layers\"", &format!("\"{evil}layers\""));
    std::fs::write(path, text).unwrap();
    let page = folder.path().join("page.html");
    for verb in [
        vec!["stats"],
        vec!["explain"],
        vec!["plan", "--budget", "60KiB"],
        vec!["curve", "--points", "3"],
        vec!["report", "-o", page.to_str().unwrap()],
        vec!["plan", "--budget", "1MiB", "--only", "none"],
    ] {
        let ran = run(&[verb.as_slice(), &[path]].concat());
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains('\u{fffd}'), "{verb:?}: {said}");
        for mark in ['\u{1b}', '\u{7}', '\u{202e}'] {
            assert!(!said.contains(mark), "{verb:?}: {said:?}");
        }
    }
}

#[test]
fn a_file_that_was_cut_off_says_so() {
    let saved = Saved::new();
    let plain = std::fs::read(saved.path("step.rmt")).unwrap();
    for length in [1, 5, 100, plain.len() / 2, plain.len() - 2] {
        saved.refused_bytes("cut.rmt", &plain[..length], &["cut.rmt", "cut off", "trace it again"]);
    }
    let packed = std::fs::read(saved.path("step.rmt.zst")).unwrap();
    for length in [4, 5, 10, packed.len() / 2, packed.len() - 1] {
        saved.refused_bytes("cut.rmt.zst", &packed[..length], &["cut.rmt.zst", "cut off", "trace it again"]);
    }
    for name in ["empty.rmt", "empty.rmt.zst"] {
        saved.refused_bytes(name, b"", &[name, "cut off", "trace it again"]);
    }
}

#[test]
fn more_after_the_end_is_refused() {
    let saved = Saved::new();
    let plain = std::fs::read(saved.path("step.rmt")).unwrap();
    saved.refused_bytes("more.rmt", &[&plain, b"x".as_slice()].concat(), &["trailing characters", "line 2"]);
    saved.refused_bytes("more.rmt", &[plain.as_slice(), &plain].concat(), &["trailing characters"]);
    let packed = std::fs::read(saved.path("step.rmt.zst")).unwrap();
    saved.refused_bytes("more.rmt.zst", &[&packed, b"garbage".as_slice()].concat(), &["zstd"]);
    saved.refused_bytes("more.rmt.zst", &[packed.as_slice(), &packed].concat(), &["trailing characters"]);
}

#[test]
fn damage_inside_a_packed_file_is_refused() {
    let saved = Saved::new();
    let packed = std::fs::read(saved.path("step.rmt.zst")).unwrap();
    for at in [4, 8, packed.len() / 3, packed.len() / 2] {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x55;
        saved.refused_bytes("damaged.rmt.zst", &damaged, &["damaged.rmt.zst"]);
    }
}

#[test]
fn other_formats_and_newer_versions_are_told_apart() {
    let saved = Saved::new();
    saved.refused_with("/format", json!("pprof"), &["`pprof`", "`rematic-trace`"]);
    saved.refused_with("/format", json!(3), &["not a trace"]);
    for version in [3_u64, 4_294_967_295, 4_294_967_296, u64::MAX] {
        let shown = format!("version {version}");
        saved.refused_with("/version", json!(version), &[&shown, "reads up to 2", "update rematic"]);
    }
    saved.refused_bytes("new.rmt", br#"{"format":"rematic-trace","version":3,"tables":{}}"#, &["version 3", "update"]);
    saved.refused_with("/version", json!(0), &["version 0", "write version 2"]);
    for version in [json!(-1), json!("1"), json!(1.5), Value::Null] {
        saved.refused_with("/version", version, &["not a trace", "expected u32"]);
    }
    saved.refused_bytes("config.rmt", br#"{"model_type":"gpt2"}"#, &["not a trace"]);
    saved.refused_bytes("list.rmt", b"[]", &["not a trace"]);
    saved.refused_bytes("text.rmt", b"hello", &["not a trace", "line 1"]);
    saved.refused_bytes("deep.rmt", "[".repeat(1_000_000).as_bytes(), &["deep.rmt"]);
}

/// Every column of every table that points into another one.
#[test]
fn a_wrong_id_is_refused_wherever_it_is() {
    let saved = Saved::new();
    let with = |table: &str, field: &str| saved.row(table, |row| row.get(field).is_some());
    let (parameters, inputs) = (with("modules", "parameters"), with("calls", "inputs"));
    let outputs = with("calls", "outputs");
    let born = saved.row("storages", |row| row[2].is_u64());
    let mut places = vec![
        "/ops/0/name".to_owned(),
        "/modules/1/parent".to_owned(),
        format!("/modules/{parameters}/parameters/0/1"),
        format!("/modules/{parameters}/parameters/0/2"),
        "/calls/0/module".to_owned(),
        format!("/calls/{inputs}/inputs/0"),
        format!("/calls/{outputs}/outputs/0"),
        format!("/storages/{born}/2"),
    ];
    for field in ["call", "differentiates"] {
        places.push(format!("/ops/{}/{field}", with("ops", field)));
    }
    places.push(format!("/ops/{}/mutates/0", with("ops", "mutates")));
    for list in ["inputs", "outputs", "saves"] {
        let op = with("ops", list);
        places.extend([format!("/ops/{op}/{list}/0/0"), format!("/ops/{op}/{list}/0/1")]);
    }
    for event in ["op", "drop", "unsave", "enter", "exit", "enter_backward", "exit_backward"] {
        places.push(format!("/events/{}/{event}", with("events", event)));
    }
    places.push(format!("/events/{}/recategorize/0", with("events", "recategorize")));
    for place in places {
        for id in [999_999, u32::MAX] {
            saved.refused_with(&place, json!(id), &["changed.rmt", &id.to_string()]);
        }
        saved.refused_with(&place, json!(4_294_967_296_u64), &["changed.rmt", "4294967296"]);
        saved.refused_with(&place, json!(-1), &["changed.rmt", "-1"]);
        saved.refused_with(&place, json!(0.5), &["changed.rmt", "0.5"]);
    }
}

#[test]
fn words_that_the_format_does_not_know_are_refused() {
    let saved = Saved::new();
    saved.refused_with("/layouts/0/0", json!("f33"), &["dtype `f33`", "bf16"]);
    saved.refused_with("/storages/0/1", json!("stuff"), &["`stuff`", "activation"]);
    saved.refused_with("/ops/0/phase", json!("sideways"), &["`sideways`", "backward"]);
    saved.refused_with("/events/0", json!({ "jump": 1 }), &["`jump`", "unsave"]);
    saved.refused_with("/ops/0", json!({ "name": 0, "phase": "forward", "input": [] }), &["`input`", "inputs"]);
}

#[test]
fn sizes_that_cannot_be_counted_are_refused() {
    let saved = Saved::new();
    saved.refused_with("/storages/0/0", json!(u64::MAX), &["storages[0]", "2^62 bytes"]);
    saved.refused_with("/storages/0/0", json!(1_u64 << 62), &["storages[0]", "2^62 bytes"]);
    saved.refused_with("/storages/0/0", json!(0), &["storage 0 has 0"]);
    saved.refused_with("/layouts/0/1/0", json!(u64::MAX), &["18446744073709551615", "2^62 bytes"]);
    saved.refused_with("/layouts/0/2", json!([]), &["layouts[0]", "0 strides"]);
}

/// Deep trees would make names longer than the file.
#[test]
fn modules_that_nest_without_end_are_refused() {
    let saved = Saved::new();
    let mut trace = saved.trace.clone();
    let modules = trace["modules"].as_array_mut().unwrap();
    for depth in 0..100_000 {
        let parent = modules.len() - 1;
        modules.push(json!({ "name": depth.to_string(), "class": "M", "parent": parent }));
    }
    saved.refused_bytes("deep.rmt", trace.to_string().as_bytes(), &["modules[", "deep", "1000"]);
}

#[test]
fn options_of_a_model_do_not_go_with_a_trace() {
    let saved = Saved::new();
    let path = saved.path("step.rmt");
    let path = path.to_str().unwrap();
    for (option, value) in [
        ("--batch", "2"),
        ("--seq", "8"),
        ("--dtype", "bf16"),
        ("--optimizer", "sgd"),
        ("--attention", "math"),
        ("--layers", "1"),
        ("--dropout", "0"),
        ("--dim", "8"),
        ("--heads", "2"),
        ("--vocab", "16"),
    ] {
        refused(&["stats", path, option, value], &[path, "saved trace", &format!("drop {option}")]);
    }
}

/// A trace under another name is still found to be one, and read.
#[test]
fn a_trace_is_known_by_its_content() {
    let saved = Saved::new();
    let expected = run(&["stats", saved.path("step.rmt").to_str().unwrap()]);
    for name in ["step.rmt", "step.rmt.zst"] {
        for other in ["step.json", "step.txt", "step"] {
            let renamed = saved.path(other);
            std::fs::copy(saved.path(name), &renamed).unwrap();
            let ran = run(&["stats", renamed.to_str().unwrap()]);
            assert_eq!((ran.code, &ran.stdout), (Some(0), &expected.stdout), "{name} as {other}: {}", ran.stderr);
        }
    }
    let mut cut = std::fs::read(saved.path("step.rmt")).unwrap();
    cut.truncate(cut.len() / 2);
    saved.refused_bytes("cut.txt", &cut, &["cut.txt", "cut off"]);
}

#[test]
fn faults_are_named_as_the_file_has_them() {
    let saved = Saved::new();
    let drop = saved.row("events", |event| event.get("drop").is_some());
    saved.refused_with(
        &format!("/events/{drop}/drop"),
        json!(999_999),
        &[&format!("events[{drop}] ({{\"drop\":999999}})")],
    );
    let view = saved.row("ops", |op| op.get("flags").is_some());
    let place = format!("ops[{view}].flags[0]: unknown variant `veiw`");
    saved.refused_with(&format!("/ops/{view}/flags/0"), json!("veiw"), &[&place, "line 1"]);
    saved.refused_with("/storages/3/0", json!("big"), &["storages[3][0]: invalid type"]);
    saved.refused_with("/layouts/2/0", json!("f33"), &["layouts[2][0]: unknown dtype `f33`"]);
    saved.refused_with("/ops/5/name", json!(999), &["ops[5].name: unknown op name 999"]);
}
