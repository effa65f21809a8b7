//! Renders results as text, JSON, a page of HTML, Python, a Chrome trace and CSV. Pure: the same input gives the same
//! bytes, and nothing is printed here.

mod chrome_trace;
mod csv;
mod device;
mod holder;
mod json;
mod measured;
mod milp;
mod model;
mod page;
mod plan;
mod python;
mod regions;
mod saved;
mod shorten;
mod stats;
mod style;
mod table;

pub use self::csv::timeline_csv;
pub use chrome_trace::ChromeTrace;
pub use device::{devices_json, devices_text};
pub use milp::MilpReport;
pub use model::{models_json, models_text};
pub use page::{Page, PlanView};
pub use plan::{CurvePoint, CurveReport, PlanReport, Verdict};
pub use python::plan_python;
pub use saved::SavedReport;
pub use stats::StatsReport;
pub use style::Style;
