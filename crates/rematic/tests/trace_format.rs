//! The program in `docs/trace-format.md` writes a trace that Rematic reads, with the peak that the document states.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const DOCUMENT: &str = include_str!("../../../docs/trace-format.md");

fn python_block() -> &'static str {
    let (_, after) = DOCUMENT.split_once("```python\n").expect("the document has a Python block");
    let (block, rest) = after.split_once("\n```").expect("the block ends");
    assert!(!rest.contains("```python"), "one program, so that it is clear which one runs");
    block
}

fn stats(trace: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rematic"))
        .args(["stats", "--allocator", "cpu", "--json"])
        .arg(trace)
        .output()
        .unwrap()
}

#[test]
fn the_documented_program_writes_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (program, trace) = (folder.path().join("write.py"), folder.path().join("linear.rmt"));
    std::fs::write(&program, python_block()).unwrap();
    let python = Command::new("python3").arg(&program).arg(&trace).output().expect("python3 runs");
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));

    let output = stats(&trace);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(DOCUMENT.contains("1,416 bytes"));
    assert_eq!(stats["peak"]["total"], 1416);
    assert_eq!(stats["peak"]["at"], json!({ "op": "mm.default", "module": "Linear", "phase": "backward" }));
    let categories = ["parameter", "other", "activation", "temp"].map(|name| stats["peak"][name].clone());
    assert_eq!(categories, [512, 128, 256 + 4 + 4, 512].map(Value::from));
}

/// Every word of the format is in the document.
#[test]
fn every_word_is_documented() {
    for dtype in ["f64", "f32", "f16", "bf16", "f8", "i64", "i32", "i16", "i8", "u64", "u8", "bool", "c64", "c128"] {
        assert!(dtype.parse::<rematic::Dtype>().is_ok() && DOCUMENT.contains(dtype), "{dtype}");
    }
    for category in ["parameter", "buffer", "gradient", "activation", "temp", "optimizer", "other"] {
        assert!(DOCUMENT.contains(&format!("`{category}`")), "{category}");
    }
    let words = "format version origin place streams collectives names layouts modules calls storages ops events name \
                 class parent parameters buffers module inputs outputs phase call differentiates flags mutates saves view \
                 random host stream collective model device versions batch precision options assumptions facts";
    for word in words.split_whitespace() {
        assert!(DOCUMENT.contains(&format!("`{word}`")), "{word}");
    }
    for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", "receive", "unknown"]
    {
        assert!(DOCUMENT.contains(kind), "{kind}");
    }
    let new = ["release", "restore", "wait", "micro_batch"];
    let old = ["op", "drop", "return", "unsave", "recategorize", "enter", "exit", "enter_backward", "exit_backward"];
    for event in old.into_iter().chain(new) {
        assert!(DOCUMENT.contains(&format!("`{{\"{event}\":")), "{event}");
    }
}
