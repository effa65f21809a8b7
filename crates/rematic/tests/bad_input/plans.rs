use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::planning::SMALL;
use crate::run::{refused, run};

/// A folder with the plans of the planners exact and milp.
static PLANS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    for planner in ["exact", "milp"] {
        let path = folder.path().join(planner);
        let options = ["--budget", "350KiB", "--world-size", "2", "--planner", planner, "-o", path.to_str().unwrap()];
        let ran = run(&[&["plan"], SMALL.as_slice(), &options].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
    folder
});

fn plan(planner: &str) -> Value {
    serde_json::from_slice(&std::fs::read(PLANS.path().join(planner)).unwrap()).unwrap()
}

fn replay<'a>(source: &[&'a str], path: &'a Path) -> Vec<&'a OsStr> {
    let source = source.iter().map(|word| OsStr::new(*word));
    [OsStr::new("replay")].into_iter().chain(source).chain([OsStr::new("--plan"), path.as_os_str()]).collect()
}

/// A file with this content, which must be refused.
#[track_caller]
fn refused_plan(content: impl AsRef<[u8]>, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("plan.json");
    std::fs::write(&path, content).unwrap();
    refused(&replay(&SMALL, &path), parts);
}

/// The exact planner's plan after a change.
#[track_caller]
fn refused_change(change: impl FnOnce(&mut Value), parts: &[&str]) {
    let mut plan = plan("exact");
    change(&mut plan);
    refused_plan(plan.to_string(), parts);
}

#[test]
fn whole_plans_are_replayed_to_what_they_promise() {
    for planner in ["exact", "milp"] {
        let path = PLANS.path().join(planner);
        let ran = run(&[replay(&SMALL, &path), vec![OsStr::new("--json")]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{planner}");
        let (plan, replayed) = (plan(planner), serde_json::from_str::<Value>(&ran.stdout).unwrap());
        assert!(!plan["regions"].as_array().unwrap().is_empty(), "{planner}");
        for field in ["peak_bytes", "recompute_ms", "baseline_peak_bytes"] {
            assert_eq!(replayed[field], plan[field], "{planner}: {field}");
            assert_eq!(replayed["replayed"][field], plan[field], "{planner}: {field}");
        }
    }
}

/// What a replay says is above the budget, if that is lowered by hand.
#[test]
fn plans_that_do_not_fit_here_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let mut lowered = plan("exact");
    lowered["budget_bytes"] = json!(lowered["peak_bytes"].as_u64().unwrap() - 1);
    std::fs::write(&path, lowered.to_string()).unwrap();
    let ran = run(&replay(&SMALL, &path));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(3), ""));
    assert!(ran.stdout.contains("\nDoes not fit with this plan, by "), "{}", ran.stdout);
    let ran = run(&[replay(&SMALL, &path), vec![OsStr::new("--json")]].concat());
    let replayed = &serde_json::from_str::<Value>(&ran.stdout).unwrap()["replayed"];
    assert_eq!(replayed["within_budget"], json!(false));
    assert!(replayed["peak_bytes"].as_u64() > lowered["budget_bytes"].as_u64());
}

