//! The command `rematic`.

use std::process::ExitCode;

/// A step is many small lists: a third of the time went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(rematic::cli::run(std::env::args_os()))
}
