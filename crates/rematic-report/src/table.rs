//! Tables without lines, fitted to the terminal: columns are shortened down to what reads well, then the least important
//! ones are left out, and only then is more cut. Colour comes after the layout, which never sees an escape code.

use crate::shorten::{Shorten, columns, wrap};
use crate::style::{Style, Tone, visible};

/// Blanks before the first column.
const INDENT: usize = 1;
/// Blanks between columns.
const GAP: usize = 2;
/// What is left of a name when nothing else can give way.
const LEAST: usize = 7;

#[derive(Clone, Copy, Debug)]
enum Align {
    Left,
    Right,
}

#[derive(Clone, Copy, Debug)]
enum Overflow {
    /// Cells stay as they are.
    Keep,
    /// Cells are shortened; below this width they read badly.
    Shorten(Shorten, usize),
    /// Cells go on in the next line.
    Wrap,
}

/// One column: its title, and how it gives way on a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    align: Align,
    tone: Tone,
    overflow: Overflow,
    /// Those with the lowest rank are left out first; those without one stay.
    rank: Option<u8>,
}

impl Column {
    pub(crate) fn text(title: &'static str) -> Self {
        Column { title, align: Align::Left, tone: Tone::Plain, overflow: Overflow::Keep, rank: None }
    }

    pub(crate) fn number(title: &'static str) -> Self {
        Column { align: Align::Right, ..Column::text(title) }
    }

    pub(crate) fn tone(self, tone: Tone) -> Self {
        Column { tone, ..self }
    }

    /// Cells may be shortened, to this width before any column is left out.
    pub(crate) fn shorten(self, how: Shorten, comfortable: usize) -> Self {
        Column { overflow: Overflow::Shorten(how, comfortable), ..self }
    }

    /// Cells may take several lines.
    pub(crate) fn wrap(self) -> Self {
        Column { overflow: Overflow::Wrap, ..self }
    }

    /// May be left out; the lowest rank goes first.
    pub(crate) fn leave_out(self, rank: u8) -> Self {
        Column { rank: Some(rank), ..self }
    }

    /// The least width, where names are cut only as far as they read well, or without mercy.
    fn floor(&self, natural: usize, comfortably: bool) -> usize {
        match self.overflow {
            Overflow::Keep => natural,
            Overflow::Shorten(_, comfortable) if comfortably => natural.min(comfortable),
            Overflow::Shorten(..) | Overflow::Wrap => natural.min(LEAST),
        }
    }

    fn cell(&self, text: &str, width: usize) -> Vec<String> {
        match self.overflow {
            Overflow::Keep => vec![text.to_owned()],
            Overflow::Shorten(how, _) => vec![how.apply(text, width)],
            Overflow::Wrap => wrap(text, width),
        }
    }
}

