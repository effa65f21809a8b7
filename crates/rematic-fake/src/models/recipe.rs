//! How a model is trained, besides its sizes and its optimizer.

use std::fmt;

use rematic_trace::{Dtype, Opt};

use super::causal_lm::CHUNKS;
use super::{Architecture, out_of_range};
use crate::error::FakeError;
use crate::nn::Lora;
use crate::tape::Tape;

/// More micro-batches than this are a slip of the finger.
const MOST_MICRO_BATCHES: u32 = 1024;
/// The highest rank of an adapter that makes sense: that of the widest layers.
const HIGHEST_RANK: u64 = 65_536;

/// The names of facts.
const AUTOCAST: &str = "autocast";
const SCALER: &str = "scaler";
const ACCUMULATE: &str = "accumulate";
const LORA: &str = "lora";
const LORA_TARGETS: &str = "lora-targets";
const LORA_ALPHA: &str = "lora-alpha";
const LORA_DTYPE: &str = "lora-dtype";
const FREEZE: &str = "freeze";
const LOSS: &str = "loss";
const CHUNKED: &str = "chunked";
const LOSS_HEAD: &str = "loss-head";
const LOSS_CHUNKS: &str = "loss-chunks";
/// The output layer of every causal language model, and where it is inside of PEFT's.
const HEAD: &str = "lm_head";
const HEAD_IN_PEFT: &str = "base_model.model.lm_head";
/// What stands between several values of a fact.
const BETWEEN: &str = ",";

/// How a model is trained. `None` leaves what is usual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// Forward and loss run under `torch.autocast` with this type; parameters are of the model's own.
    pub autocast: Option<Dtype>,
    /// The loss is scaled by `torch.amp.GradScaler` without autocast too: what FSDP2 gathers is float16.
    pub scaler: bool,
    /// Gradients of so many batches are added up before the optimizer steps.
    pub accumulate: Option<u32>,
    /// Adapters are trained, and the model's own parameters are not.
    pub lora: Option<Lora>,
    /// Parameters whose names match need no gradient.
    pub freeze: Vec<String>,
    /// How the loss is computed.
    pub loss: Option<LossKind>,
}

/// How a language model computes its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// From the logits of all positions, as Hugging Face's models do.
    Plain,
    /// Over parts of the positions, with logits that are not kept: `rematic.chunked_loss`.
    Chunked,
}

