//! Markup by hand, for pages and notebooks.

/// A page: its markup with the marks `{{title}}`, `{{style}}`, `{{data}}` and `{{script}}`, in this order, each once.
pub(crate) struct Template {
    pub(crate) html: &'static str,
    pub(crate) style: &'static str,
    pub(crate) script: &'static str,
}

impl Template {
    /// The page with a title and its data, a JSON document.
    pub(crate) fn filled(&self, title: &str, data: &str) -> String {
        // In a script `<` could end it; in JSON it only ever stands in texts.
        let (title, data) = (escaped(title), data.replace('<', "\\u003c"));
        let mut html = String::with_capacity(self.html.len() + self.style.len() + self.script.len() + data.len());
        let mut rest = self.html;
        // What replaces a mark is not looked at again.
        for (mark, text) in
            [("{{title}}", title.as_str()), ("{{style}}", self.style), ("{{data}}", &data), ("{{script}}", self.script)]
        {
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            html += before;
            html += text;
            rest = after;
        }
        html + rest
    }
}

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
