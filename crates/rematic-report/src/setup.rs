use std::collections::BTreeMap;

use rematic_trace::{Dtype, Origin, StepTrace};
use serde::Serialize;

use crate::shorten::unbroken;
use crate::stats::fact;
use crate::style::{Sentence, Style, Tone};

/// What stands between the parts of the line.
const BETWEEN: &str = " · ";

/// Optimizers as people write them; others are written as the step says.
const OPTIMIZERS: [(&str, &str); 9] = [
    ("adam", "Adam"),
    ("adamw", "AdamW"),
    ("sgd", "SGD"),
    ("sgd-momentum", "SGD with momentum"),
    ("adam-fused", "Adam fused"),
    ("adamw-fused", "AdamW fused"),
    ("sgd-fused", "SGD fused"),
    ("sgd-momentum-fused", "SGD with momentum, fused"),
    ("none", "no optimizer"),
];

/// Names of facts that the line says in its own words.
const BATCH: &str = "batch";
const SEQ: &str = "seq";
const DTYPE: &str = "dtype";
const OPTIMIZER: &str = "optimizer";
const SHARDS: &str = "shards";
const SAID: [&str; 5] = [BATCH, SEQ, DTYPE, OPTIMIZER, SHARDS];

/// What a step is trained with and on, whether it was asked for or assumed: the first line of every answer.
#[derive(Clone, Debug)]
pub struct Setup {
    model: String,
    parts: Vec<String>,
    others: Vec<String>,
    options: SetupJson,
}

/// The same as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SetupJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    optimizer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    device: String,
    gpus: Option<u64>,
    /// What else the step says of itself.
    #[serde(flatten)]
    others: BTreeMap<String, String>,
}

impl Setup {
    /// Of a step on the device with this name.
    #[must_use]
    pub fn new(trace: &StepTrace, device: &str) -> Self {
        let (origin, gpus) = (&trace.origin, trace.place.ranks());
        let facts = origin.facts();
        let is_other = |(name, _): &&(String, String)| !SAID.contains(&name.as_str());
        let said = [precision(origin), optimizer(origin), sizes(origin), Some(devices(device, gpus))];
        Setup {
            model: origin.model.clone(),
            parts: said.into_iter().flatten().collect(),
            others: facts.iter().filter(is_other).map(|(name, value)| fact(name, value)).collect(),
            options: SetupJson {
                precision: precision_name(origin),
                optimizer: origin.optimizer.clone(),
                batch: origin.batch,
                seq: origin.seq,
                device: device.to_owned(),
                gpus,
                others: facts.iter().filter(is_other).cloned().collect(),
            },
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The line, without the model.
    #[must_use]
    pub fn words(&self) -> String {
        self.parts.iter().map(|part| unbroken(part)).collect::<Vec<_>>().join(BETWEEN)
    }

    /// What the line does not say: the attention kernel, versions, what capture saw.
    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    pub(crate) fn json(&self) -> &SetupJson {
        &self.options
    }

    /// The line.
    pub(crate) fn text(&self, style: Style) -> String {
        style.sentence(&Sentence {
            lead: (&self.model, Tone::Strong),
            head: "",
            gap: BETWEEN,
            tail: (&self.words(), Tone::Quiet),
        })
    }
}

fn find<'a>(origin: &'a Origin, name: &str) -> Option<&'a str> {
    origin.options.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str())
}

fn precision(origin: &Origin) -> Option<String> {
    let computes = origin.precision?;
    Some(match (find(origin, SHARDS), computes) {
        (Some(shards), _) => format!("mixed {} ({shards} shards)", computes.spelled()),
        (None, Dtype::Bf16 | Dtype::F16) => format!("{} (parameters too)", computes.spelled()),
        (None, _) => computes.spelled().to_owned(),
    })
}

fn precision_name(origin: &Origin) -> Option<String> {
    let computes = origin.precision?;
    let is_mixed = find(origin, SHARDS).is_some();
    Some(if is_mixed { "mixed".to_owned() } else { computes.spelled().to_owned() })
}

fn optimizer(origin: &Origin) -> Option<String> {
    let name = origin.optimizer.as_deref()?;
    let known = OPTIMIZERS.iter().find(|(known, _)| *known == name);
    Some(known.map_or(name, |(_, words)| words).to_owned())
}

fn sizes(origin: &Origin) -> Option<String> {
    let batch = origin.batch?;
    Some(match origin.seq {
        Some(seq) => format!("{batch} × {seq}"),
        None => format!("batch {batch}"),
    })
}

fn devices(device: &str, gpus: Option<u64>) -> String {
    let device = device.to_uppercase();
    match gpus {
        Some(1) | None => device,
        Some(gpus) => format!("{gpus} × {device}"),
    }
}

#[cfg(test)]
mod tests {
    use rematic_trace::Axis;

    use super::*;

    fn step(facts: &[(&str, &str)]) -> StepTrace {
        let mut trace = StepTrace::new("llama-3-8b");
        for (name, value) in facts {
            trace.origin.note(name, value);
        }
        trace
    }

    #[test]
    fn what_was_assumed_is_one_line() {
        let usual = [("batch", "1"), ("seq", "4096"), ("dtype", "bf16"), ("optimizer", "adamw-fused")];
        let mut trace = step(&usual);
        let words = |trace: &StepTrace| Setup::new(trace, "a100-80").text(Style::default());
        assert_eq!(words(&trace), "llama-3-8b · bf16 (parameters too) · AdamW fused · 1 × 4096 · A100-80\n");
        trace.origin.note("shards", "fp32");
        trace.place.axes.push(Axis { name: "dp".to_owned(), size: 8, coordinate: 0 });
        assert_eq!(words(&trace), "llama-3-8b · mixed bf16 (fp32 shards) · AdamW fused · 1 × 4096 · 8 × A100-80\n");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let trace = step(&[("device", "cpu"), ("optimizer", "rprop")]);
        let setup = Setup::new(&trace, "h100");
        assert_eq!(setup.words(), "rprop · H100");
        assert_eq!(setup.others(), ["device cpu"]);
    }
}
