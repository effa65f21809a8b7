use rematic_cost::Measured;
use rematic_trace::Millis;
use serde::Serialize;

/// How much of the time was measured, as JSON.
#[derive(Serialize)]
pub(crate) struct MeasuredJson<'a> {
    device: &'a str,
    ops: usize,
    of_ops: usize,
    ms: Millis,
    of_ms: Millis,
}

pub(crate) fn measured_json(measured: Option<&Measured>) -> Option<MeasuredJson<'_>> {
    measured.map(|measured| MeasuredJson {
        device: &measured.device,
        ops: measured.ops,
        of_ops: measured.of_ops,
        ms: measured.time,
        of_ms: measured.of_time,
    })
}

/// A line for people; empty if nothing was measured.
pub(crate) fn measured_text(measured: Option<&Measured>) -> String {
    measured.map_or_else(String::new, |measured| {
        let rest = if measured.ops == measured.of_ops { "" } else { "; the rest by the physical rule" };
        format!("Times: {measured}{rest}.\n")
    })
}
