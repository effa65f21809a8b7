use clap::Args;

use super::{SnapshotArguments, SpreadArguments, StepArguments};
use crate::Bytes;

#[derive(Args)]
pub(crate) struct ExplainArguments {
    #[command(flatten)]
    pub(crate) step: StepArguments,
    #[command(flatten)]
    pub(crate) spread: SpreadArguments,
    /// The most memory that tensors may take: 38GiB, 40GB or bytes [default: what the device has]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) budget: Option<Bytes>,
    /// Run a model of Hugging Face's under torch.compile too, on a GPU that is not there. Takes PyTorch, and a minute or more.
    #[arg(long, conflicts_with_all = ["fsdp", "tp"])]
    pub(crate) with_compile: bool,
    #[command(flatten)]
    pub(crate) snapshot: SnapshotArguments,
    /// Of a memory snapshot: compare it with what is predicted for this model; its options go with it.
    #[arg(long, value_name = "MODEL")]
    pub(crate) against: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
