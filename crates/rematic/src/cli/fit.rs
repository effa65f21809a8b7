//! The verb `fit`.

use super::arguments::FitArguments;
use super::planning::INFEASIBLE;
use super::{Answer, Failure, Warnings, known_devices, style};
use crate::{Error, FitRequest, Fixed, Limits, Source, SourceSteps, Steps};
use rematic_trace::Opt;

/// What `fit` works out itself, or has no use for.
const NOT_FOR_FIT: [&str; 3] = ["replicate", "fsdp-rank", "tp-rank"];

pub(crate) fn fit(arguments: &FitArguments, given: &[String], warnings: Warnings) -> Result<Answer, Failure> {
    if let Some(option) = NOT_FOR_FIT.into_iter().find(|option| given.iter().any(|given| given == option)) {
        return Err(Error::NotForFit { option: Opt(option) }.into());
    }
    let source = &arguments.step.source;
    source.recipe.check()?;
    if source.chooses_resharding() {
        return Err(Error::ReshardingChosen.into());
    }
    let options = source.options();
    let (gpus, tp) = source.gpus();
    let fixed = Fixed {
        batch: options.batch,
        seq: options.seq,
        gpus: arguments.gpus.or(gpus),
        tp,
        device: given.iter().any(|given| given == "device"),
    };
    let tries_chunks = source.recipe.chooses_loss();
    let steps =
        SourceSteps { name: source.source.clone(), source: Source::open(&source.source)?, options, tries_chunks };
    if tries_chunks && !steps.can_chunk() {
        return Err(Error::LossOfFit.into());
    }
    let target = arguments.step.target()?;
    if let Source::Trace(_) = &steps.source {
        let saved = steps.source.clone().trace(&steps.options)?;
        warnings.warn_if(target.attention_warning(&saved));
    }
    let request = FitRequest {
        steps: &steps,
        sharding: source.spreading(),
        target,
        devices: known_devices(arguments.step.device.device_file.as_deref())?.all().to_vec(),
        fixed,
        limits: Limits::default(),
    };
    let found = request.answer()?;
    let text = if arguments.json { found.json() } else { found.text(style(&std::io::stdout())) };
    Ok(Answer { text, code: if found.fits() { 0 } else { INFEASIBLE } })
}
