use std::io;

use rematic_cost::Costs;
use rematic_replay::Recording;
use rematic_trace::{Category, StepTrace};

/// Writes a step as it ran as a table with commas (RFC 4180): one row per operator in the order of execution, with the
/// bytes in use right after it, in total and per category. A name that a spreadsheet would take for a formula has an
/// apostrophe before it.
///
/// # Errors
/// If the writer fails.
pub fn timeline_csv(
    trace: &StepTrace,
    costs: &Costs,
    recording: &Recording,
    writer: &mut impl io::Write,
) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(writer);
    let columns = ["index", "op", "module", "phase", "again", "time_ms", "total_bytes"].map(str::to_owned);
    table.write_record(columns.into_iter().chain(Category::ALL.map(|category| format!("{category}_bytes"))))?;
    for (index, (ran, snapshot)) in recording.runs.iter().zip(&recording.snapshots).enumerate() {
        let op = trace.op(ran.op);
        let fields = [
            index.to_string(),
            inert(trace.op_name(op).to_owned()),
            inert(trace.module_of(op).map_or_else(String::new, |module| trace.path(module))),
            op.phase.to_string(),
            ran.again.to_string(),
            costs.time(ran.op).0.to_string(),
            snapshot.total().0.to_string(),
        ];
        table.write_record(fields.into_iter().chain(snapshot.iter().map(|(_, bytes)| bytes.0.to_string())))?;
    }
    table.flush()
}

/// A name as text, whatever it begins with: traces may come from anywhere.
fn inert(name: String) -> String {
    if name.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{name}") } else { name }
}
