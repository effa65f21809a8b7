use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rematic_fake::FakeError;
use rematic_fake::models::{BUILTIN, Model, Options};
use rematic_trace::{Opt, StepTrace};

use crate::error::Error;
use crate::foreign::Foreign;
use crate::hub;

/// The most of a config file that is read. Real ones have a few kilobytes.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Where a step comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A model, built in or from a config file.
    Model(Box<Model>),
    /// A model that has no native front end, and is captured with Python.
    Foreign(Foreign),
    /// A saved trace.
    Trace(PathBuf),
}

impl Source {
    /// A built-in model's name, the path of a Hugging Face `config.json`, the id of a model in the local cache of the hub,
    /// or the path of a saved trace. A trace is known by its content, whatever its name.
    ///
    /// # Errors
    /// If it is none of these, or the config is not one that is supported.
    pub fn open(name: &str) -> Result<Source, Error> {
        let path = Path::new(name);
        if let Some(entry) = BUILTIN.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)) {
            return Ok(Source::Model(Box::new(Model::builtin(entry.name)?)));
        }
        if is_named_as_trace(path) {
            return Ok(Source::Trace(path.to_owned()));
        }
        let looks_like_a_path = path.extension() == Some(OsStr::new("json")) || path.components().count() > 1;
        if !path.exists() && hub::is_id(name) && path.extension() != Some(OsStr::new("json")) {
            let cache = hub::cache();
            return match hub::config(&cache, name) {
                Some(config) => Source::of_file(name, &config),
                None if looks_like_a_path => Err(Error::NotInHub { id: name.to_owned(), cache }),
                None => Ok(Source::Model(Box::new(Model::builtin(name)?))),
            };
        }
        if !looks_like_a_path && !path.exists() {
            return Ok(Source::Model(Box::new(Model::builtin(name)?)));
        }
        if path.is_dir() {
            return Err(Error::Directory { path: path.to_owned() });
        }
        Source::of_file(name, path)
    }

    /// What a file holds: a trace, or a config of a model that is called `name`.
    fn of_file(name: &str, path: &Path) -> Result<Source, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let start = read(path).map_err(failed)?;
        if StepTrace::recognizes(&start) {
            return Ok(Source::Trace(path.to_owned()));
        }
        if rematic_snapshot::is_pickle(&start) {
            return Err(Error::SnapshotForModel { path: path.to_owned() });
        }
        if path.extension() == Some(OsStr::new("py")) {
            return Err(Error::ScriptForModel { path: path.to_owned() });
        }
        let text = String::from_utf8(start)
            .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8")))?;
        Source::of_config(name, &text)
    }

    /// The model that the text of a `config.json` describes: native, or captured with Python if there is no such model.
    ///
    /// # Errors
    /// If the text is not JSON, lacks a field, or describes a model that is not supported.
    pub fn of_config(name: &str, text: &str) -> Result<Source, Error> {
        match Model::from_config(name, text) {
            Ok(model) => Ok(Source::Model(Box::new(model))),
            Err(why @ (FakeError::UnsupportedFamily { .. } | FakeError::UnsupportedFeature { .. })) => {
                Ok(Source::Foreign(Foreign::new(name, &why.to_string(), text)))
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The text of the config that a model comes from; none of a saved step, and of a model that has none.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn config(name: &str) -> Result<Option<String>, Error> {
        if let Some(entry) = BUILTIN.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)) {
            return Ok(entry.config.map(str::to_owned));
        }
        if let Source::Trace(_) = Source::open(name)? {
            return Ok(None);
        }
        let path = hub::config(&hub::cache(), name).filter(|_| !Path::new(name).exists());
        let path = path.unwrap_or_else(|| PathBuf::from(name));
        let text = read(&path).map_err(|source| Error::Read { path, source })?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The trace of one step.
    ///
    /// # Errors
    /// If the options do not fit the source, or the file is damaged.
    pub fn trace(self, options: &Options) -> Result<StepTrace, Error> {
        match self {
            Source::Model(model) => Ok(model.with(options)?.trace()?),
            Source::Foreign(model) => model.trace(options),
            Source::Trace(path) => match given(options) {
                Some(option) => Err(Error::OptionsForTrace { path, option }),
                None => Ok(StepTrace::read(&path)?),
            },
        }
    }
}

/// Whether the name alone says that it is meant to be a trace, which then decides what is said about a damaged one.
fn is_named_as_trace(path: &Path) -> bool {
    let has = |path: &Path, extension: &str| path.extension() == Some(OsStr::new(extension));
    has(path, "rmt") || has(path, "zst") && path.file_stem().is_some_and(|stem| has(Path::new(stem), "rmt"))
}

/// The start of a file: all of a config, and enough of a trace to know it.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(CONFIG_LIMIT).read_to_end(&mut start)?;
    Ok(start)
}

/// The first option that is set.
fn given(options: &Options) -> Option<Opt> {
    let set = [
        (options.batch.is_some(), "batch"),
        (options.seq.is_some(), "seq"),
        (options.dtype.is_some(), "dtype"),
        (options.optimizer.is_some(), "optimizer"),
        (options.attention.is_some(), "attention"),
        (options.layers.is_some(), "layers"),
        (options.dropout.is_some(), "dropout"),
        (options.dim.is_some(), "dim"),
        (options.heads.is_some(), "heads"),
        (options.vocab.is_some(), "vocab"),
        (options.tp.is_some(), "tp"),
    ];
    set.into_iter().find(|(set, _)| *set).map(|(_, name)| Opt(name)).or_else(|| options.recipe.given())
}
