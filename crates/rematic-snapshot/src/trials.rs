//! Whether other settings would have helped: each tried on the recorded requests.

use rematic_allocator::Settings;
use rematic_trace::Bytes;
use serde::Serialize;

use crate::requests::Requests;
use crate::rerun::{Conditions, Ran, Rerun, Stopped, run};
use crate::snapshot::Recorded;

/// What all trials together may take, in free blocks that are moved: two seconds, where nothing else runs.
const BUDGET: u64 = 800_000_000;

const COLLECT: &str = "garbage_collection_threshold:0.8";
const COLLECT_WITH_FRACTION: &str = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99";

/// With what a trial begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Nothing: the record is complete.
    Empty,
    /// The segments as they lay when the record begins.
    AsRecorded,
    /// The blocks that were there when the record begins, placed anew in the order of their addresses.
    Packed,
}

/// What would have become of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did not run out, and would not have.
    Runs,
    /// The request that failed would have been met.
    Saved,
    /// It would have run out at the same request.
    RunsOut,
    /// It would have run out before.
    RunsOutBefore,
}

/// A setting, tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// What to write into `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// The most that would have been reserved; where it runs out, on a device without that limit.
    pub reserved_bytes: Bytes,
    /// What would have become of the run.
    pub outcome: Outcome,
    /// With what it begins.
    pub start: Start,
}

/// All that the recorded requests say when they are made again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    pub(crate) rerun: Option<Rerun>,
    pub(crate) trials: Vec<Trial>,
    /// Whether some were left out, as they would take too long.
    pub(crate) left_out: bool,
}

/// A change of the recorded settings.
struct Change {
    text: String,
    /// Of those of one kind the best is shown.
    kind: usize,
}

struct Bench<'a> {
    requests: &'a Requests,
    capacity: Option<u64>,
    left: u64,
}

impl Trials {
    pub(crate) fn new(requests: &Requests, recorded: &Recorded, capacity: Option<u64>) -> Self {
        let mut bench = Bench { requests, capacity, left: BUDGET };
        let mut trials = Trials::default();
        if recorded.by_driver {
            return trials;
        }
        let starts_empty = requests.before.is_empty() && requests.segments.is_empty();
        let start = if starts_empty { Start::Empty } else { Start::AsRecorded };
        match bench.rerun(&recorded.settings, start) {
            Ok(ran) => trials.rerun = Some(Rerun::new(requests, &ran)),
            Err(_) => trials.left_out = true,
        }
        // What was not read may be what placed the blocks; it was not where they lie the same without it.
        if recorded.unread.is_some() && !trials.rerun.as_ref().is_some_and(|rerun| rerun.reproduced) {
            return trials;
        }
        let start = if starts_empty { Start::Empty } else { Start::Packed };
        let mut best: Vec<(usize, Trial)> = Vec::new();
        for change in changes(&recorded.settings) {
            let text = replaced(&recorded.text, &change.text);
            let Ok(settings) = changed(&recorded.settings, &change.text) else { continue };
            let is_refused = recorded.unread.is_none() && text.parse::<Settings>().is_err();
            if settings == recorded.settings || is_refused {
                continue;
            }
            match bench.trial(&settings, text, start) {
                Ok(trial) => match best.iter_mut().find(|(kind, _)| *kind == change.kind) {
                    Some((_, known)) if rank(&trial) < rank(known) => *known = trial,
                    Some(_) => {}
                    None => best.push((change.kind, trial)),
                },
                Err(Stopped::TooLong) => {
                    trials.left_out = true;
                    break;
                }
                Err(Stopped::Allocator) => trials.left_out = true,
            }
        }
        trials.trials = best.into_iter().map(|(_, trial)| trial).collect();
        trials.trials.sort_by_key(rank);
        trials
    }
}

/// The better one first: what saves the run, then what reserves less.
fn rank(trial: &Trial) -> (u8, Bytes) {
    let outcome = match trial.outcome {
        Outcome::Runs | Outcome::Saved => 0,
        Outcome::RunsOut => 1,
        Outcome::RunsOutBefore => 2,
    };
    (outcome, trial.reserved_bytes)
}

/// What is tried, one of each kind first: a long record has no time for all.
fn changes(settings: &Settings) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |kind, text: &str| changes.push(Change { text: text.to_owned(), kind });
    if settings.expandable_segments {
        add(0, "expandable_segments:False");
        add(3, "roundup_power2_divisions:8");
    } else {
        add(0, "expandable_segments:True");
        add(1, "max_split_size_mb:256");
        // Without a fraction, torch does not look at the threshold.
        add(2, if settings.memory_fraction < 1.0 { COLLECT } else { COLLECT_WITH_FRACTION });
        add(3, "roundup_power2_divisions:8");
        for size in ["512", "128", "64", "32"] {
            add(1, &format!("max_split_size_mb:{size}"));
        }
    }
    for divisions in ["16", "4"] {
        add(3, &format!("roundup_power2_divisions:{divisions}"));
    }
    changes
}

