//! What PyTorch's allocator would reserve for a step, plain or under plans: the predictions of `tests/allocator/predictions`.
//!
//!     cargo run --release -p rematic --example reserved -- STEP.rmt h100 [--bytes N] [--requests FILE] [- | PLAN.json]…
//!
//! One line of JSON for each plan, `-` for the plain step. `--bytes` is what the device has for the allocator; `--requests`
//! writes down all that is asked of it: operator, its number, address, and bytes if they are taken.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use rematic::{Allocator, CostRule, CostSource, Options, PlanDocument, Source, StepTrace, Target};
use rematic_allocator::Device;
use rematic_replay::{Ledger, Regions, Request, Reserved, Schedule};

/// More than any device has.
const UNLIMITED: u64 = 1 << 50;

#[allow(clippy::print_stdout, reason = "the answer")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(step), Some(device)) = (arguments.next(), arguments.next()) else {
        return Err("usage: reserved STEP.rmt DEVICE [--bytes N] [--requests FILE] [- | PLAN.json]…".into());
    };
    let trace = Source::open(&step)?.trace(&Options::default())?;
    let target = Target::find(&device, None, CostSource::Rule(CostRule::Physical))?;
    let scratch = target.scratch(&trace);
    let start = Ledger::new(&trace, Allocator::Cuda);
    let regions = Regions::new(&trace);
    let (mut bytes, mut requests) = (UNLIMITED, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bytes" => bytes = arguments.next().ok_or("--bytes N")?.parse()?,
            "--requests" => requests = Some(arguments.next().ok_or("--requests FILE")?),
            plan => {
                let checkpoints = match plan {
                    "-" => Vec::new(),
                    path => PlanDocument::read(Path::new(path))?.for_step(&trace, &regions)?.1,
                };
                let schedule = Schedule::planned(&trace, &start, &regions, &checkpoints);
                let device = Device::with_memory(bytes);
                match Reserved::recorded(&trace, &schedule, target.settings.clone(), device, &scratch) {
                    Ok((reserved, asked)) => {
                        let counters = reserved.counters;
                        println!(
                            "{{\"plan\": \"{plan}\", \"requested\": {}, \"allocated\": {}, \"reserved\": {}, \"retries\": {}}}",
                            counters.requested.peak, counters.allocated.peak, counters.reserved.peak, counters.retries
                        );
                        if let Some(file) = &requests {
                            std::fs::write(file, listed(&trace, &asked))?;
                        }
                    }
                    Err(error) => println!("{{\"plan\": \"{plan}\", \"error\": \"{error}\"}}"),
                }
            }
        }
    }
    Ok(())
}

fn listed(trace: &StepTrace, requests: &[Request]) -> String {
    let mut text = String::new();
    for Request { op, takes, address } in requests {
        let name = op.map_or("", |op| trace.op_name(trace.op(op)));
        let number = op.map_or(0, |op| op.index());
        let bytes = takes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(text, "{name} {number}\t{address}\t{bytes}");
    }
    text
}
