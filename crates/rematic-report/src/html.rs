//! Markup by hand, for pages and notebooks.

/// Text that is not markup.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            _ => escaped.push(character),
        }
    }
    escaped
}

/// A table; the columns named in `numbers` are aligned to the right.
pub(crate) fn table(headings: &[&str], numbers: &[usize], rows: &[Vec<String>]) -> String {
    let cell = |tag: &str, column: usize, text: &str| {
        let style = if numbers.contains(&column) { "text-align:right;white-space:nowrap" } else { "text-align:left" };
        format!("<{tag} style=\"{style}\">{}</{tag}>", escaped(text))
    };
    let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.enumerate().map(|(column, text)| cell(tag, column, text)).collect();
        format!("<tr>{cells}</tr>")
    };
    let head = line("th", &mut headings.iter().copied());
    let body: String = rows.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect();
    format!("<table><thead>{head}</thead><tbody>{body}</tbody></table>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_not_markup() {
        assert_eq!(escaped("<b a='1' c=\"2\">&"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
        let table = table(&["a", "b"], &[1], &[vec!["<i>".to_owned(), "1".to_owned()]]);
        assert!(table.contains(
            "<td style=\"text-align:left\">&lt;i&gt;</td><td style=\"text-align:right;white-space:nowrap\">1</td>"
        ));
    }
}
