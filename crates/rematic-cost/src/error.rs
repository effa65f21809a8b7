use std::io;
use std::path::PathBuf;

use rematic_trace::{Dtype, OpId, Opt};

use crate::table::{TABLE_FORMAT, TABLE_VERSION};
use crate::{CostRule, Element};

/// Why there are no costs, or no device to compute them for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// No device has this name.
    #[error(
        "there is no device `{name}` among the {known} known ones; {} `rematic devices` lists them all",
        did_you_mean(.suggestions)
    )]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The names that come nearest, best first.
        suggestions: Vec<String>,
        /// How many devices there are.
        known: usize,
    },
    /// A device file cannot be read.
    #[error("cannot read the device file {}: {source}; check the path after {}", .path.display(), Opt("device-file"))]
    DeviceFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A device file is not TOML.
    #[error("{file} is not valid TOML; correct it here:\n{source}")]
    NotToml {
        /// The file.
        file: String,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A device file has no device.
    #[error("{file} has no device; begin one with [[device]] and its `name`")]
    NoDevice {
        /// The file.
        file: String,
    },
    /// Something beside the devices in a device file.
    #[error("{file}: unknown table `{found}`; a device file holds only [[device]] tables")]
    UnknownTable {
        /// The file.
        file: String,
        /// Its name.
        found: String,
    },
    /// A field of a device is missing, unknown, or has a value that it cannot have.
    #[error("{file}: device {device}: {}{message}", place(.field, .message))]
    BadField {
        /// The file.
        file: String,
        /// The device's name, or its position where it has none.
        device: String,
        /// The field; empty for the device as a whole.
        field: String,
        /// What is wrong, and what may stand there.
        message: String,
    },
    /// One file describes a device twice.
    #[error("{file}: device `{device}` is there twice; remove or rename one")]
    DuplicateDevice {
        /// The file.
        file: String,
        /// The device.
        device: String,
    },
    /// The `torch` rule was asked for on a device that torch has no numbers for.
    #[error(
        "torch 2.15's data sheet does not know {device}, so the torch rule has no rates for it; \
         use the physical rule, or one of {}", .known.join(", ")
    )]
    NotInTorchDatasheet {
        /// The device.
        device: String,
        /// The built-in devices that it knows.
        known: Vec<String>,
    },
    /// An operator multiplies in a type that the device has no rate for.
    #[error(
        "op {op} ({name}) multiplies in {0}, but {device} has no {0} rate under the {rule} rule; \
         train in another type, or give the device that rate with {1}", Element(*.dtype), Opt("device-file")
    )]
    NoRate {
        /// The operator.
        op: OpId,
        /// Its name.
        name: String,
        /// The type that it multiplies in.
        dtype: Dtype,
        /// The device.
        device: String,
        /// The rule.
        rule: CostRule,
    },
    /// A table of measured times cannot be read or written.
    #[error("cannot {verb} the cost table {}: {source}", .path.display())]
    TableFile {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A table of measured times that is none.
    #[error("{file} is not a cost table: {place}{source}; measure one with rematic.benchmark")]
    TableSyntax {
        /// The file.
        file: String,
        /// The row and field, with a colon; empty for the whole.
        place: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Another kind of file, or a newer version.
    #[error(
        "{file} says `{format}` version {version}; this rematic reads `{TABLE_FORMAT}` up to version {TABLE_VERSION}"
    )]
    TableVersion {
        /// The file.
        file: String,
        /// What it says.
        format: String,
        /// What it says.
        version: u32,
    },
    /// A row that cannot be used.
    #[error("{file}: row {row} ({op}) has {found}; give {needed}")]
    TableRow {
        /// The file.
        file: String,
        /// The row, from 0.
        row: usize,
        /// Its operator.
        op: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        needed: &'static str,
    },
    /// A table for another step.
    #[error(
        "none of the step's {signatures} distinct operators is among the {rows} that were measured on {device}; \
         measure this step, or use the physical rule"
    )]
    NothingMeasured {
        /// How many the step has.
        signatures: usize,
        /// How many the table has.
        rows: usize,
        /// What the table was measured on.
        device: String,
    },
}

fn did_you_mean(suggestions: &[String]) -> String {
    match suggestions {
        [] => "no name comes near it;".to_owned(),
        [only] => format!("did you mean {only}?"),
        [rest @ .., last] => format!("did you mean {} or {last}?", rest.join(", ")),
    }
}

/// A field as the begin of a sentence about it.
fn place(field: &str, message: &str) -> String {
    match field {
        "" => String::new(),
        field if message.starts_with("is ") => format!("`{field}` "),
        field => format!("`{field}`: "),
    }
}
