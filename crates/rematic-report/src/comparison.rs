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

#[cfg(test)]
mod tests {
    use rematic_trace::Phase;

    use super::*;

    fn moments(totals: &[(u64, u64)]) -> Vec<PlannedMoment> {
        let moment = |&(before, after): &(u64, u64)| PlannedMoment {
            phase: Phase::Forward,
            before: Bytes(before),
            after: Bytes(after),
        };
        totals.iter().map(moment).collect()
    }

    fn text(totals: &[(u64, u64)], width: u16) -> String {
        comparison(&moments(totals), Bytes(900), Style { color: false, width })
    }

    #[test]
    fn both_lines_have_one_scale() {
        let shown = " before ▁▄█ 800 B\n after  ▁▂▄ 400 B of 900 B\n        └forward\n";
        assert_eq!(text(&[(100, 100), (400, 200), (800, 400)], 80), shown);
    }

    #[test]
    fn a_step_without_a_plan_is_one_line() {
        assert_eq!(text(&[(100, 100), (800, 800)], 80), " memory ▁█ 800 B\n        └forward\n");
        assert_eq!(text(&[], 80), "");
    }

    #[test]
    fn lines_are_as_wide_as_the_terminal() {
        let totals: Vec<(u64, u64)> = (0..500).map(|index| (500 + index, 500)).collect();
        for width in [40, 80, 120] {
            let text = text(&totals, width);
            let longest = text.lines().map(columns).max();
            assert_eq!(longest, Some(width.into()), "{text}");
        }
    }
}
