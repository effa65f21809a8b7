use rematic_cost::{Device, Measured};
use rematic_plan::{Explanation, Moment, Numerics, Place, Remedy, Together};
use rematic_trace::{Bytes, Millis, short};
use serde::Serialize;

use crate::json::json;
use crate::measured::{MeasuredJson, measured_json, measured_text};
use crate::memory::{Memory, TriedSetting, settings_table};
use crate::residents;
use crate::setup::{Setup, SetupJson};
use crate::shorten::{Shorten, unbroken};
use crate::stats::category_table;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// Widths below which shortened text says little: of what to do, and of where the peak is then.
const TITLE: usize = 40;
const PLACE: usize = 24;

/// What a step took under `torch.compile`, when it was rehearsed.
#[derive(Clone, Debug, Serialize)]
pub struct Compiled {
    /// The most memory that was in tensors at once.
    pub allocated_bytes: Bytes,
    /// The most that PyTorch's allocator held.
    pub reserved_bytes: Bytes,
    /// PyTorch's version.
    pub torch: String,
}

/// Everything that `rematic explain` says.
#[derive(Clone, Copy, Debug)]
pub struct ExplanationReport<'a> {
    /// What the step is trained with.
    pub setup: &'a Setup,
    /// Why, and what helps.
    pub explanation: &'a Explanation,
    /// The device that the time is for.
    pub device: &'a Device,
    /// What the step takes of it; `None` on the CPU.
    pub memory: Option<&'a Memory>,
    /// The most memory that tensors may take, if it was given.
    pub budget: Option<Bytes>,
    /// What other settings of PyTorch's allocator would do.
    pub settings: &'a [TriedSetting],
    /// The step under `torch.compile`, if it was rehearsed.
    pub compiled: Option<&'a Compiled>,
    /// How much of the time was measured.
    pub measured: Option<&'a Measured>,
}

