use serde::Serialize;

use crate::json::json;
use crate::style::{Style, Tone};
use crate::table::{Column, Table};

/// The list of models: name and description.
#[must_use]
pub fn models_text(models: &[(&str, &str)], style: Style) -> String {
    let mut table = Table::new([Column::text("model").tone(Tone::Accent), Column::text("what it is").wrap()]);
    for (name, description) in models {
        table.row([(*name).to_owned(), (*description).to_owned()]);
    }
    table.render(style)
}

#[derive(Serialize)]
struct Json<'a> {
    models: Vec<JsonModel<'a>>,
}

#[derive(Serialize)]
struct JsonModel<'a> {
    name: &'a str,
    description: &'a str,
}

/// The same as JSON.
#[must_use]
pub fn models_json(models: &[(&str, &str)]) -> String {
    let models = models.iter().map(|&(name, description)| JsonModel { name, description }).collect();
    json(&Json { models })
}
