//! What the values of options are read by.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};

use crate::options::{self, Named};

/// One of the values that an option can be; PyTorch's names and other cases are understood too.
pub(crate) fn named<T: Copy + Send + Sync + 'static>(known: &'static [Named<T>]) -> impl TypedValueParser<Value = T> {
    let values = known.iter().map(|known| PossibleValue::new(known.name).help(known.help));
    Names { known, names: PossibleValuesParser::new(values) }
}

#[derive(Clone)]
struct Names<T: 'static> {
    known: &'static [Named<T>],
    /// What help and errors list.
    names: PossibleValuesParser,
}

impl<T: Copy + Send + Sync + 'static> TypedValueParser for Names<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, option: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        if let Some(found) = value.to_str().and_then(|name| options::find(self.known, name)) {
            return Ok(found);
        }
        // It has the words for what is none of them.
        self.names.parse_ref(command, option, value).map(|_| self.known[0].value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.names.possible_values()
    }
}

pub(crate) fn count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| wanted(text, 1, u64::MAX))
}

pub(crate) fn devices(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| wanted(text, 1, u32::MAX.into()))
}

pub(crate) fn several(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count > 1).ok_or_else(|| wanted(text, 2, u32::MAX.into()))
}

/// What is wrong with a number: the upper end matters to nobody who is not above it.
fn wanted(text: &str, least: u64, most: u64) -> String {
    let is_large = text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_large {
        format!("give a whole number from {least} to {most}")
    } else {
        format!("give a whole number, {least} or more")
    }
}

/// The most points of a curve: each is a plan.
const MOST_POINTS: u32 = 10_000;

pub(crate) fn points(text: &str) -> Result<u32, String> {
    let points = text.parse().ok().filter(|points| (2..=MOST_POINTS).contains(points));
    points.ok_or_else(|| format!("give a whole number from 2 to {MOST_POINTS}"))
}

pub(crate) fn probability(text: &str) -> Result<f64, String> {
    let probability = text.parse().ok().filter(|probability| (0.0..1.0).contains(probability));
    probability.ok_or_else(|| "give a number of at least 0 and below 1".to_owned())
}
