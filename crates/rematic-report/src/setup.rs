use std::collections::BTreeMap;

use rematic_trace::{Dtype, Origin, StepTrace};
use serde::Serialize;

use crate::shorten::unbroken;
use crate::stats::fact;
use crate::style::{Sentence, Style, Tone};

/// What stands between the parts of the line.
const BETWEEN: &str = " · ";

/// Parts of up to so many bytes stay on one line of a narrow terminal.
const SHORT: usize = 24;

/// Optimizers as people write them; others are written as the step says.
const OPTIMIZERS: [(&str, &str); 13] = [
    ("adam", "Adam"),
    ("adamw", "AdamW"),
    ("sgd", "SGD"),
    ("sgd-momentum", "SGD with momentum"),
    ("adam-fused", "Adam fused"),
    ("adamw-fused", "AdamW fused"),
    ("sgd-fused", "SGD fused"),
    ("sgd-momentum-fused", "SGD with momentum, fused"),
    ("adamw8bit", "AdamW 8-bit"),
    ("lion", "Lion"),
    ("muon", "Muon, AdamW fused for the rest"),
    ("adafactor", "Adafactor"),
    ("none", "no optimizer"),
];

/// Names of facts that the line says in its own words.
const BATCH: &str = "batch";
const SEQ: &str = "seq";
const DTYPE: &str = "dtype";
const OPTIMIZER: &str = "optimizer";
const SHARDS: &str = "shards";
const AUTOCAST: &str = "autocast";
const SCALER: &str = "scaler";
const ACCUMULATE: &str = "accumulate";
const LORA: &str = "lora";
const LORA_TARGETS: &str = "lora-targets";
const FREEZE: &str = "freeze";
const LOSS: &str = "loss";
const CHUNKED: &str = "chunked";
const SAID: [&str; 12] =
    [BATCH, SEQ, DTYPE, OPTIMIZER, SHARDS, AUTOCAST, SCALER, ACCUMULATE, LORA, LORA_TARGETS, FREEZE, LOSS];

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
    #[serde(skip_serializing_if = "Option::is_none")]
    accumulate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora_targets: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freeze: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<String>,
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
        let said = [precision(origin), trained(origin), optimizer(origin), sizes(origin), Some(devices(device, gpus))];
        let number = |name: &str| find(origin, name).and_then(|value| value.parse().ok());
        let text = |name: &str| find(origin, name).map(str::to_owned);
        Setup {
            model: origin.model.clone(),
            parts: said.into_iter().flatten().collect(),
            others: facts.iter().filter(is_other).map(|(name, value)| fact(name, value)).collect(),
            options: SetupJson {
                precision: precision_name(origin),
                optimizer: origin.optimizer.clone(),
                batch: origin.batch,
                seq: origin.seq,
                accumulate: number(ACCUMULATE),
                lora: number(LORA),
                lora_targets: text(LORA_TARGETS),
                freeze: text(FREEZE),
                loss: text(LOSS),
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
        self.parts.join(BETWEEN)
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
        let whole = |part: &String| if part.len() <= SHORT { unbroken(part) } else { part.clone() };
        let words = self.parts.iter().map(whole).collect::<Vec<_>>().join(BETWEEN);
        style.sentence(&Sentence {
            lead: (&self.model, Tone::Strong),
            head: "",
            gap: BETWEEN,
            tail: (&words, Tone::Quiet),
        })
    }
}

fn find<'a>(origin: &'a Origin, name: &str) -> Option<&'a str> {
    origin.options.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str())
}

fn precision(origin: &Origin) -> Option<String> {
    let computes = origin.precision?;
    let autocast = find(origin, AUTOCAST).and_then(|name| name.parse::<Dtype>().ok());
    let scaler = |dtype: Dtype| match (dtype, find(origin, SCALER)) {
        (Dtype::F16, Some(_)) => ", loss scaler",
        (Dtype::F16, None) => ", without the loss scaler",
        _ => "",
    };
    if let Some(autocast) = autocast {
        let scaler = scaler(autocast);
        return Some(format!("mixed {} ({} parameters{scaler})", autocast.spelled(), computes.spelled()));
    }
    Some(match (find(origin, SHARDS), computes) {
        (Some(shards), _) => format!("mixed {} ({shards} shards{})", computes.spelled(), scaler(computes)),
        (None, Dtype::Bf16 | Dtype::F16) if find(origin, LORA).is_some() => {
            format!("{} (adapters fp32)", computes.spelled())
        }
        (None, Dtype::Bf16 | Dtype::F16) => format!("{} (parameters too)", computes.spelled()),
        (None, _) => computes.spelled().to_owned(),
    })
}

