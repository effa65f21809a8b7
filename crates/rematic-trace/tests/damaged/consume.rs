//! Reads bytes as a trace and, if they are one, runs every stage on it. Shared with the fuzz target `read_trace`.

use std::path::Path;

use rematic_cost::{CostRule, Costs, Device, ModuleTimes};
use rematic_memory::{Allocator, Timeline};
use rematic_plan::StepStats;
use rematic_report::{StatsReport, Style};
use rematic_trace::StepTrace;

/// Whether the bytes are a trace. Panics only if Rematic does, or if a result contradicts itself.
pub(crate) fn consume(bytes: &[u8]) -> bool {
    let Ok(trace) = StepTrace::from_json(bytes, Path::new("damaged.rmt")) else { return false };
    let mut text = Vec::new();
    trace.to_writer(&mut text).unwrap();
    assert!(StepTrace::from_json(&text, Path::new("again.rmt")).unwrap() == trace, "a trace reads back as written");
    let device = Device::find("h100").unwrap();
    for (allocator, rule) in [(Allocator::Cuda, CostRule::Physical), (Allocator::Cpu, CostRule::Torch)] {
        let timeline = Timeline::replay(&trace, allocator);
        assert!(timeline.totals().iter().all(|total| *total <= timeline.peak().total()));
        // A type without a rate on the device is a fair answer.
        let Ok(costs) = Costs::new(&trace, &device, rule) else { continue };
        let times = ModuleTimes::new(&trace, &costs);
        assert!(times.forward().iter().chain(times.backward()).all(|time| time.0.is_finite() && time.0 >= 0.0));
        let stats = StepStats::new(&trace, &timeline, &costs);
        let report = StatsReport { trace: &trace, timeline: &timeline, costs: &costs, stats: &stats, device: &device };
        assert!(report.json(true).ends_with("}\n"));
        assert!(report.text(Style::default()).contains("Peak"));
    }
    true
}
