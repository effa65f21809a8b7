//! Builds the runtime as a library of its own, which `src/lib.rs` carries inside.
//!
//! Cargo cannot make a `cdylib` a part of another crate, so that the compiler is called here. The runtime needs nothing but
//! the standard library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=runtime");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(rehearsal)");
    let out = PathBuf::from(variable("OUT_DIR")).join("librehearsal.so");
    // PyTorch's CUDA wheels are for Linux; elsewhere there is nothing to rehearse with.
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-cfg=rehearsal");
        compile(&out);
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is set by cargo"))
}

fn compile(out: &Path) {
    let mut command = Command::new(variable("RUSTC"));
    command.args(["--crate-name", "rehearsal", "--crate-type", "cdylib", "--edition", "2024"]);
    // A panic must not unwind into C.
    command.args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "strip=symbols", "--cap-lints", "allow"]);
    command.args(["--target", &variable("TARGET")]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        command.arg("-C").arg(format!("linker={linker}"));
    }
    command.arg("-o").arg(out).arg("runtime/lib.rs");
    let status = command.status();
    assert!(matches!(&status, Ok(status) if status.success()), "cannot build the runtime of rehearsals: {status:?}");
    assert!(fs::metadata(out).is_ok(), "{} was not written", out.display());
}
