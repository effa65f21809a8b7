use crate::run::{refused, run};

fn says(arguments: &str, parts: &[&str]) {
    refused(&arguments.split_whitespace().collect::<Vec<_>>(), parts);
}

#[test]
fn sharding_that_cannot_be_is_refused() {
    for count in ["0", "-1", "x", "1.5", "4294967296"] {
        says(&format!("stats gpt2 --fsdp {count}"), &["--fsdp", count]);
        says(&format!("stats gpt2 --fsdp 2 --replicate {count}"), &["--replicate", count]);
    }
    says("stats gpt2 --fsdp 8 --fsdp-rank 8", &["rank", "8"]);
    says("stats gpt2 --fsdp 8 --reshard perhaps", &["--reshard", "perhaps", "yes", "no"]);
    for alone in ["--replicate 2", "--fsdp-rank 1", "--reshard no"] {
        says(&format!("stats gpt2 {alone}"), &["--fsdp"]);
    }
}

#[test]
fn two_ways_to_shard_are_one_too_many() {
    for verb in ["plan gpt2 --budget 4GiB", "explain gpt2", "curve gpt2", "report gpt2"] {
        says(&format!("{verb} --fsdp 8 --world-size 8"), &["--fsdp", "--world-size", "cannot be used"]);
    }
}

#[test]
fn what_is_not_known_of_parts_is_refused() {
    for optimizer in ["muon", "adafactor", "lion", "adamw8bit"] {
        let parts = [optimizer, "--tp", "take adamw, adam or sgd"];
        says(&format!("stats llama-3-8b --layers 1 --tp 2 --optimizer {optimizer}"), &parts);
    }
    for optimizer in ["muon", "adafactor"] {
        let parts = ["--fsdp", "reads whole parameters", "adamw, sgd, lion"];
        says(&format!("stats llama-3-8b --layers 1 --fsdp 2 --optimizer {optimizer}"), &parts);
    }
    says("stats llama-3-8b --layers 1 --tp 2 --precision mixed", &["precision", "--tp", "add --fsdp"]);
    says("stats llama-3-8b --layers 1 --tp 2 --lora 8", &["lora", "--tp", "take --fsdp alone"]);
}

#[test]
fn a_plan_of_other_ranks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let step = ["gpt2", "--batch", "2", "--seq", "256"];
    let made = run(&[&["plan"], &step[..], &["--fsdp", "4", "--budget", "1500MiB", "-o", plan]].concat());
    assert_eq!(made.code, Some(0), "{made:?}");
    let parts = ["one of 4 devices", "one of 2", "shard it as the plan was"];
    refused(&[&["replay"], &step[..], &["--fsdp", "2", "--plan", plan]].concat(), &parts);
    refused(&[&["report"], &step[..], &["--fsdp", "2", "--plan", plan]].concat(), &parts);
}

#[test]
fn settings_of_an_allocator_that_is_not_used_are_refused() {
    let parts = ["--alloc-conf", "CPU", "--allocator cuda"];
    for verb in ["stats gpt2", "plan gpt2 --budget 4GiB", "curve gpt2", "explain gpt2", "report gpt2"] {
        says(&format!("{verb} --allocator cpu --alloc-conf expandable_segments:True"), &parts);
    }
}
