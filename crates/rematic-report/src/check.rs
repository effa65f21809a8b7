use std::fmt::Write;
use std::path::Path;

use rematic_trace::Bytes;
use serde::Serialize;

use crate::difference::{Difference, DifferenceJson};
use crate::json::json;
use crate::style::{Style, Tone};

/// What became of the steps of a lock file.
#[derive(Clone, Debug)]
pub struct CheckReport<'a> {
    /// Each as it was locked, and as it is.
    pub differences: Vec<Difference<'a>>,
    /// By how much a step may grow.
    pub allowed: Bytes,
    /// The file in which all are locked again as they are.
    pub locked: Option<&'a Path>,
}

impl CheckReport<'_> {
    /// Whether any step grew by more than is allowed.
    #[must_use]
    pub fn grew(&self) -> bool {
        self.differences.iter().any(|difference| self.is_larger(difference))
    }

    fn is_larger(&self, difference: &Difference<'_>) -> bool {
        difference.totals().iter().any(|total| total.grew_bytes > 0 && total.grew_bytes.unsigned_abs() > self.allowed.0)
    }

    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            grew: bool,
            allowed_bytes: Bytes,
            locked: bool,
            steps: Vec<DifferenceJson<'a>>,
        }
        let steps = self.differences.iter().map(Difference::document).collect();
        json(&Json { grew: self.grew(), allowed_bytes: self.allowed, locked: self.locked.is_some(), steps })
    }

    /// A line for each step, and what changed where one grew.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = String::new();
        for difference in &self.differences {
            if self.is_larger(difference) {
                text += &difference.text(style);
                text.push('\n');
                continue;
            }
            let change = difference.totals().iter().any(|total| total.grew_bytes != 0);
            let word = style.paint(if change { "within" } else { "equal" }, Tone::Good);
            let peak = difference.after.peak_bytes;
            let _ = writeln!(text, "{word}: {}, {peak}", crate::visible(difference.before_name));
        }
        let larger = self.differences.iter().filter(|difference| self.is_larger(difference)).count();
        let verdict = match larger {
            0 => style.paint("Nothing grew.", Tone::Good),
            1 => style.paint("1 step grew.", Tone::Bad),
            many => style.paint(&format!("{many} steps grew."), Tone::Bad),
        };
        let then = match (self.locked, larger) {
            (Some(file), _) => format!(" All steps are locked as they are now, in {}.", file.display()),
            (None, 0) => String::new(),
            (None, 1) => " If that is meant, `rematic check --update` locks it.".to_owned(),
            (None, _) => " If that is meant, `rematic check --update` locks them.".to_owned(),
        };
        text + &verdict + &then + "\n"
    }
}
