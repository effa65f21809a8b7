use std::collections::BTreeSet;

use rematic_trace::Bytes;
use serde::Serialize;

use crate::figures::{Figures, ModuleFigures};
use crate::json::json;
use crate::shorten::Shorten;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// How many modules the text shows.
const ROWS: usize = 9;
/// The width below which shortened names of modules say little.
const MODULE: usize = 20;

/// Two steps side by side: what grew, and what shrank.
#[derive(Clone, Copy, Debug)]
pub struct Difference<'a> {
    /// What the first is called.
    pub before_name: &'a str,
    /// What the second is called.
    pub after_name: &'a str,
    /// The first.
    pub before: &'a Figures,
    /// The second.
    pub after: &'a Figures,
}

/// A figure of both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// What it is of.
    pub name: String,
    /// In the first.
    pub before_bytes: Bytes,
    /// In the second.
    pub after_bytes: Bytes,
    /// How much more the second is.
    pub grew_bytes: i64,
}

impl Changed {
    fn new(name: &str, before: Bytes, after: Bytes) -> Self {
        let grew = i128::from(after.0) - i128::from(before.0);
        let grew_bytes = i64::try_from(grew).unwrap_or(if grew > 0 { i64::MAX } else { i64::MIN });
        Changed { name: name.to_owned(), before_bytes: before, after_bytes: after, grew_bytes }
    }

    fn cells(&self) -> [String; 4] {
        let share = 100.0 * self.grew_bytes as f64 / self.before_bytes.0.max(1) as f64;
        let share = if self.before_bytes.0 == 0 { String::new() } else { format!(" ({share:+.1} %)") };
        let change = format!("{}{share}", signed(self.grew_bytes));
        [self.name.clone(), self.before_bytes.to_string(), self.after_bytes.to_string(), change]
    }
}

/// With a sign.
fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

impl Difference<'_> {
    /// The peak, and what is reserved for it where both say so.
    #[must_use]
    pub fn totals(&self) -> Vec<Changed> {
        let peak = Changed::new("peak", self.before.peak_bytes, self.after.peak_bytes);
        let reserved = self.before.reserved_bytes.zip(self.after.reserved_bytes);
        let reserved = reserved.map(|(before, after)| Changed::new("reserved", before, after));
        std::iter::once(peak).chain(reserved).collect()
    }

    /// Categories of the peak that differ, those that grew most first.
    #[must_use]
    pub fn categories(&self) -> Vec<Changed> {
        let names: BTreeSet<&String> = self.before.categories.keys().chain(self.after.categories.keys()).collect();
        let of = |figures: &Figures, name: &str| figures.categories.get(name).copied().unwrap_or_default();
        sorted(names.iter().map(|name| Changed::new(name, of(self.before, name), of(self.after, name))))
    }

    /// Parameters and activations of modules that differ, those that grew most first.
    #[must_use]
    pub fn modules(&self) -> Vec<Changed> {
        let names: BTreeSet<&String> = self.before.modules.keys().chain(self.after.modules.keys()).collect();
        let of = |figures: &Figures, name: &str| {
            let ModuleFigures { parameter_bytes, activation_bytes, .. } =
                figures.modules.get(name).copied().unwrap_or_default();
            Bytes(parameter_bytes.0.saturating_add(activation_bytes.0))
        };
        sorted(names.iter().map(|name| Changed::new(name, of(self.before, name), of(self.after, name))))
    }

    /// Whether the second takes more, of tensors or of the device.
    #[must_use]
    pub fn grew(&self) -> bool {
        self.totals().iter().any(|total| total.grew_bytes > 0)
    }

    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        json(&self.document())
    }

    pub(crate) fn document(&self) -> DifferenceJson<'_> {
        DifferenceJson {
            before: self.before_name,
            after: self.after_name,
            grew: self.grew(),
            totals: self.totals(),
            categories: self.categories(),
            modules: self.modules(),
        }
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let totals = self.totals();
        let (lead, tone) = match (self.grew(), totals.iter().any(|total| total.grew_bytes < 0)) {
            (true, _) => ("Grew", Tone::Bad),
            (false, true) => ("Shrank", Tone::Good),
            (false, false) => ("Equal", Tone::Good),
        };
        let head = format!(" from {} to {}", self.before_name, self.after_name);
        let mut text = style.sentence(&Sentence { lead: (lead, tone), head: &head, gap: "", tail: ("", Tone::Plain) });
        text += &table("", &totals, style);
        let parts =
            [("the peak, by category", self.categories()), ("modules, with equal layers added up", self.modules())];
        for (title, changed) in parts {
            if !changed.is_empty() {
                text.push('\n');
                text += &table(title, &changed[..changed.len().min(ROWS)], style);
            }
        }
        text
    }
}

/// The same for programs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DifferenceJson<'a> {
    before: &'a str,
    after: &'a str,
    grew: bool,
    totals: Vec<Changed>,
    categories: Vec<Changed>,
    modules: Vec<Changed>,
}

fn sorted(changed: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut changed: Vec<Changed> = changed.filter(|changed| changed.grew_bytes != 0).collect();
    changed.sort_by(|a, b| b.grew_bytes.cmp(&a.grew_bytes).then_with(|| a.name.cmp(&b.name)));
    changed
}

fn table(title: &'static str, changed: &[Changed], style: Style) -> String {
    let mut table = Table::new([
        Column::text(title).shorten(Shorten::Outer, MODULE),
        Column::number("before").leave_out(0),
        Column::number("after").leave_out(1),
        Column::number("change"),
    ]);
    for changed in changed {
        table.row(changed.cells());
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grew_comes_first() {
        let figures = |peak: u64, gradient: u64, activation: u64| Figures {
            peak_bytes: Bytes(peak),
            categories: [("gradient", gradient), ("activation", activation)]
                .map(|(name, bytes)| (name.to_owned(), Bytes(bytes)))
                .into(),
            ..Figures::default()
        };
        let (before, after) = (figures(100, 60, 40), figures(130, 10, 120));
        let difference = Difference { before_name: "a", after_name: "b", before: &before, after: &after };
        let grew: Vec<(String, i64)> =
            difference.categories().into_iter().map(|changed| (changed.name, changed.grew_bytes)).collect();
        assert_eq!(grew, [("activation".to_owned(), 80), ("gradient".to_owned(), -50)]);
        assert!(difference.grew());
        assert!(!Difference { after: &before, ..difference }.grew());
        assert_eq!(signed(-1024), "-1.00 KiB");
    }
}
