//! Times that were measured, as a document.

use std::collections::HashMap;
use std::path::Path;

use rematic_trace::{Dtype, Layout, Millis};
use serde::{Deserialize, Serialize};

use crate::{CostError, Signature};

/// What the first field of a table says.
pub const TABLE_FORMAT: &str = "rematic-costs";
/// The version that is written; all up to it are read.
pub const TABLE_VERSION: u32 = 1;

/// Measured times of operators on one device, by signature.
///
/// ```
/// use rematic_cost::{CostTable, Signature};
/// use rematic_trace::{Dtype, Layout, Millis};
///
/// let matrix = Layout::contiguous(Dtype::F32, &[64, 64]);
/// let mm = Signature { op: "mm.default".into(), inputs: vec![matrix.clone(); 2], outputs: vec![matrix] };
/// let table = CostTable::new("my device", vec![(mm.clone(), Millis(0.25))])?;
/// let read = CostTable::from_json(&table.to_json(), "table.json")?;
/// assert_eq!(read.time(&mm), Some(Millis(0.25)));
/// # Ok::<(), rematic_cost::CostError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    device: String,
    rows: Vec<(Signature, Millis)>,
    index: HashMap<Signature, usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    device: String,
    ops: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    op: String,
    inputs: Vec<LayoutRow>,
    outputs: Vec<LayoutRow>,
    ms: f64,
}

/// Type, shape and strides, as in a trace.
#[derive(Serialize, Deserialize)]
struct LayoutRow(String, Vec<u64>, Vec<u64>);

impl LayoutRow {
    fn of(layout: &Layout) -> Self {
        LayoutRow(layout.dtype.name().to_owned(), layout.shape.clone(), layout.strides.clone())
    }

    fn layout(self) -> Result<Layout, (String, &'static str)> {
        let LayoutRow(name, shape, strides) = self;
        let dtype: Dtype = name.parse().map_err(|()| (name, "a type as traces spell it, like f32 or bf16"))?;
        if shape.len() != strides.len() {
            return Err((format!("shape {shape:?} with strides {strides:?}"), "one stride for each extent"));
        }
        Ok(Layout { dtype, shape, strides })
    }
}

impl CostTable {
    /// A table of what was measured on a device.
    ///
    /// # Errors
    /// If a time is negative or not a number, or a signature is there twice.
    pub fn new(device: &str, rows: Vec<(Signature, Millis)>) -> Result<Self, CostError> {
        Self::checked("the table", device, rows)
    }

    fn checked(file: &str, device: &str, rows: Vec<(Signature, Millis)>) -> Result<Self, CostError> {
        let mut index = HashMap::with_capacity(rows.len());
        for (row, (signature, time)) in rows.iter().enumerate() {
            let wrong = |found: String, needed| CostError::TableRow {
                file: file.to_owned(),
                row,
                op: signature.op.clone(),
                found,
                needed,
            };
            if !time.0.is_finite() || time.0 < 0.0 {
                return Err(wrong(format!("{} ms", time.0), "a time in milliseconds that is finite and not negative"));
            }
            if let Some(before) = index.insert(signature.clone(), row) {
                return Err(wrong(format!("the same as row {before}"), "each operator with its layouts once"));
            }
        }
        Ok(CostTable { device: device.to_owned(), rows, index })
    }

    /// Reads a table from a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a table.
    pub fn read(path: &Path) -> Result<Self, CostError> {
        let text = std::fs::read_to_string(path).map_err(|source| CostError::TableFile {
            verb: "read",
            path: path.to_owned(),
            source,
        })?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Reads a table from its text; `file` is what it is called in messages.
    ///
    /// # Errors
    /// If it is not a table, or a row of it is wrong.
    pub fn from_json(text: &str, file: &str) -> Result<Self, CostError> {
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u32,
        }
        let syntax = |place: String, source| CostError::TableSyntax { file: file.to_owned(), place, source };
        let header: Header = serde_json::from_str(text).map_err(|source| syntax(String::new(), source))?;
        if header.format != TABLE_FORMAT || header.version == 0 || header.version > TABLE_VERSION {
            let Header { format, version } = header;
            return Err(CostError::TableVersion { file: file.to_owned(), format, version });
        }
        let deserializer = &mut serde_json::Deserializer::from_str(text);
        let document: Document = serde_path_to_error::deserialize(deserializer)
            .map_err(|error| syntax(format!("{}: ", error.path()), error.into_inner()))?;
        let mut rows = Vec::with_capacity(document.ops.len());
        for (row, Row { op, inputs, outputs, ms }) in document.ops.into_iter().enumerate() {
            let layouts = |rows: Vec<LayoutRow>| rows.into_iter().map(LayoutRow::layout).collect::<Result<_, _>>();
            let read = layouts(inputs).and_then(|inputs| layouts(outputs).map(|outputs| (inputs, outputs)));
            let (inputs, outputs) = read.map_err(|(found, needed)| CostError::TableRow {
                file: file.to_owned(),
                row,
                op: op.clone(),
                found,
                needed,
            })?;
            rows.push((Signature { op, inputs, outputs }, Millis(ms)));
        }
        Self::checked(file, &document.device, rows)
    }

    /// The text of the table: one line for each operator.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = format!(
            "{{\n  \"format\": \"{TABLE_FORMAT}\",\n  \"version\": {TABLE_VERSION},\n  \"device\": {},\n  \"ops\": [",
            one_line(&self.device),
        );
        for (index, (signature, time)) in self.rows.iter().enumerate() {
            let row = Row {
                op: signature.op.clone(),
                inputs: signature.inputs.iter().map(LayoutRow::of).collect(),
                outputs: signature.outputs.iter().map(LayoutRow::of).collect(),
                ms: time.0,
            };
            json += if index == 0 { "\n    " } else { ",\n    " };
            json += &one_line(&row);
        }
        json + if self.rows.is_empty() { "]\n}\n" } else { "\n  ]\n}\n" }
    }

    /// Writes the table.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), CostError> {
        std::fs::write(path, self.to_json()).map_err(|source| CostError::TableFile {
            verb: "write",
            path: path.to_owned(),
            source,
        })
    }

    /// What it was measured on, for people.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What was measured, in the order in which it was given.
    #[must_use]
    pub fn rows(&self) -> &[(Signature, Millis)] {
        &self.rows
    }

    /// The time of an operator; the signature must match exactly.
    #[must_use]
    pub fn time(&self, signature: &Signature) -> Option<Millis> {
        self.index.get(signature).map(|row| self.rows[*row].1)
    }
}

/// Texts, lists and finite numbers always have a JSON form.
fn one_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
