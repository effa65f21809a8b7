use rematic_report::{FitAnswer, FitFound, FitValue};

use super::axis::Axis;
use super::bench::Bench;
use super::setup::Setup;
use crate::error::Error;

/// Ranks that share a model: those of a node, or fewer where its heads do not divide.
const SHARING: [u32; 3] = [8, 4, 2];

impl Bench<'_> {
    /// The fewest GPUs; where a node is not enough, also with those of a node sharing the model.
    pub(crate) fn fewest(&self, base: &Setup) -> Result<FitAnswer, Error> {
        let alone = self.answer(&Axis::gpus(base))?;
        let request = &self.request;
        if base.tp > 1 || request.fixed.tp.is_some() || !request.steps.varies_tp() {
            return Ok(alone);
        }
        let node = base.device.links.per_node;
        let shared = SHARING.into_iter().map(|tp| Setup { tp, gpus: tp, ..base.clone() });
        let Some(shared) = shared.filter(|setup| setup.tp <= node).find(|setup| self.can_be(setup)) else {
            return Ok(alone);
        };
        let axis = Axis::gpus(&shared);
        let fewer = |found: FitFound, planned: bool| -> Result<FitFound, Error> {
            // Within a node there is little to win.
            if gpus(&found).is_some_and(|count| count <= u64::from(node)) {
                return Ok(found);
            }
            let other = self.found(&axis, planned)?;
            let is_less = gpus(&other).is_some_and(|count| gpus(&found).is_none_or(|known| count < known));
            Ok(if is_less { other } else { found })
        };
        let FitAnswer { question, as_it_is, with_a_plan } = alone;
        let (as_it_is, with_a_plan) = rayon::join(|| fewer(as_it_is, false), || fewer(with_a_plan, true));
        Ok(FitAnswer { question, as_it_is: as_it_is?, with_a_plan: with_a_plan? })
    }

    /// As many GPUs as the first set-up needs, if only with a plan, shared as they are then; one where none is enough.
    pub(crate) fn home(&self, base: &Setup, few: &FitAnswer) -> Setup {
        let found = [&few.with_a_plan, &few.as_it_is].into_iter().find(|found| gpus(found).is_some());
        let set = found.and_then(|found| Some((u32::try_from(gpus(found)?).ok()?, found.setup.as_ref()?.tp)));
        let (gpus, tp) = set.unwrap_or((base.gpus, base.tp));
        Setup { gpus, tp, ..base.clone() }
    }
}

fn gpus(found: &FitFound) -> Option<u64> {
    match found.value {
        Some(FitValue::Count(gpus)) => Some(gpus),
        _ => None,
    }
}
