//! What the texts look like on terminals: of several widths, with and without colour.

use std::collections::HashSet;

use rematic_cost::{CostRule, Costs, Device, Devices};
use rematic_fake::models::{BUILTIN, Model, Options};
use rematic_plan::{Explanation, Limits, Problem};
use rematic_replay::{Allocator, Timeline};
use rematic_report::{ExplanationReport, Memory, Setup, StatsReport, Style, TriedSetting, devices_text, models_text};
use rematic_torch::StepStats;
use rematic_trace::Bytes;

const WIDTHS: [u16; 6] = [40, 60, 80, 100, 120, 160];
/// A step of which the allocator asks 3 GiB more than it hands out.
const MEMORY: Memory = Memory {
    allocated: Bytes(40 << 30),
    reserved: Bytes(43 << 30),
    context: Bytes(512 << 20),
    usable: Bytes(79 << 30),
    room: Bytes((79 << 30) - (512 << 20)),
    has_buffers: false,
    ranks: 1,
    retries: Some(0),
};
/// Wide enough that nothing is left out.
const UNLIMITED: u16 = 1000;

fn stats_on(model: &str, device: &str, styles: &[Style]) -> Vec<String> {
    let options = Options { layers: Some(2), ..Options::default() };
    let trace = Model::builtin(model).unwrap().with(&options).unwrap().trace().unwrap();
    let timeline = Timeline::replay(&trace, Allocator::Cuda);
    let device = Device::find(device).unwrap();
    let costs = Costs::new(&trace, &device, CostRule::Physical).unwrap();
    let stats = StepStats::new(&trace, &timeline, &costs);
    let memory = Some(&MEMORY);
    let report = StatsReport {
        trace: &trace,
        timeline: &timeline,
        costs: &costs,
        stats: &stats,
        device: &device,
        memory,
        pace: None,
    };
    styles.iter().map(|style| report.text(*style)).collect()
}

fn explanation_of(model: &str, styles: &[Style]) -> Vec<String> {
    let options = Options { layers: Some(2), ..Options::default() };
    let trace = Model::builtin(model).unwrap().with(&options).unwrap().trace().unwrap();
    let device = Device::find("h100").unwrap();
    let costs = Costs::new(&trace, &device, CostRule::Physical).unwrap();
    let explanation =
        Explanation::new(&Problem::new(trace.clone(), costs, Limits::default()).unwrap(), &trace, &device);
    let settings = [TriedSetting { setting: "expandable_segments:True", reserved_bytes: Bytes(41 << 30), fits: true }];
    let (memory, settings) = (Some(&MEMORY), &settings[..]);
    let setup = &Setup::new(&trace, &device.name);
    let report = ExplanationReport {
        setup,
        explanation: &explanation,
        device: &device,
        memory,
        budget: None,
        settings,
        measured: None,
        compiled: None,
    };
    styles.iter().map(|style| report.text(*style)).collect()
}

/// Every text of every command, in each of the styles: one list per text.
fn texts(styles: &[Style]) -> Vec<Vec<String>> {
    let models: Vec<_> = BUILTIN.iter().map(|model| (model.name, model.description)).collect();
    let devices = Devices::builtin();
    vec![
        stats_on("seed-transformer", "h100", styles),
        stats_on("gpt2", "t4", styles),
        stats_on("llama-3-8b", "a100-40", styles),
        explanation_of("seed-transformer", styles),
        explanation_of("llama-3-8b", styles),
        styles.iter().map(|style| devices_text(devices.all(), *style)).collect(),
        styles.iter().map(|style| models_text(&models, *style)).collect(),
    ]
}

fn without_escapes(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default().to_owned();
    first + &pieces.map(|piece| piece.split_once('m').unwrap().1).collect::<String>()
}

#[test]
fn colour_does_not_change_the_layout() {
    for width in WIDTHS {
        for text in texts(&[Style { color: true, width }, Style { color: false, width }]) {
            assert!(text[0].contains("\u{1b}["), "no colour in\n{}", text[0]);
            assert_eq!(without_escapes(&text[0]), text[1], "at width {width}");
        }
    }
}

#[test]
fn lines_fit_and_names_stay_whole() {
    let styles = WIDTHS.map(|width| Style { color: false, width });
    let wide = texts(&[Style { color: false, width: UNLIMITED }]);
    for (texts, wide) in texts(&styles).iter().zip(&wide) {
        let words: HashSet<&str> = wide[0].split_whitespace().collect();
        assert!(!wide[0].contains('…'));
        for (text, width) in texts.iter().zip(WIDTHS) {
            for line in text.lines() {
                assert!(line.chars().count() <= width.into(), "longer than {width}: {line}");
                assert_eq!(line, line.trim_end());
            }
            // What is shortened shows it; a fragment without the mark would be a broken name.
            // The line of memory has as many cells as there is room, and names of phases stand where they begin.
            let drawn = |word: &str| word.starts_with('└') || word.chars().any(|cell| ('▁'..='▇').contains(&cell));
            let of_note = |word: &str| ["no", "room", "for"].contains(&word);
            for word in text.split_whitespace().filter(|word| !word.contains('…') && !drawn(word)) {
                // Which columns are left out is said below a table.
                let bare = word.trim_end_matches([',', ':']);
                assert!(
                    words.contains(word) || words.contains(bare) || of_note(bare),
                    "`{word}` at width {width} is a fragment in\n{text}"
                );
            }
        }
    }
}

