//! The verb `rehearse`.

use super::arguments::RehearseArguments;
use super::planning::INFEASIBLE;
use super::{Answer, Failure, known_devices, style};
use crate::target::context;
use crate::{Bytes, Card, Device, Error, Rehearsal, RehearsalReport, Settings};

pub(crate) fn rehearse(arguments: &RehearseArguments) -> Result<Answer, Failure> {
    let devices = known_devices(arguments.device_file.as_deref())?;
    let device = devices.find(&arguments.device).map_err(Error::from)?;
    if let Some(settings) = &arguments.alloc_conf {
        settings.parse::<Settings>().map_err(Error::from)?;
    }
    let context = context(arguments.gpus.unwrap_or(1).into());
    let rehearsal = Rehearsal {
        command: &arguments.command,
        card: card(device, context)?,
        gpus: arguments.gpus,
        rank: arguments.rank,
        steps: arguments.steps,
        snapshot: arguments.snapshot.as_deref(),
        alloc_conf: arguments.alloc_conf.as_deref(),
    };
    let run = rehearsal.run().map_err(Error::from)?;
    let command: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let report = RehearsalReport {
        command: &command,
        device,
        context,
        record: &run.record,
        ranks: (run.world_size, arguments.rank),
        snapshot: arguments.snapshot.as_deref(),
    };
    if let Some(path) = &arguments.output {
        std::fs::write(path, report.html()).map_err(|source| Error::Write { path: path.clone(), source })?;
    }
    let text = if arguments.json { report.json() } else { report.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: if report.fits() { 0 } else { INFEASIBLE } })
}

fn card(device: &Device, context: Bytes) -> Result<Card, Error> {
    let (capability, processors) = device.chip.ok_or_else(|| Error::NoChip { device: device.name.clone() })?;
    Ok(Card { name: device.product.clone(), capability, processors, usable: device.usable.0, context: context.0 })
}
