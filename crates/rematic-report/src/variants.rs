use rematic_plan::PlanDocument;

use crate::html;
use crate::notebook::plan_html;
use crate::style::{Style, Tone};
use crate::table::{Column, Table};

/// The variants of a plan, each with its peaks and its time; nothing for a plan without variants.
#[must_use]
pub fn variants_text(plan: &PlanDocument, style: Style) -> String {
    if plan.variants.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        Column::text("variant"),
        Column::number("as it is"),
        Column::number("peak"),
        Column::number("recompute"),
    ]);
    for [name, baseline, peak, recompute] in rows(plan) {
        table.row([name, baseline, peak, recompute]);
    }
    let heading = format!("{} variants of {}, each for {}", plan.variants.len() + 1, plan.source, plan.budget_bytes);
    style.paint(&heading, Tone::Strong) + "\n" + &table.render(style)
}

/// The same for a notebook, with the variant of the highest peak below it.
#[must_use]
pub fn variants_html(plan: &PlanDocument) -> String {
    if plan.variants.is_empty() {
        return plan_html(plan);
    }
    let worst = plan.worst();
    format!(
        "<div><p><b>{}</b>: {} variants, each for {}</p>{}<p>{}:</p>{}</div>",
        html::escaped(&plan.source),
        plan.variants.len() + 1,
        plan.budget_bytes,
        html::table(
            &["variant", "as it is", "peak", "recompute"],
            &[1, 2, 3],
            &rows(plan).map(Vec::from).collect::<Vec<_>>()
        ),
        html::escaped(&worst.name),
        plan_html(&worst),
    )
}

fn rows(plan: &PlanDocument) -> impl Iterator<Item = [String; 4]> {
    plan.each().into_iter().map(|variant| {
        let (baseline, peak) = (variant.baseline_peak_bytes.to_string(), variant.peak_bytes.to_string());
        [variant.name, baseline, peak, variant.recompute_ms.to_string()]
    })
}
