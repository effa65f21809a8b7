use rematic_cost::Measured;
use rematic_plan::{Offload, Replayed};
use rematic_trace::{Bytes, Millis};
use serde::Serialize;

use crate::json::json;
use crate::measured::{MeasuredJson, measured_json, measured_text};
use crate::setup::{Setup, SetupJson};
use crate::shorten::wrap;
use crate::style::{Style, Tone};
use crate::table::{Column, Table};

/// One point of the curve of budget against time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CurvePoint {
    /// The budget.
    pub budget_bytes: Bytes,
    /// The peak of its plan.
    pub peak_bytes: Bytes,
    /// What PyTorch's allocator reserves under its plan; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<Bytes>,
    /// Whether the device has that; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// Time of the step under its plan.
    pub step_ms: Millis,
    /// Time of recomputation.
    pub recompute_ms: Millis,
    /// No plan within the budget takes less.
    pub lower_bound_ms: Millis,
    /// What its plan moves to the host and back, if anything.
    #[serde(flatten)]
    pub offload: Option<OffloadPoint>,
}

/// What the plan of a point moves to the host and back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadPoint {
    /// The bytes that go, and as many come back.
    pub offload_bytes: Bytes,
    /// What they take of the host's pinned memory.
    pub host_bytes: Bytes,
    /// How long the device waits for copies.
    pub stall_ms: Millis,
}

impl OffloadPoint {
    /// Nothing if nothing is moved.
    #[must_use]
    pub fn of(replayed: &Replayed) -> Option<Self> {
        let Offload { bytes, pinned, stall } = replayed.offload;
        (bytes > Bytes(0)).then_some(OffloadPoint { offload_bytes: bytes, host_bytes: pinned, stall_ms: stall })
    }
}

impl CurvePoint {
    /// What the step takes longer: recomputation, and waiting for copies.
    #[must_use]
    pub fn extra(&self) -> Millis {
        Millis(self.recompute_ms.0 + self.offload.map_or(0.0, |offload| offload.stall_ms.0))
    }
}

/// The curve of budget against time, from the step as it is down to the least that can be reached.
#[derive(Clone, Debug)]
pub struct CurveReport<'a> {
    /// What it is of.
    pub setup: &'a Setup,
    /// Time of the step without recomputation.
    pub step: Millis,
    /// The largest budget first.
    pub points: &'a [CurvePoint],
    /// The device.
    pub device: &'a str,
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
}

impl CurveReport<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            options: &'a SetupJson,
            step_ms: Millis,
            points: &'a [CurvePoint],
            #[serde(skip_serializing_if = "Option::is_none")]
            measured: Option<MeasuredJson<'a>>,
        }
        let measured = measured_json(self.measured);
        json(&Json { options: self.setup.json(), step_ms: self.step, points: self.points, measured })
    }

    /// A table with bars.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        const BAR: f64 = 30.0;
        let known = self.points.iter().any(|point| point.reserved_bytes.is_some());
        let most = self.points.iter().map(|point| point.extra().0).fold(f64::MIN_POSITIVE, f64::max);
        let offloads = self.points.iter().any(|point| point.offload.is_some());
        let mut table = Table::new([
            Column::number("budget"),
            Column::number("peak").leave_out(2),
            Column::number(if known { "reserved" } else { "" }).leave_out(1),
            Column::number("recompute"),
            Column::number(if offloads { "offload" } else { "" }),
            Column::number(if offloads { "waits" } else { "" }),
            Column::number("of the step"),
            Column::text("").tone(Tone::Accent).leave_out(0),
        ]);
        for point in self.points {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a short bar")]
            let bar = "█".repeat((point.extra().0 / most * BAR).round() as usize);
            let moved = |words: fn(OffloadPoint) -> String| point.offload.map_or_else(String::new, words);
            table.row([
                point.budget_bytes.to_string(),
                point.peak_bytes.to_string(),
                point.reserved_bytes.map_or_else(String::new, |reserved| reserved.to_string()),
                point.recompute_ms.to_string(),
                moved(|offload| offload.offload_bytes.to_string()),
                moved(|offload| offload.stall_ms.to_string()),
                format!("{:.2} %", point.extra().0 / self.step.0.max(f64::MIN_POSITIVE) * 100.0),
                bar,
            ]);
        }
        self.setup.text(style) + &table.render(style) + &self.first_that_fits(style) + &measured_text(self.measured)
    }

    /// The largest budget whose plan fits the device, with what PyTorch's allocator reserves.
    fn first_that_fits(&self, style: Style) -> String {
        let known = self.points.iter().any(|point| point.fits.is_some());
        let words = match self.points.iter().find(|point| point.fits == Some(true)) {
            Some(point) => format!("The largest of these budgets that fits {}: {}", self.device, point.budget_bytes),
            None if known => format!("None of these budgets fits {}", self.device),
            None => return String::new(),
        };
        wrap(&words, style.columns()).into_iter().map(|line| line + "\n").collect()
    }
}