impl ExplanationReport<'_> {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            options: &'a SetupJson,
            #[serde(flatten)]
            explanation: &'a Explanation,
            device: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            memory: Option<&'a Memory>,
            #[serde(skip_serializing_if = "Option::is_none")]
            fits: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            budget_bytes: Option<Bytes>,
            #[serde(skip_serializing_if = "Option::is_none")]
            within_budget: Option<bool>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            allocator_settings: &'a [TriedSetting],
            #[serde(skip_serializing_if = "Option::is_none")]
            compiled: Option<&'a Compiled>,
            #[serde(skip_serializing_if = "Option::is_none")]
            measured: Option<MeasuredJson<'a>>,
        }
        json(&Json {
            options: self.setup.json(),
            explanation: self.explanation,
            device: &self.device.product,
            memory: self.memory,
            fits: self.memory.map(Memory::fits),
            budget_bytes: self.budget,
            within_budget: self.budget.map(|budget| self.explanation.peak_bytes <= budget),
            allocator_settings: self.settings,
            compiled: self.compiled,
            measured: measured_json(self.measured),
        })
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = self.setup.text(style);
        text += &self.peak(style);
        text += &residents::table(&self.explanation.residents, style);
        text.push('\n');
        text += &self.ways_down(style);
        if let Some(memory) = self.memory {
            text += &settings_table(self.settings, memory, style);
        }
        text + &measured_text(self.measured)
    }

    fn peak(&self, style: Style) -> String {
        let Explanation { peak_bytes, at, categories, world_size, .. } = self.explanation;
        let mut text = style.sentence(&Sentence {
            lead: (&format!("The peak is {peak_bytes}"), Tone::Strong),
            head: if *world_size > 1 { " on each device" } else { "" },
            gap: ", ",
            tail: (&format!("{}.", at.words), Tone::Plain),
        });
        if let Some(op) = &at.op {
            let module = at.module.as_ref().map_or_else(String::new, |module| format!(" in {module}"));
            text += &style.sentence(&Sentence {
                lead: ("Operator:", Tone::Quiet),
                head: "",
                gap: " ",
                tail: (&format!("{}{module}", short(op)), Tone::Quiet),
            });
        }
        text += &self.moment(style);
        text += &self.within(style);
        if let Some(memory) = self.memory {
            text += &memory.text(self.device, style);
            text += &memory.not_counted(style);
        }
        text += &category_table(categories, *peak_bytes, style);
        text.push('\n');
        text
    }

    /// Which part of the step decides.
    fn moment(&self, style: Style) -> String {
        let lead = match self.explanation.at.moment {
            Moment::Start => "What is in memory before the step decides:",
            Moment::Layers => "The layers decide:",
            Moment::Loss => "The loss decides:",
            Moment::Optimizer => "The optimizer decides:",
        };
        let tail = "only what frees memory at that moment reduces the peak.";
        style.sentence(&Sentence { lead: (lead, Tone::Strong), head: "", gap: " ", tail: (tail, Tone::Plain) })
    }

    /// Whether tensors stay within the budget.
    fn within(&self, style: Style) -> String {
        let (Some(budget), peak) = (self.budget, self.explanation.peak_bytes) else { return String::new() };
        let (lead, head) = if peak <= budget {
            (("Within the budget", Tone::Good), format!(" of {budget}, {} to spare", budget.saturating_sub(peak)))
        } else {
            (("Above the budget", Tone::Bad), format!(" of {budget}, by {}", peak.saturating_sub(budget)))
        };
        style.sentence(&Sentence { lead, head: &head, gap: "", tail: ("", Tone::Plain) })
    }

    fn ways_down(&self, style: Style) -> String {
        let cheapest = self.explanation.cheapest();
        if cheapest.is_empty() && self.explanation.pairs.is_empty() {
            return "No rule knows a way down that frees 1 % or more.\n".to_owned();
        }
        let mut table = Table::new([
            Column::text("ways to reduce the peak").shorten(Shorten::End, TITLE),
            Column::number("peak").tone(Tone::Good),
            Column::number("frees").leave_out(0),
            Column::number("more time"),
            Column::text(if self.budget.is_some() { "budget" } else { "" }).leave_out(2),
            Column::text("then it peaks").shorten(Shorten::End, PLACE).leave_out(1),
        ]);
        let row = |title: String, peak: Bytes, extra: Option<Millis>, place: &Place| {
            let within = self.budget.map_or("", |budget| if peak <= budget { "within" } else { "above" });
            let freed = self.explanation.peak_bytes.saturating_sub(peak);
            let place = if *place == self.explanation.at { "at the same place" } else { &place.words };
            [title, peak.to_string(), freed.to_string(), self.longer(extra), within.to_owned(), place.to_owned()]
        };
        for (number, remedy) in cheapest.iter().enumerate() {
            let title = format!("{} {}", number + 1, remedy.title);
            table.row(row(title, remedy.peak_bytes, remedy.extra_ms, &remedy.at));
        }
        if let Some(together) = &self.explanation.together {
            let title = title_of(together, cheapest);
            table.row(row(format!("  {title}"), together.peak_bytes, together.extra_ms, &together.at));
        }
        for pair in self.pairs(cheapest) {
            let words: Vec<&str> = pair.remedies.iter().map(|kind| kind.words()).collect();
            table.row(row(format!("  {}", words.join(" + ")), pair.peak_bytes, pair.extra_ms, &pair.at));
        }
        let mut text = table.render(style);
        text.push('\n');
        for (number, remedy) in cheapest.iter().enumerate() {
            text += &note(number + 1, remedy, style);
        }
        let step = unbroken(&self.explanation.step_ms.to_string());
        text += &self.compiled(style);
        text += &style.sentence(&Sentence {
            lead: ("Each peak is a replay of the whole step;", Tone::Quiet),
            head: "",
            gap: " ",
            tail: (&format!("times are on top of {step} on {}.", self.device.product), Tone::Quiet),
        });
        text
    }

    /// Pairs that the row of all together does not show already.
    fn pairs<'a>(&'a self, cheapest: &'a [Remedy]) -> impl Iterator<Item = &'a Together> {
        let shown = self.explanation.together.as_ref().filter(|_| cheapest.len() > 1);
        self.explanation.pairs.iter().filter(move |pair| shown.is_none_or(|shown| shown.remedies != pair.remedies))
    }

    /// What can only be measured.
    fn compiled(&self, style: Style) -> String {
        let Some(Compiled { allocated_bytes, reserved_bytes, torch }) = self.compiled else {
            let tail = format!(
                "it fuses operators and keeps fewer tensors, without recomputation. By how much is the compiler's choice: \
                 --with-compile rehearses a model of Hugging Face's with it, which takes a minute or more, and `rematic \
                 rehearse --device {} -- python train.py` your own script.",
                self.device.name
            );
            let lead = ("Not computed here: torch.compile;", Tone::Quiet);
            return style.sentence(&Sentence { lead, head: "", gap: " ", tail: (&tail, Tone::Quiet) });
        };
        let peak = self.explanation.peak_bytes;
        let change = Bytes(peak.0.abs_diff(allocated_bytes.0));
        let word = if *allocated_bytes <= peak { "less" } else { "more" };
        let budget = match self.budget {
            Some(budget) if *allocated_bytes <= budget => ", within the budget",
            Some(_) => ", above the budget",
            None => "",
        };
        let lead = format!("With torch.compile the peak is {allocated_bytes},");
        let tail = format!(
            "{change} {word}{budget}; {reserved_bytes} reserved. Nothing is computed twice that the compiler does not choose to; \
             its time is not known here. Rehearsed with PyTorch {torch} on a GPU that is not there."
        );
        style.sentence(&Sentence { lead: (&lead, Tone::Strong), head: "", gap: " ", tail: (&tail, Tone::Plain) })
    }

    fn longer(&self, extra: Option<Millis>) -> String {
        match extra {
            None => "unknown".to_owned(),
            Some(Millis(ms)) if ms <= 0.0 => "none".to_owned(),
            Some(extra) => {
                let share = extra.0 / self.explanation.step_ms.0.max(f64::MIN_POSITIVE) * 100.0;
                format!("{extra} ({share:.1} %)")
            }
        }
    }
}

/// Which of the remedies are meant.
fn title_of(together: &Together, cheapest: &[Remedy]) -> String {
    match (together.remedies.len(), cheapest.len()) {
        (2, 2) => "both together".to_owned(),
        (3, _) => "all three together".to_owned(),
        _ => {
            let parts = cheapest.iter().enumerate().filter(|(_, remedy)| together.remedies.contains(&remedy.kind));
            let numbers: Vec<String> = parts.map(|(at, _)| (at + 1).to_string()).collect();
            format!("{} together", numbers.join(" and "))
        }
    }
}

/// How to do it, and what has to hold.
fn note(number: usize, remedy: &Remedy, style: Style) -> String {
    let how = format!("{number} {}.", remedy.how);
    let numerics = match remedy.numerics {
        Numerics::Same => "",
        Numerics::Rounding => " Results differ by rounding.",
        Numerics::Approximate => " Results become approximate, whatever it costs.",
    };
    let assumption = format!("{}.{numerics}", remedy.assumption);
    style.sentence(&Sentence { lead: ("", Tone::Plain), head: &how, gap: " ", tail: (&assumption, Tone::Quiet) })
}
