use crate::run::{refused, run};

#[test]
fn what_fit_works_out_itself_is_refused() {
    for (option, value) in [("--replicate", "2"), ("--fsdp-rank", "1")] {
        refused(&["fit", "gpt2", "--fsdp", "4", option, value], &[option, "means nothing here; drop it"]);
    }
    refused(&["fit", "llama-3-8b", "--tp", "2", "--tp-rank", "1"], &["--tp-rank", "drop it"]);
    refused(&["fit", "gpt2", "--fsdp", "4", "--reshard", "auto"], &["--reshard auto", "give yes or no"]);
}

#[test]
fn gpus_and_their_groups_go_together() {
    refused(
        &["fit", "llama-3-8b", "--gpus", "6", "--tp", "4"],
        &["--gpus 6 is not a multiple of --tp 4", "that 4 divides"],
    );
    refused(&["fit", "gpt2", "--gpus", "4", "--tp", "2"], &["gpt2", "--tp"]);
    refused(&["fit", "gpt2", "--gpus", "4", "--fsdp", "2"], &["--gpus", "--fsdp"]);
    for gpus in ["0", "-1", "x", "99999999999"] {
        refused(&["fit", "gpt2", &format!("--gpus={gpus}")], &["--gpus", "give a whole number"]);
    }
}

#[test]
fn the_source_and_its_sizes_are_checked() {
    refused(&["fit", "gtp2"], &["did you mean `gpt2`?"]);
    refused(&["fit", "gpt2", "--seq", "4096"], &["seq", "1024 positions"]);
    refused(&["fit", "gpt2", "--device", "h1000"], &["h1000", "h100"]);
    refused(&["fit", "missing.rmt"], &["missing.rmt"]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("step.rmt");
    let trace = trace.to_str().unwrap();
    assert_eq!(run(&["trace", "gpt2", "--layers", "1", "--seq", "16", "-o", trace]).code, Some(0));
    refused(&["fit", trace, "--loss", "auto"], &["--loss auto is for models", "leave it out"]);
}

#[test]
fn where_nothing_fits_the_answer_says_so() {
    let ran = run(&["fit", "llama-3-8b", "--layers", "4", "--device", "t4", "--gpus", "1", "--optimizer", "adamw"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("none (1 does not fit)"), "{}", ran.stdout);
    assert!(ran.stdout.contains("No set-up was found that fits"), "{}", ran.stdout);
}
