use comfy_table::{CellAlignment, ContentArrangement, Table};
use owo_colors::OwoColorize;

/// How text looks on the user's terminal.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether to use colours and bold.
    pub color: bool,
    /// Columns that may be used.
    pub width: u16,
}

impl Default for Style {
    /// Plain text of a width that fits everywhere.
    fn default() -> Self {
        Style { color: false, width: 120 }
    }
}

impl Style {
    pub(crate) fn strong(self, text: &str) -> String {
        if self.color { text.bold().to_string() } else { text.to_owned() }
    }

    pub(crate) fn accent(self, text: &str) -> String {
        if self.color { text.cyan().to_string() } else { text.to_owned() }
    }

    pub(crate) fn quiet(self, text: &str) -> String {
        if self.color { text.dimmed().to_string() } else { text.to_owned() }
    }

    /// A table without lines; columns named in `numbers` are aligned right.
    pub(crate) fn table(self, header: &[&str], numbers: &[usize]) -> Table {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(self.width);
        table.set_header(header.iter().map(|title| self.quiet(title)));
        for &column in numbers {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// The table with every line's trailing blanks removed, and a line break at the end.
pub(crate) fn lines(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.is_empty())
        .map(|line| line + "\n")
        .collect()
}
