//! The loss as a decision of the planner.

use std::process::Command;

use serde_json::Value;

/// What a command says as JSON, and its exit code.
fn asked(arguments: &str) -> (Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rematic"));
    let ran = command.args(arguments.split_whitespace()).args(["--json", "--quiet"]).output().unwrap();
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    (serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{arguments}: {error}")), ran.status.code())
}

fn number(answer: &Value, field: &str) -> f64 {
    answer[field].as_f64().unwrap_or_else(|| panic!("{field} of {answer}"))
}

const LLAMA: &str = "plan llama-3-8b --layers 8 --batch 2 --seq 8192 --world-size 8";

#[test]
fn the_loss_of_the_faster_step_is_taken() {
    let mut taken = Vec::new();
    for budget in ["60GiB", "40GiB", "34GiB", "20GiB", "1GiB"] {
        let [plain, chunked, auto] =
            ["plain", "chunked", "auto"].map(|loss| asked(&format!("{LLAMA} --budget {budget} --loss {loss}")));
        let fits = |answer: &(Value, Option<i32>)| answer.1 == Some(0);
        let faster = number(&chunked.0, "planned_step_ms") < number(&plain.0, "planned_step_ms");
        let lower = number(&chunked.0, "peak_bytes") < number(&plain.0, "peak_bytes");
        let is_chunked = match (fits(&plain), fits(&chunked)) {
            (true, true) => faster,
            (false, false) => lower,
            (_, chunked) => chunked,
        };
        let (chosen, other) = if is_chunked { (&chunked, &plain) } else { (&plain, &chunked) };
        let loss = &auto.0["loss"];
        let word = if is_chunked { "chunked" } else { "plain" };
        assert_eq!((loss["taken"].as_str(), auto.1), (Some(word), chosen.1), "{budget}");
        assert_eq!(auto.0["peak_bytes"], chosen.0["peak_bytes"]);
        assert_eq!(loss["step_ms"], chosen.0["planned_step_ms"]);
        assert_eq!(loss["other"]["step_ms"], other.0["planned_step_ms"]);
        assert_eq!(loss["other"]["peak_bytes"], other.0["peak_bytes"]);
        assert_eq!(loss["other"]["outcome"], other.0["outcome"]);
        taken.push(word);
    }
    assert_eq!(taken[0], "plain", "a step that fits as it is is not changed");
    assert!(taken[1..].contains(&"chunked"), "{taken:?}");
}

#[test]
fn a_model_without_such_a_loss_has_the_plain_one() {
    let (answer, code) = asked("plan seed-transformer --budget 1.6GiB --loss auto");
    assert_eq!((answer["loss"]["taken"].as_str(), code), (Some("plain"), Some(0)));
    assert!(answer["loss"]["other"]["why"].as_str().unwrap().contains("sum of its output"), "{answer}");
}

#[test]
fn a_plan_says_what_the_chunked_loss_would_bring() {
    // Within a budget, with a plan, and where no plan fits; on a device. Half of a batch, which would be cheaper still, there is not.
    let single = "plan llama-3-8b --layers 8 --batch 1 --seq 16384 --world-size 8";
    for (question, field) in [
        (format!("{single} --budget 34GiB"), "cheaper"),
        (format!("{single} --budget 22GiB"), "ways"),
        ("plan llama-3-8b --batch 2 --seq 8192 --fsdp 8 --device a100-40".to_owned(), "ways"),
    ] {
        let (answer, _) = asked(&question);
        let found = if field == "ways" { answer[field][0].clone() } else { answer[field].clone() };
        assert_eq!(found["kind"].as_str(), Some("chunked-loss"), "{question}: {answer}");
        // What is said is reached with it.
        let (chunked, code) = asked(&format!("{question} --loss chunked"));
        assert_eq!(code, Some(0), "{question}");
        let promised = number(&answer, "step_ms") + number(&found, "extra_ms");
        assert!(number(&chunked, "planned_step_ms") <= promised * (1.0 + 1e-9), "{question}: {promised} {chunked}");
    }
}

#[test]
fn a_plan_says_what_accumulation_would_bring() {
    let question = "plan gpt2 --batch 8 --budget 8GiB";
    let (answer, code) = asked(question);
    assert_eq!(code, Some(0));
    let found = &answer["cheaper"];
    assert_eq!(found["kind"].as_str(), Some("gradient-accumulation"), "{answer}");
    assert_eq!(found["how"].as_str(), Some("--batch 4 --accumulate 2"));
    // What is said is reached with it, and nothing that explain knows is cheaper.
    let (halved, code) = asked("plan gpt2 --batch 4 --accumulate 2 --budget 8GiB");
    assert_eq!(code, Some(0));
    let promised = number(&answer, "step_ms") + number(found, "extra_ms");
    assert!(number(&halved, "planned_step_ms") <= promised * (1.0 + 1e-9), "{promised} {halved}");
    assert!(promised < number(&answer, "planned_step_ms"));
    let (explained, code) = asked(&question.replace("plan", "explain"));
    assert_eq!(code, Some(3));
    let pairs = explained["pairs"].as_array().unwrap();
    for pair in pairs.iter().filter(|pair| number(pair, "peak_bytes") <= number(&answer, "budget_bytes")) {
        assert!(number(found, "extra_ms") <= number(pair, "extra_ms"), "{found} {pair}");
    }
}

#[test]
fn the_least_budget_is_far_lower_with_the_chunked_loss() {
    let (answer, code) = asked("plan llama-3-8b --batch 2 --seq 8192 --world-size 8 --budget 1GiB --loss auto");
    assert_eq!((answer["loss"]["taken"].as_str(), code), (Some("chunked"), Some(3)));
    let least = number(&answer, "least_budget_bytes") / f64::from(1 << 30);
    assert!(least <= 22.0, "{least} GiB");
}
