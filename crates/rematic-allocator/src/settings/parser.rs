//! Reads `PYTORCH_CUDA_ALLOC_CONF` as torch does, and says what torch would not accept.

use super::tokens::{decimal, number, tokens, whole_number};
use super::{Ignored, MIB, Reserve, Settings};
use crate::rounding::Divisions;

/// What torch would not accept in a settings string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A word that is not the name of a setting.
    #[error("There is no allocator setting '{key}' in torch 2.15. Settings are: {}.", names())]
    UnknownKey {
        /// The word.
        key: String,
    },
    /// The string ends too early.
    #[error("The allocator setting '{key}' has no value, or one that does not end. Write {key}:{allowed}.")]
    Missing {
        /// The setting.
        key: String,
        /// What can stand there.
        allowed: &'static str,
    },
    /// A value that is not one of the setting's.
    #[error("The allocator setting '{key}' cannot be '{value}'. Write {key}:{allowed}.")]
    Value {
        /// The setting.
        key: String,
        /// What stood there.
        value: String,
        /// What can stand there.
        allowed: &'static str,
    },
    /// A number that is too small with the segments that there are.
    #[error(
        "The allocator setting '{key}' is {value} MiB, less than large_segment_size_mb, {least}. Take at least {least}."
    )]
    TooSmall {
        /// The setting.
        key: String,
        /// The number.
        value: u64,
        /// The smallest.
        least: u64,
    },
    /// Another allocator than the one that is modelled.
    #[error(
        "backend:cudaMallocAsync is not modelled: the driver decides there what is reserved. Leave it out, or write \
         backend:native."
    )]
    DriverBackend,
}

const BOOL: &str = "True or False";
const MEBIBYTES: &str = "a number of MiB";
const FRACTION: &str = "a number from 0 to 1";
const THRESHOLD: &str = "a number above 0 and below 1";
const SEGMENT: &str = "a number of MiB above 10";
const DIVISIONS: &str = "a power of two, or a list like [256:1,512:2,1024:4,>:8]";
const RESERVE: &str = "a fraction of the device's memory like 0.5, or GiB like 40G";
const CLASSES: &str = "a list like [name:0.5,other:40G]";
const THREADS: &str = "a power of two up to 128";
const BACKEND: &str = "native";

/// The settings, with what can stand for each.
const KEYS: [(&str, &str); 22] = [
    ("large_segment_size_mb", SEGMENT),
    ("max_split_size_mb", MEBIBYTES),
    ("max_non_split_rounding_mb", MEBIBYTES),
    ("garbage_collection_threshold", THRESHOLD),
    ("roundup_power2_divisions", DIVISIONS),
    ("expandable_segments", BOOL),
    ("expandable_segments_reserve", RESERVE),
    ("expandable_segments_reserve_by_class", CLASSES),
    ("per_process_memory_fraction", FRACTION),
    ("throw_on_cudamalloc_oom", BOOL),
    ("release_lock_on_cudamalloc", BOOL),
    ("release_lock_on_hipmalloc", BOOL),
    ("graph_capture_record_stream_reuse", BOOL),
    ("backend", BACKEND),
    ("pinned_use_background_threads", BOOL),
    ("pinned_max_round_threshold_mb", MEBIBYTES),
    ("pinned_max_cached_size_mb", MEBIBYTES),
    ("pinned_use_cuda_host_register", BOOL),
    ("pinned_use_hip_host_register", BOOL),
    ("pinned_reserve_segment_size_mb", MEBIBYTES),
    ("pinned_num_register_threads", THREADS),
    ("pinned_free_catch_all", BOOL),
];

fn names() -> String {
    KEYS.map(|(key, _)| key).join(", ")
}

impl std::str::FromStr for Settings {
    type Err = SettingsError;

