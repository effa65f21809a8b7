//! A recording says the same as the replay, moment by moment.

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_layout::even_shards;
use rematic_plan::{Limits, Problem};
use rematic_replay::{Allocator, Recording, Timeline};
use rematic_trace::{Category, StepTrace};

/// The bytes of each category after every operator, from the lives alone.
fn by_lives(recording: &Recording) -> Vec<[u64; Category::ALL.len()]> {
    let mut changes = vec![[0_i128; Category::ALL.len()]; recording.runs.len() + 1];
    for life in &recording.lives {
        assert!(life.from < life.until && life.held_until <= life.until, "{life:?}");
        changes[life.from as usize][life.category as usize] += i128::from(life.bytes.0);
        changes[life.until as usize][life.category as usize] -= i128::from(life.bytes.0);
    }
    let mut now = [0_i128; Category::ALL.len()];
    let mut moments = Vec::new();
    for change in &changes[..recording.runs.len()] {
        for (bytes, change) in now.iter_mut().zip(change) {
            *bytes += change;
        }
        moments.push(now.map(|bytes| u64::try_from(bytes).unwrap()));
    }
    moments
}

fn agrees(recording: &Recording) {
    for (moment, (lives, snapshot)) in by_lives(recording).iter().zip(&recording.snapshots).enumerate() {
        for (category, bytes) in snapshot.iter() {
            assert_eq!(lives[category as usize], bytes.0, "{category} at moment {moment}");
        }
    }
}

fn traced(name: &str, layers: u64) -> StepTrace {
    let options = Options { layers: Some(layers), ..Options::default() };
    Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap()
}

#[test]
fn lives_add_up_to_the_memory_of_the_plain_step_and_of_plans() {
    for (name, layers, world_size) in [("seed-transformer", 4, 1), ("gpt2", 3, 1), ("llama-3-8b", 2, 8)] {
        let trace = traced(name, layers);
        let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
        let rank = even_shards(&trace, world_size).unwrap();
        let problem = Problem::new(rank.into_owned(), costs.clone(), Limits::default()).unwrap();
        let plain = problem.record(&[]);
        agrees(&plain);
        assert!(plain.runs.iter().all(|ran| !ran.again));
        assert!(plain.lives.iter().all(|life| !life.again));
        if world_size == 1 {
            let timeline = Timeline::replay(&trace, Allocator::Cuda);
            assert_eq!(plain.snapshots, timeline.snapshots(), "{name}");
            assert_eq!(plain.start, *timeline.start());
        }
        let least = problem.least();
        let recording = problem.record(&least.checkpoints);
        agrees(&recording);
        let again: Vec<_> = recording.runs.iter().filter(|ran| ran.again).map(|ran| ran.op).collect();
        assert_eq!(again, least.replayed.recomputed, "{name}");
        assert!(recording.lives.iter().any(|life| life.again), "{name}");
        let (moment, peak) = recording.peak().unwrap();
        assert_eq!((peak, Some(recording.runs[moment])), (least.replayed.peak, least.replayed.at), "{name}");
    }
}

#[test]
fn references_end_before_autograd_lets_go() {
    let trace = traced("seed-transformer", 4);
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let problem = Problem::new(trace.clone(), costs.clone(), Limits::default()).unwrap();
    let recording = problem.record(&[]);
    let (moment, _) = recording.peak().unwrap();
    let at_peak = u32::try_from(moment).unwrap();
    let alive = recording.lives.iter().filter(|life| life.from <= at_peak && at_peak < life.until);
    let timeline = Timeline::replay(&trace, Allocator::Cuda);
    let residents = timeline.alive_at_peak(&trace, usize::MAX);
    let mut held: Vec<_> = alive.map(|life| (life.storage, life.bytes, at_peak < life.held_until)).collect();
    held.sort_unstable();
    let mut expected: Vec<_> =
        residents.iter().map(|resident| (resident.storage, resident.bytes, resident.held)).collect();
    expected.sort_unstable();
    assert_eq!(held, expected);
}
