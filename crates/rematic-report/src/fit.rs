use rematic_cost::Device;
use rematic_trace::Millis;
use serde::Serialize;

use crate::json::json;
use crate::memory::Memory;
use crate::pace::{Pace, count};
use crate::setup::{Setup, SetupJson};
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// How many set-ups the text shows.
const SETUPS: usize = 8;

/// What fits, and what does not.
#[derive(Clone, Debug)]
pub struct Fit {
    /// What the step is trained with before anything is varied.
    pub setup: Setup,
    /// The device, where it is not what is asked for.
    pub device: Device,
    /// The GPUs, where they are not what is asked for.
    pub gpus: u64,
    /// The answers, a line each.
    pub answers: Vec<FitAnswer>,
    /// Set-ups that fit, the most tokens per second first.
    pub setups: Vec<FitSetup>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FitQuestion {
    /// How many sequences, or samples, a batch can have.
    LargestBatch,
    /// How many positions a sequence can have.
    LongestSequence,
    /// How few GPUs are enough.
    FewestGpus,
    /// How little memory a device may have.
    SmallestDevice,
}

impl FitQuestion {
    fn words(self) -> &'static str {
        match self {
            FitQuestion::LargestBatch => "largest batch",
            FitQuestion::LongestSequence => "longest sequence",
            FitQuestion::FewestGpus => "fewest GPUs",
            FitQuestion::SmallestDevice => "smallest device",
        }
    }
}

/// One question with its answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitAnswer {
    /// What is asked.
    pub question: FitQuestion,
    /// For the step as it is.
    pub as_it_is: FitFound,
    /// For the step with whatever plan makes it fit.
    pub with_a_plan: FitFound,
}

/// The last value that fits, and the next one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FitFound {
    /// The answer; `None` if nothing fits.
    pub value: Option<FitValue>,
    /// The next value, which does not fit; `None` if there is none.
    pub neighbour: Option<FitValue>,
    /// What fits, with what it takes.
    pub setup: Option<FitSetup>,
}

/// A number, or a device's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FitValue {
    /// Sequences, positions or GPUs.
    Count(u64),
    /// A device.
    Device(String),
}

impl FitValue {
    fn words(&self) -> String {
        match self {
            FitValue::Count(number) => count(*number as f64),
            FitValue::Device(name) => name.clone(),
        }
    }
}

/// A step that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitSetup {
    /// What makes it fit, or faster; nothing for the step as it is.
    pub means: Vec<String>,
    /// Sequences, or samples, in the batch of each rank.
    pub batch: u64,
    /// Positions of a sequence; `None` if that is not known.
    pub seq: Option<u64>,
    /// GPUs.
    pub gpus: u64,
    /// How many of them share the model (tensor parallelism); 1 is none.
    pub tp: u32,
    /// The device.
    pub device: String,
    /// What the step takes of it; `None` on the CPU.
    pub memory: Option<Memory>,
    /// Time of the step.
    pub step_ms: Millis,
    /// Tokens per second of all GPUs; `None` if a step's tokens are not known.
    pub tokens_per_second: Option<f64>,
    /// The command that says more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl FitSetup {
    /// With what the pace says.
    #[must_use]
    pub fn paced(self, pace: &Pace) -> Self {
        FitSetup { step_ms: pace.step, tokens_per_second: pace.tokens_per_second(), ..self }
    }

    /// Whether it fits only because PyTorch's allocator gives back what it has cached and tries again.
    fn just_fits(&self) -> bool {
        self.memory.is_some_and(|memory| memory.retries.is_some_and(|retries| retries > 0))
    }

    fn rate(&self) -> String {
        self.tokens_per_second.map_or_else(String::new, count)
    }
}