    /// Reads the value of `PYTORCH_CUDA_ALLOC_CONF`. Torch looks at the words and not at the signs between them, so
    /// that `a=b` is one wrong word while `a,b` is read like `a:b`; so does this.
    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let tokens = tokens(text);
        let mut settings = Settings::default();
        // Other settings are compared with this one, wherever it stands.
        for (at, token) in tokens.iter().enumerate() {
            if token == "large_segment_size_mb" {
                let mut reader = Reader { tokens: &tokens, at, key: token };
                settings.large_segment_size = mebibytes(reader.whole_number(|mb| mb > 10)?);
            }
        }
        settings.max_non_split_rounding = settings.large_segment_size;
        let mut at = 0;
        while at < tokens.len() {
            let mut reader = Reader { tokens: &tokens, at, key: &tokens[at] };
            settings.read(&mut reader)?;
            at = reader.at + 2;
        }
        Ok(settings)
    }
}

impl Settings {
    fn read(&mut self, reader: &mut Reader) -> Result<(), SettingsError> {
        match reader.key {
            "large_segment_size_mb" => drop(reader.whole_number(|_| true)?),
            "max_split_size_mb" => self.max_split_size = Some(reader.at_least(self.large_segment_size)?),
            "max_non_split_rounding_mb" => self.max_non_split_rounding = reader.at_least(self.large_segment_size)?,
            "garbage_collection_threshold" => {
                self.garbage_collection_threshold = reader.number(|value| value > 0.0 && value < 1.0)?;
            }
            "per_process_memory_fraction" => {
                self.memory_fraction = reader.number(|value| (0.0..=1.0).contains(&value))?;
            }
            "roundup_power2_divisions" => self.read_divisions(reader)?,
            "expandable_segments" => self.expandable_segments = reader.bool()?,
            "throw_on_cudamalloc_oom" => self.throw_on_oom = reader.bool()?,
            "expandable_segments_reserve" => match reserve(reader.value()?) {
                Some(reserve) => self.reserve = Some(reserve),
                None => self.ignore(reader.key, "torch warns that the value is none, and keeps the default"),
            },
            "backend" => match reader.value()? {
                "native" => {}
                "cudaMallocAsync" => return Err(SettingsError::DriverBackend),
                _ => return Err(reader.refused()),
            },
            _ => self.read_irrelevant(reader)?,
        }
        Ok(())
    }

    /// What does not change where blocks lie. The values are checked as torch checks them.
    fn read_irrelevant(&mut self, reader: &mut Reader) -> Result<(), SettingsError> {
        let reason = match reader.key {
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                reader.bool()?;
                "threads wait less; blocks lie where they lay"
            }
            "graph_capture_record_stream_reuse" => {
                reader.bool()?;
                "captures of CUDA graphs are not modelled"
            }
            "expandable_segments_reserve_by_class" => {
                reader.classes()?;
                "streams have no class from Python"
            }
            "pinned_use_background_threads"
            | "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register"
            | "pinned_free_catch_all" => {
                reader.bool()?;
                PINNED
            }
            "pinned_max_round_threshold_mb" | "pinned_max_cached_size_mb" => {
                reader.whole_number(|_| true)?;
                PINNED
            }
            "pinned_reserve_segment_size_mb" => {
                reader.whole_number(|mb| mb > 0)?;
                PINNED
            }
            "pinned_num_register_threads" => {
                reader.whole_number(|threads| threads.is_power_of_two() && threads <= 128)?;
                PINNED
            }
            key => return Err(SettingsError::UnknownKey { key: key.to_owned() }),
        };
        self.ignore(reader.key, reason);
        Ok(())
    }

    fn ignore(&mut self, key: &str, reason: &'static str) {
        self.ignored.push(Ignored { key: key.to_owned(), reason });
    }

    fn read_divisions(&mut self, reader: &mut Reader) -> Result<(), SettingsError> {
        if reader.value()? != "[" {
            let divisions = whole_number(reader.current()).filter(|divisions| divisions.is_power_of_two());
            self.divisions.fill(0, Divisions::ALL, divisions.ok_or_else(|| reader.refused())?);
            return Ok(());
        }
        let (mut first, mut last) = (true, 0);
        loop {
            let boundary = reader.next()?.to_owned();
            if boundary == "]" {
                return Ok(());
            }
            let value = whole_number(reader.value()?).filter(|&value| value == 0 || value.is_power_of_two());
            let value = value.ok_or_else(|| reader.refused())?;
            if boundary == ">" {
                self.divisions.fill(last + 1, Divisions::ALL, value);
            } else {
                let mib = whole_number(&boundary).filter(|mib| mib.is_power_of_two());
                let interval = Divisions::interval(mib.ok_or_else(|| reader.refused_as(&boundary))?);
                self.divisions.fill(if first { 0 } else { interval }, interval + 1, value);
                (first, last) = (false, interval);
            }
            if reader.peek()? != "]" {
                reader.next()?;
            }
        }
    }
}

