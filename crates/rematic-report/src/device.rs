use rematic_cost::{Device, HostLink, TflopPerSecond};
use serde_json::json;

use crate::style::{Style, lines};

/// The list of devices with the rates that the cost model uses.
#[must_use]
pub fn devices_text(devices: &[Device], style: Style) -> String {
    let header =
        ["device", "memory", "DRAM GB/s", "fp32", "tf32", "bf16", "fp16", "fp8", "link GB/s", "host", "product"];
    let mut table = style.table(&header, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for device in devices {
        let rate = |peak: Option<TflopPerSecond>, field: &str| {
            let mark = if device.unverified.iter().any(|name| name == &format!("tflops.{field}")) { "?" } else { "" };
            peak.map_or_else(|| "-".to_owned(), |peak| format!("{}{mark}", peak.0))
        };
        let peaks = &device.peaks;
        table.add_row([
            style.accent(&device.name),
            device.memory.to_string(),
            device.dram.0.to_string(),
            rate(peaks.f32, "f32"),
            rate(peaks.tf32, "tf32"),
            rate(peaks.bf16, "bf16"),
            rate(peaks.f16, "f16"),
            rate(peaks.f8, "f8"),
            device.link.map_or_else(|| "-".to_owned(), |link| link.0.to_string()),
            match device.host_link {
                HostLink::Pcie(generation) => format!("PCIe {generation}"),
                HostLink::C2c(rate) => format!("C2C {}", rate.0),
            },
            device.product.clone(),
        ]);
    }
    lines(&table) + &style.quiet("Dense peaks in TFLOP/s; ? marks a figure without a second source.") + "\n"
}

/// The same as JSON; rates that a device does not have are null.
#[must_use]
pub fn devices_json(devices: &[Device]) -> String {
    let rate = |peak: Option<TflopPerSecond>| peak.map(|peak| peak.0);
    let rows: Vec<_> = devices
        .iter()
        .map(|device| {
            let peaks = &device.peaks;
            json!({
                "name": device.name,
                "product": device.product,
                "memory_bytes": device.memory,
                "dram_gb_per_s": device.dram.0,
                "link_gb_per_s": device.link.map(|link| link.0),
                "tflops": {
                    "f32": rate(peaks.f32), "tf32": rate(peaks.tf32), "bf16": rate(peaks.bf16),
                    "f16": rate(peaks.f16), "f8": rate(peaks.f8),
                },
                "matmul_efficiency": device.matmul_efficiency,
                "launch_ms": device.launch,
                "unverified": device.unverified,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "devices": rows }))
}
