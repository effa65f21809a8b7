use crate::run::{Ran, refused, run};

/// A step of 401 KiB that can be brought down to 261 KiB.
pub(crate) const SMALL: [&str; 13] =
    ["seed-transformer", "--layers", "2", "--dim", "8", "--heads", "2", "--vocab", "16", "--seq", "64", "--batch", "4"];

const PLANNERS: [&str; 3] = ["exact", "greedy", "milp"];

fn with<'a>(verb: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&[verb], SMALL.as_slice(), options].concat()
}

fn answered(arguments: &[&str], code: i32) -> Ran {
    let ran = run(arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
    ran
}

#[test]
fn a_budget_of_nothing_is_refused() {
    for (budget, shown) in [("0", "0 B"), ("0GiB", "0 B"), ("0.0001", "0 B")] {
        refused(&with("plan", &["--budget", budget]), &["the budget is", shown, "like 38GiB"]);
    }
}

#[test]
fn a_budget_is_a_size() {
    for budget in ["-1", "-1GiB", "x", "38 gigs", "GiB", "NaN", "inf", "1e400", "99999999999999999999", "1.6.2GiB"] {
        refused(&with("plan", &[&format!("--budget={budget}")]), &["--budget", budget, "is not a size", "38GiB, 40GB"]);
    }
    for budget in ["-1", "-1GiB", "--json"] {
        refused(&with("plan", &["--budget", budget]), &["--budget", budget, "is not a size", "38GiB, 40GB"]);
    }
    refused(&with("plan", &["--budget", ""]), &["--budget"]);
}

#[test]
fn a_budget_beyond_the_device_is_answered_with_a_warning() {
    for planner in PLANNERS {
        let ran = answered(&with("plan", &["--planner", planner, "--device", "h100", "--budget", "86GB"]), 0);
        let warning =
            "warning: the budget of 80.09 GiB is larger than the memory of NVIDIA H100 SXM5 80GB, 79.11 GiB\n";
        assert_eq!(ran.stderr, warning, "{planner}");
        assert!(ran.stdout.contains("Fits as it is"), "{planner}: {}", ran.stdout);
    }
    // The exit code is that of the answer.
    let big = ["plan", "llama-3-8b", "--seq", "8192", "--device", "h100", "--budget", "80GiB", "--never", "*"];
    let ran = answered(&big, 3);
    assert!(ran.stderr.starts_with("warning: the budget of 80.00 GiB"), "{}", ran.stderr);
}

#[test]
fn nobody_is_warned_who_wants_quiet() {
    let quiet = ["--quiet", "--device", "h100", "--budget", "86GB"];
    let loud = answered(&with("plan", &quiet[1..]), 0);
    let ran = answered(&with("plan", &quiet), 0);
    assert_eq!((ran.stderr.as_str(), &ran.stdout), ("", &loud.stdout));
    assert!(!loud.stderr.is_empty());
    refused(&with("plan", &["-q", "--budget", "0"]), &["the budget is 0 B"]);
}

#[test]
fn options_of_another_planner_are_refused() {
    for (option, value) in [("--gap", "0.1"), ("--time-limit", "3")] {
        for planner in ["exact", "greedy"] {
            let (whose, which) = (format!("{option} is for --planner milp"), format!("the planner is {planner}"));
            let parts = [whose.as_str(), which.as_str(), "or drop"];
            refused(&with("plan", &["--budget", "400KiB", "--planner", planner, option, value]), &parts);
        }
        answered(&with("plan", &["--budget", "400KiB", "--planner", "milp", option, value]), 0);
    }
}

#[test]
fn what_cannot_fit_is_told_by_category() {
    for planner in ["exact", "greedy"] {
        let ran = answered(&with("plan", &["--planner", planner, "--budget", "200KiB", "--json"]), 3);
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let categories = answer["least_budget_categories"].as_array().unwrap();
        let sum: u64 = categories.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
        assert_eq!(answer["least_budget_bytes"].as_u64(), Some(sum));
        assert!(categories.len() > 2, "{categories:?}");
    }
    let fits = answered(&with("plan", &["--budget", "1GiB", "--json"]), 0);
    assert!(!fits.stdout.contains("least_budget_categories"));
}

#[test]
fn a_budget_below_all_plans_is_an_answer() {
    for (planner, budget) in [("exact", "200KiB"), ("greedy", "200KiB"), ("milp", "1KiB")] {
        let ran = answered(&with("plan", &["--planner", planner, "--budget", budget]), 3);
        assert!(
            ran.stdout.contains("Cannot fit") && ran.stdout.contains("Raise --budget to at least"),
            "{}",
            ran.stdout
        );
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn patterns_that_match_nothing_are_answered_with_what_there_is() {
    for option in ["--only", "--never"] {
        for pattern in ["layer.*", "LAYERS.0", "", "layers.[01]", "Transformer.layers.2"] {
            let given = [option, pattern];
            let parts = [option, pattern, "matches no module", "\n  layers.*  2×\n", "  layers.*.feed_forward  2×\n"];
            for planner in PLANNERS {
                refused(&with("plan", &[&["--budget", "400KiB", "--planner", planner], &given[..]].concat()), &parts);
            }
            refused(&with("curve", &given), &parts);
        }
    }
}

#[test]
fn patterns_that_leave_nothing_are_an_answer() {
    for planner in PLANNERS {
        let ran = answered(&with("plan", &["--budget", "300KiB", "--planner", planner, "--never", "*"]), 3);
        assert!(ran.stdout.contains("Cannot fit 300.00 KiB"), "{planner}: {}", ran.stdout);
    }
}

#[test]
fn a_curve_has_a_few_points() {
    for points in ["0", "1", "-1", "10001", "18446744073709551616", "x", "2.5"] {
        refused(&with("curve", &["--points", points]), &["--points", points, "whole number from 2 to 10000"]);
    }
    let ran = answered(&with("curve", &["--points", "2"]), 0);
    assert_eq!(ran.stdout.lines().count(), 5, "{}", ran.stdout);
}

#[test]
fn there_is_at_least_one_device() {
    for count in ["0", "-4", "x", "1.5", "4294967296"] {
        let parts = ["--world-size", count, "give a whole number"];
        refused(&with("curve", &["--world-size", count]), &parts);
        refused(&with("replay", &["--plan", "plan.json", "--world-size", count]), &parts);
        for planner in PLANNERS {
            refused(&with("plan", &["--budget", "1GiB", "--planner", planner, "--world-size", count]), &parts);
        }
    }
    answered(&with("plan", &["--budget", "1GiB", "--world-size", "4294967295"]), 0);
}

#[test]
fn settings_of_the_solver_are_in_range() {
    for gap in ["-0.1", "1", "NaN", "x"] {
        refused(&with("plan", &["--budget", "1GiB", "--planner", "milp", "--gap", gap]), &["--gap", gap, "below 1"]);
    }
    refused(&with("plan", &["--budget", "1GiB", "--time-limit", "-1"]), &["--time-limit", "-1"]);
    refused(&with("plan", &["--budget", "1GiB", "--planner", "milp", "--whole"]), &["--whole", "--planner exact"]);
    refused(&with("plan", &["--budget", "1GiB", "--planner", "best"]), &["'best'", "exact, greedy, milp"]);
}

#[test]
fn memory_of_the_host_is_a_size_for_the_exact_planner() {
    let plan = |options: &[&'static str]| with("plan", &[&["--budget", "350KiB"], options].concat());
    for verb in ["plan", "curve"] {
        refused(
            &with(verb, &["--host-memory", "0"]),
            &["--host-memory is 0: nothing can be moved there; leave it out"],
        );
        refused(&with(verb, &["--host-memory", "-1"]), &["--host-memory", "-1", "is not a size"]);
    }
    for planner in ["greedy", "milp"] {
        let words =
            format!("--host-memory is for the planner exact, and {planner} moves nothing; leave one of them out");
        refused(&plan(&["--host-memory", "1GiB", "--planner", planner]), &[&words]);
    }
    for rate in ["0", "-5", "nvlink4", "fast", "NaN"] {
        refused(
            &plan(&["--host-memory", "1GiB", "--host-bandwidth", rate]),
            &["--host-bandwidth", &format!("`{rate}` is none; give pcie3, pcie4, pcie5, or a number of GB per second")],
        );
    }
    // Of too little nothing comes, and nothing is wrong.
    let without = answered(&plan(&["--json"]), 0).stdout;
    assert_eq!(answered(&plan(&["--host-memory", "512B", "--json"]), 0).stdout, without);
    for verb in ["plan", "curve"] {
        let words = "--host-bandwidth is for plans that move outputs to the host, and without --host-memory none does; give that too, or \
                     leave it out";
        refused(&with(verb, &["--host-bandwidth", "25"]), &[words]);
    }
}

#[test]
fn plans_that_move_outputs_are_not_written_as_python() {
    let deep = ["plan", "gpt2", "--layers", "6", "--batch", "4", "--budget", "4.5GiB", "--host-memory", "8GiB"];
    assert!(answered(&deep, 0).stdout.contains("\nOffload: "));
    refused(
        &[&deep[..], &["--emit", "python"]].concat(),
        &[
            "to the host and back, which the emitted Python cannot; train with rematic.apply",
            "plan without --host-memory",
        ],
    );
}
