//! Renders results as text and JSON. Pure: the same input gives the same bytes, and nothing is printed here.

mod comparison;
mod device;
mod explanation;
mod json;
mod measured;
mod milp;
mod model;
mod plan;
mod regions;
mod residents;
mod saved;
mod shorten;
mod sparkline;
mod stats;
mod style;
mod table;

pub use device::{devices_json, devices_text};
pub use explanation::ExplanationReport;
pub use milp::MilpReport;
pub use model::{models_json, models_text};
pub use plan::{CurvePoint, CurveReport, PlanReport, Verdict};
pub use saved::SavedReport;
pub use stats::StatsReport;
pub use style::Style;
