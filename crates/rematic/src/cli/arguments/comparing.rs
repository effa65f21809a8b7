//! The arguments of `fit`, `diff`, `lock` and `check`.

use std::path::PathBuf;

use clap::Args;

use super::super::values::devices;
use super::StepArguments;
use crate::options;
use crate::{Bytes, Error, Target};

/// Among how many devices a step is spread.
#[derive(Args)]
pub(crate) struct SpreadArguments {
    /// Divide parameters, gradients and optimizer state by so many devices, and count no buffers: a lower bound. For a run with FSDP2
    /// take --fsdp, which counts them.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, conflicts_with_all = ["fsdp", "tp"], value_parser = devices)]
    pub(crate) world_size: u32,
}

#[derive(Args)]
pub(crate) struct DiffArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    /// What to compare SOURCE with. Options are for both, as far as they are models.
    #[arg(value_name = "OTHER")]
    pub(crate) other: String,
    #[command(flatten)]
    spread: SpreadArguments,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl DiffArguments {
    pub(crate) fn target(&self) -> Result<Target, Error> {
        Ok(Target { ranks: self.spread.world_size.into(), ..self.step.target()? })
    }
}

#[derive(Args)]
pub(crate) struct LockArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    #[command(flatten)]
    pub(crate) spread: SpreadArguments,
    /// The lock file; what is in it already stays.
    #[arg(long, value_name = "FILE", default_value = options::LOCK)]
    pub(crate) file: PathBuf,
}

#[derive(Args)]
pub(crate) struct CheckArguments {
    /// The lock file.
    #[arg(value_name = "FILE", default_value = options::LOCK)]
    pub(crate) file: PathBuf,
    /// A step may grow by this much.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "0")]
    pub(crate) allow: Bytes,
    /// Lock all steps as they are now, whether they grew or not, and exit with 0.
    #[arg(long)]
    pub(crate) update: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct FitArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    /// Train on so many GPUs, with FSDP2, and with --tp where that is given [default: free, up to 1024]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "fsdp", value_parser = devices)]
    pub(crate) gpus: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
