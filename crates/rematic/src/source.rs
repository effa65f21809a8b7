use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rematic_fake::models::{BUILTIN, Model, Options};
use rematic_trace::StepTrace;

use crate::error::Error;

/// The most of a config file that is read. Real ones have a few kilobytes.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Where a step comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A model, built in or from a config file.
    Model(Box<Model>),
    /// A saved trace.
    Trace(PathBuf),
}

impl Source {
    /// A built-in model's name, the path of a Hugging Face `config.json`, or the path of a saved trace (`.rmt`,
    /// `.rmt.zst`).
    ///
    /// # Errors
    /// If it is none of these, or the config is not one that is supported.
    pub fn open(name: &str) -> Result<Source, Error> {
        let path = Path::new(name);
        if BUILTIN.iter().any(|entry| entry.name == name) {
            return Ok(Source::Model(Box::new(Model::builtin(name)?)));
        }
        if is_trace(path) {
            return Ok(Source::Trace(path.to_owned()));
        }
        let looks_like_a_path = path.extension() == Some(OsStr::new("json")) || path.components().count() > 1;
        if !looks_like_a_path && !path.exists() {
            return Ok(Source::Model(Box::new(Model::builtin(name)?)));
        }
        if path.is_dir() {
            return Err(Error::Directory { path: path.to_owned() });
        }
        let text = read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        match Model::from_config(name, &text) {
            Ok(model) => Ok(Source::Model(Box::new(model))),
            Err(_) if says_trace(&text) => Err(Error::TraceName { path: path.to_owned() }),
            Err(error) => Err(error.into()),
        }
    }

    /// The trace of one step.
    ///
    /// # Errors
    /// If the options do not fit the source, or the file is damaged.
    pub fn trace(self, options: &Options) -> Result<StepTrace, Error> {
        match self {
            Source::Model(model) => Ok(model.with(options)?.trace()?),
            Source::Trace(path) => match given(options) {
                Some(option) => Err(Error::OptionsForTrace { path, option }),
                None => Ok(StepTrace::read(&path)?),
            },
        }
    }
}

fn is_trace(path: &Path) -> bool {
    let has = |path: &Path, extension: &str| path.extension() == Some(OsStr::new(extension));
    has(path, "rmt") || has(path, "zst") && path.file_stem().is_some_and(|stem| has(Path::new(stem), "rmt"))
}

fn says_trace(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value["format"] == rematic_trace::FORMAT)
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(CONFIG_LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// The first option that is set.
fn given(options: &Options) -> Option<&'static str> {
    let set = [
        (options.batch.is_some(), "--batch"),
        (options.seq.is_some(), "--seq"),
        (options.dtype.is_some(), "--dtype"),
        (options.optimizer.is_some(), "--optimizer"),
        (options.attention.is_some(), "--attention"),
        (options.layers.is_some(), "--layers"),
        (options.dropout.is_some(), "--dropout"),
        (options.dim.is_some(), "--dim"),
        (options.heads.is_some(), "--heads"),
        (options.vocab.is_some(), "--vocab"),
    ];
    set.into_iter().find(|(set, _)| *set).map(|(_, name)| name)
}
