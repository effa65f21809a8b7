use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Dtype;

/// The kind of device that a step was traced for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The host.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        })
    }
}

impl FromStr for DeviceKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [DeviceKind::Cpu, DeviceKind::Cuda].into_iter().find(|kind| kind.to_string() == text).ok_or(())
    }
}

/// What tells cards apart that run different attention (`sdp_utils.cpp` of PyTorch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardKind {
    /// Capability below 8.0: no flash attention; the memory-efficient kernel takes fp16 and fp32, and fp32 of any width.
    BeforeAmpere,
    /// 8.0, 9.0, 10.0: all kernels.
    #[default]
    DataCenter,
    /// 8.6 to 8.9 and 12.0: flash attention does not train some of the widest heads.
    Consumer,
}

impl CardKind {
    const ALL: [CardKind; 3] = [CardKind::BeforeAmpere, CardKind::DataCenter, CardKind::Consumer];

    /// The kind of a card by its compute capability, 80 for 8.0.
    #[must_use]
    pub fn of(capability: u32) -> Self {
        match capability {
            ..80 => CardKind::BeforeAmpere,
            86..90 | 120.. => CardKind::Consumer,
            _ => CardKind::DataCenter,
        }
    }
}

impl fmt::Display for CardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CardKind::BeforeAmpere => "before-ampere",
            CardKind::DataCenter => "data-center",
            CardKind::Consumer => "consumer",
        })
    }
}

impl FromStr for CardKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        CardKind::ALL.into_iter().find(|kind| kind.to_string() == text).ok_or(())
    }
}

/// What was traced, and how. Later stages decide by the typed fields; [`Origin::options`] are only shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// What was traced, for people: a model's name or a script.
    pub model: String,
    /// The kind of device, which decides how memory is rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKind>,
    /// Versions of the software that traced it (`torch`), in the order in which they are shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<(String, String)>,
    /// Samples in a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Tokens in a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The element type of the parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Dtype>,
    /// The kernel for attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// The kind of card whose attention it is, where others run other kernels for this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardKind>,
    /// The optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// The forwards of the step, if it is not just one of the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwards: Option<String>,
    /// What the model was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// All else, in the order in which it is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<(String, String)>,
    /// What had to be assumed about values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// The names of facts, in files of version 1, in plans and where they are shown.
const DEVICE: &str = "device";
const TORCH: &str = "torch";
const BATCH: &str = "batch";
const SEQ: &str = "seq";
const DTYPE: &str = "dtype";
const ATTENTION: &str = "attention";
const CARD: &str = "card";
const OPTIMIZER: &str = "optimizer";
const FORWARDS: &str = "forwards";
const INPUTS: &str = "inputs";
const ASSUMED: &str = "assumed";

impl Origin {
    /// A model of which nothing else is known.
    #[must_use]
    pub fn of(model: &str) -> Self {
        Origin { model: model.to_owned(), ..Origin::default() }
    }

    /// From a list of facts, as plans and traces of version 1 have it.
    #[must_use]
    pub fn from_facts<'a>(model: &str, facts: impl IntoIterator<Item = &'a (String, String)>) -> Self {
        let mut origin = Origin::of(model);
        for (name, value) in facts {
            origin.note(name, value);
        }
        origin
    }

    /// Notes a fact under its name. One that has no field, is there already, or has a value of another kind, is an option:
    /// nothing is lost.
    pub fn note(&mut self, name: &str, value: impl fmt::Display) {
        let value = value.to_string();
        let noted = match name {
            DEVICE => set(&mut self.device, &value),
            BATCH => set(&mut self.batch, &value),
            SEQ => set(&mut self.seq, &value),
            DTYPE => set(&mut self.precision, &value),
            ATTENTION => set(&mut self.attention, &value),
            CARD => set(&mut self.card, &value),
            OPTIMIZER => set(&mut self.optimizer, &value),
            FORWARDS => set(&mut self.forwards, &value),
            INPUTS => set(&mut self.inputs, &value),
            TORCH => {
                self.versions.push((name.to_owned(), value.clone()));
                true
            }
            ASSUMED => {
                self.assumptions.push(value.clone());
                true
            }
            _ => false,
        };
        if !noted {
            self.options.push((name.to_owned(), value));
        }
    }

    /// Everything but the model as pairs of a name and a value, in the order in which it is shown.
    #[must_use]
    pub fn facts(&self) -> Vec<(String, String)> {
        let text = |value: &Option<String>| value.clone();
        let first = [(DEVICE, self.device.map(|device| device.to_string()))];
        let then = [
            (BATCH, self.batch.map(|batch| batch.to_string())),
            (SEQ, self.seq.map(|seq| seq.to_string())),
            (DTYPE, self.precision.map(|dtype| dtype.to_string())),
            (ATTENTION, text(&self.attention)),
            (CARD, self.card.map(|card| card.to_string())),
            (OPTIMIZER, text(&self.optimizer)),
            (FORWARDS, text(&self.forwards)),
            (INPUTS, text(&self.inputs)),
        ];
        let pair = |(name, value): (&str, Option<String>)| Some((name.to_owned(), value?));
        let mut facts: Vec<(String, String)> = first.into_iter().filter_map(pair).collect();
        facts.extend(self.versions.iter().cloned());
        facts.extend(then.into_iter().filter_map(pair));
        facts.extend(self.options.iter().cloned());
        facts.extend(self.assumptions.iter().map(|assumed| (ASSUMED.to_owned(), assumed.clone())));
        facts
    }
}

/// Fills an empty field with a value that is spelled as it would be shown.
fn set<T: FromStr + fmt::Display>(field: &mut Option<T>, value: &str) -> bool {
    let read = value.parse().ok().filter(|read: &T| field.is_none() && read.to_string() == value);
    let is_set = read.is_some();
    if is_set {
        *field = read;
    }
    is_set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(facts: &[(&str, &str)]) -> Vec<(String, String)> {
        facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn facts_that_decide_have_a_type() {
        let facts = pairs(&[("device", "cpu"), ("torch", "2.15.0"), ("batch", "8"), ("dtype", "bf16"), ("note", "x")]);
        let origin = Origin::from_facts("m", &facts);
        assert_eq!(
            (origin.device, origin.batch, origin.precision),
            (Some(DeviceKind::Cpu), Some(8), Some(Dtype::Bf16))
        );
        assert_eq!(origin.versions, pairs(&[("torch", "2.15.0")]));
        assert_eq!(origin.options, pairs(&[("note", "x")]));
        assert_eq!(origin.facts(), facts);
    }

    #[test]
    fn nothing_of_a_list_is_lost() {
        let facts = pairs(&[
            ("batch", "8"),
            ("batch", "many"),
            ("batch", "9"),
            ("seq", "007"),
            ("device", "mps"),
            ("dtype", "mixed"),
            ("assumed", "a"),
            ("assumed", "b"),
        ]);
        let origin = Origin::from_facts("m", &facts);
        assert_eq!((origin.batch, origin.seq, origin.device), (Some(8), None, None));
        let (mut shown, mut given) = (origin.facts(), facts);
        shown.sort();
        given.sort();
        assert_eq!(shown, given);
    }
}
