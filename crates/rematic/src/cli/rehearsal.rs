//! The verb `rehearse`.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use super::arguments::RehearseArguments;
use super::planning::INFEASIBLE;
use super::{Answer, Failure, known_devices, style};
use crate::target::{card, context};
use crate::{Error, Rehearsal, RehearsalReport, Settings};

pub(crate) fn rehearse(arguments: &RehearseArguments) -> Result<Answer, Failure> {
    let devices = known_devices(arguments.device_file.as_deref())?;
    let device = devices.find(&arguments.device).map_err(Error::from)?;
    if let Some(settings) = &arguments.alloc_conf {
        settings.parse::<Settings>().map_err(Error::from)?;
    }
    for path in arguments.snapshot.iter().chain(&arguments.output) {
        check(path).map_err(|source| Error::Write { path: path.clone(), source })?;
    }
    let context = context(arguments.gpus.unwrap_or(1).into());
    let rehearsal = Rehearsal {
        command: &arguments.command,
        card: card(device, context)?,
        gpus: arguments.gpus,
        rank: arguments.rank,
        steps: arguments.steps,
        snapshot: arguments.snapshot.as_deref(),
        alloc_conf: arguments.alloc_conf.as_deref(),
    };
    let run = rehearsal.run().map_err(Error::from)?;
    let command: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let report = RehearsalReport {
        command: &command,
        device,
        context,
        record: &run.record,
        late: run.late.as_ref(),
        ranks: (run.world_size, arguments.rank),
        snapshot: arguments.snapshot.as_deref(),
    };
    if let Some(path) = &arguments.output {
        fs::write(path, report.html()).map_err(|source| Error::Write { path: path.clone(), source })?;
    }
    let text = if arguments.json { report.json() } else { report.text(style(&io::stdout())) };
    Ok(Answer { text, code: if report.fits() { 0 } else { INFEASIBLE } })
}

/// Whether a file can be written, before a run that may take long; what is there stays as it is.
fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // To open a pipe would wait for who reads it.
        Ok(known) if !known.is_file() && !known.is_dir() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(|_| ()),
        Err(_) => {
            OpenOptions::new().append(true).create(true).open(path)?;
            fs::remove_file(path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_written_are_known_before_the_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let (new, old) = (folder.path().join("new.pickle"), folder.path().join("old.pickle"));
        fs::write(&old, "kept").expect("written");
        check(&new).expect("can be written");
        assert!(!new.exists());
        check(&old).expect("can be written");
        assert_eq!(fs::read_to_string(&old).expect("there"), "kept");
        check(&folder.path().join("no/such.pickle")).expect_err("no such folder");
        check(folder.path()).expect_err("a folder");
    }
}