/// The same operators in another batch, type or layout are another step; what is not said is as it was planned.
#[test]
fn a_plan_for_another_step_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let made = [
        "plan",
        "gpt2",
        "--layers",
        "2",
        "--batch",
        "4",
        "--seq",
        "64",
        "--budget",
        "8GiB",
        "-o",
        path.to_str().unwrap(),
    ];
    assert_eq!(run(&made).code, Some(0));
    let model = ["gpt2", "--layers", "2"];
    assert_eq!(run(&replay(&model, &path)).code, Some(0), "as it was planned");
    let again = "plan again for this one, or give the step as it was planned";
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--batch", "2"], &["batch is 4 in the plan, but 2 in this step", again]),
        (&["--seq", "32"], &["seq is 64 in the plan, but 32 in this step", again]),
        (&["--dtype", "bf16"], &["dtype is f32 in the plan, but bf16 in this step", again]),
        (&["--optimizer", "sgd"], &["optimizer is adamw-fused in the plan, but sgd in this step", again]),
        (&["--accumulate", "2"], &["accumulate is not set in the plan, but 2 in this step", again]),
        (&["--precision", "mixed"], &["autocast is not set in the plan, but bf16 in this step", again]),
        (&["--fsdp", "2"], &["one of 1 devices", "one of 2", "shard it as the plan was"]),
        (&["--world-size", "2"], &["one of 1 devices", "one of 2", "shard it as the plan was"]),
        (&["--allocator", "cpu"], &["without a plan that one peaks at ", "with the same layers and sizes"]),
    ];
    for (options, parts) in cases {
        refused(&replay(&[&model[..], options].concat(), &path), parts);
    }
    refused(&replay(&["gpt2", "--layers", "3"], &path), &["without a plan that one peaks at "]);
    refused(&replay(&["llama-3-8b", "--layers", "2"], &path), &["the plan is for another step, of gpt2"]);
}

