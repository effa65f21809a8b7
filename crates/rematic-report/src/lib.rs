//! Renders results as text, JSON, a page of HTML, Python, a Chrome trace and CSV. Pure: the same input gives the same
//! bytes, and nothing is printed here.

mod assumed;
mod chrome_trace;
mod comparison;
mod csv;
mod device;
mod explanation;
mod html;
mod json;
mod measured;
mod memory;
mod milp;
mod model;
mod notebook;
mod page;
mod plan;
mod python;
mod regions;
mod rehearsal;
mod residents;
mod saved;
mod shorten;
mod snapshot;
mod sparkline;
mod stats;
mod style;
mod table;
mod variants;

pub use self::csv::timeline_csv;
pub use chrome_trace::ChromeTrace;
pub use device::{devices_json, devices_text};
pub use explanation::ExplanationReport;
pub use memory::{Memory, OnDevice, TriedSetting};
pub use milp::MilpReport;
pub use model::{models_json, models_text};
pub use notebook::{plan_html, trace_html};
pub use page::{Origins, Page, PlanView};
pub use plan::{CurvePoint, CurveReport, PlanReport};
pub use python::plan_python;
pub use rehearsal::RehearsalReport;
pub use saved::{SavedPage, SavedReport};
pub use snapshot::{Prediction, SnapshotPage, SnapshotReport};
pub use stats::StatsReport;
pub use style::{Style, visible};
pub use variants::{variants_html, variants_text};
