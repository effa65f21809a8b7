use owo_colors::OwoColorize;

use crate::shorten::{columns, wrap};

/// The narrowest that text is made for; a terminal that is narrower breaks the lines itself.
const NARROWEST: u16 = 40;
/// Blanks before the lines on which a sentence goes on.
const INDENT: usize = 2;

/// Text in which names from a file are only seen: a line break, an escape code or a mark that turns the direction of
/// writing must not reach the terminal.
#[must_use]
pub fn visible(text: &str) -> String {
    let turns = |character: char| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|character: char| character.is_control() || turns(character), "\u{fffd}")
}

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

/// What a piece of text is to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Accent,
    Quiet,
    Good,
    Bad,
}

impl Style {
    /// The columns that lines are made for.
    pub(crate) fn columns(self) -> usize {
        self.width.max(NARROWEST).into()
    }

    /// One line of text in the colour of its tone. Only for text that is laid out already.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let text = visible(text);
        match tone {
            _ if !self.color || text.is_empty() => text,
            Tone::Plain => text,
            Tone::Strong => text.bold().to_string(),
            Tone::Accent => text.cyan().to_string(),
            Tone::Quiet => text.dimmed().to_string(),
            Tone::Good => text.green().to_string(),
            Tone::Bad => text.red().bold().to_string(),
        }
    }

    /// A sentence in one line, or, where that does not fit, with the tail on lines of its own.
    pub(crate) fn sentence(self, sentence: &Sentence<'_>) -> String {
        let Sentence { lead: (lead, lead_tone), head, gap, tail: (tail, tail_tone) } = *sentence;
        let [lead, head, tail] = [lead, head, tail].map(visible);
        let (lead, head, tail) = (lead.as_str(), head.as_str(), tail.as_str());
        let full = format!("{lead}{head}");
        let one_line = tail.is_empty() || columns(&full) + columns(gap) + columns(tail) <= self.columns();
        let mut text = String::new();
        for (number, line) in wrap(&full, self.columns()).iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            // The lead is shorter than a line, so that it is whole or, in a name that was shortened, the line itself.
            match line.strip_prefix(lead) {
                Some(rest) if number == 0 => text += &(self.paint(lead, lead_tone) + rest),
                _ if number == 0 && head.is_empty() => text += &self.paint(line, lead_tone),
                _ => text += line,
            }
        }
        let (indent, room) = if one_line {
            (gap.to_owned(), self.columns())
        } else {
            (format!("\n{}", " ".repeat(INDENT)), self.columns() - INDENT)
        };
        for line in wrap(tail, room).iter().filter(|line| !line.is_empty()) {
            text += &indent;
            text += &self.paint(line, tail_tone);
        }
        text + "\n"
    }
}

/// A sentence that begins with what matters, and may go on in a second line.
#[derive(Clone, Copy)]
pub(crate) struct Sentence<'a> {
    /// What matters.
    pub(crate) lead: (&'a str, Tone),
    /// The rest of the first line.
    pub(crate) head: &'a str,
    /// What is between the two if they share a line.
    pub(crate) gap: &'a str,
    /// What moves to a second line if it must.
    pub(crate) tail: (&'a str, Tone),
}
