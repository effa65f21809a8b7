//! The options that say how a model is trained.

use clap::Args;

use super::values::{count, devices, named};
use crate::options::{self, LossChoice, Precision};
use crate::{Dtype, Error, Lora, Recipe};

#[derive(Args)]
pub(crate) struct RecipeArguments {
    /// The types of the step; mixed and fp16 keep parameters in fp32 [default: that of --dtype for all]
    #[arg(long, value_name = "PRECISION", conflicts_with = "dtype", value_parser = named(options::PRECISIONS))]
    pub(crate) precision: Option<Precision>,
    /// Add up the gradients of so many batches before the optimizer steps [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = devices)]
    accumulate: Option<u32>,
    /// Train adapters of this rank beside frozen layers, as PEFT's LoRA does.
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, value_parser = count)]
    lora: Option<u64>,
    /// With --lora: the layers that get one, as PEFT's target_modules, or all-linear [default: PEFT's for the model]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    lora_targets: Vec<String>,
    /// With --lora: its alpha, which changes numbers, but neither memory nor time.
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true, requires = "lora")]
    lora_alpha: Option<f64>,
    /// Parameters whose names match need no gradient, like 'model.embed_tokens.*'; * and ? stand for anything. May be repeated.
    #[arg(long, value_name = "GLOB")]
    freeze: Vec<String>,
    /// How the loss is computed [default: plain]
    #[arg(long, value_name = "LOSS", value_parser = named(options::LOSSES))]
    loss: Option<LossChoice>,
    /// As torch.compile runs it: for `rematic rehearse`.
    #[arg(long, hide = true)]
    compile: bool,
}

impl RecipeArguments {
    /// Whether parameters have another type than the step computes in.
    pub(crate) fn is_mixed(&self) -> bool {
        self.precision.is_some_and(|precision| precision.mixed)
    }

    /// The type of the model, if it is given as a precision.
    pub(crate) fn dtype(&self, is_sharded: bool) -> Option<Dtype> {
        self.precision.map(|precision| precision.types(is_sharded).0)
    }

    /// How it is trained, on one device or as FSDP2 shards it.
    pub(crate) fn recipe(&self, is_sharded: bool) -> Recipe {
        let (rank, targets, alpha) = (self.lora, self.lora_targets.clone(), self.lora_alpha);
        // FSDP2's mixed precision casts all that it gathers.
        let shards = self.precision.filter(|precision| is_sharded && precision.mixed);
        let dtype = shards.map(|precision| precision.types(true).0);
        Recipe {
            autocast: self.precision.and_then(|precision| precision.types(is_sharded).1),
            scaler: dtype == Some(Dtype::F16),
            accumulate: self.accumulate,
            lora: rank.map(|rank| Lora { rank, targets, alpha, dtype }),
            freeze: self.freeze.clone(),
            loss: self.loss.and_then(LossChoice::kind),
        }
    }

    /// Whether it is to be chosen how the loss is computed.
    pub(crate) fn chooses_loss(&self) -> bool {
        self.loss == Some(LossChoice::Chosen)
    }

    /// What cannot be known without running it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.compile { Err(Error::Compiled) } else { Ok(()) }
    }
}
