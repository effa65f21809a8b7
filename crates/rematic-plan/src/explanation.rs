//! Why a step peaks where it does, and what brings the peak down.
//!
//! A remedy is a rule that looks at the step and says which storages it makes smaller. What that leads to is never guessed:
//! the whole step is replayed with the smaller storages, so that a remedy that only moves the peak elsewhere shows it.

mod flow;
mod loss;
mod place;
mod remedy;
mod residents;
mod rules;
mod scenario;

use rematic_cost::{Costs, Device};
use rematic_layout::even_shards;
use rematic_replay::{Highest, Regions, Snapshot};
use rematic_trace::{Bytes, Category, Millis, StepTrace};
use serde::Serialize;

pub use place::Place;
pub use remedy::{Remedy, RemedyKind, Together};
pub use residents::{ResidentGroup, resident_groups};

use crate::problem::Problem;
use flow::Flow;
use loss::Loss;
use remedy::Proposal;
use scenario::{Change, replay};

/// A remedy that frees a smaller share of the peak is not worth a line.
const WORTH_A_LINE: f64 = 0.01;
/// So many of the cheapest remedies are also tried together.
const CHEAPEST: usize = 3;

/// Where a step peaks, what is in memory then, and the ways down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The step.
    pub model: String,
    /// Parameters, gradients and optimizer state are spread evenly over so many devices.
    pub world_size: u64,
    /// The highest bytes in use.
    pub peak_bytes: Bytes,
    /// Where they are.
    pub at: Place,
    /// What they are, the largest category first.
    pub categories: Vec<CategoryBytes>,
    /// What they are, storage by storage, alike ones in one row, the largest first.
    pub residents: Vec<ResidentGroup>,
    /// The step's time as it is.
    pub step_ms: Millis,
    /// Every way down that frees at least 1 % of the peak, the cheapest first: those that take no time by what they free,
    /// the others by time per byte.
    pub remedies: Vec<Remedy>,
    /// The three cheapest at once, if there is more than one.
    pub together: Option<Together>,
}

/// Bytes of a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryBytes {
    /// The category.
    pub category: Category,
    /// Its bytes.
    pub bytes: Bytes,
}

impl CategoryBytes {
    /// The categories that there are, the largest first.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Vec<Self> {
        let parts = snapshot.iter().filter(|(_, bytes)| bytes.0 > 0);
        let mut parts: Vec<_> = parts.map(|(category, bytes)| CategoryBytes { category, bytes }).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        parts
    }
}

impl Explanation {
    /// Explains the peak of a step on a device. `whole` is the step before it was spread over ranks, if it was.
    #[must_use]
    pub fn new(problem: &Problem, whole: &StepTrace, device: &Device) -> Self {
        let (trace, costs, allocator) = (&*problem.trace, &*problem.costs, problem.allocator);
        let world_size = trace.place.ranks().unwrap_or(u64::MAX);
        let flow = Flow::new(trace);
        let loss = Loss::find(trace, &flow);
        let step = Step { whole, trace, costs, device, problem, flow: &flow, loss: loss.as_ref(), world_size };
        let highest = |change: &Change| {
            // That a step of one rank cannot be spread once more is known to the rule that proposes it.
            let other = change.world_size.and_then(|ranks| even_shards(whole, ranks).ok());
            match other.as_deref() {
                // Its events stand elsewhere; its regions are the same, in the same order.
                Some(other) => replay(other, &Regions::new(other), allocator, change),
                None => replay(trace, problem.regions(), allocator, change),
            }
        };
        let plain = highest(&Change::default());
        let mut found: Vec<(Remedy, Change)> = Vec::new();
        for rule in rules::ALL {
            let Some(Proposal { kind, title, how, assumption, extra, change }) = rule(&step) else { continue };
            let after = highest(&change);
            let freed = plain.bytes.saturating_sub(after.bytes);
            if (freed.0 as f64) < WORTH_A_LINE * plain.bytes.0 as f64 || freed.0 == 0 {
                continue;
            }
            let at = Place::new(trace, loss.as_ref(), after.at);
            let remedy = Remedy {
                kind,
                title,
                how,
                assumption,
                peak_bytes: after.bytes,
                freed_bytes: freed,
                extra_ms: extra,
                at,
            };
            found.push((remedy, change));
        }
        found.sort_by(|(a, _), (b, _)| a.dearness().total_cmp(&b.dearness()).then(b.freed_bytes.cmp(&a.freed_bytes)));
        let together = together(&found, trace, loss.as_ref(), highest);
        Explanation {
            model: trace.origin.model.clone(),
            world_size,
            peak_bytes: plain.bytes,
            at: Place::new(trace, loss.as_ref(), plain.at),
            categories: CategoryBytes::of(&plain.snapshot),
            residents: resident_groups(trace, allocator, plain.at.map(|ran| ran.op)),
            step_ms: costs.step().time,
            remedies: found.into_iter().map(|(remedy, _)| remedy).collect(),
            together,
        }
    }

    /// The three cheapest ways down, or as many as there are.
    #[must_use]
    pub fn cheapest(&self) -> &[Remedy] {
        &self.remedies[..self.remedies.len().min(CHEAPEST)]
    }
}

/// The cheapest remedies at once.
fn together(
    found: &[(Remedy, Change)],
    trace: &StepTrace,
    loss: Option<&Loss>,
    highest: impl Fn(&Change) -> Highest,
) -> Option<Together> {
    if found.len() < 2 {
        return None;
    }
    let cheapest = &found[..found.len().min(CHEAPEST)];
    let changes: Vec<&Change> = cheapest.iter().map(|(_, change)| change).collect();
    let after = highest(&Change::all(&changes));
    Some(Together {
        remedies: cheapest.iter().map(|(remedy, _)| remedy.kind).collect(),
        peak_bytes: after.bytes,
        extra_ms: cheapest.iter().try_fold(Millis(0.0), |sum, (remedy, _)| remedy.extra_ms.map(|extra| sum + extra)),
        at: Place::new(trace, loss, after.at),
    })
}

/// What the rules look at.
struct Step<'a> {
    whole: &'a StepTrace,
    trace: &'a StepTrace,
    costs: &'a Costs,
    device: &'a Device,
    problem: &'a Problem,
    flow: &'a Flow,
    loss: Option<&'a Loss>,
    world_size: u64,
}
