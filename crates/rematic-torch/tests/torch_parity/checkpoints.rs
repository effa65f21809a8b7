//! Replays under a checkpointing plan against MemTracker's totals of the same step with `torch.utils.checkpoint`, operator
//! by operator. `tests/oracle/make_checkpoints.py` writes the fixture.

use std::path::Path;

use rematic_replay::{Allocator, Checkpoint, Ledger, Ran, Regions, Schedule};
use rematic_trace::{OpId, StepTrace};
use serde::Deserialize;

use crate::fixture::Setup;

#[derive(Deserialize)]
struct Steps {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    setup: Setup,
    /// The modules that are checkpointed, without the root's name.
    units: Vec<String>,
    /// The operators whose outputs are saved.
    saved: Vec<String>,
    timeline: Vec<(String, u64)>,
}

impl Case {
    fn checkpoints(&self, trace: &StepTrace, regions: &Regions) -> Vec<Checkpoint> {
        let is_saved = |op: &OpId| self.saved.iter().any(|name| name == trace.op_name(trace.op(*op)));
        let inner = |path: &str| path.split_once('.').map(|(_, inner)| inner.to_owned());
        let all = regions.all().entries();
        all.filter(|(_, region)| inner(&trace.path(region.module)).is_some_and(|path| self.units.contains(&path)))
            .map(|(id, region)| Checkpoint::new(id, region.ops.clone().map(OpId::new).filter(is_saved).collect()))
            .collect()
    }
}

#[test]
fn checkpointed_steps_equal_torch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints.json.zst");
    let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let steps: Steps = serde_json::from_slice(&text).unwrap();
    assert_eq!(steps.cases.len(), 15);
    for case in &steps.cases {
        let trace = case.setup.model().trace().unwrap();
        let regions = Regions::new(&trace);
        let checkpoints = case.checkpoints(&trace, &regions);
        assert_eq!(checkpoints.len(), case.units.len());
        let start = Ledger::new(&trace, Allocator::Cuda);
        let mut found = Vec::new();
        Schedule::planned(&trace, &start, &regions, &checkpoints).replay(&mut |ran: Ran, ledger: &Ledger| {
            found.push((trace.op_name(trace.op(ran.op)).to_owned(), ledger.snapshot().total().0));
        });
        found.retain(|(name, _)| name != "detach.default");
        let place = (0..found.len().max(case.timeline.len())).find(|&at| found.get(at) != case.timeline.get(at));
        let said = |at: usize| format!("{at}: {:?}, but torch says {:?}", found.get(at), case.timeline.get(at));
        assert!(place.is_none(), "{:?} saving {:?}: {}", case.units, case.saved, said(place.unwrap_or(0)));
    }
}
