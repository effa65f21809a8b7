//! What fits: the largest batch, the longest sequence, the fewest GPUs and the smallest device.
//!
//! The allocator's verdict decides, as for `plan` without a budget. What a step takes does not strictly grow with its sizes, so
//! the answer to a question is the value that fits and whose next one was tried and does not.

mod axis;
mod bench;
mod setup;
mod sharing;
mod ways;

use std::sync::Arc;

use rayon::prelude::*;
use rematic_cost::Device;
use rematic_fake::Optimizer;
use rematic_fake::models::{LossKind, Options, Recipe};
use rematic_layout::Fsdp2;
use rematic_plan::Limits;
use rematic_report::{Fit, FitAnswer, FitQuestion, Setup as Shown};
use rematic_trace::{CardKind, Dtype, StepTrace};

use crate::error::Error;
use crate::source::Source;
use crate::target::Target;
use bench::Bench;
use setup::Setup;

/// The most GPUs that are looked at, where nothing is said of them.
pub const MOST_GPUS: u32 = 1024;

/// What a step is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepSize {
    /// Sequences, or samples, in the batch; `None` for the source's own.
    pub batch: Option<u64>,
    /// Positions in a sequence; `None` for the source's own.
    pub seq: Option<u64>,
    /// Ranks that share the model; one is none.
    pub tp: u32,
    /// Among how many ranks its parameters will be spread; one is none.
    pub ranks: u32,
    /// Whether the optimizer is to be fused, whatever was said.
    pub fused: bool,
    /// Whether the loss is computed in chunks, whatever was said.
    pub chunked: bool,
    /// Into how many micro-batches each batch that was asked for is cut; one is none.
    pub parts: u32,
    /// The kind of card, if it is known.
    pub card: Option<CardKind>,
}

impl StepSize {
    /// A recipe with what the size says of it.
    fn recipe(&self, said: Recipe) -> Recipe {
        let accumulate = (self.parts > 1).then(|| said.accumulate.unwrap_or(1).saturating_mul(self.parts));
        Recipe {
            loss: self.chunked.then_some(LossKind::Chunked).or(said.loss),
            accumulate: accumulate.or(said.accumulate),
            ..said
        }
    }
}

/// Where steps of several sizes come from.
pub trait Steps: Sync {
    /// The step of the whole model, or of one of the ranks that share it.
    ///
    /// # Errors
    /// If there is no such step.
    fn step(&self, size: &StepSize) -> Result<StepTrace, Error>;

    /// Whether the batch can be chosen.
    fn varies_batch(&self) -> bool;

    /// Whether the sequence can be chosen.
    fn varies_seq(&self) -> bool;

    /// Whether ranks can share the model in this way.
    fn varies_tp(&self) -> bool {
        false
    }

    /// Whether its optimizer has a fused implementation, and was asked for without it.
    fn can_fuse(&self) -> bool {
        false
    }

    /// Whether the chunked loss is to be tried too.
    fn can_chunk(&self) -> bool {
        false
    }

    /// Whether a batch can be cut into micro-batches.
    fn can_accumulate(&self) -> bool {
        false
    }

    /// What is typed to get that step, without the verb.
    fn command(&self, _size: &StepSize) -> Option<String> {
        None
    }
}

/// A model that is traced natively, or a saved trace, which has the sizes that it has.
#[derive(Clone, Debug)]
pub struct SourceSteps {
    /// Its name.
    pub name: String,
    /// The source.
    pub source: Source,
    /// What is said of it.
    pub options: Options,
    /// Whether the chunked loss is to be tried beside the plain one.
    pub tries_chunks: bool,
}

impl SourceSteps {
    fn is_model(&self) -> bool {
        !matches!(self.source, Source::Trace(_))
    }

    /// The fused implementation of its optimizer, if that is another one.
    fn fused(&self) -> Option<Optimizer> {
        match &self.source {
            Source::Model(model) => self.options.optimizer.unwrap_or_else(|| model.optimizer()).fused(),
            Source::Foreign(_) | Source::Trace(_) => None,
        }
    }
}

impl Steps for SourceSteps {
    fn step(&self, size: &StepSize) -> Result<StepTrace, Error> {
        let given = self.options.clone();
        let optimizer = if size.fused { self.fused().or(given.optimizer) } else { given.optimizer };
        let (batch, seq) = (size.batch.or(given.batch), size.seq.or(given.seq));
        let tp = if size.tp > 1 { Some(size.tp) } else { given.tp };
        let mut options = Options { batch, seq, optimizer, tp, card: size.card, ..given };
        options.recipe = size.recipe(options.recipe);
        // Under FSDP2, mixed precision is that of its shards.
        if size.ranks > 1 && options.recipe.autocast.is_some() {
            options.dtype = options.recipe.autocast.take();
            options.recipe.scaler = options.dtype == Some(Dtype::F16);
        }
        self.source.clone().trace(&options)
    }

