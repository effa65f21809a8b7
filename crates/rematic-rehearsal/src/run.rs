//! Runs a command on the stage.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::RehearsalError;
use crate::interruption::{Interruption, Listener};
use crate::record::Record;
use crate::stage::Stage;

/// GPUs of a machine, as most have them that have several.
const LOCAL: u32 = 8;

/// Where processes of a rehearsal write what they saw. By it they are known.
pub(crate) const REPORTS: &str = "REMATIC_REHEARSAL_REPORTS";

/// Set where other streams are late: their events are over when the host has waited for them.
const LATE: &str = "REMATIC_REHEARSAL_LATE";

/// The card that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// What `torch.cuda.get_device_name()` says.
    pub name: String,
    /// CUDA compute capability, 90 for 9.0.
    pub capability: u32,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes that PyTorch sees.
    pub usable: u64,
    /// Bytes of them that the CUDA context takes.
    pub context: u64,
}

/// What is rehearsed.
#[derive(Clone, Debug)]
pub struct Rehearsal<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The card.
    pub card: Card,
    /// How many ranks there seem to be; none for a script that knows of no ranks.
    pub gpus: Option<u32>,
    /// The rank that is run.
    pub rank: u32,
    /// Optimizer steps until the script is ended.
    pub steps: u32,
    /// Where PyTorch's snapshot is written.
    pub snapshot: Option<&'a Path>,
    /// `PYTORCH_CUDA_ALLOC_CONF`; none for what the environment says.
    pub alloc_conf: Option<&'a str>,
}

/// A rehearsal that came to an answer.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was seen.
    pub record: Record,
    /// What was seen where other streams are as far behind as the host does not wait for; none if that makes no difference, or
    /// gave no answer.
    pub late: Option<Record>,
    /// How many ranks there seemed to be.
    pub world_size: u32,
}

impl Rehearsal<'_> {
    /// Runs the command to its end, and once more if it depends on how far streams are behind. What it prints goes to the error
    /// stream.
    ///
    /// # Errors
    /// If the command cannot be rehearsed, does not use CUDA, or fails for another reason than memory.
    pub fn run(&self) -> Result<Run, RehearsalError> {
        let record = self.once(false)?;
        let late = if record.kept_for_streams.is_empty() || record.ran_out().is_some() {
            None
        } else {
            let without_snapshot = Rehearsal { snapshot: None, ..self.clone() };
            match without_snapshot.once(true) {
                Err(interrupted @ RehearsalError::Interrupted { .. }) => return Err(interrupted),
                late => late.ok(),
            }
        };
        Ok(Run { record, late, world_size: self.gpus.unwrap_or(1) })
    }

    fn once(&self, late: bool) -> Result<Record, RehearsalError> {
        if let Some(gpus) = self.gpus.filter(|gpus| self.rank >= *gpus) {
            return Err(RehearsalError::Rank { rank: self.rank, gpus });
        }
        let stage = Stage::new()?;
        let mut command = self.command_on(&stage)?;
        command.env_remove(LATE);
        if late {
            command.env(LATE, "1");
        }
        let program = command.get_program().to_string_lossy().into_owned();
        // Before the command starts, so that nothing stays behind.
        let listener = Listener::new().map_err(RehearsalError::Stage)?;
        let start = |source| RehearsalError::Start { program: program.clone(), source };
        let mut child = command.spawn().map_err(start)?;
        let (status, interruption) = listener.wait(&mut child, &stage.reports()).map_err(start)?;
        let record = Record::best(&stage.reports(), status.success());
        if let Some(Interruption { signal, name }) = interruption {
            let steps = record.map_or(0, |record| record.steps);
            return Err(RehearsalError::Interrupted { signal, name, steps });
        }
        let record = record.ok_or_else(|| RehearsalError::NoPython { program, ended: ended(status) })?;
        judged(record, status)
    }

    fn command_on(&self, stage: &Stage) -> Result<Command, RehearsalError> {
        let [program, arguments @ ..] = self.command else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "no command was given");
            return Err(RehearsalError::Start { program: String::new(), source });
        };
        let mut command = Command::new(program);
        // The answer has the output for itself.
        command.args(arguments).stdout(Stdio::from(io::stderr()));
        command.env("LD_PRELOAD", first(&stage.runtime(), "LD_PRELOAD"));
        command.env("LD_LIBRARY_PATH", first(&stage.library(), "LD_LIBRARY_PATH"));
        command.env("PYTHONPATH", first(&stage.hook(), "PYTHONPATH"));
        command.env("TRITON_LIBCUDA_PATH", stage.library());
        command.env("REMATIC_REHEARSAL_RUNTIME", stage.runtime());
        command.env(REPORTS, stage.reports());
        self.describe(&mut command);
        self.rank(&mut command);
        Ok(command)
    }

    /// The card, and what is wanted.
    fn describe(&self, command: &mut Command) {
        let Card { name, capability, processors, usable, context } = &self.card;
        command.env("REMATIC_REHEARSAL_CARD", name);
        command.env("REMATIC_REHEARSAL_CAPABILITY", capability.to_string());
        command.env("REMATIC_REHEARSAL_PROCESSORS", processors.to_string());
        command.env("REMATIC_REHEARSAL_BYTES", usable.to_string());
        command.env("REMATIC_REHEARSAL_CONTEXT", context.to_string());
        command.env("REMATIC_REHEARSAL_COUNT", self.gpus.unwrap_or(1).min(LOCAL).to_string());
        command.env("REMATIC_REHEARSAL_STEPS", self.steps.to_string());
        command.env("REMATIC_REHEARSAL_RANK", self.rank.to_string());
        // What hides GPUs of this machine is not meant for those that are not there.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(settings) = self.alloc_conf {
            command.env("PYTORCH_CUDA_ALLOC_CONF", settings);
        }
        command.env_remove("REMATIC_REHEARSAL_SNAPSHOT");
        if let Some(snapshot) = self.snapshot {
            command.env("REMATIC_REHEARSAL_SNAPSHOT", absolute(snapshot));
        }
        // Kernels that are chosen by measuring would be chosen wrongly, and must not be found by a real run.
        if let Some(cache) = cache() {
            command.env("TORCHINDUCTOR_CACHE_DIR", cache.join("inductor"));
            command.env("TRITON_CACHE_DIR", cache.join("triton"));
        }
    }

    /// What `torchrun` would set.
    fn rank(&self, command: &mut Command) {
        let Some(gpus) = self.gpus else { return };
        let local = gpus.min(LOCAL);
        let numbers = [
            ("RANK", self.rank),
            ("WORLD_SIZE", gpus),
            ("LOCAL_RANK", self.rank % local),
            ("LOCAL_WORLD_SIZE", local),
            ("GROUP_RANK", self.rank / local),
            ("MASTER_PORT", 29_500),
        ];
        for (name, number) in numbers {
            command.env(name, number.to_string());
        }
        command.env("MASTER_ADDR", "localhost");
    }
}

