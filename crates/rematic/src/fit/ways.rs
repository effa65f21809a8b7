use rayon::prelude::*;
use rematic_report::{FitAnswer, FitQuestion, FitSetup};

use super::axis::Axis;
use super::bench::Bench;
use super::setup::Setup;
use crate::error::Error;

/// Into how many micro-batches a batch is cut.
const PARTS: [u32; 4] = [2, 4, 8, 16];

/// Set-ups of the base that fit, with the free means alone and combined, the most tokens per second first.
///
/// Each has the largest batch that fits, unless the batch is given; and with a plan half of it too, and the model's own, which recompute
/// less. Means are those that leave what is computed as it is, up to rounding: a fused optimizer, a plan, other ways to share the same GPUs;
/// micro-batches where a batch is given that does not fit; and the chunked loss, if it is asked for.
pub(crate) fn setups(bench: &Bench<'_>, base: &Setup, answers: &[FitAnswer]) -> Result<Vec<FitSetup>, Error> {
    let mut setups: Vec<FitSetup> = known(base, answers);
    let tried: Result<Vec<Vec<FitSetup>>, Error> =
        ways(bench, base)?.par_iter().map(|(way, planned)| fitting(bench, way, *planned)).collect();
    setups.extend(tried?.into_iter().flatten());
    let mut seen: Vec<FitSetup> = Vec::new();
    for setup in setups {
        let is_same = |other: &FitSetup| {
            (&other.means, other.batch, other.seq, other.gpus) == (&setup.means, setup.batch, setup.seq, setup.gpus)
        };
        if !seen.iter().any(is_same) {
            seen.push(setup);
        }
    }
    let rate = |setup: &FitSetup| {
        setup.tokens_per_second.unwrap_or(setup.batch as f64 / setup.step_ms.0.max(f64::MIN_POSITIVE))
    };
    seen.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    Ok(seen)
}

/// What the questions found for these GPUs.
fn known(base: &Setup, answers: &[FitAnswer]) -> Vec<FitSetup> {
    let of_these = [FitQuestion::LargestBatch, FitQuestion::FewestGpus];
    let asked = answers.iter().filter(|answer| of_these.contains(&answer.question));
    let found =
        asked.flat_map(|answer| [&answer.as_it_is, &answer.with_a_plan]).filter_map(|found| found.setup.clone());
    found.filter(|setup| setup.gpus == u64::from(base.gpus)).collect()
}

/// Means alone and combined, and whether a plan is among them.
fn ways(bench: &Bench<'_>, base: &Setup) -> Result<Vec<(Setup, bool)>, Error> {
    let request = &bench.request;
    let mut ways = vec![(base.clone(), false), (base.clone(), true)];
    if request.steps.can_fuse() {
        let fused = Setup { fused: true, ..base.clone() };
        ways.extend([(fused.clone(), false), (fused, true)]);
    }
    if request.steps.can_chunk() {
        let chunked = Setup { chunked: true, ..base.clone() };
        ways.extend([(chunked.clone(), false), (chunked, true)]);
    }
    if request.fixed.batch.is_some() && request.steps.can_accumulate() && !bench.does_fit(base, false)? {
        ways.extend(in_parts(bench, base)?);
    }
    if base.ranks() > 1 && base.reshard {
        ways.push((Setup { reshard: false, ..base.clone() }, false));
    }
    if base.tp == 1 && request.steps.varies_tp() && request.fixed.tp.is_none() {
        let node = base.device.links.per_node;
        let shared = [2, 4, 8].into_iter().filter(|tp| base.gpus.is_multiple_of(*tp) && *tp <= node);
        ways.extend(shared.map(|tp| (Setup { tp, ..base.clone() }, false)));
    }
    Ok(ways)
}

/// A batch that is given in micro-batches: in as few as fit as they are, and in two with a plan.
fn in_parts(bench: &Bench<'_>, base: &Setup) -> Result<Vec<(Setup, bool)>, Error> {
    let parts = |parts: u32| Setup { batch: base.batch / u64::from(parts), parts, ..base.clone() };
    let mut ways = Vec::new();
    for count in PARTS.into_iter().filter(|count| base.batch.is_multiple_of(u64::from(*count))) {
        if bench.does_fit(&parts(count), false)? {
            ways.push((parts(count), false));
            break;
        }
        if count == PARTS[0] {
            ways.push((parts(count), true));
        }
    }
    Ok(ways)
}

/// The set-ups of a way that fit.
fn fitting(bench: &Bench<'_>, way: &Setup, planned: bool) -> Result<Vec<FitSetup>, Error> {
    let batches = if bench.request.fixed.batch.is_some() || !bench.request.steps.varies_batch() {
        vec![way.batch]
    } else {
        let largest = bench.found(&Axis::batch(way), planned)?;
        let Some(largest) = largest.setup.map(|setup| setup.batch) else { return Ok(Vec::new()) };
        let mut batches = vec![largest];
        if planned {
            let own = way.batch.min(largest);
            batches.extend([largest / 2, own].into_iter().filter(|batch| *batch > 0));
            batches.dedup();
        }
        batches
    };
    let made = batches.into_iter().map(|batch| {
        let setup = Setup { batch, ..way.clone() };
        if bench.does_fit(&setup, planned)? { bench.setup(&setup, planned).map(Some) } else { Ok(None) }
    });
    made.filter_map(Result::transpose).collect()
}
