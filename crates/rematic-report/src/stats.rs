use std::collections::HashMap;

use rematic_cost::{Costs, Device, Element};
use rematic_plan::{CategoryBytes, resident_groups};
use rematic_replay::Timeline;
use rematic_torch::{Baseline, ModuleStats, StepStats};
use rematic_trace::{Bytes, Category, Dtype, Millis, ModuleId, Op, Phase, StepTrace, StorageId, any_layer, short};
use serde::Serialize;

use crate::json::json;
use crate::measured::{MeasuredJson, measured_json, measured_text};
use crate::memory::Memory;
use crate::pace::{Pace, PaceJson};
use crate::residents;
use crate::setup::{Setup, SetupJson};
use crate::shorten::{Shorten, unbroken};
use crate::sparkline;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// How many of the heaviest modules the text shows.
const ROWS: usize = 9;
/// Length of the longest bar.
const BAR: usize = 24;
/// The width below which shortened names of modules say little.
const MODULE: usize = 20;

/// Everything that `rematic stats` says about a step.
#[derive(Clone, Copy)]
pub struct StatsReport<'a> {
    /// The step.
    pub trace: &'a StepTrace,
    /// Its memory.
    pub timeline: &'a Timeline,
    /// Its time.
    pub costs: &'a Costs,
    /// Its modules.
    pub stats: &'a StepStats,
    /// The device that the time is for.
    pub device: &'a Device,
    /// What it takes of the device; not for steps on the CPU.
    pub memory: Option<&'a Memory>,
    /// How fast it goes; without it, the sum of what its operators take is said.
    pub pace: Option<&'a Pace>,
}

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    options: &'a SetupJson,
    device: &'a str,
    baseline: Baseline,
    peak: JsonPeak<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms: Option<Millis>,
    #[serde(flatten)]
    pace: Option<PaceJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
    order: JsonOrder,
    modules: &'a [ModuleStats],
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<MeasuredJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Vec<JsonMoment<'a>>>,
}

#[derive(Serialize)]
struct JsonPeak<'a> {
    total: Bytes,
    parameter: Bytes,
    buffer: Bytes,
    gradient: Bytes,
    activation: Bytes,
    temp: Bytes,
    optimizer: Bytes,
    other: Bytes,
    at: JsonPlace<'a>,
}

/// All three are null if the peak is where the step begins.
#[derive(Serialize)]
struct JsonPlace<'a> {
    op: Option<&'a str>,
    module: Option<String>,
    phase: Option<Phase>,
}

#[derive(Serialize)]
struct JsonOrder {
    fw_pre_order: Vec<String>,
    fw_post_order: Vec<String>,
    bw_pre_order: Vec<String>,
    bw_post_order: Vec<String>,
}

#[derive(Serialize)]
struct JsonMoment<'a> {
    op: &'a str,
    phase: Phase,
    module: Option<&'a str>,
    total: Bytes,
}

