//! Renders results as text and JSON. Pure: the same input gives the same bytes, and nothing is printed here.

mod device;
mod model;
mod stats;
mod style;

pub use device::{devices_json, devices_text};
pub use model::{models_json, models_text};
pub use stats::StatsReport;
pub use style::Style;
