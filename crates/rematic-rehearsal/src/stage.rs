//! The files of one rehearsal, in a private directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::RehearsalError;

/// The runtime as a shared library; there is none but on Linux.
#[cfg(rehearsal)]
const RUNTIME: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/librehearsal.so")));
#[cfg(not(rehearsal))]
const RUNTIME: Option<&[u8]> = None;

/// The names under which programs look for the driver and for NVML. All are one file, which the loader loads once.
const NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

macro_rules! hook {
    ($($file:literal)*) => {
        &[$(($file, include_str!(concat!("../hook/", $file)))),*]
    };
}

/// What Python runs before the script.
const HOOK: &[(&str, &str)] = hook! {
    "sitecustomize.py"
    "rematic_rehearsal/__init__.py"
    "rematic_rehearsal/assumptions.py"
    "rematic_rehearsal/choices.py"
    "rematic_rehearsal/counts.py"
    "rematic_rehearsal/cudnn.py"
    "rematic_rehearsal/ending.py"
    "rematic_rehearsal/groups.py"
    "rematic_rehearsal/imports.py"
    "rematic_rehearsal/launchers.py"
    "rematic_rehearsal/places.py"
    "rematic_rehearsal/reads.py"
    "rematic_rehearsal/report.py"
    "rematic_rehearsal/steps.py"
    "rematic_rehearsal/streams.py"
    "rematic_rehearsal/values.py"
    "rematic_rehearsal/versions.py"
    "rematic_rehearsal/watching.py"
    "rematic_rehearsal/writes.py"
};

/// The files; gone when it is dropped.
pub(crate) struct Stage {
    directory: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Result<Stage, RehearsalError> {
        let runtime = RUNTIME.ok_or(RehearsalError::NotLinux)?;
        check(&std::env::temp_dir())?;
        Self::written(runtime).map_err(RehearsalError::Stage)
    }

    fn written(runtime: &[u8]) -> io::Result<Stage> {
        let stage = Stage { directory: tempfile::Builder::new().prefix("rematic-").tempdir()? };
        for folder in [stage.library(), stage.reports(), stage.hook().join("rematic_rehearsal")] {
            fs::create_dir_all(folder)?;
        }
        fs::write(stage.runtime(), runtime)?;
        for name in NAMES {
            link(&stage.library().join(name))?;
        }
        for (file, text) in HOOK {
            fs::write(stage.hook().join(file), text)?;
        }
        Ok(stage)
    }

    /// Where the libraries are.
    pub(crate) fn library(&self) -> PathBuf {
        self.directory.path().join("lib")
    }

    /// The runtime.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.library().join("librehearsal.so")
    }

    /// Where Python finds what it runs first.
    pub(crate) fn hook(&self) -> PathBuf {
        self.directory.path().join("hook")
    }

    /// Where processes write what they saw.
    pub(crate) fn reports(&self) -> PathBuf {
        self.directory.path().join("reports")
    }
}

/// Refuses a folder that the loader would take for several.
fn check(folder: &Path) -> Result<(), RehearsalError> {
    let name = folder.to_string_lossy();
    let marks = [(" ", "a space"), ("\t", "a tab"), ("\n", "a line break"), (":", "a colon"), (";", "a semicolon")];
    match marks.into_iter().find(|(mark, _)| name.contains(mark)) {
        Some((_, mark)) => Err(RehearsalError::Folder { folder: folder.to_owned(), mark }),
        None => Ok(()),
    }
}

#[cfg(unix)]
fn link(name: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink("librehearsal.so", name)
}

#[cfg(not(unix))]
fn link(_name: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_the_hook_is_carried() {
        let carried: Vec<&str> = HOOK.iter().map(|(file, _)| *file).collect();
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/hook/rematic_rehearsal");
        for entry in fs::read_dir(package).expect("the hook").flatten() {
            let name = entry.file_name().into_string().expect("a name");
            if name.ends_with(".py") {
                assert!(carried.contains(&format!("rematic_rehearsal/{name}").as_str()), "{name}");
            }
        }
    }

    #[test]
    fn folders_that_the_loader_would_split_are_refused_by_name() {
        check(Path::new("/tmp/a-b_c")).expect("a good name");
        assert_eq!(
            check(Path::new("/tmp/a b")).expect_err("refused").to_string(),
            "the temporary folder `/tmp/a b` has a space in its name, at which the loader splits LD_PRELOAD; set TMPDIR to \
             another one"
        );
        assert!(check(Path::new("/tmp/a:b")).expect_err("refused").to_string().contains("has a colon in its name"));
    }

    #[cfg(rehearsal)]
    #[test]
    fn the_driver_and_nvml_are_the_runtime() {
        let stage = Stage::new().expect("written");
        let runtime = fs::canonicalize(stage.runtime()).expect("there");
        for name in NAMES {
            assert_eq!(fs::canonicalize(stage.library().join(name)).expect("there"), runtime);
        }
        let place = stage.directory.path().to_owned();
        drop(stage);
        assert!(!place.exists());
    }
}
