//! The arguments of `rehearse`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::super::values::devices;
use crate::options;

#[derive(Args)]
pub(crate) struct RehearseArguments {
    /// The command that starts the script, as you would type it.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
    /// The card to rehearse on; `rematic devices` lists them.
    #[arg(long, value_name = "NAME", default_value = options::DEVICE)]
    pub(crate) device: String,
    /// A file with more devices, in the format of the built-in list.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_file: Option<PathBuf>,
    /// As one of so many ranks, each with a GPU; the others are not there either [default: no ranks]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = devices)]
    pub(crate) gpus: Option<u32>,
    /// With --gpus: the rank that is run.
    #[arg(long, value_name = "K", default_value_t = 0, requires = "gpus")]
    pub(crate) rank: u32,
    /// End the script after so many optimizer steps.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = options::STEPS, value_parser = devices)]
    pub(crate) steps: u32,
    /// Settings of PyTorch's caching allocator [default: PYTORCH_CUDA_ALLOC_CONF]
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) alloc_conf: Option<String>,
    /// Also write PyTorch's own snapshot of the memory, for its viewer.
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Also write a page.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