/// A path before those that a variable has already.
fn first(path: &Path, variable: &str) -> OsString {
    let mut value = path.as_os_str().to_owned();
    if let Some(more) = env::var_os(variable).filter(|more| !more.is_empty()) {
        value.push(":");
        value.push(more);
    }
    value
}

/// The script may change its directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn cache() -> Option<PathBuf> {
    let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
    Some(root.join(OsStr::new("rematic")).join("rehearsal"))
}

/// How a process ended, in words.
fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        // By a signal; the standard library words it.
        None => status.to_string(),
    }
}

/// Whether there is an answer, or why not.
fn judged(record: Record, status: ExitStatus) -> Result<Record, RehearsalError> {
    if let Some(refused) = record.refused {
        return Err(RehearsalError::Torch { torch: refused.torch, cuda: refused.cuda });
    }
    if let Some(reason) = record.unloaded {
        return Err(RehearsalError::NotLoaded { reason });
    }
    if record.ran_out().is_some() {
        return Ok(record);
    }
    if !status.success() && !record.finished {
        let last = record.error.map_or(String::new(), |error| {
            let place = error.line.map_or(String::new(), |line| format!(" ({}:{})", line.file, line.line));
            format!(": {}{place}", error.text)
        });
        return Err(RehearsalError::Script { steps: record.steps, ended: ended(status), last });
    }
    if record.memory.is_none() {
        return Err(RehearsalError::NoCuda { torch: record.torch.is_some() });
    }
    Ok(record)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::record::{Counters, Line, OutOfMemory, Refused, Uncaught};

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn out_of_memory(steps: u64) -> OutOfMemory {
        OutOfMemory {
            line: None,
            module: None,
            phase: None,
            steps,
            asked: 1,
            free: 0,
            allocated: 0,
            reserved: 0,
            there: Vec::new(),
        }
    }

    fn counters() -> Counters {
        Counters { requested: 1, allocated: 512, reserved: 2 << 20, retries: 0, device: 0 }
    }

    fn wording(record: Record, code: i32) -> String {
        judged(record, exit(code)).expect_err("no answer").to_string()
    }

    #[test]
    fn a_script_that_goes_on_after_it_ran_out_fits() {
        let record = Record {
            steps: 3,
            out_of_memory: vec![out_of_memory(0)],
            memory: Some(counters()),
            finished: true,
            ..Record::default()
        };
        assert!(judged(record, exit(0)).expect("an answer").ran_out().is_none());
        let record = Record { out_of_memory: vec![out_of_memory(0)], ..Record::default() };
        assert!(judged(record, exit(1)).expect("an answer").ran_out().is_some());
    }

    #[test]
    fn a_script_that_catches_it_and_ends_well_fits_and_others_do_not() {
        let caught = Record {
            out_of_memory: vec![out_of_memory(0)],
            memory: Some(counters()),
            ended: true,
            succeeded: true,
            ..Record::default()
        };
        assert!(caught.ran_out().is_none());
        assert!(judged(caught.clone(), exit(0)).is_ok());
        let error = Some(Uncaught { text: "OutOfMemoryError: CUDA out of memory".into(), line: None });
        let others = [
            Record { error, ..caught.clone() },
            Record { ended: false, ..caught.clone() },
            Record { succeeded: false, ..caught },
        ];
        assert!(others.iter().all(|record| record.ran_out().is_some()));
    }

    #[test]
    fn a_runtime_that_was_not_loaded_is_told_with_its_reason() {
        let record = Record { unloaded: Some("failed to map segment".into()), ..Record::default() };
        assert_eq!(
            wording(record, 1),
            "the runtime of the rehearsal was not loaded: failed to map segment; set TMPDIR to a folder from which programs \
             may run, and start Python by nothing that changes LD_PRELOAD"
        );
    }

    #[test]
    fn a_script_that_fails_by_itself_is_quoted() {
        let line = Line { file: "train.py".into(), line: 7, function: "main".into(), text: String::new() };
        let error = Some(Uncaught { text: "ValueError: no".into(), line: Some(line) });
        let record = Record { steps: 1, error, torch: Some("2.15.0".into()), ..Record::default() };
        assert_eq!(
            wording(record, 1),
            "your script failed by itself, after 1 optimizer step: it ended with exit code 1: ValueError: no (train.py:7)"
        );
    }

    #[test]
    fn a_script_without_cuda_is_told_so() {
        let with_torch = Record { torch: Some("2.15.0".into()), ..Record::default() };
        assert!(wording(with_torch, 0).starts_with("your script did not use CUDA, so there is nothing to say"));
        assert!(wording(Record::default(), 0).starts_with("your script did not use CUDA, nor import torch, so"));
    }

    #[test]
    fn other_builds_of_torch_are_refused_with_what_to_install() {
        let refused = |cuda: Option<&str>| Record {
            refused: Some(Refused { torch: "2.9.0".into(), cuda: cuda.map(str::to_owned) }),
            ..Record::default()
        };
        assert_eq!(
            wording(refused(None), 1),
            "PyTorch 2.9.0 without CUDA cannot be rehearsed; install the newest 2.13, 2.14 or 2.15 for CUDA 13 (no GPU is \
             needed): pip install torch"
        );
        assert!(wording(refused(Some("12.8")), 1).starts_with("PyTorch 2.9.0 for CUDA 12.8 cannot be rehearsed"));
    }

    fn rehearsal(command: &[OsString]) -> Rehearsal<'_> {
        let card = Card { name: "a card".into(), capability: 90, processors: 132, usable: 1 << 30, context: 0 };
        Rehearsal { command, card, gpus: Some(64), rank: 9, steps: 3, snapshot: None, alloc_conf: None }
    }

    fn variable(command: &Command, name: &str) -> String {
        let found = command.get_envs().find(|(known, _)| *known == name).and_then(|(_, value)| value);
        found.expect(name).to_string_lossy().into_owned()
    }

    #[test]
    fn a_rank_has_the_environment_that_torchrun_gives_it() {
        let words = ["python".into()];
        let stage = Stage::new().expect("written");
        let command = rehearsal(&words).command_on(&stage).expect("a command");
        let values = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "REMATIC_REHEARSAL_COUNT"];
        assert_eq!(values.map(|name| variable(&command, name)), ["9", "64", "1", "8", "1", "8"]);
    }

    #[test]
    fn ranks_that_do_not_exist_are_refused() {
        let error = Rehearsal { gpus: Some(2), ..rehearsal(&["true".into()]) }.run().expect_err("refused");
        assert_eq!(error.to_string(), "rank 9 of 2: ranks count from 0 to 1; lower --rank, or raise --gpus");
    }

    #[test]
    fn commands_that_do_not_start_or_are_no_python_are_told_apart() {
        let error = rehearsal(&["/nowhere/python".into()]).run().expect_err("refused").to_string();
        assert!(error.starts_with("cannot start `/nowhere/python`: "), "{error}");
        let error = rehearsal(&["true".into()]).run().expect_err("refused").to_string();
        assert!(
            error.starts_with("`true` started no Python that could be watched (it ended with exit code 0)"),
            "{error}"
        );
    }
}
