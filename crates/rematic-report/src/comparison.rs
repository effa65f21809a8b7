use rematic_plan::PlannedMoment;
use rematic_trace::Bytes;

use crate::shorten::columns;
use crate::sparkline;
use crate::style::{Style, Tone};

/// Memory over the step without and with a plan, on the same scale; of a step that fits as it is, one line.
pub(crate) fn comparison(moments: &[PlannedMoment], budget: Bytes, style: Style) -> String {
    let highest = |total: fn(&PlannedMoment) -> Bytes| moments.iter().map(total).max().unwrap_or(Bytes(0));
    let (before, after) = (highest(|moment| moment.before), highest(|moment| moment.after));
    let scale = before.max(after);
    if scale == Bytes(0) {
        return String::new();
    }
    let planned = moments.iter().any(|moment| moment.before != moment.after);
    let labels =
        [(if planned { "before" } else { "memory" }, before.to_string()), ("after", format!("{after} of {budget}"))];
    let shown = if planned { &labels[..] } else { &labels[..1] };
    let head = shown.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    let tail = shown.iter().map(|(_, peak)| columns(peak)).max().unwrap_or(0);
    // A blank at the beginning, one behind the name, and one before the peak.
    let width = style.columns().saturating_sub(head + tail + 3);
    let mut text = String::new();
    for (number, (name, peak)) in shown.iter().enumerate() {
        let total = |moment: &PlannedMoment| if number == 0 { moment.before } else { moment.after };
        let line = sparkline::line(moments.iter().map(total), scale, width);
        text += &format!(" {name:<head$} {} {peak}\n", style.paint(&line, Tone::Accent));
    }
    let phases = sparkline::phases(moments.iter().map(|moment| moment.phase), width);
    text += &format!(" {:head$} {}\n", "", style.paint(&phases, Tone::Quiet));
    text
}