impl StatsReport<'_> {
    /// One JSON document, indented, with a line break at the end.
    #[must_use]
    pub fn json(&self, with_timeline: bool) -> String {
        let (paths, setup) = (self.paths(), self.setup());
        let peak = self.timeline.peak();
        let names = |modules: &[ModuleId]| modules.iter().map(|module| paths[*module].clone()).collect();
        let orders = &self.stats.orders;
        let document = Json {
            source: setup.model(),
            options: setup.json(),
            device: &self.device.name,
            baseline: self.stats.baseline,
            peak: JsonPeak {
                total: peak.snapshot.total(),
                parameter: peak.snapshot[Category::Parameter],
                buffer: peak.snapshot[Category::Buffer],
                gradient: peak.snapshot[Category::Gradient],
                activation: peak.snapshot[Category::Activation],
                temp: peak.snapshot[Category::Temp],
                optimizer: peak.snapshot[Category::Optimizer],
                other: peak.snapshot[Category::Other],
                at: JsonPlace {
                    op: peak.at.map(|at| self.trace.op_name(self.trace.op(at.op))),
                    module: peak.at.and_then(|at| at.module).map(|module| paths[module].clone()),
                    phase: peak.at.map(|at| at.phase),
                },
            },
            step_ms: self.pace.map(|pace| pace.step),
            pace: self.pace.map(Pace::json),
            memory: self.memory,
            fits: self.memory.map(Memory::fits),
            order: JsonOrder {
                fw_pre_order: names(&orders.fw_pre),
                fw_post_order: names(&orders.fw_post),
                bw_pre_order: names(&orders.bw_pre),
                bw_post_order: names(&orders.bw_post),
            },
            modules: &self.stats.modules,
            measured: measured_json(self.costs.measurements()),
            timeline: with_timeline.then(|| self.moments(&paths)),
        };
        json(&document)
    }

    fn paths(&self) -> rematic_trace::Table<ModuleId, String> {
        self.trace.modules().ids().map(|module| self.trace.path(module)).collect()
    }

    fn moments<'p>(&'p self, paths: &'p rematic_trace::Table<ModuleId, String>) -> Vec<JsonMoment<'p>> {
        let moment = |(op, total): (&'p Op, &Bytes)| JsonMoment {
            op: self.trace.op_name(op),
            phase: op.phase,
            module: self.trace.module_of(op).map(|module| paths[module].as_str()),
            total: *total,
        };
        self.trace.ops().iter().zip(self.timeline.totals()).map(moment).collect()
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = self.heading(style);
        text += &self.peak(style);
        text += &self.residents(style);
        text += &self.time(style);
        text += &self.heaviest(style);
        text
    }

    fn setup(&self) -> Setup {
        Setup::new(self.trace, &self.device.name)
    }

    fn heading(&self, style: Style) -> String {
        let setup = self.setup();
        let mut text = setup.text(style);
        let size = format!(
            "{} operators, {} modules, {} parameters{}",
            self.trace.ops().len(),
            self.stats.modules.len(),
            thousands(parameter_count(self.trace)),
            if has_part(self.trace) { " on this rank" } else { "" }
        );
        let others: Vec<String> = setup.others().iter().map(|other| unbroken(other)).collect();
        text += &style.sentence(&Sentence {
            lead: ("", Tone::Plain),
            head: &size,
            gap: "; ",
            tail: (&others.join(", "), Tone::Quiet),
        });
        text.push('\n');
        text
    }

    fn peak(&self, style: Style) -> String {
        let peak = self.timeline.peak();
        let total = peak.snapshot.total();
        let place = match peak.at {
            None => "before the first operator".to_owned(),
            Some(at) => {
                let module = at.module.map_or_else(String::new, |module| format!(" in {}", self.trace.path(module)));
                format!("at {}{module} ({})", short(self.trace.op_name(self.trace.op(at.op))), at.phase)
            }
        };
        let mut text = style.sentence(&Sentence {
            lead: (&format!("Peak {total}"), Tone::Strong),
            head: "",
            gap: " ",
            tail: (&place, Tone::Plain),
        });
        text += &self.fit(style);
        text += &self.over_the_step(style);
        text += &category_table(&CategoryBytes::of(&peak.snapshot), total, style);
        text.push('\n');
        text
    }

    /// Memory over the step, in one line.
    fn over_the_step(&self, style: Style) -> String {
        let width = style.columns() - 1;
        let (totals, ops) = (self.timeline.totals(), self.trace.ops());
        let line = sparkline::line(totals.iter().copied(), self.timeline.peak().total(), width);
        let phases = sparkline::phases(ops.iter().map(|op| op.phase), width);
        match line.trim_end() {
            "" => String::new(),
            line => format!(" {}\n {}\n", style.paint(line, Tone::Accent), style.paint(&phases, Tone::Quiet)),
        }
    }

    /// Whether the device has memory enough.
    fn fit(&self, style: Style) -> String {
        if let Some(memory) = self.memory {
            return memory.text(self.device, style);
        }
        let peak = self.timeline.peak().total();
        let Device { product, memory, .. } = self.device;
        let (lead, head, tail) = if peak <= *memory {
            let spare = memory.saturating_sub(peak);
            (("Fits", Tone::Good), format!(" {product} ({memory})"), format!("with {spare} to spare"))
        } else {
            let more = peak.saturating_sub(*memory);
            (("Does not fit", Tone::Bad), format!(" {product}:"), format!("{more} more than its {memory}"))
        };
        style.sentence(&Sentence { lead, head: &head, gap: " ", tail: (&tail, Tone::Plain) })
    }

    fn residents(&self, style: Style) -> String {
        let peak = self.timeline.peak().at.map(|moment| moment.op);
        residents::table(&resident_groups(self.trace, self.timeline.allocator(), peak), style) + "\n"
    }

    fn time(&self, style: Style) -> String {
        let flops = self.costs.step().flops;
        let all = [Phase::Forward, Phase::Backward, Phase::Optimizer];
        let (step, phases) = match self.pace {
            Some(pace) => (pace.step, pace.phases),
            None => (self.costs.step().time, all.map(|phase| self.costs.total(phase).time)),
        };
        let [forward, backward, optimizer] = [0, 1, 2].map(|at| unbroken(&format!("{} {}", all[at], phases[at])));
        let rule = match self.costs.measurements() {
            Some(_) => "measured".to_owned(),
            None => format!("{} rule", self.costs.rule()),
        };
        let mut text = style.sentence(&Sentence {
            lead: (&format!("Step {step}"), Tone::Strong),
            head: &format!(" on {} ({rule}):", self.device.product),
            gap: " ",
            tail: (&format!("{forward}, {backward}, {optimizer}; {}", unbroken(&flops.to_string())), Tone::Plain),
        });
        text += &self.pace.map_or_else(String::new, |pace| pace.text(style));
        text += &measured_text(self.costs.measurements());
        let Baseline { peak_bytes, compute_ms } = self.stats.baseline;
        text += &style.sentence(&Sentence {
            lead: ("torch's baseline, without optimizer state:", Tone::Quiet),
            head: "",
            gap: " ",
            tail: (&format!("{peak_bytes} and {compute_ms}"), Tone::Quiet),
        });
        text.push('\n');
        text
    }

    /// The modules with children that keep the most activations; equal layers share a row.
    fn heaviest(&self, style: Style) -> String {
        let mut modules: Vec<&ModuleStats> = self.stats.modules.iter().filter(|module| !module.is_leaf).collect();
        let time = |module: &ModuleStats| module.fw_runtime_per_module + module.bw_runtime_per_module;
        modules.sort_by(|a, b| b.act_fw_per_module.cmp(&a.act_fw_per_module).then(time(b).0.total_cmp(&time(a).0)));
        let mut rows: Vec<([String; 5], usize)> = Vec::new();
        let mut at = HashMap::new();
        for module in modules {
            let row = [
                any_layer(&module.fqn),
                module.param_per_module.to_string(),
                module.act_fw_per_module.to_string(),
                module.fw_runtime_per_module.to_string(),
                module.bw_runtime_per_module.to_string(),
            ];
            let index = *at.entry(row.clone()).or_insert_with(|| {
                rows.push((row, 0));
                rows.len() - 1
            });
            rows[index].1 += 1;
        }
        let mut table = Table::new([
            Column::text("heaviest modules, each").shorten(Shorten::Outer, MODULE),
            Column::number(""),
            Column::number("parameters").leave_out(0),
            Column::number("activations"),
            Column::number("forward").leave_out(1),
            Column::number("backward").leave_out(2),
        ]);
        for ([name, parameters, activations, forward, backward], count) in rows.into_iter().take(ROWS) {
            let count = if count > 1 { format!("{count}×") } else { String::new() };
            table.row([name, count, parameters, activations, forward, backward]);
        }
        table.render(style)
    }
}

