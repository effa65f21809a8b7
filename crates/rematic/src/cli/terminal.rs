//! What the terminal wants.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use crate::Style;

/// Whether anything is said beside the answer: progress and warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warnings {
    /// As usual.
    Shown,
    /// Only the answer, or why there is none.
    Silent,
}

impl Warnings {
    /// Warns, unless nobody wants to know.
    pub(crate) fn warn(self, warning: &str) {
        if self == Warnings::Shown {
            // Nobody is left to tell if this fails.
            let _ = writeln!(std::io::stderr(), "warning: {warning}");
        }
    }

    /// Warns, if there is something to say.
    pub(crate) fn warn_if(self, warning: Option<String>) {
        warning.iter().for_each(|warning| self.warn(warning));
    }
}

/// How text looks on a stream; the width is the terminal's, else that of `COLUMNS`.
pub(crate) fn style(stream: &impl IsTerminal) -> Style {
    let on_terminal = stream.is_terminal();
    let terminal = on_terminal.then(terminal_size::terminal_size).flatten().map(|(width, _)| width.0);
    let asked = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    let width =
        terminal.filter(|width| *width > 0).or_else(asked).filter(|width| *width > 0).unwrap_or(Style::default().width);
    Style { color: wants_color(|name| std::env::var_os(name), on_terminal), width }
}

/// `NO_COLOR` (no-color.org) beats `CLICOLOR_FORCE`, which beats all else; colours are for terminals, unless `CLICOLOR` is 0
/// (bixense.com/clicolors) or the terminal is dumb.
fn wants_color(variable: impl Fn(&str) -> Option<OsString>, on_terminal: bool) -> bool {
    let given = |name| variable(name).filter(|value| !value.is_empty());
    if given("NO_COLOR").is_some() {
        return false;
    }
    if given("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
        return true;
    }
    on_terminal
        && given("CLICOLOR").is_none_or(|value| value != "0")
        && given("TERM").is_none_or(|value| value != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colored(variables: &[(&str, &str)], on_terminal: bool) -> bool {
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
        wants_color(value, on_terminal)
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        assert!(colored(&[], true));
        assert!(!colored(&[], false));
        assert!(!colored(&[("NO_COLOR", "1")], true));
        assert!(colored(&[("NO_COLOR", "")], true));
        assert!(!colored(&[("TERM", "dumb")], true));
        assert!(!colored(&[("CLICOLOR", "0")], true));
    }

    #[test]
    fn colours_can_be_forced() {
        assert!(colored(&[("CLICOLOR_FORCE", "1")], false));
        assert!(colored(&[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")], true));
        assert!(!colored(&[("CLICOLOR_FORCE", "0")], false));
        assert!(!colored(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], true));
    }
}
