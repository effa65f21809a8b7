//! Small pieces of HTML for notebooks: no scripts, colours that are seen on light and on dark paper.

use std::fmt::Write;

use rematic_plan::PlanDocument;
use rematic_replay::{Snapshot, Timeline};
use rematic_trace::{Bytes, Category, StepTrace};

use crate::curve::CurveReport;
use crate::html::{escaped, table};
use crate::plan::quality;
use crate::{regions, stats};

/// Size of a picture.
const WIDTH: usize = 600;
const HEIGHT: f64 = 120.0;
/// The most columns of the picture of a step's memory: it stays small.
const COLUMNS: usize = 200;
/// The most rows of regions.
const ROWS: usize = 12;

/// What hardly changes lies at the bottom.
const STACK: [(Category, &str); Category::ALL.len()] = [
    (Category::Parameter, "#6483b8"),
    (Category::Optimizer, "#9a80d0"),
    (Category::Buffer, "#8793a3"),
    (Category::Other, "#86888c"),
    (Category::Gradient, "#d18a43"),
    (Category::Activation, "#3fae9e"),
    (Category::Temp, "#e36c63"),
];

/// A step: its memory over the operators, and what the peak consists of.
#[must_use]
pub fn trace_html(trace: &StepTrace, timeline: &Timeline) -> String {
    let facts: Vec<String> = trace.origin.facts().iter().map(|(name, value)| stats::fact(name, value)).collect();
    let peak = timeline.peak();
    let mut html = format!(
        "<div><p><b>{}</b> {}<br>{} operators, {} parameters; peak <b>{}</b></p>",
        escaped(&trace.origin.model),
        escaped(&facts.join(", ")),
        trace.ops().len(),
        stats::thousands(stats::parameter_count(trace)),
        peak.total(),
    );
    html += &memory_svg(timeline.snapshots());
    let total = peak.total().0.max(1) as f64;
    let mut categories: Vec<(Category, Bytes)> = peak.snapshot.iter().filter(|(_, bytes)| bytes.0 > 0).collect();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let part = |(category, bytes): (Category, Bytes)| {
        let color = STACK.iter().find(|(other, _)| *other == category).map_or("", |(_, color)| color);
        let share = bytes.0 as f64 / total * 100.0;
        format!(
            "<span style=\"white-space:nowrap\"><span style=\"color:{color}\">■</span> {category} {bytes} ({share:.1} %)</span>"
        )
    };
    let legend: Vec<String> = categories.into_iter().map(part).collect();
    html + "<p>" + &legend.join(" ") + "</p></div>"
}

/// A plan: what it promises, and its regions.
#[must_use]
pub fn plan_html(plan: &PlanDocument) -> String {
    let model = escaped(&plan.source);
    if plan.regions.is_empty() {
        let (peak, budget) = (plan.peak_bytes, plan.budget_bytes);
        return format!("<div><p><b>{model}</b> fits as it is: peak {peak} of {budget}. Nothing to drop.</p></div>");
    }
    let share = plan.extra_ms().0 / plan.step_ms.0.max(f64::MIN_POSITIVE) * 100.0;
    let mut html = format!(
        "<div><p><b>{model}</b>: peak {} → <b>{}</b> of {}; recomputing takes {} on top of {} ({share:.2} %); {}.</p>",
        plan.baseline_peak_bytes,
        plan.peak_bytes,
        plan.budget_bytes,
        plan.extra_ms(),
        plan.step_ms,
        quality(plan),
    );
    let kinds = regions::kinds(regions::rows(plan));
    let more = kinds.len().saturating_sub(ROWS);
    let row = |kind: regions::Kind| {
        let count = if kind.count > 1 { format!("{}×", kind.count) } else { String::new() };
        vec![kind.name, count, kind.frees, kind.discards, kind.recomputes, kind.saves]
    };
    let rows: Vec<Vec<String>> = kinds.into_iter().take(ROWS).map(row).collect();
    html += &table(&["checkpoint, each", "", "frees", "discards", "recomputes", "saves"], &[1, 2, 3, 4], &rows);
    if more > 0 {
        let _ = write!(html, "<p>and {more} more kinds of regions</p>");
    }
    html + "</div>"
}

impl CurveReport<'_> {
    /// A picture of extra time against budget.
    #[must_use]
    pub fn html(&self) -> String {
        let first = self.points.first().map_or(Bytes(0), |point| point.budget_bytes);
        let last = self.points.last().map_or(Bytes(0), |point| point.budget_bytes);
        let most = self.points.iter().map(|point| point.extra().0).fold(f64::MIN_POSITIVE, f64::max);
        let span = (first.0.saturating_sub(last.0)).max(1) as f64;
        let x = |bytes: Bytes| 10.0 + (bytes.0.saturating_sub(last.0)) as f64 / span * (WIDTH as f64 - 20.0);
        let y = |ms: f64| 8.0 + (1.0 - ms / most) * (HEIGHT - 16.0);
        let mut line = String::new();
        let mut dots = String::new();
        for point in self.points {
            let (x, y) = (x(point.budget_bytes), y(point.extra().0));
            let _ = write!(line, "{x:.1},{y:.1} ");
            let _ = write!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"><title>{}: {}</title></circle>",
                point.budget_bytes,
                point.extra()
            );
        }
        let share = most / self.step.0.max(f64::MIN_POSITIVE) * 100.0;
        let top = self.points.last().map_or_else(String::new, |point| point.extra().to_string());
        format!(
            "<div><p><b>{}</b>: from {first} without recomputation down to {last} with {top} more ({share:.2} % of the step)</p>\
             <svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" style=\"max-width:100%\" role=\"img\" \
             aria-label=\"extra time against budget\"><polyline points=\"{}\" fill=\"none\" stroke=\"#4c86dd\" \
             stroke-width=\"2\"/><g fill=\"#4c86dd\">{dots}</g></svg></div>",
            escaped(self.setup.model()),
            line.trim_end(),
        )
    }
}

/// The memory over the operators; of each column the highest moment, so that the peak is seen.
fn memory_svg(snapshots: &[Snapshot]) -> String {
    let columns = COLUMNS.min(snapshots.len());
    let highest = snapshots.iter().map(|snapshot| snapshot.total().0).max().unwrap_or(0).max(1) as f64;
    let shown: Vec<&Snapshot> = (0..columns)
        .filter_map(|column| {
            let stretch = column * snapshots.len() / columns..(column + 1) * snapshots.len() / columns;
            snapshots[stretch].iter().max_by_key(|snapshot| snapshot.total())
        })
        .collect();
    let scale = WIDTH as f64 / columns.max(1) as f64;
    let mut base = vec![0.0; shown.len()];
    let mut areas = String::new();
    for (category, color) in STACK {
        let mut upper = String::new();
        let mut lower = Vec::new();
        for (column, snapshot) in shown.iter().enumerate() {
            let x = (column as f64 + 0.5) * scale;
            let y = |value: f64| (1.0 - value / highest) * HEIGHT;
            lower.push(format!("{x:.0},{:.1}", y(base[column])));
            base[column] += snapshot[category].0 as f64;
            let _ = write!(upper, "{x:.0},{:.1} ", y(base[column]));
        }
        lower.reverse();
        if shown.iter().any(|snapshot| snapshot[category].0 > 0) {
            let _ = write!(areas, "<polygon fill=\"{color}\" points=\"{upper}{}\"/>", lower.join(" "));
        }
    }
    format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" style=\"max-width:100%\" role=\"img\" \
         aria-label=\"memory over the operators\">{areas}</svg>"
    )
}