    fn varies_batch(&self) -> bool {
        self.is_model()
    }

    fn varies_seq(&self) -> bool {
        self.is_model()
    }

    fn varies_tp(&self) -> bool {
        self.is_model() && self.options.tp.is_none()
    }

    fn can_fuse(&self) -> bool {
        self.fused().is_some()
    }

    fn can_chunk(&self) -> bool {
        self.tries_chunks && matches!(self.source, Source::Model(_))
    }

    fn can_accumulate(&self) -> bool {
        matches!(self.source, Source::Model(_))
    }

    fn command(&self, size: &StepSize) -> Option<String> {
        let said = Options { batch: None, seq: None, optimizer: None, tp: None, ..self.options.clone() };
        // What else was said of the step would be missing.
        if said != Options::default() || !self.is_model() {
            return None;
        }
        let mut words = vec![self.name.clone()];
        let mut add = |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name} {value}")));
        add("batch", size.batch.map(|batch| batch.to_string()));
        add("seq", size.seq.map(|seq| seq.to_string()));
        add("tp", (size.tp > 1).then(|| size.tp.to_string()));
        add("fsdp", (size.ranks > 1).then(|| size.ranks.to_string()));
        let fused = if size.fused { self.fused() } else { None };
        add("optimizer", fused.or(self.options.optimizer).map(|optimizer| optimizer.to_string()));
        add("loss", size.chunked.then(|| "chunked".to_owned()));
        add("accumulate", (size.parts > 1).then(|| size.parts.to_string()));
        Some(words.join(" "))
    }
}

/// What is given, and what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// The batch.
    pub batch: Option<u64>,
    /// The sequence.
    pub seq: Option<u64>,
    /// The GPUs, all together.
    pub gpus: Option<u32>,
    /// Ranks that share the model.
    pub tp: Option<u32>,
    /// Whether the target's device is meant, and not any that is large enough.
    pub device: bool,
}

/// A question about what fits.
pub struct FitRequest<'a> {
    /// The steps.
    pub steps: &'a dyn Steps,
    /// How the parameters of several ranks are spread; the number of ranks is varied.
    pub sharding: Fsdp2,
    /// What they are for.
    pub target: Target,
    /// The devices to choose from.
    pub devices: Vec<Device>,
    /// What is given.
    pub fixed: Fixed,
    /// What may be planned.
    pub limits: Limits,
}

impl FitRequest<'_> {
    /// The answers to all that is free.
    ///
    /// # Errors
    /// If there is no step of the sizes that are given, or what is given leaves no question.
    pub fn answer(self) -> Result<Fit, Error> {
        let Fixed { batch, seq, gpus, tp, device } = self.fixed;
        let tp = tp.unwrap_or(1);
        let card = self.target.card();
        let size = StepSize { batch, seq, tp, ranks: 1, fused: false, chunked: false, parts: 1, card };
        let first = self.steps.step(&size)?;
        let has_place = first.place.ranks() != Some(u64::from(tp));
        let base = Setup {
            batch: batch.or(first.origin.batch).unwrap_or(1),
            seq: seq.or(first.origin.seq),
            gpus: gpus.unwrap_or(tp),
            tp,
            fused: false,
            chunked: false,
            parts: 1,
            reshard: self.sharding.reshard,
            device: self.target.device.clone(),
        };
        if !base.gpus.is_multiple_of(tp) {
            return Err(Error::GpusAndTp { gpus: base.gpus, tp });
        }
        let mut axes = Vec::new();
        if batch.is_none() && self.steps.varies_batch() {
            axes.push(FitQuestion::LargestBatch);
        }
        if seq.is_none() && self.steps.varies_seq() && base.seq.is_some() {
            axes.push(FitQuestion::LongestSequence);
        }
        let setup = Shown::new(&first, &base.device.name);
        let bench = Bench::new(self, Arc::new(first), &base);
        // What cannot be spread over two GPUs is asked of one.
        let free = gpus.is_none() && !has_place && bench.can_be(&Setup { gpus: 2 * tp, ..base.clone() });
        if free {
            axes.push(FitQuestion::FewestGpus);
        }
        if !device {
            axes.push(FitQuestion::SmallestDevice);
        }
        // Where one GPU is not enough, the others are asked of as many as are.
        let few = if free { Some(bench.fewest(&base)?) } else { None };
        let base = few.as_ref().map_or(base.clone(), |few| bench.home(&base, few));
        let answers: Result<Vec<FitAnswer>, Error> = axes
            .par_iter()
            .map(|question| match (question, &few) {
                (FitQuestion::FewestGpus, Some(few)) => Ok(few.clone()),
                _ => bench.answer(&bench.axis(*question, &base)),
            })
            .collect();
        let answers = answers?;
        let setups = ways::setups(&bench, &base, &answers)?;
        let device = base.device.clone();
        Ok(Fit { setup, device, gpus: base.gpus.into(), answers, setups })
    }
}
