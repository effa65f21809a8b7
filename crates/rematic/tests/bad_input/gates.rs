use std::fs;

use crate::planning::SMALL;
use crate::run::{Ran, refused, run};

fn with<'a>(verb: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&[verb], SMALL.as_slice(), options].concat()
}

fn answered(arguments: &[&str], code: i32) -> Ran {
    let ran = run(arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
    ran
}

#[test]
fn a_limit_is_a_size_with_a_unit() {
    refused(&with("stats", &["--fail-above", "x"]), &["--fail-above", "`x` is not a size", "38GiB"]);
    refused(&with("stats", &["--fail-above", "12"]), &["`12` is 12 bytes; did you mean 12GiB?"]);
    refused(&with("plan", &["--budget", "40"]), &["`40` is 40 bytes; did you mean 40GiB?"]);
}

#[test]
fn a_step_above_the_limit_is_told_with_numbers() {
    let ran = answered(&with("stats", &["--fail-above", "1MiB"]), 3);
    assert!(ran.stdout.contains("above --fail-above 1.00 MiB"), "{}", ran.stdout);
    answered(&with("stats", &["--fail-above", "1GiB"]), 0);
    let ran = answered(&with("stats", &["--fail-above", "1MiB", "--json"]), 3);
    assert!(serde_json::from_str::<serde_json::Value>(&ran.stdout).is_ok(), "{}", ran.stdout);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    refused(&["diff", "gpt2"], &["OTHER"]);
    refused(&["diff", "gpt2", "missing.json"], &["missing.json"]);
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.json");
    fs::write(&other, "{\"peak\": 1}").unwrap();
    refused(&["diff", "gpt2", other.to_str().unwrap()], &["other.json"]);
}

#[test]
fn lock_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rematic.lock");
    let file = path.to_str().unwrap();
    refused(&["check", file], &["cannot read the lock file", "`rematic lock MODEL` makes one"]);
    for text in ["", "{}", "[]", "{\"version\":1,\"steps\":[{}]}", "{\"version\":2,\"steps\":[]}"] {
        fs::write(&path, text).unwrap();
        refused(&["check", file], &["is not a lock file", "remove it and lock again"]);
        refused(&with("lock", &["--file", file]), &["is not a lock file"]);
    }
    let step = "{\"source\":\"gpt2\",\"options\":[\"--colour\",\"red\"],\"figures\":{\"peak_bytes\":1}}";
    fs::write(&path, format!("{{\"version\":1,\"steps\":[{step}]}}")).unwrap();
    refused(&["check", file], &["is not a lock file", "`rematic stats gpt2 --colour red` is no command"]);
    let step = step.replace("--colour", "--layers").replace("red", "1").replace("gpt2", "gtp2");
    fs::write(&path, format!("{{\"version\":1,\"steps\":[{step}]}}")).unwrap();
    refused(&["check", file], &["has the step `gtp2 --layers 1`, but", "did you mean `gpt2`?"]);
}

#[test]
fn a_step_that_grew_is_told_by_category_and_module() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rematic.lock");
    let file = path.to_str().unwrap();
    answered(&with("lock", &["--file", file]), 0);
    assert!(answered(&["check", file], 0).stdout.contains("Nothing grew."));
    // As if the step had been half as large when it was locked.
    let mut lock: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let figures = &mut lock["steps"][0]["figures"];
    figures["peak_bytes"] = (figures["peak_bytes"].as_u64().unwrap() / 2).into();
    figures["categories"]["activation"] = 0.into();
    fs::write(&path, lock.to_string()).unwrap();
    let ran = answered(&["check", file], 3);
    for part in ["Grew from seed-transformer", "activation", "1 step grew.", "rematic check --update"] {
        assert!(ran.stdout.contains(part), "no `{part}` in: {}", ran.stdout);
    }
    answered(&["check", file, "--allow", "1GiB"], 0);
    answered(&["check", file, "--update"], 0);
    answered(&["check", file], 0);
}

#[test]
fn saved_statistics_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("before.json");
    fs::write(&path, run(&with("stats", &["--json"])).stdout).unwrap();
    let same = [&["diff", path.to_str().unwrap(), "seed-transformer"], &SMALL[1..]].concat();
    assert!(answered(&same, 0).stdout.starts_with("Equal from"));
    let larger = [&["diff", path.to_str().unwrap(), "seed-transformer"], &SMALL[1..11], &["--batch", "8"]].concat();
    let ran = answered(&larger, 0);
    assert!(ran.stdout.starts_with("Grew from") && ran.stdout.contains("activation"), "{}", ran.stdout);
}
