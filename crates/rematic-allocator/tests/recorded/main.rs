//! The allocator does what torch's did, call by call: the same events in the same order at the same addresses, and the
//! same allocated and reserved bytes.
//!
//! `REMATIC_ALLOCATOR_RECORDINGS` names a directory with other recordings.

mod reader;

use std::path::{Path, PathBuf};

use reader::{Call, Line, Recording};
use rematic_allocator::{
    Allocation, Allocator, AllocatorError, Device, Event, EventKind, PoolId, PoolOptions, SMALLEST_BLOCK,
};

fn recordings() -> Vec<PathBuf> {
    let place = std::env::var("REMATIC_ALLOCATOR_RECORDINGS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings").to_owned());
    let entries = std::fs::read_dir(&place).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "txt" || ending == "zst"));
    paths.sort();
    paths
}

#[test]
fn every_recording_is_what_happens_here() {
    let paths = recordings();
    let (mut wrong, mut calls) = (Vec::new(), 0);
    for path in &paths {
        let recording = reader::read(path);
        match compare(&recording) {
            Ok(()) => calls += recording.lines.len(),
            Err(difference) => wrong.push(format!("{}: {difference}", path.display())),
        }
    }
    let shown: String = wrong.iter().take(10).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {} recordings differ:\n{shown}", wrong.len(), paths.len());
    assert!(calls > 10_000, "only {calls} calls were compared");
}

/// A recording run again.
struct Replay {
    allocator: Allocator,
    blocks: Vec<Option<Allocation>>,
    pools: Vec<PoolId>,
    /// Sizes of the blocks, as torch says.
    sizes: Vec<u64>,
    /// The address of the first segment.
    base: Option<u64>,
    allocated: u64,
    reserved: u64,
}

fn compare(recording: &Recording) -> Result<(), String> {
    let settings = recording.settings.parse().map_err(|error| format!("{error}\n"))?;
    let mut allocator = Allocator::new(settings, Device::with_memory(recording.device));
    allocator.record_events();
    let mut replay = Replay {
        allocator,
        blocks: Vec::new(),
        pools: Vec::new(),
        sizes: Vec::new(),
        base: None,
        allocated: 0,
        reserved: 0,
    };
    for (number, line) in recording.lines.iter().enumerate() {
        let about = |what: String| {
            format!("{}, device {}\n  line {}: {}\n{what}", recording.settings, recording.device, number + 3, line.text)
        };
        let failed = replay.call(line.call).err();
        replay.compare(line, failed).map_err(about)?;
    }
    Ok(())
}

impl Replay {
    fn call(&mut self, call: Call) -> Result<(), AllocatorError> {
        let allocator = &mut self.allocator;
        match call {
            Call::Alloc { size, stream } => {
                self.blocks.push(None);
                let allocation = allocator.alloc(size, stream)?;
                *self.blocks.last_mut().expect("just pushed") = Some(allocation);
                Ok(())
            }
            Call::Free(block) => match self.blocks[block].take() {
                Some(allocation) => allocator.free(allocation),
                None => Err(AllocatorError::NotInUse),
            },
            Call::RecordStream { block, stream } => match self.blocks[block] {
                Some(allocation) => allocator.record_stream(allocation, stream),
                None => Err(AllocatorError::NotInUse),
            },
            Call::EmptyCache => allocator.empty_cache(),
            Call::CreatePool { flags } => {
                let options = PoolOptions { use_on_oom: flags & 1 != 0, no_split: flags & 2 != 0 };
                self.pools.push(allocator.create_pool(options));
                Ok(())
            }
            Call::Begin(pool) => allocator.begin_pool(self.pools[pool]),
            Call::End(pool) => {
                allocator.end_pool(self.pools[pool])?;
                allocator.release_pool(self.pools[pool])
            }
            Call::Drop(pool) => allocator.drop_pool(self.pools[pool]),
        }
    }