/// A step in a few lines: what it is, and what its peak consists of.
#[must_use]
pub fn trace_text(trace: &StepTrace, timeline: &Timeline) -> String {
    let facts: Vec<String> = trace.origin.facts().iter().map(|(name, value)| fact(name, value)).collect();
    let (peak, style) = (timeline.peak(), Style::default());
    let where_else = if has_part(trace) { " on this rank" } else { "" };
    let count = thousands(parameter_count(trace));
    let head = format!("{} operators, {count} parameters{where_else}", trace.ops().len());
    let mut text = style.sentence(&Sentence {
        lead: (&trace.origin.model, Tone::Plain),
        head: "",
        gap: "  ",
        tail: (&facts.join(", "), Tone::Plain),
    });
    text += &format!("{head}; peak {}\n", peak.total());
    text + &category_table(&CategoryBytes::of(&peak.snapshot), peak.total(), style)
}

/// Categories with their shares of a total.
pub(crate) fn category_table(categories: &[CategoryBytes], total: Bytes, style: Style) -> String {
    let mut table = Table::new([
        Column::text(""),
        Column::number(""),
        Column::number(""),
        Column::text("").tone(Tone::Accent).leave_out(0),
    ]);
    for CategoryBytes { category, bytes } in categories {
        let share = bytes.0 as f64 / total.0.max(1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a short bar")]
        let bar = "█".repeat((share * BAR as f64).round() as usize);
        table.row([category.to_string(), format!("{bytes:>11}"), format!("{:>5.1} %", share * 100.0), bar]);
    }
    table.render(style)
}

/// Elements of all parameters; tied ones count once. Saturates: an expanded parameter has more elements than bytes.
pub(crate) fn parameter_count(trace: &StepTrace) -> u64 {
    let mut parameters: Vec<_> =
        trace.modules().iter().flat_map(|module| &module.parameters).map(|p| (p.storage, p.layout)).collect();
    parameters.sort_unstable();
    parameters.dedup_by_key(|(storage, _)| *storage);
    let elements = parameters.iter().map(|(_, layout)| trace.layouts()[*layout].elements());
    elements.fold(0, u64::saturating_add)
}

/// Whether the parameters of a step are those that one rank of several has, and not the model's.
fn has_part(trace: &StepTrace) -> bool {
    // A step that is divided evenly still has the layouts of the whole.
    let is_divided = |storage: StorageId| trace.storages()[storage].own_bytes() != trace.storages()[storage].bytes;
    let mut parameters = trace.modules().iter().flat_map(|module| &module.parameters);
    trace.place.ranks() != Some(1) && !parameters.any(|parameter| is_divided(parameter.storage))
}

/// A fact about the step; the element type, which the trace has as its file does, as the options spell it.
pub(crate) fn fact(name: &str, value: &str) -> String {
    match value.parse::<Dtype>() {
        Ok(dtype) if name == "dtype" => format!("{name} {}", Element(dtype)),
        _ => format!("{name} {value}"),
    }
}

/// 35,418,624 as "35.4 M".
pub(crate) fn thousands(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "";
    for larger in ["k", "M", "B", "T"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if unit.is_empty() { count.to_string() } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(35_418_624), "35.4 M");
        assert_eq!(thousands(405_000_000_000), "405.0 B");
    }
}
