//! Runs of calls in a document, and those of a step.

use std::collections::HashMap;
use std::path::Path;

use rematic_replay::{RegionId, Regions, chains};
use rematic_trace::{CallId, StepTrace};
use serde::{Deserialize, Serialize};

use super::{DocumentError, PlanDocument, PlannedRegion, RUNS_VERSION, SINGLE_VERSION};

/// A call of a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedCall {
    /// The module's full name.
    pub module: String,
    /// Which of the module's calls in the step; the first is 0.
    pub call: usize,
}

impl PlannedRegion {
    /// Its calls, in order: their modules and which of the calls they are.
    pub fn calls(&self) -> impl Iterator<Item = (&str, usize)> {
        let then = self.then.iter().map(|call| (call.module.as_str(), call.call));
        std::iter::once((self.module.as_str(), self.call)).chain(then)
    }

    /// What it is called in messages: its module, and that of its last call.
    #[must_use]
    pub fn name(&self) -> String {
        match self.then.last() {
            Some(last) => format!("{}` to `{}", self.module, last.module),
            None => self.module.clone(),
        }
    }
}

/// The version of a document with these regions and without variants.
pub(super) fn version(regions: &[PlannedRegion]) -> u32 {
    if regions.iter().any(|region| !region.then.is_empty()) { RUNS_VERSION } else { SINGLE_VERSION }
}

impl PlanDocument {
    /// Checks what documents with runs have and others have not.
    pub(super) fn check_runs(&self, path: &Path) -> Result<(), DocumentError> {
        let all = self.regions.iter().chain(self.variants.iter().flat_map(|variant| &variant.regions));
        let mut runs = all.filter(|region| !region.then.is_empty());
        match runs.next() {
            Some(_) if self.version < RUNS_VERSION => {
                Err(DocumentError::RunsVersion { path: path.to_owned(), found: self.version })
            }
            Some(run) if !self.variants.is_empty() => {
                Err(DocumentError::RunsInVariants { path: path.to_owned(), module: run.name() })
            }
            _ => Ok(()),
        }
    }

    /// The runs of the plan among the regions of a step, by their places in it. What cannot be checkpointed has none.
    pub(super) fn runs(&self, trace: &StepTrace, regions: &Regions) -> Result<HashMap<usize, RegionId>, DocumentError> {
        let planned = || self.regions.iter().enumerate().filter(|(_, region)| !region.then.is_empty());
        if planned().next().is_none() {
            return Ok(HashMap::new());
        }
        let calls = calls_of(trace);
        let mut follows: HashMap<CallId, CallId> = HashMap::new();
        for chain in chains(trace) {
            follows.extend(chain.windows(2).map(|pair| (pair[0], pair[1])));
        }
        let mut places: HashMap<CallId, usize> = HashMap::new();
        let mut runs = Vec::new();
        for (at, run) in planned() {
            let mut found: Vec<CallId> = Vec::new();
            for (module, call) in run.calls() {
                let known = calls.get(module).map_or(&[][..], Vec::as_slice);
                let Some(&id) = known.get(call) else {
                    let (planned, module, calls) = (self.source.clone(), module.to_owned(), known.len());
                    return Err(DocumentError::UnknownRegion { planned, module, call, calls });
                };
                if found.last().is_some_and(|last| follows.get(last) != Some(&id)) {
                    let (run, module) = (run.name(), module.to_owned());
                    return Err(DocumentError::NotARun { planned: self.source.clone(), run, module });
                }
                found.push(id);
            }
            places.extend(found.first().map(|first| (*first, at)));
            runs.push(found);
        }
        let with_runs = Regions::with_runs(trace, runs);
        let made = with_runs.all().iter().filter(|region| !region.then.is_empty());
        Ok(made.filter_map(|run| Some((*places.get(&run.call)?, regions.add(run.clone())))).collect())
    }
}

/// The calls of every module, by its full name, in order.
fn calls_of(trace: &StepTrace) -> HashMap<String, Vec<CallId>> {
    let mut of_module = trace.modules().filled(Vec::new());
    for (id, call) in trace.calls().entries() {
        of_module[call.module].push(id);
    }
    of_module.entries().map(|(module, calls)| (trace.path(module), calls.clone())).collect()
}
