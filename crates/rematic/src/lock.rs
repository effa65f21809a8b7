use std::io;
use std::path::Path;

use rematic_report::Figures;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The version of the file's format.
const VERSION: u32 = 1;

/// Figures of steps that a team has agreed on, in a file that is kept with the code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    version: u32,
    /// The steps, in the order in which they were locked.
    pub steps: Vec<LockedStep>,
}

/// A step with its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedStep {
    /// A model, a config or a trace, as `rematic stats` takes it.
    pub source: String,
    /// The options of `rematic stats`.
    pub options: Vec<String>,
    /// What it takes.
    pub figures: Figures,
}

impl LockedStep {
    /// The step as it is typed.
    #[must_use]
    pub fn name(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.source).chain(&self.options).map(String::as_str).collect();
        words.join(" ")
    }
}

impl Default for Lock {
    fn default() -> Self {
        Lock { version: VERSION, steps: Vec::new() }
    }
}

impl Lock {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, or is no lock file of this version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::NoLock { path: path.to_owned(), source })?;
        let broken = |why: String| Error::BrokenLock { path: path.to_owned(), why };
        let lock: Lock = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        if lock.version != VERSION {
            return Err(broken(format!("it has version {}, and this is version {VERSION}", lock.version)));
        }
        Ok(lock)
    }

    /// Reads the file, or begins one where there is none.
    ///
    /// # Errors
    /// As [`Lock::read`], but for a file that is missing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        match Lock::read(path) {
            Err(Error::NoLock { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Lock::default()),
            other => other,
        }
    }

    /// Locks a step; it takes the place of the same one with other figures.
    pub fn put(&mut self, step: LockedStep) {
        let is_same = |other: &&mut LockedStep| (&other.source, &other.options) == (&step.source, &step.options);
        match self.steps.iter_mut().find(is_same) {
            Some(old) => *old = step,
            None => self.steps.push(step),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::Write { path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        std::fs::write(path, text + "\n").map_err(failed)
    }
}
