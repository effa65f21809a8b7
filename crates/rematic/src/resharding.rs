use rematic_layout::{Fsdp2, fsdp2, layers};
use rematic_plan::Limits;
use rematic_trace::{Bytes, StepTrace, Verdict};

use crate::error::Error;
use crate::planning::{PlanAnswer, Planner};
use crate::study::Study;
use crate::target::Target;

/// So many numbers of layers are tried between none and all of them.
const PARTS: u32 = 8;

/// Which weights stay gathered between forward and backward, and what is recomputed: one question, for both take memory to spare time.
///
/// What stays gathered need not be gathered again. The last layers are the first in backward: their weights wait the shortest. So the
/// answer is how many of the last layers stay; for each number that is tried the step is sharded anew, planned and timed.
#[derive(Clone, Copy)]
pub struct Resharding<'a> {
    /// The step of the whole model.
    pub whole: &'a StepTrace,
    /// What it is for.
    pub target: &'a Target,
    /// What may be planned.
    pub limits: &'a Limits,
    /// How to plan.
    pub planner: Planner,
    /// The most memory that tensors may take; `None` for what fits the device.
    pub budget: Option<Bytes>,
}

impl Resharding<'_> {
    /// The plan of the fastest step, and among equals the one that keeps the fewest weights. It is never slower than the best plan with all
    /// weights resharded, or with none. Where nothing fits, all are resharded.
    ///
    /// # Errors
    /// As [`Study::new`] and [`Study::plan`], and if the step cannot be sharded.
    pub fn plan(&self, how: Fsdp2) -> Result<PlanAnswer, Error> {
        let units = layers(self.whole);
        let count = u32::try_from(units.len()).unwrap_or(u32::MAX);
        let ask = |gathered: u32| {
            // What stays everywhere has a name of its own.
            let how = Fsdp2 { reshard: gathered < count || count == 0, gathered, ..how };
            let step = fsdp2(self.whole, &how, &units)?;
            Study::new(step, self.target.clone(), self.limits.clone())?.plan(self.planner, self.budget)
        };
        let mut best = ask(0)?;
        for gathered in tried(count) {
            let found = ask(gathered)?;
            let fits = |answer: &PlanAnswer| answer.verdict != Verdict::Infeasible;
            if fits(&found) && (!fits(&best) || found.pace.step.0 < best.pace.step.0) {
                best = found;
            }
        }
        Ok(best)
    }
}

/// Numbers of layers above none, ascending.
fn tried(layers: u32) -> Vec<u32> {
    let part = |part: u32| u32::try_from(u64::from(layers) * u64::from(part) / u64::from(PARTS)).unwrap_or(layers);
    let mut tried: Vec<u32> = std::iter::once(1).chain((1..=PARTS).map(part)).filter(|part| *part > 0).collect();
    tried.retain(|count| *count <= layers);
    tried.sort_unstable();
    tried.dedup();
    tried
}

#[cfg(test)]
mod tests {
    use super::tried;

    #[test]
    fn one_and_all_are_among_those_that_are_tried() {
        assert_eq!(tried(32), [1, 4, 8, 12, 16, 20, 24, 28, 32]);
        assert_eq!(tried(3), [1, 2, 3]);
        assert_eq!((tried(1), tried(0)), (vec![1], vec![]));
    }
}
