//! Models that have no native front end: Python captures their step with transformers.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rematic_fake::models::Options;
use rematic_fake::{FakeError, Optimizer};
use rematic_trace::{Opt, StepTrace};
use serde_json::{Value, json};

use crate::error::Error;

/// Names the Python that captures.
pub const PYTHON: &str = "REMATIC_PYTHON";
/// What it runs.
const MODULE: &str = "rematic._hugging_face";
/// The exit codes of that: refused, with the reason; and something is not installed.
const REFUSED: i32 = 2;
const NOT_INSTALLED: i32 = 3;
/// A model of a thousand layers takes a minute; what takes longer is none.
const LONGEST: Duration = Duration::from_secs(900);
/// How often it is looked whether Python is done.
const PAUSE: Duration = Duration::from_millis(10);
/// The most of an error that is shown.
const LONGEST_REASON: usize = 2_000;

/// A config that no native model has.
#[derive(Clone, Debug)]
pub struct Foreign {
    name: String,
    /// Why it is not native.
    why: String,
    config: String,
    python: Option<OsString>,
}

/// How it ended.
enum Ended {
    /// The trace is there.
    Done,
    /// This Python lacks a package, or does not start.
    NotInstalled,
    /// It says why.
    Refused(String),
}

impl Foreign {
    pub(crate) fn new(name: &str, why: &str, config: &str) -> Self {
        Foreign { name: name.to_owned(), why: why.to_owned(), config: config.to_owned(), python: named_python() }
    }

    /// Captured by this Python, unless the environment names another.
    #[must_use]
    pub fn by(mut self, python: impl Into<OsString>) -> Self {
        self.python.get_or_insert_with(|| python.into());
        self
    }

    /// The trace of one step.
    ///
    /// # Errors
    /// If there is no Python with the packages, or it cannot capture the step.
    pub fn trace(&self, options: &Options) -> Result<StepTrace, Error> {
        let request = self.request(options)?;
        let folder = tempfile::tempdir().map_err(|source| self.failed(&source))?;
        let trace = folder.path().join("step.rmt");
        let tried = self.python.clone().map_or_else(any_python, |python| vec![python]);
        for python in &tried {
            match self.run(python, &request, folder.path(), &trace)? {
                Ended::Done => return Ok(StepTrace::read(&trace)?),
                Ended::NotInstalled => {}
                Ended::Refused(reason) => return Err(Error::Capture { name: self.name.clone(), reason }),
            }
        }
        let tried: Vec<String> = tried.iter().map(|python| python.to_string_lossy().into_owned()).collect();
        Err(Error::NoPython { name: self.name.clone(), why: self.why.clone(), tried })
    }

    /// What Python is asked. Every option is here, or refused by its name.
    fn request(&self, options: &Options) -> Result<Value, Error> {
        let Options {
            batch,
            seq,
            dtype,
            optimizer,
            attention,
            card,
            layers,
            dropout,
            dim,
            heads,
            vocab,
            tp,
            tp_rank,
            recipe,
        } = options;
        let others = [
            ("dim", dim.is_some()),
            ("heads", heads.is_some()),
            ("vocab", vocab.is_some()),
            ("tp", tp.is_some()),
            ("tp-rank", tp_rank.is_some()),
        ];
        let other = others.into_iter().find(|(_, given)| *given).map(|(name, _)| Opt(name));
        if let Some(option) = other.or_else(|| recipe.given()) {
            let model = format!("{}, which is captured with transformers,", self.name);
            return Err(FakeError::unknown_option(&model, option).into());
        }
        let config: Value = serde_json::from_str(self.config.strip_prefix('\u{feff}').unwrap_or(&self.config))
            .map_err(|error| self.failed(&error))?;
        Ok(json!({
            "name": self.name,
            "config": config,
            "batch": batch,
            "seq": seq,
            "dtype": dtype.map(|dtype| dtype.spelled().to_string()),
            // As for native models that come from a config.
            "optimizer": optimizer.unwrap_or(Optimizer::AdamWFused).to_string(),
            "attention": attention.unwrap_or_default().to_string(),
            "card": card.unwrap_or_default().to_string(),
            "layers": layers,
            "dropout": dropout,
        }))
    }

    fn run(&self, python: &OsString, request: &Value, folder: &Path, trace: &Path) -> Result<Ended, Error> {
        let failed = |source: io::Error| self.failed(&source);
        let (asked, said) = (folder.join("request.json"), folder.join("said"));
        fs::write(&asked, request.to_string()).map_err(failed)?;
        let child = Command::new(python)
            .args(["-m", MODULE])
            .arg(trace)
            .stdin(File::open(&asked).map_err(failed)?)
            .stdout(Stdio::null())
            .stderr(File::create(&said).map_err(failed)?)
            .spawn();
        let Ok(mut child) = child else { return Ok(Ended::NotInstalled) };
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if start.elapsed() > LONGEST {
                // It may have ended by itself in between.
                let _ = child.kill();
                child.wait().map_err(failed)?;
                let reason = format!("it was not done after {} s; take fewer {}", LONGEST.as_secs(), Opt("layers"));
                return Ok(Ended::Refused(reason));
            }
            thread::sleep(PAUSE);
        };
        Ok(ended(status, &fs::read(&said).map_err(failed)?))
    }

    fn failed(&self, source: &dyn std::fmt::Display) -> Error {
        Error::Capture { name: self.name.clone(), reason: source.to_string() }
    }
}

/// The Python that the environment names.
fn named_python() -> Option<OsString> {
    env::var_os(PYTHON).filter(|python| !python.is_empty())
}

fn any_python() -> Vec<OsString> {
    vec!["python3".into(), "python".into()]
}

/// The Pythons to try, one after the other.
pub(crate) fn pythons() -> Vec<OsString> {
    named_python().map_or_else(any_python, |python| vec![python])
}

fn ended(status: ExitStatus, said: &[u8]) -> Ended {
    let said = String::from_utf8_lossy(said);
    let said = said.trim();
    let missing = said.contains("No module named") && said.contains("rematic");
    match status.code() {
        Some(0) => Ended::Done,
        Some(NOT_INSTALLED) => Ended::NotInstalled,
        Some(REFUSED) => Ended::Refused(said.chars().take(LONGEST_REASON).collect()),
        Some(1) if missing && !said.contains("Traceback") => Ended::NotInstalled,
        // The last line of a traceback says what went wrong.
        _ => {
            let last = said.lines().last().filter(|line| !line.is_empty());
            let reason = last.map_or_else(|| format!("Python ended with {status}"), str::to_owned);
            Ended::Refused(reason.chars().take(LONGEST_REASON).collect())
        }
    }
}
