//! Renders results as text and JSON. Pure: the same input gives the same bytes, and nothing is printed here.

mod device;
mod json;
mod model;
mod saved;
mod shorten;
mod stats;
mod style;
mod table;

pub use device::{devices_json, devices_text};
pub use model::{models_json, models_text};
pub use saved::SavedReport;
pub use stats::StatsReport;
pub use style::Style;