/// What is printed as JSON has the decisions of the file, and says what the replay says, above the budget or not.
#[test]
fn the_planner_milp_prints_its_decisions() {
    for (budget, within) in [("330KiB", false), ("1GiB", true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let options = ["--planner", "milp", "--budget", budget, "--json", "-o", path.to_str().unwrap()];
        let ran = run(&[&["plan"], SMALL.as_slice(), &options].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{budget}");
        let printed: Value = serde_json::from_str(&ran.stdout).unwrap();
        let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(printed["replayed"]["within_budget"], json!(within), "{budget}");
        assert_eq!(printed["replayed"]["peak_bytes"], written["peak_bytes"], "{budget}");
        assert!(printed["peak_bytes"].as_u64() <= printed["budget_bytes"].as_u64(), "{budget}");
        let regions = |plan: &Value| -> Vec<(Value, Vec<(Value, Value)>)> {
            let decision = |op: &Value| (op["op"].clone(), op["decision"].clone());
            let policy = |region: &Value| region["policy"].as_array().unwrap().iter().map(decision).collect();
            let regions = plan["regions"].as_array().unwrap();
            regions.iter().map(|region| (region["module"].clone(), policy(region))).collect()
        };
        assert_eq!(regions(&printed), regions(&written), "{budget}");
        assert_eq!(regions(&printed).is_empty(), budget == "1GiB", "{budget}");
    }
}

/// A step that fits has a plan too: the one that drops nothing.
#[test]
fn a_plan_that_drops_nothing_is_replayed() {
    for planner in ["exact", "milp"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let options = ["--budget", "1GiB", "--planner", planner, "-o", path.to_str().unwrap()];
        let ran = run(&[&["plan"], SMALL.as_slice(), &options].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{planner}");
        let ran = run(&replay(&SMALL, &path));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{planner}");
        assert!(ran.stdout.contains("Nothing is checkpointed"), "{planner}: {}", ran.stdout);
    }
}

#[test]
fn where_there_is_no_plan_none_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    for planner in ["exact", "milp"] {
        let ran = run(&[&["plan"], SMALL.as_slice(), &["--budget", "1KiB", "--planner", planner, "-o", path]].concat());
        let warning = format!("warning: there is no plan, so {path} is not written\n");
        assert_eq!((ran.code, ran.stderr), (Some(3), warning), "{planner}");
        assert!(!Path::new(path).exists());
    }
}

#[test]
fn a_plan_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/plan.json");
    for (path, reason) in [(missing.as_path(), "No such file"), (folder.path(), "directory")] {
        let path = path.to_str().unwrap();
        for planner in ["exact", "milp"] {
            let options = ["--budget", "350KiB", "--planner", planner, "-o", path];
            refused(
                &[&["plan"], SMALL.as_slice(), &options].concat(),
                &["cannot write", path, reason, "folder that exists"],
            );
        }
    }
}

#[test]
fn plans_for_other_steps_name_the_first_difference() {
    let exact = PLANS.path().join("exact");
    let module = plan("exact")["regions"][0]["module"].as_str().unwrap().to_owned();
    refused(
        &replay(&["gpt2"], &exact),
        &["for another step, of seed-transformer", "call 0", &module, "this step has 0", "plan again"],
    );
    let without_dropout = [SMALL.as_slice(), &["--dropout", "0"]].concat();
    refused(
        &replay(&without_dropout, &exact),
        &["for another step", "operator", "is native_dropout.default in the plan, but", "in this step", "plan again"],
    );
    refused_change(
        |plan| plan["regions"][0]["policy"][0]["op"] = json!("relu.default"),
        &["operator 0 of", &module, "is relu.default in the plan, but", "in this step"],
    );
    refused_change(
        |plan| plan["regions"][0]["policy"].as_array_mut().unwrap().truncate(3),
        &["operator 3 of", "is not there in the plan, but", "in this step"],
    );
    refused_change(|plan| plan["regions"][0]["call"] = json!(1), &["call 1", "this step has 1"]);
}

#[test]
fn files_that_are_no_plans_are_refused() {
    refused_plan("", &["plan.json is empty", "rematic plan"]);
    refused_plan(" \n", &["plan.json is empty", "rematic plan"]);
    refused_plan("no plan", &["is not a plan", "line 1 column 2", "rematic plan … -o FILE"]);
    refused_plan("[]", &["is not a plan", "rematic plan … -o FILE"]);
    refused_plan("{}", &["is not a plan", "missing field `format`"]);
    refused_plan([0xff, 0xfe, 0, 1], &["is not a plan"]);
    refused_plan("[".repeat(100_000), &["is not a plan"]);
    let folder = tempfile::tempdir().unwrap();
    refused(&replay(&SMALL, folder.path()), &["cannot read", "directory", "check the path"]);
    refused(&replay(&SMALL, &folder.path().join("none")), &["cannot read", "none", "No such file", "check the path"]);
    refused_change(
        |plan| plan["format"] = json!("rematic-trace"),
        &["says that it is `rematic-trace`", "`rematic-plan`"],
    );
}

#[test]
fn plans_that_are_cut_off_are_refused() {
    let text = std::fs::read(PLANS.path().join("exact")).unwrap();
    for part in 1..20 {
        refused_plan(&text[..text.len() * part / 20], &["ends in the middle (line ", "cut off; plan again"]);
    }
}

#[test]
fn versions_that_are_not_known_are_refused() {
    for version in [0, 7, 4_294_967_296_u64] {
        let parts = [&format!("format version {version}"), "reads 1 to 6", "update rematic"];
        refused_change(|plan| plan["version"] = json!(version), &parts);
    }
    // Whatever else it has.
    refused_plan(r#"{"format": "rematic-plan", "version": 8, "waves": []}"#, &["format version 8"]);
    refused_change(|plan| plan["version"] = json!("1"), &["version", "expected u32"]);
}

#[test]
fn wrong_types_are_named_by_their_place() {
    refused_change(|plan| plan["regions"] = json!({}), &["is not a plan: regions: ", "expected a sequence"]);
    refused_change(|plan| plan["regions"][0] = json!(3), &["regions[0]", "expected struct"]);
    refused_change(|plan| plan["regions"][0]["module"] = json!(3), &["regions[0].module", "expected a string"]);
    refused_change(|plan| plan["regions"][0]["policy"][2]["index"] = json!("2"), &["regions[0].policy[2].index"]);
    refused_change(
        |plan| plan["regions"][0]["policy"][2]["decision"] = json!("keep"),
        &["regions[0].policy[2].decision", "`keep`", "expected one of `save`, `recompute`"],
    );
    refused_change(|plan| plan["colour"] = json!(1), &["unknown field `colour`"]);
    refused_change(|plan| drop(plan.as_object_mut().unwrap().remove("regions")), &["missing field `regions`"]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    refused_change(|plan| plan["step_ms"] = json!(-1.5), &["step_ms is -1.5", "0 or more", "plan again"]);
    refused_change(|plan| plan["recompute_ms"] = json!(-0.1), &["recompute_ms is -0.1"]);
    refused_change(|plan| plan["regions"][0]["recompute_ms"] = json!(-2), &["regions[0].recompute_ms is -2"]);
    refused_change(|plan| plan["regions"][0]["discard"] = json!(1.01), &["regions[0].discard is 1.01", "from 0 to 1"]);
    refused_change(|plan| plan["regions"][0]["discard"] = json!(-1), &["regions[0].discard is -1"]);
    refused_change(|plan| plan["regions"][0]["discard"] = json!(null), &["regions[0].discard", "expected f64"]);
    refused_change(|plan| plan["peak_bytes"] = json!(-1), &["peak_bytes", "`-1`"]);
    refused_change(|plan| plan["budget_bytes"] = json!(1.5), &["budget_bytes", "`1.5`"]);
    refused_change(|plan| plan["world_size"] = json!(0), &["world_size is 0", "at least 1"]);
    refused_change(|plan| plan["regions"][0]["call"] = json!(-1), &["regions[0].call", "`-1`"]);
    let text = String::from_utf8(std::fs::read(PLANS.path().join("exact")).unwrap()).unwrap();
    for (number, reason) in [("NaN", "expected value"), ("1e999", "number out of range"), ("-inf", "invalid number")] {
        let start = text.find("\"step_ms\": ").unwrap() + "\"step_ms\": ".len();
        let end = start + text[start..].find(',').unwrap();
        refused_plan(format!("{}{number}{}", &text[..start], &text[end..]), &["step_ms", reason]);
    }
}

#[test]
fn a_loss_in_chunks_is_what_the_facts_say() {
    let words = "it computes the loss in chunks (`loss`), but ";
    let refused = |version: u32, facts: Value, chunks: u64, parts: &[&str]| {
        refused_change(
            |plan| {
                plan["version"] = json!(version);
                plan["loss"] = json!({"head": "output", "chunks": chunks});
                plan["facts"].as_array_mut().unwrap().extend(facts.as_array().unwrap().iter().cloned());
            },
            parts,
        );
    };
    let facts = |chunks: &str| json!([["loss", "chunked"], ["loss-head", "output"], ["loss-chunks", chunks]]);
    refused(4, facts("8"), 8, &[words, "versions of the format before 5 do not have that"]);
    refused(5, facts("4"), 8, &[words, "its facts say another thing"]);
    refused(5, json!([]), 8, &[words, "its facts say another thing"]);
    refused(5, facts("0"), 0, &[words, "it needs a layer and at least 1 chunk"]);
    // Whether or not it skips operators too.
    refused(6, facts("8"), 8, &["loss is chunked", "the loss of seed-transformer is the sum of its output"]);
}

#[test]
fn what_is_read_is_not_skipped() {
    let region = &plan("exact")["regions"][0];
    // The backward of gelu reads what the first projection makes.
    let read = region["policy"].as_array().unwrap().iter().position(|op| op["op"] == "addmm.default").unwrap();
    let (module, op) = (region["module"].as_str().unwrap(), region["policy"][read]["op"].as_str().unwrap());
    let skip = |version: u32| {
        move |plan: &mut Value| {
            plan["version"] = json!(version);
            plan["regions"][0]["policy"][read]["decision"] = json!("skip");
        }
    };
    let older = format!("it skips operators of `{module}`, which version 5 of the format has not; plan again");
    refused_change(skip(5), &[&older]);
    let words = format!(
        "does not run operator {read} (`{op}`) of `{module}` again, but in this step what it makes is read again"
    );
    refused_change(skip(6), &[&words, "plan again for this one"]);
}

#[test]
fn older_plans_move_nothing_to_the_host() {
    let first = &plan("exact")["regions"][0];
    let (module, op) = (first["module"].as_str().unwrap(), first["policy"][2]["op"].as_str().unwrap());
    let words = format!("operator 2 (`{op}`) of `{module}` to the host (offload), but ");
    let offload = |plan: &mut Value| plan["regions"][0]["policy"][2]["decision"] = json!("offload");
    let before = |plan: &mut Value| {
        plan["version"] = json!(3);
        offload(plan);
    };
    refused_change(before, &[&words, "versions of the format before 4 do not have that; plan again"]);
    let without = |plan: &mut Value| {
        plan["version"] = json!(4);
        offload(plan);
    };
    refused_change(without, &[&words, "`offload`, which says how much moves and when, is missing; plan again"]);
    let moves = json!({"bytes": 4096, "leaves_with": 0, "returns_with": 0});
    let rate = |gb_per_s: f64| json!({"bytes": 4096, "host_bytes": 4096, "stall_ms": 0.0, "gb_per_s": gb_per_s});
    refused_change(
        |plan| {
            plan["version"] = json!(4);
            plan["regions"][0]["offload"] = moves.clone();
        },
        &["no operator of it has that decision"],
    );
    refused_change(
        |plan| {
            without(plan);
            plan["regions"][0]["offload"] = moves.clone();
            plan["offload"] = rate(0.0);
        },
        &["offload.gb_per_s is 0"],
    );
    refused_change(|plan| plan["regions"][0]["policy"][2]["decision"] = json!("forget"), &["decision"]);
}

#[test]
fn operators_are_numbered_in_order() {
    let module = plan("exact")["regions"][0]["module"].as_str().unwrap().to_owned();
    for index in [99, 1_u64 << 40, u64::MAX] {
        refused_change(
            |plan| plan["regions"][0]["policy"][2]["index"] = json!(index),
            &[&format!("operator 2 of `{module}` is numbered {index}"), "in order, from 0"],
        );
    }
    // Beyond the module's last operator, though in order.
    let beyond = plan("exact")["regions"][0]["policy"].as_array().unwrap().len();
    refused_change(
        |plan| {
            let op = json!({"index": beyond, "op": "mm.default", "decision": "save"});
            plan["regions"][0]["policy"].as_array_mut().unwrap().push(op);
        },
        &[&format!("operator {beyond} of `{module}` is mm.default in the plan, but not there in this step")],
    );
    refused_change(|plan| plan["regions"][0]["policy"].as_array_mut().unwrap().swap(0, 1), &["is numbered 1"]);
}

#[test]
fn regions_do_not_repeat_or_contain_each_other() {
    refused_change(
        |plan| {
            let regions = plan["regions"].as_array_mut().unwrap();
            regions.push(regions[0].clone());
        },
        &["checkpoints call 0 of", "twice", "keep one"],
    );
    // Plans for the same step that take other levels of the tree.
    let folder = tempfile::tempdir().unwrap();
    let regions = |only: &str| {
        let path = folder.path().join("plan.json");
        let options = ["--budget", "350KiB", "--only", only, "-o", path.to_str().unwrap()];
        let ran = run(&[&["plan"], SMALL.as_slice(), &options].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{only}");
        serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap()
    };
    let (outer, inner) = (regions("layers.0"), regions("layers.0.feed_forward"));
    let mut both = outer.clone();
    both["regions"].as_array_mut().unwrap().extend(inner["regions"].as_array().unwrap().iter().cloned());
    refused_plan(
        both.to_string(),
        &["both `Transformer.layers.0` and `Transformer.layers.0.feed_forward` inside it", "keep one"],
    );
}