/// The text of the recorded settings with a change in place of what it says about the same keys.
fn replaced(recorded: &str, change: &str) -> String {
    let key = |setting: &str| setting.split(':').next().unwrap_or("").trim().to_owned();
    let changed: Vec<String> = top_level(change).iter().map(|setting| key(setting)).collect();
    let settings = top_level(recorded);
    // Torch takes `a,b` as `a:b`. What is written so is left, and the change stands last, where it has the last word.
    let is_plain = settings.iter().all(|setting| setting.contains(':'));
    let mut kept: Vec<&str> =
        settings.into_iter().filter(|setting| !is_plain || !changed.contains(&key(setting))).collect();
    kept.push(change);
    kept.join(",")
}

/// The settings of a text, which commas part; those in brackets are of one setting.
fn top_level(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let is_end = |sign: char| {
        match sign {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        sign == ',' && depth == 0
    };
    text.split(is_end).map(str::trim).filter(|setting| !setting.is_empty()).collect()
}

/// The recorded settings with a change, which has the last word.
fn changed(settings: &Settings, change: &str) -> Result<Settings, rematic_allocator::SettingsError> {
    let new: Settings = change.parse()?;
    let mut settings = settings.clone();
    match change.split(':').next() {
        Some("expandable_segments") => settings.expandable_segments = new.expandable_segments,
        Some("max_split_size_mb") => settings.max_split_size = new.max_split_size,
        Some("roundup_power2_divisions") => settings.divisions = new.divisions,
        _ => {
            settings.garbage_collection_threshold = new.garbage_collection_threshold;
            settings.memory_fraction = new.memory_fraction.min(settings.memory_fraction);
        }
    }
    Ok(settings)
}

impl Bench<'_> {
    fn run(&mut self, conditions: Conditions<'_>) -> Result<Ran, Stopped> {
        let ran = run(self.requests, conditions, self.left)?;
        self.left = self.left.saturating_sub(ran.work);
        Ok(ran)
    }

    /// With the recorded settings, which should give the recorded segments. What the device had may have changed since
    /// the start; where its limit does not explain what went back to the driver, the record does.
    fn rerun(&mut self, settings: &Settings, start: Start) -> Result<Ran, Stopped> {
        if self.capacity.is_some() {
            let limited = Conditions { settings, capacity: self.capacity, start, release_as_recorded: false };
            let ran = self.run(limited)?;
            if ran.driver == self.requests.driver {
                return Ok(ran);
            }
        }
        self.run(Conditions { settings, capacity: self.capacity, start, release_as_recorded: true })
    }

    fn trial(&mut self, settings: &Settings, text: String, start: Start) -> Result<Trial, Stopped> {
        let unlimited = Conditions { settings, capacity: None, start, release_as_recorded: self.capacity.is_none() };
        let (reserved, outcome) = match self.capacity {
            None => (self.run(unlimited)?.reserved, Outcome::Runs),
            Some(_) => {
                let limited = Conditions { capacity: self.capacity, ..unlimited };
                match self.run(limited)? {
                    ran if ran.served => (ran.reserved, Outcome::Saved),
                    ran => {
                        let outcome = if ran.failed_before { Outcome::RunsOutBefore } else { Outcome::RunsOut };
                        (self.run(unlimited)?.reserved, outcome)
                    }
                }
            }
        };
        Ok(Trial { settings: text, reserved_bytes: Bytes(reserved), outcome, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_stands_for_what_was_said_of_its_keys() {
        for (recorded, change, expected) in [
            ("", "expandable_segments:True", "expandable_segments:True"),
            ("expandable_segments:True", "expandable_segments:False", "expandable_segments:False"),
            (
                "expandable_segments:True, max_split_size_mb:64,",
                "expandable_segments:False",
                "max_split_size_mb:64,expandable_segments:False",
            ),
            (
                "roundup_power2_divisions:[64:2,>:8],backend:native",
                "roundup_power2_divisions:4",
                "backend:native,roundup_power2_divisions:4",
            ),
            (
                "per_process_memory_fraction:1.0,garbage_collection_threshold:0.5,max_split_size_mb:64",
                COLLECT_WITH_FRACTION,
                "max_split_size_mb:64,garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",
            ),
            (
                "expandable_segments,True",
                "expandable_segments:False",
                "expandable_segments,True,expandable_segments:False",
            ),
        ] {
            assert_eq!(replaced(recorded, change), expected, "{recorded:?}");
            let meant = changed(&recorded.parse().unwrap(), change).unwrap();
            assert_eq!(expected.parse::<Settings>().unwrap(), meant, "{recorded:?}");
        }
    }

    #[test]
    fn a_fraction_that_was_set_stays() {
        let settings: Settings = "per_process_memory_fraction:0.5".parse().unwrap();
        let collects = changes(&settings).into_iter().find(|change| change.kind == 2).unwrap();
        assert_eq!(
            replaced("per_process_memory_fraction:0.5", &collects.text),
            "per_process_memory_fraction:0.5,garbage_collection_threshold:0.8"
        );
    }
}
