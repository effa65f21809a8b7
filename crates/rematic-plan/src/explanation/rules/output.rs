use rematic_trace::{Category, Millis, StorageId};

use super::super::remedy::{Numerics, Proposal, RemedyKind};
use super::super::scenario::{Change, Scale};
use super::Step;

/// The output of the previous step, which the training loop's variable holds until the next forward returns.
///
/// Assumes that nothing else of the previous step is read: what is counted as an activation and exists before the step can
/// only be that.
pub(super) fn previous_output(step: &Step<'_>) -> Option<Proposal> {
    let storages = step.trace.storages().iter().enumerate();
    let previous = storages.filter(|(_, storage)| storage.birth.is_none() && storage.category == Category::Activation);
    let scales: Vec<_> = previous.map(|(index, _)| (StorageId::new(index), Scale::NOTHING)).collect();
    if scales.is_empty() {
        return None;
    }
    Some(Proposal {
        kind: RemedyKind::PreviousOutput,
        title: "Let go of the previous step's output".to_owned(),
        how: "delete the variable that holds it (`del output`) before the next forward".to_owned(),
        assumption: "Nothing reads it any more".to_owned(),
        extra: Some(Millis(0.0)),
        numerics: Numerics::Same,
        change: Change { scales, ..Change::default() },
    })
}
