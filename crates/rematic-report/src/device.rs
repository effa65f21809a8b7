use rematic_cost::{Device, HostLink, Peaks, TflopPerSecond};
use rematic_trace::{Bytes, Millis};
use serde::Serialize;

use crate::json::json;
use crate::shorten::Shorten;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// Below this width few products' names are whole.
const PRODUCT: usize = 24;

/// The list of devices with the rates that the cost model uses.
#[must_use]
pub fn devices_text(devices: &[Device], style: Style) -> String {
    let mut table = Table::new([
        Column::text("device").tone(Tone::Accent),
        Column::number("memory"),
        Column::number("DRAM GB/s").leave_out(6),
        Column::number("fp32").leave_out(7),
        Column::number("tf32").leave_out(4),
        Column::number("bf16"),
        Column::number("fp16").leave_out(5),
        Column::number("fp8").leave_out(3),
        Column::number("link GB/s").leave_out(2),
        Column::text("host").leave_out(1),
        Column::text("product").shorten(Shorten::End, PRODUCT).leave_out(0),
    ]);
    for device in devices {
        let rate = |peak: Option<TflopPerSecond>, field: &str| {
            let mark = if device.unverified.iter().any(|name| name == &format!("tflops.{field}")) { "?" } else { "" };
            peak.map_or_else(|| "-".to_owned(), |peak| format!("{}{mark}", peak.0))
        };
        let peaks = &device.peaks;
        table.row([
            device.name.clone(),
            device.usable.to_string(),
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
                HostLink::Measured(rate) => rate.0.to_string(),
            },
            device.product.clone(),
        ]);
    }
    let note = Sentence {
        lead: ("Dense peaks in TFLOP/s;", Tone::Quiet),
        head: "",
        gap: " ",
        tail: ("? marks a figure without a second source.", Tone::Quiet),
    };
    table.render(style) + &style.sentence(&note)
}

#[derive(Serialize)]
struct Json<'a> {
    devices: Vec<JsonDevice<'a>>,
}

#[derive(Serialize)]
struct JsonDevice<'a> {
    name: &'a str,
    product: &'a str,
    memory_bytes: Bytes,
    dram_gb_per_s: f64,
    link_gb_per_s: Option<f64>,
    tflops: JsonPeaks,
    matmul_efficiency: f64,
    launch_ms: Millis,
    unverified: Vec<String>,
}

#[derive(Serialize)]
struct JsonPeaks {
    fp32: Option<f64>,
    tf32: Option<f64>,
    bf16: Option<f64>,
    fp16: Option<f64>,
    fp8: Option<f64>,
}

/// The same as JSON; rates that a device does not have are null.
#[must_use]
pub fn devices_json(devices: &[Device]) -> String {
    let rate = |peak: Option<TflopPerSecond>| peak.map(|peak| peak.0);
    let tflops = |peaks: &Peaks| JsonPeaks {
        fp32: rate(peaks.f32),
        tf32: rate(peaks.tf32),
        bf16: rate(peaks.bf16),
        fp16: rate(peaks.f16),
        fp8: rate(peaks.f8),
    };
    let devices = devices
        .iter()
        .map(|device| JsonDevice {
            name: &device.name,
            product: &device.product,
            memory_bytes: device.memory,
            dram_gb_per_s: device.dram.0,
            link_gb_per_s: device.link.map(|link| link.0),
            tflops: tflops(&device.peaks),
            matmul_efficiency: device.matmul_efficiency,
            launch_ms: device.launch,
            unverified: device.unverified.iter().map(|field| spelled(field)).collect(),
        })
        .collect();
    json(&Json { devices })
}

/// A field of the device file as this document names it: `tflops.f16` is `tflops.fp16` here.
fn spelled(field: &str) -> String {
    field.strip_prefix("tflops.f").map_or_else(|| field.to_owned(), |bits| format!("tflops.fp{bits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_the_keys() {
        assert_eq!(spelled("tflops.f16"), "tflops.fp16");
        assert_eq!(spelled("tflops.tf32"), "tflops.tf32");
        assert_eq!(spelled("launch_us"), "launch_us");
    }
}
