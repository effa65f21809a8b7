//! What torch's trackers count while a program runs.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rematic_torch::{Direction, Usage};

fn direction(backward: bool) -> Direction {
    if backward { Direction::Backward } else { Direction::Forward }
}

/// Bytes in use by device and kind. Snapshots are torch's: a dictionary by device of dictionaries by kind, with the keys
/// that were given.
#[pyclass(module = "rematic._core")]
pub(crate) struct Tally {
    tally: rematic_torch::Tally,
    kinds: Vec<Py<PyAny>>,
    total: Py<PyAny>,
    devices: Vec<Py<PyAny>>,
}

impl Tally {
    fn snapshot_of<'py>(&self, py: Python<'py>, usage: &Usage) -> PyResult<Bound<'py, PyDict>> {
        let snapshot = PyDict::new(py);
        for (device, row) in &usage.0 {
            let rows = PyDict::new(py);
            for (kind, bytes) in self.kinds.iter().chain([&self.total]).zip(row) {
                rows.set_item(kind, bytes)?;
            }
            if let Some(device) = self.devices.get(*device) {
                snapshot.set_item(device, rows)?;
            }
        }
        Ok(snapshot)
    }
}

#[pymethods]
impl Tally {
    /// Nothing in use yet; the keys of kinds, and of the total.
    #[new]
    fn new(kinds: Vec<Py<PyAny>>, total: Py<PyAny>) -> Self {
        Tally { tally: rematic_torch::Tally::new(kinds.len()), kinds, total, devices: Vec::new() }
    }

    /// A device, the key of its snapshots, whose storages take whole blocks of so many bytes. Returns its number.
    fn add_device(&mut self, device: Py<PyAny>, block: u64) -> usize {
        self.devices.push(device);
        self.tally.add_device(block)
    }

    /// What an operator returned. Returns whether the storage is new.
    fn see(&mut self, storage: u64, device: usize, size: u64, kind: usize) -> bool {
        self.tally.see(storage, device, size, kind)
    }

    /// Says what a storage is for. Returns whether it is new.
    fn mark(&mut self, storage: u64, device: usize, size: u64, kind: usize) -> bool {
        self.tally.mark(storage, device, size, kind)
    }

    fn is_known(&self, storage: u64) -> bool {
        self.tally.is_known(storage)
    }

    fn bytes_of(&self, storage: u64) -> u64 {
        self.tally.bytes_of(storage)
    }

    fn resize(&mut self, storage: u64, size: u64) {
        self.tally.resize(storage, size);
    }

    fn remove(&mut self, storage: u64) {
        self.tally.remove(storage);
    }

    /// What is in use now.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.snapshot_of(py, self.tally.usage())
    }

    /// What was in use where each device's total was highest.
    fn peak<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.snapshot_of(py, self.tally.peak())
    }

    fn restart_peak(&mut self) {
        self.tally.restart_peak();
    }

    fn enter(&mut self, name: &str) {
        self.tally.enter(name);
    }

    fn leave(&mut self, name: &str) {
        self.tally.leave(name);
    }

    fn leave_all(&mut self) {
        self.tally.leave_all();
    }

    fn watch(&mut self, name: &str) -> usize {
        self.tally.watch(name)
    }

    fn unwatch_all(&mut self) {
        self.tally.unwatch_all();
    }

    fn begin(&mut self, scope: usize, backward: bool) -> bool {
        self.tally.begin(scope, direction(backward))
    }

    fn peak_of<'py>(&self, py: Python<'py>, scope: usize, backward: bool) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.tally.peak_of(scope, direction(backward)).map(|usage| self.snapshot_of(py, usage)).transpose()
    }

    fn highest_of<'py>(&self, py: Python<'py>, scope: usize) -> PyResult<Bound<'py, PyDict>> {
        let highest = PyDict::new(py);
        for (device, total) in self.tally.highest_of(scope) {
            if let Some(device) = self.devices.get(*device) {
                highest.set_item(device, total)?;
            }
        }
        Ok(highest)
    }

    fn observe(&mut self, backward: bool) {
        self.tally.observe(direction(backward));
    }
}

/// Milliseconds by module.
#[pyclass(module = "rematic._core")]
pub(crate) struct Runtimes(rematic_torch::Runtimes);

#[pymethods]
impl Runtimes {
    #[new]
    fn new() -> Self {
        Runtimes(rematic_torch::Runtimes::default())
    }

    fn enter(&mut self, name: &str) {
        self.0.enter(name);
    }

    fn leave(&mut self, name: &str) {
        self.0.leave(name);
    }

    fn leave_all(&mut self) {
        self.0.leave_all();
    }

    fn add(&mut self, millis: f64, backward: bool) {
        self.0.add(millis, direction(backward));
    }

    fn total(&self) -> f64 {
        self.0.total()
    }

    /// Name, milliseconds in forward and in backward; None where it ran no operator.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.rows().map(|row| (row.name.as_str(), row.forward, row.backward)).collect::<Vec<_>>())
    }
}

/// Milliseconds of an operator by torch's roofline.
#[pyfunction]
pub(crate) fn torch_roofline(flops: f64, tflops: f64, bytes: f64, gigabytes_per_second: f64) -> f64 {
    rematic_torch::torch_roofline(flops, tflops, bytes, gigabytes_per_second)
}
