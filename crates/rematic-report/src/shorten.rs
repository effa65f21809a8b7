//! Text that has to fit: names keep both of their ends, prose breaks between words.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const ELLIPSIS: &str = "…";

/// Columns that a text takes on a terminal.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// What of a text is left out when it is too long. Whatever is cut shows `…`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shorten {
    /// The middle of the longest word.
    Word,
    /// The outer modules of a path; its last part, if that is still too long, in the middle.
    Outer,
    /// The last words.
    End,
}

impl Shorten {
    /// The text in at most `limit` columns.
    pub(crate) fn apply(self, text: &str, limit: usize) -> String {
        if columns(text) <= limit {
            return text.to_owned();
        }
        match self {
            Shorten::Word => longest_word(text, limit),
            Shorten::Outer => {
                let inner = text.match_indices('.').map(|(dot, _)| &text[dot + 1..]);
                let last = text.rsplit('.').next().unwrap_or(text);
                let fits = inner.map(|inner| format!("{ELLIPSIS}{inner}")).find(|inner| columns(inner) <= limit);
                // A last part that just fits would look like a whole name.
                fits.unwrap_or_else(|| cut(last, limit))
            }
            Shorten::End => {
                let ends = text.match_indices(' ').map(|(blank, _)| text[..blank].trim_end_matches([',', ' ']));
                let fits = ends.rev().map(|kept| format!("{kept}{ELLIPSIS}")).find(|kept| columns(kept) <= limit);
                fits.unwrap_or_else(|| middle(text, limit))
            }
        }
    }
}

fn longest_word(text: &str, limit: usize) -> String {
    let word = text.split(' ').max_by_key(|word| columns(word)).unwrap_or(text);
    let others = columns(text) - columns(word);
    // A character at each end is the least that is left of a word.
    if limit < others + 3 {
        return middle(text, limit);
    }
    text.replacen(word, &middle(word, limit - others), 1)
}

/// The text without its middle, in at most `limit` columns.
fn middle(text: &str, limit: usize) -> String {
    if columns(text) <= limit { text.to_owned() } else { cut(text, limit) }
}

fn cut(text: &str, limit: usize) -> String {
    let room = limit.saturating_sub(1);
    let head = start(text.chars(), room.div_ceil(2));
    let tail = start(text.chars().rev(), room - room.div_ceil(2));
    let tail: String = tail.chars().rev().collect();
    format!("{head}{ELLIPSIS}{tail}")
}

/// The first characters that fit.
fn start(characters: impl Iterator<Item = char>, room: usize) -> String {
    let mut used = 0;
    characters
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= room
        })
        .collect()
}

/// Stands for a blank at which [`wrap`] must not break.
const NO_BREAK: &str = "\u{a0}";

/// The text as one word to [`wrap`], such as a number with its unit.
pub(crate) fn unbroken(text: &str) -> String {
    text.replace(' ', NO_BREAK)
}

/// Lines of at most `limit` columns, broken between words; only a word that is longer than a line is shortened.
pub(crate) fn wrap(text: &str, limit: usize) -> Vec<String> {
    if columns(text) <= limit {
        return vec![text.replace(NO_BREAK, " ")];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()).map(|word| middle(word, limit)) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word,
            Some(line) if columns(line) + 1 + columns(&word) <= limit => {
                line.push(' ');
                *line += &word;
            }
            _ => lines.push(word),
        }
    }
    lines.iter().map(|line| line.replace(NO_BREAK, " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_ends() {
        assert_eq!(Shorten::Word.apply("_scaled_dot_product_flash_attention", 20), "_scaled_do…attention");
        assert_eq!(
            Shorten::Word.apply("autograd for native_layer_norm and 2 more", 33),
            "autograd for nati…norm and 2 more"
        );
        assert_eq!(Shorten::Word.apply("autograd for native_layer_norm and 2 more", 10), "autog…more");
    }

    #[test]
    fn paths_lose_their_outer_modules() {
        let path = "model.layers.*.mlp.gate_proj";
        assert_eq!(Shorten::Outer.apply(path, 28), path);
        assert_eq!(Shorten::Outer.apply(path, 27), "…layers.*.mlp.gate_proj");
        assert_eq!(Shorten::Outer.apply(path, 12), "…gate_proj");
        assert_eq!(Shorten::Outer.apply(path, 7), "gat…roj");
        assert_eq!(Shorten::Outer.apply("LlamaForCausalLM", 9), "Llam…alLM");
    }

    #[test]
    fn prose_loses_whole_words() {
        assert_eq!(Shorten::End.apply("AMD Instinct MI250X 128GB (both dies)", 30), "AMD Instinct MI250X 128GB…");
        assert_eq!(Shorten::End.apply("heaviest modules, each", 21), "heaviest modules…");
    }

    #[test]
    fn prose_breaks_between_words() {
        assert_eq!(wrap("one two three", 9), ["one two", "three"]);
        assert_eq!(wrap("a transformer", 7), ["a", "tra…mer"]);
        assert_eq!(wrap("kept  as it is", 14), ["kept  as it is"]);
        assert_eq!(wrap(&format!("it takes {}", unbroken("2.1 TFLOP")), 14), ["it takes", "2.1 TFLOP"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(columns("模型"), 4);
        assert_eq!(Shorten::Word.apply("模型模型", 5), "模…型");
    }
}
