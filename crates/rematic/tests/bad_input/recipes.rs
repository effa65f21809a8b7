use crate::run::{refused, run};

fn says(arguments: &str, parts: &[&str]) {
    refused(&arguments.split_whitespace().collect::<Vec<_>>(), parts);
}

#[test]
fn counts_of_a_recipe_are_whole_numbers() {
    for value in ["0", "-1", "x", "1.5"] {
        says(&format!("stats gpt2 --accumulate {value}"), &["--accumulate", value, "give a whole number, 1 or more"]);
        says(&format!("stats gpt2 --lora {value}"), &["--lora", value, "give a whole number, 1 or more"]);
    }
    says("stats gpt2 --accumulate 1025", &["accumulate is 1025", "from 1 to 1024"]);
    says("stats gpt2 --lora 65537", &["lora is 65537", "from 1 to 65536"]);
}

#[test]
fn adapters_of_layers_that_are_not_there_are_refused() {
    says(
        "stats gpt2 --lora 8 --lora-targets q_proj",
        &["lora-targets is `q_proj`", "no linear layer", "c_attn, c_proj, c_fc"],
    );
    says("stats llama-3-8b --layers 1 --lora 8 --lora-targets q_proj,query", &["`query`", "q_proj, k_proj, v_proj"]);
    says("stats seed-transformer --lora 8", &["PEFT knows no layers of seed-transformer", "--lora-targets"]);
    says("stats gpt2 --lora-targets c_attn", &["--lora <RANK>"]);
    says("stats gpt2 --lora-alpha 16", &["--lora <RANK>"]);
    says("stats gpt2 --lora 8 --lora-alpha nan", &["lora-alpha is NaN", "must be a number"]);
}

#[test]
fn frozen_parameters_are_there_and_leave_some_to_train() {
    says("stats gpt2 --freeze encoder.*", &["freeze is `encoder.*`", "no parameter", "transformer.wte.weight"]);
    says("stats gpt2 --freeze *", &["nothing is left to train", "--freeze"]);
}

#[test]
fn precision_and_type_are_one_too_many() {
    says("stats gpt2 --precision mixed --dtype bf16", &["--precision", "--dtype", "cannot be used"]);
    says("stats gpt2 --precision int8", &["--precision", "int8", "mixed", "fp16"]);
    says("stats gpt2 --loss fused", &["--loss", "fused", "plain", "chunked"]);
    says("stats seed-transformer --loss chunked", &["loss is chunked", "sum of its output"]);
    says("stats vit-base --loss chunked", &["loss is chunked", "for causal language models, and vit-base is none"]);
    says(
        "stats llama-3-8b --layers 1 --lora 8 --lora-targets q_proj,lm_head --loss chunked",
        &["loss is chunked", "an adapter beside lm_head adds to its logits"],
    );
    says("stats gpt2 --optimizer adagrad", &["--optimizer", "adagrad", "adamw8bit", "lion", "muon", "adafactor"]);
}

#[test]
fn a_loss_is_chosen_together_with_a_plan() {
    for verb in ["stats", "explain", "curve", "report"] {
        says(
            &format!("{verb} gpt2 --layers 1 --seq 16 --loss auto"),
            &["--loss auto chooses together with a plan, so it is for the verbs plan and fit; give plain or chunked"],
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("step.rmt");
    let trace = trace.to_str().unwrap();
    let made = run(&["trace", "gpt2", "--layers", "1", "--seq", "16", "-o", trace]);
    assert_eq!(made.code, Some(0), "{made:?}");
    says(&format!("plan {trace} --budget 1GiB --loss auto"), &["saved trace", "drop --loss"]);
    says(
        "plan gpt2 --layers 1 --seq 16 --budget 1GiB --loss chunked --emit python",
        &["computes the loss of `lm_head` in chunks, which the emitted Python cannot", "rematic.apply", "--loss plain"],
    );
}

#[test]
fn what_is_compiled_is_for_a_rehearsal() {
    for verb in ["stats", "plan", "curve", "explain", "fit", "report"] {
        let says_so = ["torch.compile", "--with-compile", "rematic rehearse -- python train.py"];
        says(&format!("{verb} gpt2 --compile"), &says_so);
    }
    says("explain seed-transformer --with-compile", &["seed-transformer has no config of Hugging Face's"]);
    says("explain gpt2 --with-compile --lora 8", &["--lora is not rehearsed under torch.compile; drop one of them"]);
    says("explain gpt2 --with-compile --world-size 8", &["--world-size is not rehearsed under torch.compile"]);
    says("explain gpt2 --with-compile", &["gpt2 could not be rehearsed under torch.compile: no Python with PyTorch"]);
}

#[test]
fn what_ranks_do_not_share_is_refused() {
    for option in ["--lora 8", "--precision mixed", "--freeze lm_head.*", "--loss chunked"] {
        let name = option.split_whitespace().next().unwrap().trim_start_matches('-');
        says(&format!("stats llama-3-8b --layers 2 --tp 2 {option}"), &[name, "not known together with --tp"]);
    }
}

#[test]
fn a_saved_step_has_its_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("step.rmt");
    let trace = trace.to_str().unwrap();
    let made = run(&["trace", "gpt2", "--layers", "1", "--seq", "16", "--lora", "4", "-o", trace]);
    assert_eq!(made.code, Some(0), "{made:?}");
    for option in ["--lora 4", "--accumulate 2", "--freeze lm_head.*", "--loss chunked"] {
        let name = option.split_whitespace().next().unwrap();
        says(&format!("stats {trace} {option}"), &["saved trace", name]);
    }
    says(&format!("stats {trace} --precision mixed"), &["has its types already", "--fsdp GPUS"]);
}
