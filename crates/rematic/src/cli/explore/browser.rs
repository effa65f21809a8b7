//! The browser.

use std::process::{Command, Stdio};

/// Opens an address where there is a screen; where that fails, it can be read on the terminal.
pub(super) fn open(address: &str) {
    let Some((program, before)) = opener() else { return };
    let mut command = Command::new(program);
    command.args(before).arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.spawn();
}

/// The program that opens addresses, and its first arguments.
fn opener() -> Option<(&'static str, &'static [&'static str])> {
    if cfg!(target_os = "macos") {
        return Some(("open", &[]));
    }
    if cfg!(windows) {
        return Some(("cmd", &["/C", "start", ""]));
    }
    // Without a screen, it would start a browser in the terminal.
    let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    (has("DISPLAY") || has("WAYLAND_DISPLAY")).then_some(("xdg-open", &[]))
}