fn precision_name(origin: &Origin) -> Option<String> {
    let computes = origin.precision?;
    let name = match find(origin, AUTOCAST) {
        Some("f16") => "fp16",
        Some(_) => "mixed",
        None if find(origin, SHARDS).is_some() && computes != Dtype::F16 => "mixed",
        None => computes.spelled(),
    };
    Some(name.to_owned())
}

/// What of the model is trained, if not all, and with which loss, if not its own.
fn trained(origin: &Origin) -> Option<String> {
    let lora = find(origin, LORA).map(|rank| {
        let targets = find(origin, LORA_TARGETS).unwrap_or_default().replace(',', ", ");
        format!("LoRA of rank {rank} ({targets})")
    });
    let frozen = find(origin, FREEZE).map(|names| format!("frozen: {}", names.replace(',', ", ")));
    // That of a model of another kind is its own.
    let loss = find(origin, LOSS).filter(|kind| *kind == CHUNKED).map(|kind| format!("{kind} loss"));
    let said: Vec<String> = lora.into_iter().chain(frozen).chain(loss).collect();
    (!said.is_empty()).then(|| said.join(BETWEEN))
}

fn optimizer(origin: &Origin) -> Option<String> {
    let name = origin.optimizer.as_deref()?;
    let known = OPTIMIZERS.iter().find(|(known, _)| *known == name);
    Some(known.map_or(name, |(_, words)| words).to_owned())
}

fn sizes(origin: &Origin) -> Option<String> {
    let batch = origin.batch?;
    let sizes = match origin.seq {
        Some(seq) => format!("{batch} × {seq}"),
        None => format!("batch {batch}"),
    };
    Some(match find(origin, ACCUMULATE) {
        Some(count) => format!("{count} micro-batches of {sizes}"),
        None => sizes,
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
    fn what_is_trained_is_said() {
        let sizes = [("batch", "2"), ("seq", "64"), ("optimizer", "adamw8bit")];
        let words = |facts: &[(&str, &str)]| Setup::new(&step(&[&sizes[..], facts].concat()), "h100").words();
        let mixed = [("dtype", "f32"), ("autocast", "bf16"), ("accumulate", "4")];
        assert_eq!(words(&mixed), "mixed bf16 (fp32 parameters) · AdamW 8-bit · 4 micro-batches of 2 × 64 · H100");
        let adapters = [("dtype", "bf16"), ("lora", "8"), ("lora-targets", "q_proj,v_proj"), ("loss", "chunked")];
        assert_eq!(
            words(&adapters),
            "bf16 (adapters fp32) · LoRA of rank 8 (q_proj, v_proj) · chunked loss · AdamW 8-bit · 2 × 64 · H100"
        );
        let half = [("dtype", "f32"), ("autocast", "f16"), ("freeze", "a.*,b.*")];
        let said =
            "mixed fp16 (fp32 parameters, without the loss scaler) · frozen: a.*, b.* · AdamW 8-bit · 2 × 64 · H100";
        assert_eq!(words(&half), said);
        let scaled = [("dtype", "f32"), ("autocast", "f16"), ("scaler", "GradScaler")];
        assert_eq!(words(&scaled), "mixed fp16 (fp32 parameters, loss scaler) · AdamW 8-bit · 2 × 64 · H100");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let trace = step(&[("device", "cpu"), ("optimizer", "rprop")]);
        let setup = Setup::new(&trace, "h100");
        assert_eq!(setup.words(), "rprop · H100");
        assert_eq!(setup.others(), ["device cpu"]);
    }
}
