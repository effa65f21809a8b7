//! The command `rematic`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rematic::cli::run(std::env::args_os()))
}
