use std::path::Path;

use crate::run::{refused, run};

fn table(folder: &Path, text: &str) -> String {
    let path = folder.join("table.json");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const SMALL: [&str; 8] = ["seed-transformer", "--layers", "2", "--batch", "1", "--seq", "64", "--dropout"];

fn arguments<'a>(verb: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&[verb], &SMALL[..], &["0"], options].concat()
}

#[test]
fn a_table_and_measured_times_need_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), "{}");
    refused(&arguments("stats", &["--cost", "measured"]), &["need a table", "--cost-table FILE"]);
    refused(&arguments("stats", &["--cost-table", &path]), &["add --cost measured"]);
}

#[test]
fn bad_tables_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.json").display().to_string();
    refused(&arguments("stats", &["--cost", "measured", "--cost-table", &missing]), &["cannot read", "none.json"]);
    let head = r#""format":"rematic-costs","version":1,"device":"bench""#;
    for (text, parts) in [
        ("no json".to_owned(), ["table.json is not a cost table", "line 1"]),
        (r#"{"format":"rematic-plan","version":1}"#.to_owned(), ["`rematic-plan`", "`rematic-costs`"]),
        (format!(r#"{{{head},"ops":[{{"op":"mm.default"}}]}}"#), ["ops[0]", "missing field"]),
        (format!(r#"{{{head},"ops":[]}}"#), ["none of the step's", "measured on bench"]),
    ] {
        let path = table(folder.path(), &text);
        for verb in ["stats", "curve"] {
            refused(&arguments(verb, &["--cost", "measured", "--cost-table", &path]), &parts);
        }
    }
}

#[test]
fn the_report_says_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(
        folder.path(),
        r#"{"format":"rematic-costs","version":1,"device":"bench","ops":[
            {"op":"add.Tensor","inputs":[["f32",[1,64,768],[49152,768,1]],["f32",[1,64,768],[49152,768,1]]],
             "outputs":[["f32",[1,64,768],[49152,768,1]]],"ms":2.5}]}"#,
    );
    let measured = ["--cost", "measured", "--cost-table", &path];
    let said = run(&arguments("stats", &measured));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.stdout.contains("(measured):") && said.stdout.contains(" of the time, measured on bench;"),
        "{said:?}"
    );
    let json = run(&arguments("plan", &[&measured[..], &["--budget", "400MiB", "--json"]].concat()));
    assert_eq!(json.code, Some(0), "{json:?}");
    assert!(json.stdout.contains(r#""measured": {"#), "{json:?}");
}
