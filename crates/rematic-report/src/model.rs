use serde_json::json;

use crate::style::{Style, lines};

/// The list of models: name and description.
#[must_use]
pub fn models_text(models: &[(&str, &str)], style: Style) -> String {
    let mut table = style.table(&["model", "what it is"], &[]);
    for (name, description) in models {
        table.add_row([style.accent(name), (*description).to_owned()]);
    }
    lines(&table)
}

/// The same as JSON.
#[must_use]
pub fn models_json(models: &[(&str, &str)]) -> String {
    let rows: Vec<_> = models.iter().map(|(name, about)| json!({ "name": name, "description": about })).collect();
    format!("{:#}\n", json!({ "models": rows }))
}