impl Recipe {
    /// What a step says of itself that was trained so.
    #[must_use]
    pub fn from_facts(facts: &[(String, String)]) -> Self {
        let find = |name: &str| facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str());
        let list =
            |name: &str| find(name).map_or_else(Vec::new, |text| text.split(BETWEEN).map(str::to_owned).collect());
        let number = |name: &str| find(name).and_then(|text| text.parse().ok());
        let lora = find(LORA).and_then(|rank| rank.parse().ok());
        Recipe {
            autocast: find(AUTOCAST).and_then(|name| name.parse().ok()),
            scaler: find(SCALER).is_some(),
            accumulate: find(ACCUMULATE).and_then(|text| text.parse().ok()),
            lora: lora.map(|rank| Lora {
                rank,
                targets: list(LORA_TARGETS),
                alpha: number(LORA_ALPHA),
                dtype: find(LORA_DTYPE).and_then(|name| name.parse().ok()),
            }),
            freeze: list(FREEZE),
            loss: find(LOSS).filter(|kind| *kind == CHUNKED).map(|_| LossKind::Chunked),
        }
    }

    /// The same, with what is not said as another one has it.
    #[must_use]
    pub fn or(self, other: Recipe) -> Self {
        Recipe {
            autocast: self.autocast.or(other.autocast),
            scaler: self.scaler || other.scaler,
            accumulate: self.accumulate.or(other.accumulate),
            lora: self.lora.or(other.lora),
            freeze: if self.freeze.is_empty() { other.freeze } else { self.freeze },
            loss: self.loss.or(other.loss),
        }
    }

    /// The first option that is given.
    #[must_use]
    pub fn given(&self) -> Option<Opt> {
        let set = [
            (self.autocast.is_some(), "precision"),
            (self.accumulate.is_some(), ACCUMULATE),
            (self.lora.is_some(), LORA),
            (!self.freeze.is_empty(), FREEZE),
            (self.loss.is_some(), LOSS),
        ];
        set.into_iter().find(|(set, _)| *set).map(|(_, name)| Opt(name))
    }

    /// Whether the loss is scaled, as float16 asks for.
    pub(super) fn scales_loss(&self) -> bool {
        self.scaler || self.autocast == Some(Dtype::F16)
    }

    /// How many micro-batches a step has.
    pub(super) fn micro_batches(&self) -> u32 {
        self.accumulate.unwrap_or(1)
    }

    /// Fills in what PEFT takes for a model, and looks at the numbers.
    pub(super) fn settled(mut self, name: &str, architecture: &Architecture) -> Result<Self, FakeError> {
        let rule = format!("it must be from 1 to {MOST_MICRO_BATCHES}");
        if let Some(count) = self.accumulate.filter(|count| !(1..=MOST_MICRO_BATCHES).contains(count)) {
            return Err(out_of_range(ACCUMULATE, count, &rule));
        }
        if self.loss == Some(LossKind::Chunked) && matches!(architecture, Architecture::Seed(_)) {
            return Err(out_of_range(
                LOSS,
                CHUNKED,
                &format!("the loss of {name} is the sum of its output; leave it out"),
            ));
        }
        if self.loss == Some(LossKind::Chunked) && matches!(architecture, Architecture::Network(_)) {
            let rule = format!("rematic.chunked_loss is for causal language models, and {name} is none; leave it out");
            return Err(out_of_range(LOSS, CHUNKED, &rule));
        }
        if self.lora.is_some() && matches!(architecture, Architecture::Network(_)) {
            let rule = format!(
                "adapters are known for causal language models, and {name} is none; capture the model with its adapters in Python"
            );
            return Err(out_of_range(LORA, self.lora.as_ref().map_or(0, |lora| lora.rank), &rule));
        }
        let Some(lora) = &mut self.lora else { return Ok(self) };
        if !(1..=HIGHEST_RANK).contains(&lora.rank) {
            return Err(out_of_range(LORA, lora.rank, &format!("the rank must be from 1 to {HIGHEST_RANK}")));
        }
        if let Some(alpha) = lora.alpha.filter(|alpha| !alpha.is_finite()) {
            return Err(out_of_range(LORA_ALPHA, alpha, "it must be a number"));
        }
        if lora.targets.is_empty() {
            let usual = architecture.lora_targets();
            if usual.is_empty() {
                let rule = format!("PEFT knows no layers of {name} by itself; name them with {}", Opt(LORA_TARGETS));
                return Err(out_of_range(LORA, lora.rank, &rule));
            }
            lora.targets = usual.iter().map(|target| (*target).to_owned()).collect();
        }
        if self.loss == Some(LossKind::Chunked) && lora.targets.iter().any(|target| target == HEAD) {
            let rule = format!(
                "an adapter beside {HEAD} adds to its logits, which the chunked loss does not; leave one of the two out"
            );
            return Err(out_of_range(LOSS, CHUNKED, &rule));
        }
        Ok(self)
    }

    /// What a model that several ranks share does not take.
    pub(super) fn check_shared(&self) -> Result<(), FakeError> {
        let Some(option) = self.given().filter(|option| *option != Opt(ACCUMULATE)) else { return Ok(()) };
        let instead = if self.autocast.is_some() {
            format!("add {}, which has its own rule for mixed precision, or train in bf16", Opt("fsdp"))
        } else {
            format!("take {} alone, or capture the parallel model in Python", Opt("fsdp"))
        };
        Err(out_of_range(option.0, format!("not known together with {}", Opt("tp")), &instead))
    }

    /// Notes it on the tape of a step, before the model is made.
    pub(super) fn begin(&self, tape: &Tape) {
        let note = |name: &str, value: Option<&dyn fmt::Display>| {
            if let Some(value) = value {
                tape.fact(name, value);
            }
        };
        let targets = self.lora.as_ref().map(|lora| lora.targets.join(BETWEEN));
        let freeze = (!self.freeze.is_empty()).then(|| self.freeze.join(BETWEEN));
        note(AUTOCAST, self.autocast.as_ref().map(|dtype| dtype as &dyn fmt::Display));
        note(ACCUMULATE, self.accumulate.as_ref().filter(|count| **count > 1).map(|count| count as &dyn fmt::Display));
        note(LORA, self.lora.as_ref().map(|lora| &lora.rank as &dyn fmt::Display));
        note(LORA_TARGETS, targets.as_ref().map(|targets| targets as &dyn fmt::Display));
        let alpha = self.lora.as_ref().and_then(|lora| lora.alpha.as_ref());
        note(LORA_ALPHA, alpha.map(|alpha| alpha as &dyn fmt::Display));
        let dtype = self.lora.as_ref().and_then(|lora| lora.dtype.as_ref());
        note(LORA_DTYPE, dtype.map(|dtype| dtype as &dyn fmt::Display));
        note(FREEZE, freeze.as_ref().map(|freeze| freeze as &dyn fmt::Display));
        let chunks_loss = self.loss == Some(LossKind::Chunked);
        let head = if self.lora.is_some() { HEAD_IN_PEFT } else { HEAD };
        let chunked: [(&str, &dyn fmt::Display); 3] = [(LOSS, &CHUNKED), (LOSS_HEAD, &head), (LOSS_CHUNKS, &CHUNKS)];
        for (name, value) in chunked.into_iter().filter(|_| chunks_loss) {
            tape.fact(name, value);
        }
        tape.train(self.lora.clone(), self.freeze.clone(), chunks_loss);
    }
}
