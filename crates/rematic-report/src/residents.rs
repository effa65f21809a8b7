//! What is in memory at one moment, as every report shows it.

use rematic_plan::ResidentGroup;

use crate::shorten::Shorten;
use crate::style::Style;
use crate::table::{Column, Table};

/// How many of the largest groups the text shows.
const ROWS: usize = 9;
/// Widths below which shortened names say little: of operators, of modules, of who holds a storage.
const OPERATOR: usize = 20;
const MODULE: usize = 20;
const HOLDER: usize = 32;

/// The largest groups.
pub(crate) fn table(groups: &[ResidentGroup], style: Style) -> String {
    let mut table = Table::new([
        Column::number("largest tensors"),
        Column::number(""),
        Column::text("category").leave_out(1),
        Column::text("made by").shorten(Shorten::Word, OPERATOR),
        Column::text("in").shorten(Shorten::Outer, MODULE),
        Column::text("held by").shorten(Shorten::Word, HOLDER).leave_out(0),
    ]);
    for group in groups.iter().take(ROWS) {
        let count = if group.count > 1 { format!("{}×", group.count) } else { String::new() };
        table.row([
            group.bytes.to_string(),
            count,
            group.category.to_string(),
            group.made_by.clone(),
            group.module.clone(),
            group.held_by.clone(),
        ]);
    }
    table.render(style)
}