/// Rows under columns.
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(columns: [Column; N]) -> Self {
        Table { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| visible(&cell)));
    }

    /// The lines, without trailing blanks, each with a line break.
    pub(crate) fn render(&self, style: Style) -> String {
        let shown = self.fit(style.columns());
        let mut text = String::new();
        if self.columns.iter().any(|column| !column.title.is_empty()) {
            let titles = shown.iter().map(|&(index, width)| {
                let title = Shorten::End.apply(self.columns[index].title, width);
                (title, Tone::Quiet)
            });
            text += &self.line(&shown, titles, style);
        }
        for row in &self.rows {
            let cells: Vec<_> =
                shown.iter().map(|&(index, width)| self.columns[index].cell(&row[index], width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for line in 0..height {
                let cells = cells
                    .iter()
                    .zip(&shown)
                    .map(|(cell, &(index, _))| (cell.get(line).cloned().unwrap_or_default(), self.columns[index].tone));
                text += &self.line(&shown, cells, style);
            }
        }
        text + &self.left_out(&shown, style)
    }

    /// Which columns a narrow terminal has no room for.
    fn left_out(&self, shown: &[(usize, usize)], style: Style) -> String {
        let is_shown = |index: usize| shown.iter().any(|(at, _)| *at == index);
        let mut left: Vec<&str> = (0..N)
            .filter(|index| !is_shown(*index) && self.rows.iter().any(|row| !row[*index].is_empty()))
            .map(|index| self.columns[index].title)
            .filter(|title| !title.is_empty())
            .collect();
        left.dedup();
        if left.is_empty() {
            return String::new();
        }
        let blanks = " ".repeat(INDENT);
        let lines = wrap(&format!("no room for: {}", left.join(", ")), style.columns() - INDENT);
        lines.iter().map(|line| format!("{blanks}{}\n", style.paint(line, Tone::Quiet))).collect()
    }

    /// The columns that are shown, with their widths.
    fn fit(&self, limit: usize) -> Vec<(usize, usize)> {
        let natural = |index: usize| {
            let cells = self.rows.iter().map(|row| columns(&row[index]));
            cells.max().unwrap_or(0).max(columns(self.columns[index].title))
        };
        // A column that has nothing to say takes no room.
        let mut shown: Vec<(usize, usize)> =
            (0..N).map(|index| (index, natural(index))).filter(|(_, width)| *width > 0).collect();
        loop {
            if let Some(fitted) = self.squeeze(&shown, limit, true) {
                return fitted;
            }
            let ranks = shown.iter().enumerate().filter_map(|(at, &(index, _))| Some((self.columns[index].rank?, at)));
            match ranks.min() {
                Some((_, at)) => drop(shown.remove(at)),
                None => return self.squeeze(&shown, limit, false).unwrap_or(shown),
            }
        }
    }

    /// Takes what is too much from the widest columns that may be narrower.
    fn squeeze(&self, shown: &[(usize, usize)], limit: usize, comfortably: bool) -> Option<Vec<(usize, usize)>> {
        let total = INDENT + shown.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
        let mut fitted = shown.to_vec();
        for _ in limit..total {
            let may_give = fitted
                .iter_mut()
                .zip(shown)
                .filter(|((index, width), (_, natural))| *width > self.columns[*index].floor(*natural, comfortably));
            // Of equal ones the last.
            let ((_, width), _) = may_give.max_by_key(|((_, width), _)| *width)?;
            *width -= 1;
        }
        Some(fitted)
    }

    fn line(&self, shown: &[(usize, usize)], cells: impl Iterator<Item = (String, Tone)>, style: Style) -> String {
        let mut line = String::new();
        let mut blanks = INDENT;
        for (&(index, width), (cell, tone)) in shown.iter().zip(cells) {
            let room = width.saturating_sub(columns(&cell));
            let (before, after) = match self.columns[index].align {
                Align::Left => (0, room),
                Align::Right => (room, 0),
            };
            blanks += before;
            if cell.is_empty() {
                blanks += after + GAP;
                continue;
            }
            line += &" ".repeat(blanks);
            line += &style.paint(&cell, tone);
            blanks = after + GAP;
        }
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new([
            Column::text("name").shorten(Shorten::Outer, 8),
            Column::number("size"),
            Column::text("why").leave_out(0),
        ]);
        table.row(["layers.*.output".to_owned(), "1.5".to_owned(), "because".to_owned()]);
        table.row(["root".to_owned(), "12".to_owned(), String::new()]);
        table
    }

    fn render(width: usize) -> String {
        let shown = table().fit(width);
        shown.iter().map(|(index, width)| format!("{index}:{width} ")).collect()
    }

    #[test]
    fn names_give_way_before_columns_are_left_out() {
        assert_eq!(render(31), "0:15 1:4 2:7 ");
        assert_eq!(render(24), "0:8 1:4 2:7 ");
        assert_eq!(render(23), "0:15 1:4 ");
        assert_eq!(render(14), "0:7 1:4 ");
        assert_eq!(render(1), "0:15 1:4 ");
    }

    #[test]
    fn lines_end_without_blanks() {
        let text = table().render(Style { color: false, width: 60 });
        assert_eq!(text, " name             size  why\n layers.*.output   1.5  because\n root               12\n");
    }

    #[test]
    fn a_line_break_in_a_name_does_not_break_the_row() {
        let mut table = Table::new([Column::text("")]);
        table.row(["a\nb\u{1b}[31m".to_owned()]);
        assert_eq!(table.render(Style::default()), " a\u{fffd}b\u{fffd}[31m\n");
    }
}
