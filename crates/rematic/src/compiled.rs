//! What a model takes under `torch.compile`. The compiler decides that when it has seen the step, so the step is rehearsed.

use std::fs;

use rematic_fake::Optimizer;
use rematic_fake::models::{Options, Recipe};
use rematic_rehearsal::{Rehearsal, RehearsalError};
use rematic_report::Compiled;
use rematic_trace::{Bytes, Dtype, Opt, StepTrace};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::foreign::pythons;
use crate::source::Source;
use crate::target::{CONTEXT, Target, UNLIMITED, card};

/// What Python runs.
const MODULE: &str = "rematic._hugging_face.compiled";
/// More optimizer steps than the script makes: it ends by itself.
const STEPS: u32 = 100;

/// What the script writes: the peaks from its second step on.
#[derive(Deserialize)]
struct Found {
    allocated: u64,
    reserved: u64,
}

/// Trains the model of a source under `torch.compile` on a GPU that is not there, with as much memory as it wants. Its step without
/// that is `trace`.
///
/// # Errors
/// If there is no config to build it from, an option is not known there, or Python cannot run it.
pub fn rehearse_compiled(name: &str, options: &Options, trace: &StepTrace, target: &Target) -> Result<Compiled, Error> {
    if let Some(option) = unknown(options, target) {
        return Err(Error::NotCompiled { option });
    }
    let config = Source::config(name)?.ok_or_else(|| Error::NoConfig { name: name.to_owned() })?;
    let failed = |reason: String| Error::Compile { name: name.to_owned(), reason };
    let request = request(name, &config, options, trace).map_err(|error| failed(error.to_string()))?;
    let folder = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
    let (asked, found) = (folder.path().join("request.json"), folder.path().join("found.json"));
    fs::write(&asked, request.to_string()).map_err(|error| failed(error.to_string()))?;
    for python in pythons() {
        let command = [python, "-m".into(), MODULE.into(), asked.clone().into(), found.clone().into()];
        let rehearsal = Rehearsal {
            command: &command,
            card: rematic_rehearsal::Card { usable: UNLIMITED.0, ..card(&target.device, CONTEXT)? },
            gpus: None,
            rank: 0,
            steps: STEPS,
            snapshot: None,
            alloc_conf: None,
        };
        match rehearsal.run() {
            Ok(run) => {
                let text = fs::read_to_string(&found).map_err(|error| failed(error.to_string()))?;
                let Found { allocated, reserved } =
                    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
                let torch = run.record.torch.unwrap_or_default();
                return Ok(Compiled { allocated_bytes: Bytes(allocated), reserved_bytes: Bytes(reserved), torch });
            }
            Err(RehearsalError::Start { .. }) => {}
            Err(RehearsalError::Script { last, .. }) => {
                return Err(failed(last.trim_start_matches(": ").to_owned()));
            }
            Err(other) => return Err(other.into()),
        }
    }
    Err(failed(format!("no Python with PyTorch, transformers and rematic was found; name one in {}", crate::PYTHON)))
}

/// The first option that the script does not know.
fn unknown(options: &Options, target: &Target) -> Option<Opt> {
    let Options { attention, dim, heads, vocab, tp, recipe, .. } = options;
    let others = [
        ("attention", attention.is_some_and(|kernel| kernel != Default::default())),
        ("dim", dim.is_some()),
        ("heads", heads.is_some()),
        ("vocab", vocab.is_some()),
        ("tp", tp.is_some()),
        ("world-size", target.ranks > 1),
        ("alloc-conf", target.asks_for_settings),
    ];
    let other = others.into_iter().find(|(_, given)| *given).map(|(name, _)| Opt(name));
    other.or_else(|| Recipe { autocast: None, ..recipe.clone() }.given())
}

/// What Python is asked: the step as it was traced.
fn request(name: &str, config: &str, options: &Options, trace: &StepTrace) -> Result<Value, serde_json::Error> {
    let spelled = |dtype: Dtype| dtype.spelled().to_string();
    let origin = &trace.origin;
    Ok(json!({
        "name": name,
        "config": serde_json::from_str::<Value>(config.strip_prefix('\u{feff}').unwrap_or(config))?,
        "batch": origin.batch,
        "seq": origin.seq,
        "dtype": origin.precision.map(spelled),
        "optimizer": origin.optimizer.clone().unwrap_or_else(|| Optimizer::AdamWFused.to_string()),
        "attention": "auto",
        "layers": options.layers,
        "dropout": options.dropout,
        "autocast": options.recipe.autocast.map(spelled),
    }))
}
