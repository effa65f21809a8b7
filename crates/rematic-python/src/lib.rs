//! The native module `rematic._core`: converts between Python and Rust, and computes nothing itself.

mod compat;
mod cost;
mod curve;
mod device;
mod error;
mod explain;
mod fit;
mod live;
mod option;
mod plan;
mod replay;
mod report;
mod study;
mod trace;
mod variant;
mod work;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command line with these arguments, the first of which is its name, and returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let before = rematic_trace::speak_python(false);
        let code = rematic::cli::run(arguments);
        rematic_trace::speak_python(before);
        code
    })
}

/// What is written in Rust.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    rematic_trace::speak_python(true);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DEFAULT_DEVICE", rematic::options::DEVICE)?;
    error::register(module)?;
    module.add_class::<trace::Trace>()?;
    module.add_class::<trace::Op>()?;
    module.add_class::<trace::Module>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<plan::Region>()?;
    module.add_class::<variant::Variant>()?;
    module.add_class::<replay::Replay>()?;
    module.add_class::<curve::Curve>()?;
    module.add_class::<curve::CurvePoint>()?;
    module.add_class::<explain::Explanation>()?;
    module.add_class::<fit::Fit>()?;
    module.add_class::<cost::CostTable>()?;
    module.add_class::<cost::Signature>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)?;
    module.add_function(wrap_pyfunction!(curve::curve, module)?)?;
    module.add_function(wrap_pyfunction!(fit::fit, module)?)?;
    module.add_function(wrap_pyfunction!(replay::replay, module)?)?;
    module.add_function(wrap_pyfunction!(explain::explain, module)?)?;
    module.add_function(wrap_pyfunction!(report::report, module)?)?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_function(wrap_pyfunction!(device::card_kind, module)?)?;
    module.add_function(wrap_pyfunction!(cost::signatures, module)?)?;
    module.add_function(wrap_pyfunction!(cost::modelled_shares, module)?)?;
    module.add_function(wrap_pyfunction!(compat::sac_milp, module)?)?;
    module.add_function(wrap_pyfunction!(compat::optimal_policy, module)?)?;
    module.add_function(wrap_pyfunction!(compat::greedy_order, module)?)?;
    module.add_function(wrap_pyfunction!(compat::tradeoff_curve, module)?)?;
    module.add_function(wrap_pyfunction!(live::torch_roofline, module)?)?;
    module.add_class::<live::Tally>()?;
    module.add_class::<live::Runtimes>()?;
    Ok(())
}