impl Fit {
    /// One JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            source: &'a str,
            options: &'a SetupJson,
            device: &'a str,
            gpus: u64,
            answers: &'a [FitAnswer],
            setups: &'a [FitSetup],
        }
        json(&Json {
            source: self.setup.model(),
            options: self.setup.json(),
            device: &self.device.name,
            gpus: self.gpus,
            answers: &self.answers,
            setups: &self.setups,
        })
    }

    /// Whether anything that was asked for fits, if only with a plan.
    #[must_use]
    pub fn fits(&self) -> bool {
        !self.setups.is_empty() || self.answers.iter().any(|answer| answer.with_a_plan.value.is_some())
    }

    /// A summary for people.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = self.heading(style);
        if !self.answers.is_empty() {
            text += &self.lines(style);
            text.push('\n');
        }
        text += &self.setups(style);
        text
    }

    fn heading(&self, style: Style) -> String {
        let gpus = if self.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", self.gpus) };
        let Device { product, usable, .. } = &self.device;
        let lead = if self.answers.is_empty() { "On" } else { "Where the line does not say otherwise:" };
        let where_else = format!("{lead} {gpus}, {product} ({usable})");
        let where_else = Sentence { lead: ("", Tone::Plain), head: &where_else, gap: "", tail: ("", Tone::Plain) };
        self.setup.text(style) + &style.sentence(&where_else) + "\n"
    }

    fn lines(&self, style: Style) -> String {
        let rated = self.answers.iter().any(|answer| {
            [&answer.as_it_is, &answer.with_a_plan]
                .iter()
                .any(|found| found.setup.as_ref().is_some_and(|setup| setup.tokens_per_second.is_some()))
        });
        let rate = if rated { "tokens/s" } else { "" };
        let mut table = Table::new([
            Column::text(""),
            Column::text("as it is").tone(Tone::Good),
            Column::number(rate).leave_out(1),
            Column::text("with a plan").tone(Tone::Good),
            Column::number(rate).leave_out(0),
        ]);
        for FitAnswer { question, as_it_is, with_a_plan } in &self.answers {
            table.row([
                question.words().to_owned(),
                as_it_is.words(),
                as_it_is.setup.as_ref().map_or_else(String::new, FitSetup::rate),
                with_a_plan.words(),
                with_a_plan.setup.as_ref().map_or_else(String::new, FitSetup::rate),
            ]);
        }
        table.render(style)
    }

    fn setups(&self, style: Style) -> String {
        let Some(best) = self.setups.first() else {
            return "No set-up was found that fits; `rematic explain` says what takes the memory.\n".to_owned();
        };
        let mut table = Table::new([
            Column::text("set-ups that fit, the fastest first").wrap(),
            Column::number("batch"),
            Column::number("GPUs").leave_out(2),
            Column::number("reserved").leave_out(1),
            Column::number("step").leave_out(0),
            Column::number(if best.tokens_per_second.is_some() { "tokens/s" } else { "" }),
        ]);
        for setup in self.setups.iter().take(SETUPS) {
            let means = if setup.means.is_empty() { "as it is".to_owned() } else { setup.means.join(" + ") };
            table.row([
                means,
                count(setup.batch as f64),
                setup.gpus.to_string(),
                setup.memory.map_or_else(String::new, |memory| memory.reserved.to_string())
                    + if setup.just_fits() { JUST } else { "" },
                setup.step_ms.to_string(),
                setup.rate(),
            ]);
        }
        let more = best.command.as_ref().map_or_else(String::new, |command| {
            style.sentence(&Sentence {
                lead: ("The first in full:", Tone::Quiet),
                head: "",
                gap: " ",
                tail: (command, Tone::Plain),
            })
        });
        table.render(style) + &more + &self.just(style)
    }

    /// What the mark means, where there is one.
    fn just(&self, style: Style) -> String {
        let found = self.answers.iter().flat_map(|answer| [&answer.as_it_is, &answer.with_a_plan]);
        let mut shown = found.filter_map(|found| found.setup.as_ref()).chain(self.setups.iter().take(SETUPS));
        if !shown.any(FitSetup::just_fits) {
            return String::new();
        }
        style.sentence(&Sentence {
            lead: (JUST, Tone::Quiet),
            head: " just fits:",
            gap: " ",
            tail: ("PyTorch's allocator empties its cache and tries again, which takes time", Tone::Quiet),
        })
    }
}

/// Marks what fits only because the allocator tries again.
const JUST: &str = "*";

impl FitFound {
    fn words(&self) -> String {
        let just = if self.setup.as_ref().is_some_and(FitSetup::just_fits) { JUST } else { "" };
        let shared = self.setup.as_ref().map_or(1, |setup| setup.tp);
        let shared = match &self.value {
            Some(FitValue::Count(_)) if shared > 1 => format!(" with TP {shared}"),
            _ => String::new(),
        };
        match (&self.value, &self.neighbour) {
            (Some(value), Some(next)) => format!("{}{just}{shared} ({} does not fit)", value.words(), next.words()),
            (Some(value), None) => format!("{}{just}{shared} (the limit)", value.words()),
            (None, Some(next)) => format!("none ({} does not fit)", next.words()),
            (None, None) => "none".to_owned(),
        }
    }
}
