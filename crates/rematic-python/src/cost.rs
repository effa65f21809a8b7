use std::path::PathBuf;

use pyo3::prelude::*;
use rematic::options::DEVICE;
use rematic::{CostRule, CostSource, Dtype, Millis, Signatures, Target};
use rematic_trace::Layout;

use crate::error::{RematicError, cost_exception, exception};
use crate::trace::{LayoutTuple, Trace, layout_tuple};

/// What an operator's time depends on, and how many operators of a step have it.
#[pyclass(frozen, get_all, module = "rematic")]
pub(crate) struct Signature {
    /// Its name with overload (`mm.default`).
    op: String,
    /// What it reads: layouts as (dtype, shape, strides).
    inputs: Vec<LayoutTuple>,
    /// What it returns.
    outputs: Vec<LayoutTuple>,
    /// Operators of the step that have it.
    count: usize,
}

#[pymethods]
impl Signature {
    fn __repr__(&self) -> String {
        let text = |layouts: &[LayoutTuple]| -> String {
            layouts.iter().map(|(dtype, shape, _)| format!("{dtype}{shape:?}")).collect::<Vec<_>>().join(", ")
        };
        format!("<rematic.Signature {}({}) -> {}, {}×>", self.op, text(&self.inputs), text(&self.outputs), self.count)
    }
}

/// The distinct signatures of a step, in the order in which they run first, without those for which no kernel runs.
#[pyfunction]
pub(crate) fn signatures(py: Python<'_>, trace: &Trace) -> Vec<Signature> {
    let signatures = py.detach(|| Signatures::new(&trace.step));
    let tuples = |layouts: &[Layout]| layouts.iter().map(layout_tuple).collect();
    let signature = |(signature, count): &(rematic::Signature, usize)| Signature {
        op: signature.op.clone(),
        inputs: tuples(&signature.inputs),
        outputs: tuples(&signature.outputs),
        count: *count,
    };
    signatures.all().iter().map(signature).collect()
}

/// For each signature of a step, in their order, the share of the step's time that the physical rule gives to the
/// operators that have it.
#[pyfunction]
pub(crate) fn modelled_shares(py: Python<'_>, trace: &Trace) -> PyResult<Vec<f64>> {
    let target = Target::find(DEVICE, None, CostSource::Rule(CostRule::Physical)).map_err(exception)?;
    let shares = py.detach(|| target.costs(&trace.step).map(|costs| costs.shares(&Signatures::new(&trace.step))));
    shares.map_err(exception)
}

/// Measured times of operators on one device.
#[pyclass(frozen, eq, module = "rematic")]
#[derive(PartialEq)]
pub(crate) struct CostTable {
    pub(crate) table: rematic::CostTable,
}

#[pymethods]
impl CostTable {
    /// A table from what was measured: (signature, milliseconds) for each.
    #[new]
    fn new(device: &str, rows: Vec<(PyRef<'_, Signature>, f64)>) -> PyResult<Self> {
        let row = |(signature, ms): &(PyRef<'_, Signature>, f64)| -> PyResult<(rematic::Signature, Millis)> {
            let (inputs, outputs) = (layouts(&signature.inputs)?, layouts(&signature.outputs)?);
            Ok((rematic::Signature { op: signature.op.clone(), inputs, outputs }, Millis(*ms)))
        };
        let rows = rows.iter().map(row).collect::<PyResult<Vec<_>>>()?;
        let table = rematic::CostTable::new(device, rows).map_err(cost_exception)?;
        Ok(CostTable { table })
    }

    /// Reads a table from a file.
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Self> {
        Ok(CostTable { table: rematic::CostTable::read(&path).map_err(cost_exception)? })
    }

    /// Reads the text of a table.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        Ok(CostTable { table: rematic::CostTable::from_json(text, "the table").map_err(cost_exception)? })
    }

    /// Writes the table to a file.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        self.table.write(&path).map_err(cost_exception)
    }

    /// The text of the table.
    fn to_json(&self) -> String {
        self.table.to_json()
    }

    /// What it was measured on.
    #[getter]
    fn device(&self) -> &str {
        self.table.device()
    }

    fn __len__(&self) -> usize {
        self.table.rows().len()
    }

    fn __repr__(&self) -> String {
        format!("<rematic.CostTable of {}: {} operators>", self.table.device(), self.table.rows().len())
    }
}

fn layouts(tuples: &[LayoutTuple]) -> PyResult<Vec<Layout>> {
    let layout = |(dtype, shape, strides): &LayoutTuple| {
        let dtype: Dtype = dtype.parse().map_err(|()| RematicError::new_err(format!("`{dtype}` is not a type")))?;
        Ok(Layout { dtype, shape: shape.clone(), strides: strides.clone() })
    };
    tuples.iter().map(layout).collect()
}
