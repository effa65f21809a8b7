//! The page says what the other verbs say, and holds together whatever the names are.

use rematic::{CostRule, CostSource, Limits, Options, PageAnswer, PageOptions, Source, StepTrace, Study, Target};
use serde_json::Value;

fn page(trace: &StepTrace, budget: Option<&str>) -> PageAnswer {
    let target = Target::find("h100", None, CostSource::Rule(CostRule::Physical)).unwrap();
    let budget = budget.map(|budget| budget.parse().unwrap());
    let study = Study::new(trace.clone(), target, Limits::default()).unwrap();
    study.page(PageOptions { budget, points: 50, ..PageOptions::default() }, || {}).unwrap()
}

fn document(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    assert!(!data.contains('<'));
    serde_json::from_str(data).unwrap()
}

fn traced(name: &str) -> StepTrace {
    Source::open(name).unwrap().trace(&Options::default()).unwrap()
}

#[test]
fn a_page_holds_the_plans_of_the_curve() {
    let trace = traced("gpt2");
    let found = page(&trace, Some("3GiB"));
    let document = document(&found.html);
    let target = Target::find("h100", None, CostSource::Rule(CostRule::Physical)).unwrap();
    let curve = Study::new(trace, target, Limits::default()).unwrap().curve(50, || {}).unwrap();
    let points = document["curve"].as_array().unwrap();
    assert_eq!(points.len(), 50);
    for (shown, point) in points.iter().zip(&curve.points) {
        assert_eq!(shown["budget_bytes"], point.budget_bytes.0);
        assert_eq!(shown["peak_bytes"], point.peak_bytes.0);
        assert_eq!(shown["recompute_ms"], point.recompute_ms.0);
    }
    assert_eq!(document["chosen"]["peak_bytes"], found.document.peak_bytes.0);
    assert_eq!(document["chosen"]["regions"].as_array().unwrap().len(), found.document.regions.len());
    assert_eq!(document["explanation"]["peak_bytes"], document["baseline_peak_bytes"]);
}

#[test]
fn the_same_step_gives_the_same_page() {
    let trace = traced("seed-transformer");
    assert_eq!(page(&trace, Some("1.6GiB")).html, page(&trace, Some("1.6GiB")).html);
}

#[test]
fn without_a_budget_it_is_the_devices_memory() {
    let found = page(&traced("seed-transformer"), None);
    let usable = rematic::Device::find("h100").unwrap().usable;
    assert_eq!(found.document.budget_bytes, usable.saturating_sub(rematic::CONTEXT));
    assert!(found.document.regions.is_empty());
}

#[test]
fn a_page_is_whole_and_asks_for_nothing() {
    let html = page(&traced("seed-transformer"), Some("1.6GiB")).html;
    for mark in ["{{", "}}"] {
        assert!(!html.split("<script type=\"application/json\"").next().unwrap().contains(mark), "{mark}");
    }
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    for outside in ["http://", "https://", "src=", "@import", "fetch(", "url("] {
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(outside), "{outside}");
    }
}
