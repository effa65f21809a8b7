//! Models that are not decoders alone: encoders of text and of images, encoders with a decoder, and two towers. They are given what
//! `rematic._hugging_face` gives them when it captures them.

mod bert;
mod clip;
mod head;
mod t5;
mod vit;

use rematic_trace::{Dtype, StepTrace};

use self::bert::Bert;
pub(super) use self::bert::{BertConfig, BertFamily};
use self::clip::Clip;
pub(super) use self::clip::{ClipConfig, TowerConfig};
pub(super) use self::head::Head;
use self::t5::T5;
pub(super) use self::t5::T5Config;
use self::vit::Vit;
pub(super) use self::vit::{Images, VitConfig};
use super::loss_of;
use crate::AttentionKernel;
use crate::error::FakeError;
use crate::parallel::TensorParallel;
use crate::step::Step;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The networks.
#[derive(Clone, Debug)]
pub(super) enum Network {
    Bert(BertConfig),
    Vit(VitConfig),
    T5(T5Config),
    Clip(ClipConfig),
}

/// The step that a network is trained with.
pub(super) struct Shape {
    pub(super) batch: u64,
    pub(super) seq: u64,
    pub(super) dtype: Dtype,
    pub(super) kernel: AttentionKernel,
    pub(super) micro_batches: u32,
}

impl Network {
    pub(super) fn layers(&self) -> u64 {
        match self {
            Network::Bert(bert) => bert.layers,
            Network::Vit(vit) => vit.layers,
            Network::T5(t5) => t5.layers.max(t5.decoder_layers),
            Network::Clip(clip) => clip.text.layers.max(clip.vision.layers),
        }
    }

    pub(super) fn set_layers(&mut self, layers: u64) {
        match self {
            Network::Bert(bert) => bert.layers = layers,
            Network::Vit(vit) => vit.layers = layers,
            Network::T5(t5) => (t5.layers, t5.decoder_layers) = (layers, layers),
            Network::Clip(clip) => (clip.text.layers, clip.vision.layers) = (layers, layers),
        }
    }

    pub(super) fn set_dropout(&mut self, dropout: f64) {
        match self {
            Network::Bert(bert) => {
                (bert.hidden_dropout, bert.attention_dropout, bert.classifier_dropout) = (dropout, dropout, dropout);
            }
            Network::Vit(vit) => (vit.hidden_dropout, vit.attention_dropout) = (dropout, dropout),
            Network::T5(t5) => t5.dropout = dropout,
            Network::Clip(clip) => {
                (clip.text.attention_dropout, clip.vision.attention_dropout) = (dropout, dropout);
            }
        }
    }

    /// The ranks that share it, if several do.
    pub(super) fn group(&self) -> Option<TensorParallel> {
        match self {
            Network::Bert(bert) => bert.group,
            Network::Vit(vit) => vit.group,
            Network::T5(t5) => t5.group,
            Network::Clip(clip) => clip.text.group,
        }
    }

    /// Has ranks share it.
    pub(super) fn share(&mut self, group: TensorParallel) {
        let group = Some(group);
        match self {
            Network::Bert(bert) => bert.group = group,
            Network::Vit(vit) => vit.group = group,
            Network::T5(t5) => t5.group = group,
            Network::Clip(clip) => (clip.text.group, clip.vision.group) = (group, group),
        }
    }

    /// The most tokens that a text may have; `None` if there is no bound.
    pub(super) fn longest_text(&self) -> Option<u64> {
        match self {
            Network::Bert(bert) => Some(bert.positions.saturating_sub(bert.offset)),
            Network::Clip(clip) => Some(clip.positions),
            Network::Vit(_) | Network::T5(_) => None,
        }
    }

    /// Whether it reads text, which has a length.
    pub(super) fn reads_text(&self) -> bool {
        match self {
            Network::Bert(_) | Network::T5(_) | Network::Clip(_) => true,
            Network::Vit(_) => false,
        }
    }

    /// Says on the tape what it is given, and what its loss compares.
    pub(super) fn describe(&self, tape: &Tape, seq: u64) {
        let (class, given, loss) = match self {
            Network::Bert(bert) => (bert.class(), format!("text of {seq} tokens"), bert.head.loss()),
            Network::Vit(vit) => {
                ("ViTForImageClassification".to_owned(), vit.images.describe(), Head::SequenceClassification.loss())
            }
            Network::Clip(clip) => {
                let given = format!("texts of {seq} tokens with {}", clip.images.describe());
                ("CLIPModel".to_owned(), given, "texts against images")
            }
            Network::T5(_) => {
                ("T5ForConditionalGeneration".to_owned(), format!("text of {seq} tokens"), "the answer's tokens")
            }
        };
        tape.fact("class", class);
        tape.fact("given", given);
        tape.fact("loss", loss);
    }

    /// Traces a step; `step` makes it of a model that has been made.
    pub(super) fn trace(
        &self,
        tape: &Tape,
        shape: &Shape,
        step: impl FnOnce() -> Result<Step, FakeError>,
    ) -> Result<StepTrace, FakeError> {
        let tokens = || tape.input(Dtype::I64, &[shape.batch, shape.seq]);
        let batches = 0..shape.micro_batches;
        match self {
            Network::Bert(config) => {
                let model = Bert::new(tape, config, shape.dtype, shape.kernel);
                let given = batches.map(|_| {
                    let tokens = tokens();
                    let labels = Bert::labels(tape, config, &tokens);
                    (tokens, labels)
                });
                let given: Vec<_> = given.collect();
                step()?.run_each(|batch| model.forward(&given[batch].0, &given[batch].1), loss_of)
            }
            Network::T5(config) => {
                let model = T5::new(tape, config, shape.dtype, shape.kernel);
                let given: Vec<_> = batches.map(|_| (tokens(), tokens())).collect();
                let forward = |batch: usize| model.forward(&given[batch].0, &given[batch].1);
                step()?.run_each(forward, |outputs: &Vec<Tensor>| outputs[0].clone())
            }
            Network::Clip(config) => {
                let model = Clip::new(tape, config, shape.dtype, shape.kernel);
                let images = || config.images.input(tape, shape.batch, shape.dtype);
                let given: Vec<_> = batches.map(|_| (tokens(), images())).collect();
                let forward = |batch: usize| model.forward(&given[batch].0, &given[batch].1);
                step()?.run_each(forward, |outputs: &Vec<Tensor>| outputs[0].clone())
            }
            Network::Vit(config) => {
                let model = Vit::new(tape, config, shape.dtype, shape.kernel);
                let given = batches.map(|_| {
                    let images = config.images.input(tape, shape.batch, shape.dtype);
                    (images, tape.input(Dtype::I64, &[shape.batch]))
                });
                let given: Vec<_> = given.collect();
                step()?.run_each(|batch| model.forward(&given[batch].0, &given[batch].1), loss_of)
            }
        }
    }
}