const PINNED: &str = "memory of the host is not modelled";

fn mebibytes(mb: u64) -> u64 {
    mb.min(u64::MAX / MIB) * MIB
}

/// A fraction or GiB. Torch warns about others and goes on.
fn reserve(token: &str) -> Option<Reserve> {
    let gib = token.strip_suffix(['G', 'g']);
    let value = decimal(gib.unwrap_or(token)).filter(|value| value.is_finite() && *value > 0.0)?;
    Some(if gib.is_some() { Reserve::Gib(value) } else { Reserve::Fraction(value) })
}

/// Where the reading is.
struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    key: &'a str,
}

impl<'a> Reader<'a> {
    fn current(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn peek(&self) -> Result<&'a str, SettingsError> {
        self.tokens.get(self.at + 1).map(String::as_str).ok_or_else(|| self.missing())
    }

    fn next(&mut self) -> Result<&'a str, SettingsError> {
        let token = self.peek()?;
        self.at += 1;
        Ok(token)
    }

    /// The word after the sign that comes next, whatever sign it is.
    fn value(&mut self) -> Result<&'a str, SettingsError> {
        self.next()?;
        self.next()
    }

    fn bool(&mut self) -> Result<bool, SettingsError> {
        match self.value()? {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.refused()),
        }
    }

    fn whole_number(&mut self, allowed: impl Fn(u64) -> bool) -> Result<u64, SettingsError> {
        whole_number(self.value()?).filter(|&value| allowed(value)).ok_or_else(|| self.refused())
    }

    fn number(&mut self, allowed: impl Fn(f64) -> bool) -> Result<f64, SettingsError> {
        number(self.value()?).filter(|&value| allowed(value)).ok_or_else(|| self.refused())
    }

    /// Bytes from MiB, at least as many as a large segment has.
    fn at_least(&mut self, bytes: u64) -> Result<u64, SettingsError> {
        let value = self.whole_number(|_| true)?;
        if value < bytes / MIB {
            return Err(SettingsError::TooSmall { key: self.key.to_owned(), value, least: bytes / MIB });
        }
        Ok(mebibytes(value))
    }

    /// A list of names and reserves, which are not kept.
    fn classes(&mut self) -> Result<(), SettingsError> {
        self.value()?;
        while self.peek()? != "]" {
            self.next()?;
            self.value()?;
            if self.peek()? == "," {
                self.next()?;
            }
        }
        self.next().map(drop)
    }

    fn allowed(&self) -> &'static str {
        KEYS.iter().find(|(key, _)| *key == self.key).map_or("a value", |&(_, allowed)| allowed)
    }

    fn missing(&self) -> SettingsError {
        SettingsError::Missing { key: self.key.to_owned(), allowed: self.allowed() }
    }

    fn refused(&self) -> SettingsError {
        self.refused_as(self.current())
    }

    fn refused_as(&self, value: &str) -> SettingsError {
        SettingsError::Value { key: self.key.to_owned(), value: value.to_owned(), allowed: self.allowed() }
    }
}
