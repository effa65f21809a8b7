use crate::run::{refused, run};

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let missing = path("no/such/folder/report.html");
    refused(&["report", "seed-transformer", "-o", &missing], &["cannot write", &missing, "folder that exists"]);
    let page = path("report.html");
    for option in ["--csv", "--chrome-trace"] {
        let missing = path("no/table");
        refused(&["report", "seed-transformer", "-o", &page, option, &missing], &["cannot write", &missing]);
    }
}

#[test]
fn budgets_are_checked_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    for (budget, word) in [("0", "the budget is 0 B"), ("-1GiB", "is not a size"), ("much", "is not a size")] {
        refused(&["report", "seed-transformer", "--budget", budget, "-o", page.to_str().unwrap()], &[word]);
        assert!(!page.exists());
    }
}

#[test]
fn a_plan_stands_for_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plan, page) = (path("plan.json"), path("report.html"));
    let planned = run(&["plan", "gpt2", "--batch", "4", "--seq", "256", "--budget", "2.8GiB", "-o", &plan]);
    assert_eq!(planned.code, Some(0), "{planned:?}");
    let report = run(&["report", &plan, "-o", &page, "--json"]);
    assert_eq!(report.code, Some(0), "{report:?}");
    let said: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&plan).unwrap()).unwrap();
    for field in ["budget_bytes", "baseline_peak_bytes", "peak_bytes"] {
        assert_eq!(said[field], saved[field], "{field}");
    }
    // It is for four layers more than this one has.
    refused(&["report", &plan, "--layers", "8", "-o", &page], &["plan"]);
    refused(&["report", &plan, "--plan", &plan], &["is a plan itself", "drop --plan"]);
    let other = std::fs::read_to_string(&plan).unwrap().replace("\"source\": \"gpt2\"", "\"source\": \"MyModel\"");
    std::fs::write(&plan, other).unwrap();
    refused(&["report", &plan, "-o", &page], &["a plan for `MyModel`", "give its trace", "--plan"]);
}

#[test]
fn a_damaged_plan_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    std::fs::write(&plan, "{\"format\": \"rematic-plan\", \"version\": 1, \"source\"").unwrap();
    refused(&["report", plan.to_str().unwrap()], &["plan.json", "line 1"]);
}

#[test]
fn a_step_that_cannot_fit_has_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let report = run(&["report", "seed-transformer", "--budget", "0.5GiB", "-o", page.to_str().unwrap()]);
    assert_eq!(report.code, Some(3), "{report:?}");
    assert!(report.stdout.contains("cannot fit 512.00 MiB"), "{report:?}");
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
}