#[test]
fn a_device_is_one_line() {
    let devices = Devices::builtin();
    for width in WIDTHS.into_iter().filter(|width| *width >= 80) {
        let text = devices_text(devices.all(), Style { color: false, width });
        let lines = text.lines().filter(|line| !line.starts_with(" no room for:")).count();
        assert_eq!(lines, devices.all().len() + 2, "at width {width}\n{text}");
    }
}

#[test]
fn columns_go_in_the_order_of_their_importance() {
    let header = |width| {
        let text = devices_text(Devices::builtin().all(), Style { color: false, width });
        text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(header(160), "device memory DRAM GB/s fp32 tf32 bf16 fp16 fp8 link GB/s host product");
    assert_eq!(header(100), "device memory DRAM GB/s fp32 tf32 bf16 fp16 fp8 link GB/s host");
    assert_eq!(header(80), "device memory DRAM GB/s fp32 tf32 bf16 fp16 fp8");
    assert_eq!(header(60), "device memory DRAM GB/s fp32 bf16 fp16");

    let widths = [160, 80, 60].map(|width| Style { color: false, width });
    let headers: Vec<String> = stats_on("llama-3-8b", "h100", &widths)
        .iter()
        .map(|text| text.lines().find(|line| line.contains("largest tensors")).unwrap().trim().to_owned())
        .collect();
    assert!(headers[0].contains("category") && headers[0].ends_with("held by"), "{headers:?}");
    assert!(headers[1].contains("category") && headers[1].ends_with("in"), "{headers:?}");
    assert!(!headers[2].contains("category") && headers[2].ends_with("in"), "{headers:?}");
}

#[test]
fn the_step_line_breaks_after_the_colon() {
    let text = &stats_on("seed-transformer", "h100", &[Style { color: false, width: 80 }])[0];
    let step = text.lines().position(|line| line.starts_with("Step ")).unwrap();
    let lines: Vec<&str> = text.lines().skip(step).take(2).collect();
    assert!(lines[0].ends_with("(physical rule):"), "{lines:?}");
    assert!(lines[1].starts_with("  forward ") && lines[1].ends_with("FLOP"), "{lines:?}");
}

/// What is said of a seed transformer on a device, below the peak.
fn verdict(device: &Device, memory: Option<&Memory>) -> Vec<String> {
    let options = Options { layers: Some(2), ..Options::default() };
    let trace = Model::builtin("seed-transformer").unwrap().with(&options).unwrap().trace().unwrap();
    let timeline = Timeline::replay(&trace, Allocator::Cuda);
    let costs = Costs::new(&trace, device, CostRule::Physical).unwrap();
    let stats = StepStats::new(&trace, &timeline, &costs);
    let report =
        StatsReport { trace: &trace, timeline: &timeline, costs: &costs, stats: &stats, device, memory, pace: None };
    let text = report.text(Style::default());
    text.lines().skip_while(|line| !line.starts_with("Peak")).skip(1).take(2).map(str::to_owned).collect()
}

#[test]
fn what_the_allocator_reserves_decides_whether_the_step_fits() {
    let device = Device::find("h100").unwrap();
    let say = |memory: Memory| verdict(&device, Some(&memory)).remove(0);
    assert_eq!(say(MEMORY), "Fits NVIDIA H100 SXM5 80GB (79.00 GiB) with 35.50 GiB to spare");
    assert_eq!(
        verdict(&device, Some(&MEMORY))[1],
        "40.00 GiB allocated, 43.00 GiB reserved by PyTorch's allocator, 512.00 MiB for the CUDA context"
    );
    assert_eq!(
        say(Memory { retries: Some(2), ..MEMORY }),
        "Just fits NVIDIA H100 SXM5 80GB (79.00 GiB) if PyTorch empties its cache 2 times, which takes time"
    );
    let reserved = Bytes(80 << 30);
    assert_eq!(
        say(Memory { retries: None, reserved, ..MEMORY }),
        "Does not fit NVIDIA H100 SXM5 80GB: 1.50 GiB more than its 79.00 GiB"
    );
    assert_eq!(
        say(Memory { retries: None, room: Bytes(40 << 30), ..MEMORY }),
        "Does not fit NVIDIA H100 SXM5 80GB: 3.00 GiB more than the 40.00 GiB that per_process_memory_fraction allows"
    );
}

#[test]
fn without_an_allocator_the_peak_decides_whether_the_step_fits() {
    let mut device = Device::find("t4").unwrap();
    let say = |device: &Device| verdict(device, None).remove(0);
    let options = Options { layers: Some(2), ..Options::default() };
    let trace = Model::builtin("seed-transformer").unwrap().with(&options).unwrap().trace().unwrap();
    let peak = Timeline::replay(&trace, Allocator::Cuda).peak().total();
    device.memory = peak;
    assert_eq!(say(&device), format!("Fits NVIDIA T4 16GB ({peak}) with 0 B to spare"));
    device.memory.0 -= 1;
    assert_eq!(say(&device), format!("Does not fit NVIDIA T4 16GB: 1 B more than its {}", device.memory));
}

#[test]
fn element_types_are_spelled_as_the_options_are() {
    let text = &stats_on("seed-transformer", "h100", &[Style::default()])[0];
    assert!(text.starts_with("seed-transformer · fp32 · "), "{text}");
    let json = rematic_report::devices_json(Devices::builtin().all());
    assert!(json.contains("\"fp32\": 15.7") && json.contains("\"tflops.fp16\"") && !json.contains("\"f32\""), "{json}");
    assert!(json.starts_with("{\n  \"devices\": [\n    {\n      \"name\": \"v100\""), "{json}");
}
