use std::io;
use std::path::PathBuf;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RehearsalError {
    /// Not on this system.
    #[error("a rehearsal needs Linux, where PyTorch has CUDA wheels; run it there, in a container for example")]
    NotLinux,
    /// No room for the runtime.
    #[error("cannot prepare the rehearsal: {0}; set TMPDIR to a folder that exists and has room")]
    Stage(io::Error),
    /// The runtime cannot be preloaded from there.
    #[error(
        "the temporary folder `{}` has {mark} in its name, at which the loader splits LD_PRELOAD; set TMPDIR to another one",
        folder.display()
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with its name.
        mark: &'static str,
    },
    /// The command does not start.
    #[error(
        "cannot start `{program}`: {source}; give the command that starts your script, like: rematic rehearse -- python train.py"
    )]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The rank is none of so many.
    #[error("rank {rank} of {gpus}: ranks count from 0 to {}; lower --rank, or raise --gpus", gpus - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        gpus: u32,
    },
    /// No Python was watched.
    #[error(
        "`{program}` started no Python that could be watched (it ended with {ended}); give the command that starts your \
         script, without Python's options -I, -E and -S"
    )]
    NoPython {
        /// The program.
        program: String,
        /// How it ended.
        ended: String,
    },
    /// The runtime could not be loaded.
    #[error(
        "the runtime of the rehearsal was not loaded: {reason}; set TMPDIR to a folder from which programs may run, and \
         start Python by nothing that changes LD_PRELOAD"
    )]
    NotLoaded {
        /// What the loader says.
        reason: String,
    },
    /// A build of PyTorch that cannot be rehearsed.
    #[error(
        "PyTorch {torch} {}cannot be rehearsed; install the newest 2.13, 2.14 or 2.15 for CUDA 13 (no GPU is needed): \
         pip install torch",
        build(cuda.as_deref())
    )]
    Torch {
        /// Its version.
        torch: String,
        /// The version of CUDA that it is for; none for a build without.
        cuda: Option<String>,
    },
    /// The script has nothing to do with CUDA.
    #[error(
        "your script did not use CUDA{}, so there is nothing to say about a GPU's memory; check that it picks \"cuda\" \
         where torch.cuda.is_available()",
        if *torch { "" } else { ", nor import torch" }
    )]
    NoCuda {
        /// Whether it imported torch.
        torch: bool,
    },
    /// Somebody ended it.
    #[error("interrupted by {name} after {steps} optimizer step{}; the script was ended too", if *steps == 1 { "" } else { "s" })]
    Interrupted {
        /// The signal.
        signal: i32,
        /// What it is called.
        name: &'static str,
        /// Steps that were made until then.
        steps: u64,
    },
    /// The script fails by itself.
    #[error("your script failed by itself, after {steps} optimizer step{}: it ended with {ended}{last}", if *steps == 1 { "" } else { "s" })]
    Script {
        /// Steps that it made.
        steps: u64,
        /// How it ended.
        ended: String,
        /// Its error and line, behind a colon.
        last: String,
    },
}

fn build(cuda: Option<&str>) -> String {
    cuda.map_or("without CUDA ".to_owned(), |cuda| format!("for CUDA {cuda} "))
}
