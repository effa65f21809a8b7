//! The arguments of `man`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct ManArguments {
    /// The verb [default: the command itself]
    #[arg(value_name = "VERB")]
    pub(crate) verb: Option<String>,
    /// Write all pages into this directory instead.
    #[arg(short, long, value_name = "DIR", conflicts_with = "verb")]
    pub(crate) output: Option<PathBuf>,
}