    fn compare(&mut self, line: &Line, failed: Option<AllocatorError>) -> Result<(), String> {
        let events = self.allocator.take_events();
        self.follow(line, &events)?;
        let ours = sorted_completions(events.iter().map(|event| self.letters(event)).collect());
        let usual = matches!(line.call, Call::Free(_)) && line.events.is_empty();
        let theirs = sorted_completions(line.events.clone());
        let same = if usual { is_usual_free(&ours) } else { ours == theirs };
        let met = !matches!(line.call, Call::Alloc { size: 1.., .. })
            || theirs.last().is_some_and(|event| event.starts_with('a'));
        let said = failed.map_or(String::new(), |error| format!("    here:  {error}\n"));
        if !same || said.is_empty() != met {
            return Err(format!("{}{said}", reader::side_by_side(&theirs, &ours)));
        }
        let counters = self.allocator.counters();
        let (allocated, reserved) = (counters.allocated.current, counters.reserved.current);
        if (allocated, reserved) != (self.allocated, self.reserved) {
            let (theirs, torch_reserved) = (self.allocated, self.reserved);
            return Err(format!(
                "    torch: {theirs} allocated, {torch_reserved} reserved\n    here:  {allocated}, {reserved}\n"
            ));
        }
        Ok(())
    }

    /// What torch has now, by its own record.
    fn follow(&mut self, line: &Line, ours: &[Event]) -> Result<(), String> {
        match line.call {
            Call::Alloc { size, .. } => {
                let met = line.events.last().is_some_and(|event| event.starts_with('a'));
                let block = if met { size.next_multiple_of(SMALLEST_BLOCK) + line.extra } else { 0 };
                self.sizes.push(block);
                self.allocated += block;
                let asked = ours.iter().filter(|event| event.kind == EventKind::Alloc).all(|event| event.size == size);
                if !asked {
                    return Err(format!("    here:  another size than {size} was handed out\n"));
                }
            }
            Call::Free(block) => self.allocated -= self.sizes[block],
            _ => {}
        }
        for event in &line.events {
            let size = || event.split(':').nth(1).and_then(|size| size.parse::<u64>().ok()).expect("a size");
            match event.as_bytes()[0] {
                b'S' | b'M' => self.reserved += size(),
                b'F' | b'U' => self.reserved -= size(),
                _ => {}
            }
        }
        Ok(())
    }

    fn letters(&mut self, event: &Event) -> String {
        let letter = match event.kind {
            EventKind::Alloc => 'a',
            EventKind::FreeRequested => 'q',
            EventKind::FreeCompleted => 'c',
            EventKind::SegmentAlloc => 'S',
            EventKind::SegmentFree => 'F',
            EventKind::SegmentMap => 'M',
            EventKind::SegmentUnmap => 'U',
            EventKind::OutOfMemory => return format!("O{}:{}", event.address, event.size),
        };
        let base = *self.base.get_or_insert(event.address);
        let place = (event.address.cast_signed() - base.cast_signed()) / SMALLEST_BLOCK.cast_signed();
        if matches!(letter, 'a' | 'q' | 'c') {
            return format!("{letter}{place}");
        }
        let pool = event.pool.map_or(String::new(), |pool| (pool.0 - 1).to_string());
        format!("{letter}{place}:{}:{}:{pool}", event.size, event.stream)
    }
}

/// Free, and free at once.
fn is_usual_free(events: &[String]) -> bool {
    matches!(events, [asked, done] if asked[1..] == done[1..] && asked.starts_with('q') && done.starts_with('c'))
}

/// Blocks that several streams are done with become free in the order of a hash table of torch's, so that the order of
/// `free_completed` that follow each other says nothing.
fn sorted_completions(mut events: Vec<String>) -> Vec<String> {
    for run in events.chunk_by_mut(|left, right| left.starts_with('c') && right.starts_with('c')) {
        run.sort();
    }
    events
}

#[test]
fn there_are_recordings_of_steps_and_sequences() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let names: Vec<String> = std::fs::read_dir(here)
        .expect("recordings")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    assert!(names.iter().filter(|name| name.starts_with("step-")).count() >= 4, "{names:?}");
    assert!(names.iter().filter(|name| name.starts_with("sequence-")).count() >= 60, "{}", names.len());
}
